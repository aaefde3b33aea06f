"""Every family against the reference, over one table of tiny models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.hub.families import FAMILIES as TINY
from tests.hub.parity import check, inputs_for, make, randomised

from trifold.errors import CheckpointError
from trifold.hub import families, load_model, read_config, save_model
from trifold.nn import Inputs, ModelConfig, Transformer

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

CASES = [(family, case) for family, tiny in TINY.items() for case in tiny.cases]


def norm_last(model: Any, inputs: Any, out: Any) -> None:
    """The reference leaves the last state of ViT without the final norm."""
    body = getattr(model, "vit", model)
    out["hidden_states"] = (*out.hidden_states[:-1], body.layernorm(out.hidden_states[-1]))


def rename_order(model: Any, inputs: Any, out: Any) -> None:
    """ALBERT's order of sentences is in the place of BERT's next sentence."""
    out.seq_relationship_logits = out.sop_logits


@pytest.mark.parametrize(("family", "case"), CASES)
def test_equal_to_the_reference(family: str, case: str) -> None:
    ending, options = TINY[family].cases[case]
    model = make(family, ending, **options)
    inputs = inputs_for(model)
    if family == "vit":
        model.register_forward_hook(norm_last)
    if family == "albert" and ending == "ForPreTraining":
        model.register_forward_hook(rename_order)
    if "late" in case:  # rows of one length: the reference scales by the longest row of a batch
        inputs = {"tokens": torch.randint(3, 40, (2, 11), generator=torch.Generator().manual_seed(0))}
    assert check(model, **inputs).family == family


# --- config.json ---------------------------------------------------------------------------------------

Saved = Callable[..., Path]
DECODERS = [family for family, tiny in TINY.items() if tiny.buffer]
ENCODERS = ["bert", "roberta", "camembert", "xlm-roberta", "distilbert", "albert", "xlnet", "vit"]
each_family = pytest.mark.parametrize("family", TINY)
each_decoder = pytest.mark.parametrize("family", DECODERS)
each_encoder = pytest.mark.parametrize("family", ENCODERS)


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str | None], Path]:
    return {}


@pytest.fixture
def saved(
    originals: dict[tuple[str, str | None], Path],
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
) -> Saved:
    """A folder with a tiny model of the reference, made once and copied for each test."""

    def copy(family: str, ending: str | None = None) -> Path:
        if (family, ending) not in originals:
            originals[family, ending] = tmp_path_factory.mktemp(family)
            make(family, ending).save_pretrained(originals[family, ending])
        return shutil.copytree(originals[family, ending], tmp_path / "model")

    return copy


def edit(folder: Path, **values: object) -> None:
    """Change keys of config.json; "absent" removes a key."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | values
    path.write_text(json.dumps({k: v for k, v in config.items() if v != "absent"}), encoding="utf-8")


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def equal(one: Transformer, other: Transformer) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_the_table_has_all_families() -> None:
    assert set(TINY) | {"marian", "trifold"} == set(families.FAMILIES)


@each_family
def test_every_key_of_the_reference_is_known(family: str, saved: Saved) -> None:
    folder = saved(family)
    short, kind = read_config(folder), getattr(transformers, f"{TINY[family].stem}Config")
    edit(folder, **kind.from_pretrained(folder).to_dict())
    assert read_config(folder) == short


@each_family
def test_defaults_are_those_of_the_reference(family: str, tmp_path: Path) -> None:
    reference = getattr(transformers, f"{TINY[family].stem}Config")()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}), encoding="utf-8")
    short = read_config(tmp_path)
    if family not in ("falcon",):
        assert short.d_model == reference.hidden_size
    edit(tmp_path, **{key: value for key, value in reference.to_dict().items() if key != "model_type"})
    assert read_config(tmp_path) == short


REFUSED_BY_ALL: list[tuple[str, object, str]] = [
    ("hidden_sise", 16, "hidden_sise: unknown key"),
    ("vocab_size", "40", "vocab_size: .*got '40'"),
    ("architectures", ["GPT2DoubleHeadsModel"], "architectures: .* is not known; known: "),
    ("architectures", "BertModel", "architectures: .* is not known; known: "),
]
REFUSED: dict[str, list[tuple[str, object, str]]] = {
    "decoder": [("add_cross_attention", True, "add_cross_attention"), ("is_encoder_decoder", True, "is_enc")],
    "encoder": [
        ("add_cross_attention", True, "add_cross_attention"),
        ("is_encoder_decoder", True, "is_encoder_decoder"),
        ("is_decoder", True, "is_decoder"),
    ],
    "gpt2": [
        ("activation_function", "mish", "activation_function: 'mish' is not known; known: relu"),
        ("resid_pdrop", 1.5, "resid_pdrop: .*got 1.5"),
        ("n_head", 3, "n_heads 3 does not divide d_model 16"),
    ],
    "openai-gpt": [("afn", "gelu_new", "afn: 'gelu_new' is not known")],
    "gpt_bigcode": [("multi_query", 1, "multi_query")],
    "gptj": [("rotary_dim", None, "rotary_dim"), ("activation_function", "relu6", "'relu6' is not known")],
    "codegen": [
        ("n_head", 2, "n_head: 2 is not a multiple of 4"),
        ("rotary_dim", 3, "rotary_width 3 must be even"),
    ],
    "gpt_neo": [
        ("attention_types", [[["global", "sparse"], 1]], "attention_types: .*sparse.* is not"),
        ("attention_layers", ["local", "local"], "attention_layers: .* contradicts attention_types"),
        ("num_layers", 3, "attention_types: has 2 layers, but num_layers is 3"),
        ("window_size", 0, "window_size"),
    ],
    "gpt_neox": [
        ("rope_parameters", {"rope_type": "longrope", "factor": 2.0}, "needs short_factor and long_factor"),
        ("rope_parameters", {"rope_type": "llama3", "factor": 2.0}, "needs low_freq_factor and high"),
        ("rope_theta", 3.5, "rope_theta: 3.5 contradicts 10000.0"),
        ("rotary_pct", 1.5, "rotary_pct"),
    ],
    "llama": [
        ("rope_parameters", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5 is not supported"),
        ("rope_scaling", {"type": "linear"}, "rope_parameters.factor: rope_type linear needs one"),
        ("sliding_window", 4, "sliding_window: unknown key"),
        ("hidden_act", "relu2", "hidden_act: 'relu2' is not known"),
    ],
    "mistral": [
        ("attention_bias", True, "attention_bias"),
        ("layer_types", ["full_attention"] * 2, "layer_types: unknown key"),
    ],
    "starcoder2": [("mlp_type", "gated", "mlp_type"), ("norm_type", "rms_norm", "norm_type")],
    "falcon": [
        ("num_ln_in_parallel_attn", 2, "needs new_decoder_architecture: true"),
        ("apply_residual_connection_post_layernorm", True, "apply_residual_connection_post_layernorm"),
    ],
    "bert": [
        ("hidden_act", "mish", "hidden_act: 'mish' is not known; known: relu"),
        ("hidden_dropout_prob", 1.5, "hidden_dropout_prob: .*got 1.5"),
        ("num_attention_heads", 3, "n_heads 3 does not divide d_model 16"),
        ("position_embedding_type", "relative_key", "position_embedding_type"),
    ],
    "roberta": [
        ("max_position_embeddings", 2, "max_position_embeddings: 2 leaves no position"),
        ("pad_token_id", None, "pad_token_id: null"),
        ("pad_token_id", 40, "pad_token_id: 40 is outside the vocabulary of 40"),
    ],
    "distilbert": [("activation", "mish", "activation: 'mish' is not known"), ("n_heads", 3, "n_heads 3")],
    "albert": [
        ("num_hidden_groups", 4, "num_hidden_groups: 4 of 1 for 3 layers"),
        ("inner_group_num", 5_000, "num_hidden_groups: .* 10,000 layers are the most"),
    ],
    "vit": [
        ("patch_size", 5, "does not divide image_size"),
        ("patch_size", 0, "patch_size: 0 is neither"),
        ("image_size", [12, 12, 12], "image_size: .* is neither"),
        ("image_size", "12", "image_size: "),
        ("image_size", 2**40, "image_size: "),
        ("pooler_act", "sine", "pooler_act: 'sine' is not known"),
        ("architectures", ["ViTForMaskedImageModeling"], "architectures: .* is not known"),
    ],
    "xlnet": [
        ("ff_activation", "mish", "ff_activation: 'mish' is not known"),
        ("n_head", 3, "n_heads 3 does not divide d_model 16"),
        ("attn_type", "uni", "attn_type: .*got 'uni'"),
        ("bi_data", True, "bi_data"),
        ("untie_r", False, "untie_r"),
        ("d_head", 5, "d_head: 5 is not d_model 16 / n_head 4"),
        ("summary_type", "mean", "summary_type"),
    ],
    "bart": [
        ("decoder_layer", 4, "did you mean 'decoder_layers'?"),
        ("normalize_before", True, "normalize_before"),
        ("tie_word_embeddings", False, "tie_word_embeddings"),
        ("num_hidden_layers", 3, "contradicts encoder_layers 2"),
        ("activation_function", "mish", "mish"),
        ("is_decoder", True, "is_decoder"),
        ("encoder_layerdrop", 0.2, "encoder_layerdrop"),
    ],
    "t5": [
        ("num_head", 4, "num_head: unknown key; did you mean 'num_heads'?"),
        ("dense_act_fn", "swiglu", "dense_act_fn: 'swiglu' is not known"),
        ("d_kv", "8", "d_kv"),
        ("attention_bias", True, "attention_bias: unknown key"),
    ],
}
for group, members in (("decoder", DECODERS), ("encoder", ENCODERS)):
    for member in members:
        REFUSED[member] = REFUSED[group] + REFUSED.get(member, [])


@pytest.mark.parametrize(
    ("family", "key", "value", "message"),
    [
        (family, *refused)
        for family in TINY
        for refused in REFUSED.get(family, []) + REFUSED_BY_ALL
        if not (family == "vit" and refused[0] == "vocab_size")
    ],
)
def test_unsupported_keys_are_errors(
    family: str, key: str, value: object, message: str, saved: Saved
) -> None:
    folder = saved(family)
    edit(folder, **{key: value})
    with pytest.raises(CheckpointError, match=rf"config\.json: .*{message}"):
        read_config(folder)


@each_encoder
def test_absurd_sizes_are_an_early_error(family: str, saved: Saved) -> None:
    folder = saved(family)
    before = (folder / "config.json").read_text(encoding="utf-8")
    for key in [*TINY[family].sizes, *(["pad_token_id"] if family != "vit" else ["num_channels"])]:
        for absurd in (2**52, 2**31 - 1):
            edit(folder, **{key: absurd})
            with pytest.raises(CheckpointError):
                load_model(folder)
            (folder / "config.json").write_text(before, encoding="utf-8")


def test_special_tokens(saved: Saved) -> None:
    folder = saved("llama")

    def ids(**values: object) -> tuple[int, int, int]:
        edit(folder, **values)
        config = read_config(folder)
        return config.pad_id, config.bos_id, config.eos_id

    assert ids() == (0, 1, 2)
    assert ids(eos_token_id=[7, 8]) == (0, 1, 7)
    assert ids(pad_token_id=-1) == (7, 1, 7)  # LLaMA of 2023
    assert ids(pad_token_id=None, bos_token_id=None) == (7, 7, 7)
    assert ids(eos_token_id=None) == (0, 0, 40)  # an id that no token has


def test_old_keys_of_rotary_positions(saved: Saved) -> None:
    folder = saved("llama")
    edit(folder, rope_parameters=None, rope_theta=500, rope_scaling={"type": "linear", "factor": 2})
    config = read_config(folder)
    assert config.rotary_theta == 500.0
    assert config.rotary_scaling is not None
    assert (config.rotary_scaling.kind, config.rotary_scaling.factor) == ("linear", 2.0)
    edit(folder, rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4})
    scaling = read_config(folder).rotary_scaling
    assert scaling is not None
    assert (scaling.kind, scaling.original_positions) == ("yarn", 4)
    edit(folder, rope_scaling=None, rope_theta=None)
    assert read_config(folder).rotary_theta == 10_000.0
    assert read_config(folder).rotary_scaling is None


# --- tensors -------------------------------------------------------------------------------------------


@each_family
def test_one_error_lists_all_wrong_tensors(family: str, saved: Saved) -> None:
    folder = saved(family)
    tensors = load_file(folder / "model.safetensors")
    missing, misshapen = sorted(name for name, tensor in tensors.items() if tensor.dim() == 2)[:2]
    shape = tuple(tensors[misshapen].shape)
    del tensors[missing]
    rewrite(folder, lambda _: tensors | {misshapen: torch.zeros(3, 5), "adapter.weight": torch.ones(2)})
    with pytest.raises(CheckpointError) as caught:
        load_model(folder)
    assert f"missing: {missing}" in str(caught.value)
    assert f"wrong shape: {misshapen} is (3, 5) and should be {shape}" in str(caught.value)
    assert "not known: 'adapter.weight'" in str(caught.value)


@pytest.mark.parametrize("family", DECODERS + ENCODERS)
def test_old_files_have_buffers_copies_and_other_prefixes(family: str, saved: Saved) -> None:
    folder, (_, _, prefix, _, buffer) = saved(family), TINY[family]
    before, _ = load_model(folder)

    def old(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        plain = {name.removeprefix(f"{prefix}."): tensor for name, tensor in tensors.items()}
        assert plain.keys() != tensors.keys()
        if family in DECODERS:
            plain[buffer] = torch.ones(1, 1, 16, 16)
            table = next(tensor for tensor in plain.values() if tensor.shape == (40, 16))
            head = plain.pop(
                "embed_out.weight", plain.get("lm_head.weight", table)
            )  # NeoX has had both names
            plain["lm_head.weight"] = head.clone()
        elif family not in ("vit", "xlnet"):
            plain[f"{prefix}.embeddings.position_ids"] = torch.arange(24)[None]
            plain[f"{prefix}.embeddings.token_type_ids"] = torch.zeros(1, 24, dtype=torch.int64)
        return plain

    rewrite(folder, old)
    assert equal(load_model(folder)[0], before)


@each_decoder
def test_a_bare_model_may_have_the_prefix(family: str, saved: Saved) -> None:
    folder = saved(family, "Model")
    before, _ = load_model(folder)
    assert before.config.chosen_heads == ()
    prefix = TINY[family].prefix
    rewrite(folder, lambda tensors: {f"{prefix}.{name}": tensor for name, tensor in tensors.items()})
    assert equal(load_model(folder)[0], before)


@each_decoder
def test_the_only_copy_of_a_tied_table_may_have_the_name_of_the_head(family: str, saved: Saved) -> None:
    folder = saved(family)
    model, _ = load_model(folder)
    if not model.config.tie_lm_head:
        model = Transformer(model.config.model_copy(update={"tie_lm_head": True})).eval()
        model.family = family
    save_model(folder, model)

    def rename(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        table = next(name for name, tensor in tensors.items() if tensor.shape == (40, 16))
        tensors["embed_out.weight" if family == "gpt_neox" else "lm_head.weight"] = tensors.pop(table)
        return tensors

    rewrite(folder, rename)
    assert equal(load_model(folder)[0], model)


# --- models made here ----------------------------------------------------------------------------------


@each_decoder
def test_a_config_alone_is_saved_in_its_family(family: str, saved: Saved, tmp_path: Path) -> None:
    """LLaMA can represent what Mistral can, and GPT-J what CodeGen can."""
    config = read_config(saved(family))
    fresh = Transformer(config)
    save_model(tmp_path / "ours", fresh)
    written = json.loads((tmp_path / "ours" / "config.json").read_text(encoding="utf-8"))["model_type"]
    assert written in {family, {"mistral": "llama", "codegen": "gptj"}.get(family)}
    back, _ = load_model(tmp_path / "ours")
    assert back.config == config
    assert equal(fresh, back)


SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "max_positions": 24,
    "d_model": 16,
    "n_layers": 2,
    "n_heads": 4,
    "d_ff": 24,
}
UNSCALED = {"scale_embeddings": False}
MASKED = {"heads": ["lm"], "lm_head_transform": "gelu", "lm_head_bias": True}
TEXT = SIZES | UNSCALED | MASKED | {"shape": "encoder", "positions": "learned", "activation": "gelu"}
TEXT |= {"embedding_norm": True, "attention_bias": True}
XLNET = SIZES | UNSCALED | {"shape": "encoder", "positions": "relative-sinusoidal", "activation": "gelu"}
XLNET |= {"segment_offsets": True, "query_stream": True, "heads": ["lm"], "lm_head_bias": True}
XLNET |= {"attention_dropout": 0.1, "activation_dropout": 0.1}
BART = SIZES | {"positions": "learned", "position_offset": 2, "embedding_norm": True, "attention_bias": True}
T5 = (
    SIZES
    | UNSCALED
    | {"positions": "relative", "norm": "rms", "norm_placement": "pre", "attention_scale": 1.0}
)
T5 |= {"feed_forward_bias": False, "attention_dropout": 0.1, "activation_dropout": 0.1}
T5 |= {"relative_buckets": 8, "relative_distance": 12, "bos_id": 0, "eos_id": 1}
EOS = {"heads": ("sequence",), "classifier_input": "eos", "classifier_transform": "tanh"}
MADE: list[tuple[str, dict[str, Any]]] = [
    ("bert", TEXT | {"n_token_types": 2}),
    ("roberta", TEXT | {"n_token_types": 1, "pad_id": 1, "position_offset": 2, "activation": "relu"}),
    ("distilbert", TEXT | {"norm_epsilon": 1e-12}),
    (
        "albert",
        TEXT | {"n_token_types": 2, "d_embedding": 8, "block_of_layer": [0, 0], "classifier_dropout": 0.1},
    ),
    ("xlnet", XLNET),
    ("trifold", TEXT | {"norm": "rms"}),
    ("bart", BART),
    ("bart", BART | {"n_decoder_heads": 2, "d_decoder_ff": 40, "n_decoder_layers": 1, "lm_head_bias": True}),
    ("bart", BART | EOS),
    ("trifold", BART | {"heads": ("sequence",)}),
    ("trifold", BART | {"position_offset": 0}),
    ("trifold", BART | {"d_head": 8, "n_decoder_heads": 2}),
    ("trifold", BART | {"norm_placement": "pre"}),
    ("t5", T5),
    ("t5", T5 | {"gated": True, "activation": "silu", "tie_lm_head": False}),
    ("t5", T5 | {"gated": True, "activation": "gelu", "logits_scale": 16**-0.5}),
    ("t5", T5 | {"shape": "encoder"}),
    ("trifold", T5 | {"attention_dropout": 0.0}),
    ("trifold", T5 | {"logits_scale": 0.5}),
    ("trifold", T5 | {"n_decoder_heads": 2}),
    ("trifold", T5 | {"attention_scale": None}),
    ("trifold", T5 | {"lm_head_bias": True}),
]


@pytest.mark.parametrize(("family", "values"), MADE)
def test_a_new_model_is_saved_in_the_family_that_fits(
    family: str, values: dict[str, Any], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = randomised(Transformer(ModelConfig.parse(values)))
    save_model(tmp_path, model)
    assert json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["model_type"] == family
    again, _ = load_model(tmp_path)
    assert again.config == model.config and equal(again, model)
    if family in ENCODERS:
        kind = transformers.XLNetLMHeadModel if family == "xlnet" else transformers.AutoModelForMaskedLM
        tokens = torch.arange(5, 20)[None]
        with torch.no_grad():
            theirs = kind.from_pretrained(tmp_path).eval()(tokens).logits
            torch.testing.assert_close(model.head_outputs(Inputs(tokens))["lm"], theirs, rtol=0, atol=1e-4)


def test_dropout_before_a_head_is_written(saved: Saved, tmp_path: Path) -> None:
    folder = saved("distilbert", "ForSequenceClassification")
    edit(folder, seq_classif_dropout=0.4)
    ours, _ = load_model(folder)
    assert ours.config.classifier_dropout == 0.4
    save_model(tmp_path / "back", ours)
    assert transformers.DistilBertConfig.from_pretrained(tmp_path / "back").seq_classif_dropout == 0.4
    masked = ours.config.model_copy(
        update={"heads": ("lm",), "lm_head_transform": "gelu", "lm_head_bias": True}
    )
    distilbert = families.FAMILIES["distilbert"]
    assert not distilbert.fits(masked.model_copy(update={"classifier_transform": None}))


def test_new_heads_on_old_weights(saved: Saved, tmp_path: Path) -> None:
    folder = saved("llama")
    writer, _ = load_model(folder)
    model, _ = load_model(folder, heads=["sequence"], n_labels=5)
    assert model.config.chosen_heads == ("sequence",)
    assert (model.config.n_labels, model.config.classifier_input) == (5, "last")
    assert model.head_outputs(Inputs(torch.arange(3, 15)[None]))["sequence"].shape == (1, 5)
    before = dict(writer.named_parameters())
    for name, parameter in model.named_parameters():
        assert name.startswith("heads.") or torch.equal(parameter, before[name])

    save_model(tmp_path / "classes", model)
    again, _ = load_model(tmp_path / "classes", heads=["sequence"])
    assert torch.equal(again.heads["sequence"].out_proj.weight, model.heads["sequence"].out_proj.weight)
    other, _ = load_model(tmp_path / "classes", heads=["sequence"], n_labels=3)
    assert other.heads["sequence"].out_proj.weight.shape == (3, 16)
    with pytest.raises(CheckpointError, match=r"the family llama has no class with the heads \('pooler',\)"):
        load_model(folder, heads=["pooler"])
