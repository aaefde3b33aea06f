"""Every family equals transformers, over one table of tiny models; and tensors of old and new
files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.checkpoints import edit, equal, read, settings, write
from tests.hub.parity import check, inputs_for, make, randomised
from tests.hub.tiny import TINY
from tests.models import TWO_LAYERS

from trifold.errors import CheckpointError
from trifold.hub import families, load_model, read_config, save_model
from trifold.nn import Inputs, ModelConfig, Transformer

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

# The first two cases of each family are quick tests.
CASES = [
    pytest.param(family, case, marks=[pytest.mark.slow] if number > 1 else [])
    for family, tiny in TINY.items()
    for number, case in enumerate(tiny.cases)
]


def norm_last(model: Any, inputs: Any, out: Any) -> None:
    """The last state of ViT has no final norm in the reference."""
    body = getattr(model, "vit", model)
    out["hidden_states"] = (*out.hidden_states[:-1], body.layernorm(out.hidden_states[-1]))


def rename_order(model: Any, inputs: Any, out: Any) -> None:
    """ALBERT predicts sentence order instead of the next sentence."""
    out.seq_relationship_logits = out.sop_logits


@pytest.mark.parametrize(("family", "case"), CASES)
def test_a_family_equals_the_reference(family: str, case: str) -> None:
    ending, options = TINY[family].cases[case]
    model = make(family, ending, **options)
    inputs = inputs_for(model)
    if family == "vit":
        model.register_forward_hook(norm_last)
    if family == "albert" and ending == "ForPreTraining":
        model.register_forward_hook(rename_order)
    if "late" in case:  # rows of one length: the reference scales by the longest row of a batch
        inputs = {
            "tokens": torch.randint(3, 40, (2, 11), generator=torch.Generator().manual_seed(0))
        }
    if (
        "long text" in case
    ):  # rows with as many blocks as the batch, whose last block all rows read in the reference
        check(model, **long_rows(model, 41))
        inputs = long_rows(model, 48, 47)
    assert check(model, **inputs).family == family


def long_rows(model: Any, *lengths: int) -> dict[str, torch.Tensor]:
    """Arguments of `check`: rows of so many tokens, with segments if the model has some."""
    shape, generator = (len(lengths), max(lengths)), torch.Generator().manual_seed(0)
    real = torch.arange(shape[1]) < torch.tensor(lengths)[:, None]
    tokens = torch.randint(6, 40, shape, generator=generator).where(real, model.config.pad_token_id)
    kinds = getattr(model.config, "type_vocab_size", 0)
    segments = {"token_type_ids": torch.randint(kinds, shape, generator=generator)} if kinds else {}
    return {"tokens": tokens, **segments}


Saved = Callable[..., Path]
DECODERS = [family for family, tiny in TINY.items() if tiny.buffer]
ENCODERS = ["bert", "roberta", "camembert", "xlm-roberta", "distilbert", "albert", "xlnet", "vit"]
ENCODERS += ["modernbert", "eurobert", "electra", "mpnet", "deberta-v2", "big_bird", "longformer"]
each_decoder = pytest.mark.parametrize("family", DECODERS)


# --- tensors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", TINY)
def test_one_error_lists_all_wrong_tensors(family: str, saved: Saved) -> None:
    folder = saved(family)
    tensors = read(folder)
    missing, misshapen = sorted(name for name, tensor in tensors.items() if tensor.dim() == 2)[:2]
    shape = tuple(tensors[misshapen].shape)
    del tensors[missing]
    write(folder, tensors | {misshapen: torch.zeros(3, 5), "adapter.weight": torch.ones(2)})
    with pytest.raises(CheckpointError) as caught:
        load_model(folder)
    assert f"missing: {missing}" in str(caught.value)
    assert f"wrong shape: {misshapen} is (3, 5) and should be {shape}" in str(caught.value)
    assert "not known: 'adapter.weight'" in str(caught.value)


@pytest.mark.parametrize("family", DECODERS + ENCODERS)
def test_old_files_with_buffers_copies_and_other_prefixes_are_loaded(
    family: str, saved: Saved
) -> None:
    folder, prefix = saved(family), TINY[family].prefix
    expected, tensors = load_model(folder)[0], read(folder)
    old = {name.removeprefix(f"{prefix}."): tensor for name, tensor in tensors.items()}
    assert old.keys() != tensors.keys()
    if family in DECODERS:
        old[TINY[family].buffer] = torch.ones(1, 1, 16, 16)
        table = next(tensor for tensor in old.values() if tensor.shape == (40, 16))
        head = old.pop(
            "embed_out.weight", old.get("lm_head.weight", table)
        )  # NeoX has used both names
        old["lm_head.weight"] = head.clone()
    elif family not in ("vit", "xlnet", "modernbert", "eurobert"):
        old[f"{prefix}.embeddings.position_ids"] = torch.arange(24)[None]
        old[f"{prefix}.embeddings.token_type_ids"] = torch.zeros(1, 24, dtype=torch.int64)
    write(folder, old)
    assert equal(load_model(folder)[0], expected)


@each_decoder
def test_a_bare_model_may_have_the_prefix(family: str, saved: Saved) -> None:
    folder = saved(family, TINY[family].bare)
    before, _ = load_model(folder)
    assert before.config.chosen_heads == ()
    prefix = TINY[family].prefix
    write(folder, {f"{prefix}.{name}": tensor for name, tensor in read(folder).items()})
    assert equal(load_model(folder)[0], before)


@each_decoder
def test_tied_embeddings_may_have_only_the_name_of_the_head(family: str, saved: Saved) -> None:
    folder = saved(family)
    model, _ = load_model(folder)
    if not model.config.tie_lm_head:
        model = Transformer(model.config.model_copy(update={"tie_lm_head": True})).eval()
        model.family = family
    save_model(folder, model)
    tensors = read(folder)
    table = next(name for name, tensor in tensors.items() if tensor.shape == (40, 16))
    tensors["embed_out.weight" if family == "gpt_neox" else "lm_head.weight"] = tensors.pop(table)
    write(folder, tensors)
    assert equal(load_model(folder)[0], model)


def test_sinusoids_in_a_file_are_checked_and_may_be_missing(saved: Saved, tmp_path: Path) -> None:
    folder = saved("pegasus")
    expected, tensors = load_model(folder)[0], read(folder)
    name = "model.decoder.embed_positions.weight"
    write(folder, {key: tensor for key, tensor in tensors.items() if key != name})
    assert equal(load_model(folder)[0], expected)
    write(folder, tensors | {name: tensors[name].bfloat16()})
    assert equal(load_model(folder)[0], expected)
    write(folder, tensors | {name: tensors[name] + 0.1})
    with pytest.raises(
        CheckpointError, match=f"not equal: {name} and the values that this model computes"
    ):
        load_model(folder)


# --- new models -----------------------------------------------------------------------------------


@each_decoder
def test_a_config_alone_is_saved_in_its_family(family: str, saved: Saved, tmp_path: Path) -> None:
    """LLaMA can represent what Mistral and Phi-3 can, and GPT-J what CodeGen can."""
    config = read_config(saved(family))
    fresh = Transformer(config)
    save_model(tmp_path / "ours", fresh)
    equivalent = {"mistral": "llama", "phi3": "llama", "codegen": "gptj"}.get(family)
    assert settings(tmp_path / "ours")["model_type"] in {family, equivalent}
    back, _ = load_model(tmp_path / "ours")
    assert back.config == config
    assert equal(fresh, back)


SIZES: dict[str, Any] = TWO_LAYERS | {"vocab_size": 40, "max_positions": 24}
UNSCALED = {"scale_embeddings": False}
MASKED = {"heads": ["lm"], "lm_head_transform": "gelu", "lm_head_bias": True}
TEXT = (
    SIZES | UNSCALED | MASKED | {"shape": "encoder", "positions": "learned", "activation": "gelu"}
)
TEXT |= {"embedding_norm": True, "attention_bias": True}
LED = {"position_offset": 0, "sliding_window": 3, "decoder_window": 0, "scale_embeddings": False}
LED |= {"global_projections": True, "global_tokens": "first", "max_decoder_positions": 20}
LONGT5 = {"sliding_window": 3, "decoder_window": 0}
LONG = {"sliding_window": 4, "global_projections": True}
XLNET = (
    SIZES
    | UNSCALED
    | {"shape": "encoder", "positions": "relative-sinusoidal", "activation": "gelu"}
)
XLNET |= {"segment_offsets": True, "query_stream": True, "heads": ["lm"], "lm_head_bias": True}
XLNET |= {"attention_dropout": 0.1, "activation_dropout": 0.1}
BART = SIZES | {
    "positions": "learned",
    "position_offset": 2,
    "embedding_norm": True,
    "attention_bias": True,
}
PRE_BART = SIZES | {"positions": "learned", "norm_placement": "pre"}
BLOCKS = {"size": 1, "random": 2, "only_in_training": True}
FAIRSEQ = {"positions": "sinusoidal-tensor2tensor", "position_offset": 1}
T5 = (
    SIZES
    | UNSCALED
    | {"positions": "relative", "norm": "rms", "norm_placement": "pre", "attention_scale": 1.0}
)
T5 |= {"feed_forward_bias": False, "attention_dropout": 0.1, "activation_dropout": 0.1}
T5 |= {"relative_buckets": 8, "relative_distance": 12, "bos_id": 0, "eos_id": 1}
GEMMA = SIZES | {
    "shape": "decoder",
    "positions": "rotary",
    "norm": "rms",
    "norm_weight": "plus-one",
    "gated": True,
}
GEMMA |= {
    "norm_placement": "pre",
    "activation": "gelu-tanh",
    "feed_forward_bias": False,
    "dropout": 0.0,
}
GEMMA |= {"embedding_scale_rounded": True}
GEMMA2 = GEMMA | {
    "norm_placement": "sandwich",
    "sliding_window": 3,
    "window_pattern": ("local", "global"),
}
GEMMA3 = GEMMA2 | {"qk_norm": "head", "rotary_local_theta": 100.0}
T5GEMMA = GEMMA2 | {"shape": "encoder-decoder", "target_vocab_size": 40}
UNEQUAL = {
    "d_decoder": 10,
    "n_decoder_heads": 2,
    "n_decoder_kv_heads": 1,
    "d_head": 6,
    "d_decoder_head": 8,
}
EOS = {"heads": ("sequence",), "classifier_input": "eos", "classifier_transform": "tanh"}
REFORMER = (
    SIZES
    | UNSCALED
    | {"shape": "decoder", "residual": "reversible", "attention": "lsh", "tie_lm_head": False}
)
REFORMER |= {
    "norm_placement": "pre",
    "positions": "axial",
    "attention_dropout": 0.2,
    "activation_dropout": 0.1,
}
REFORMER |= {
    "axial_shape": (8, 8),
    "axial_widths": (4, 12),
    "lsh": {
        "layers": ["local", "lsh"],
        "chunk": 3,
        "local_chunk": 6,
        "local_dropout": 0.3,
        "seed": 4,
    },
}
NEW: list[tuple[str, dict[str, Any]]] = [
    ("bert", TEXT | {"n_token_types": 2}),
    (
        "roberta",
        TEXT | {"n_token_types": 1, "pad_id": 1, "position_offset": 2, "activation": "relu"},
    ),
    ("distilbert", TEXT | {"norm_epsilon": 1e-12}),
    (
        "albert",
        TEXT
        | {
            "n_token_types": 2,
            "d_embedding": 8,
            "block_of_layer": [0, 0],
            "classifier_dropout": 0.1,
        },
    ),
    ("xlnet", XLNET),
    ("trifold", TEXT | {"norm": "rms"}),
    ("marian", SIZES),
    ("marian", SIZES | {"attention_bias": True, "lm_head_bias": True, "activation": "gelu"}),
    ("marian", SIZES | {"target_vocab_size": 23, "activation": "silu", "lm_head_bias": True}),
    ("marian", SIZES | {"target_vocab_size": 40, "attention_bias": True}),
    (
        "marian",
        SIZES | {"n_decoder_layers": 1, "activation": "gelu-tanh", "scale_embeddings": False},
    ),
    (
        "marian",
        SIZES | {"n_decoder_layers": 3, "positions": "sinusoidal-halves", "decoder_start_id": 0},
    ),
    ("bart", BART),
    (
        "bart",
        BART
        | {"n_decoder_heads": 2, "d_decoder_ff": 40, "n_decoder_layers": 1, "lm_head_bias": True},
    ),
    ("bart", BART | EOS),
    ("trifold", BART | {"heads": ("sequence",)}),
    ("trifold", BART | {"position_offset": 0}),
    ("trifold", BART | {"d_head": 8, "n_decoder_heads": 2}),
    ("trifold", BART | {"d_head": 4, "n_decoder_heads": 2}),
    ("trifold", BART | {"n_decoder_kv_heads": 2}),
    ("trifold", BART | {"d_decoder": 12, "target_vocab_size": 40}),
    ("led", BART | LED),
    ("trifold", BART | LED | {"position_offset": 2}),
    ("longformer", TEXT | {"pad_id": 1, "position_offset": 2, "n_token_types": 1, **LONG}),
    ("trifold", TEXT | {"n_token_types": 1, "position_offset": 1, **LONG, "sliding_window": 1}),
    ("mbart", BART | {"norm_placement": "pre"}),
    (
        "pegasus",
        SIZES | {"norm_placement": "pre", "positions": "sinusoidal-halves", "attention_bias": True},
    ),
    (
        "m2m_100",
        SIZES | {"norm_placement": "pre", **FAIRSEQ, "attention_bias": True, "n_decoder_layers": 3},
    ),
    ("big_bird", TEXT | {"n_token_types": 2, "sparse_blocks": BLOCKS}),
    ("big_bird", TEXT | {"n_token_types": 1, "attention_bias": False, "attention_out_bias": True}),
    ("trifold", TEXT | {"n_token_types": 2, "sparse_blocks": BLOCKS | {"only_in_training": False}}),
    (
        "bigbird_pegasus",
        PRE_BART | {"sparse_blocks": BLOCKS, "n_decoder_layers": 1, "lm_head_bias": True},
    ),
    ("bigbird_pegasus", PRE_BART | {"attention_bias": True}),
    ("t5", T5),
    ("t5", T5 | {"gated": True, "activation": "silu", "tie_lm_head": False}),
    ("t5", T5 | {"gated": True, "activation": "gelu", "logits_scale": 16**-0.5}),
    ("t5", T5 | {"shape": "encoder"}),
    ("longt5", T5 | LONGT5),
    ("longt5", T5 | LONGT5 | {"summary_block": 5, "tie_lm_head": False}),
    ("trifold", T5 | LONGT5 | {"decoder_window": None}),
    ("trifold", T5 | {"attention_dropout": 0.0}),
    ("gemma", GEMMA | {"d_head": 6}),
    ("trifold", GEMMA | {"logit_soft_cap": 30.0}),
    ("gemma2", GEMMA2 | {"logit_soft_cap": 30.0, "attention_scale": 0.25}),
    ("trifold", GEMMA2 | {"attention_scale": 0.3}),
    ("gemma3_text", GEMMA3),
    ("gemma3_text", GEMMA3 | {"shape": "encoder"}),
    ("trifold", GEMMA3 | {"score_soft_cap": 20.0}),
    ("t5gemma", T5GEMMA | {"decoder_window": 5, "n_decoder_layers": 1, "logit_soft_cap": 9.0}),
    ("t5gemma", T5GEMMA | UNEQUAL),
    ("t5gemma", T5GEMMA | UNEQUAL | {"n_kv_heads": 2, "decoder_window": 0}),
    (
        "t5gemma",
        T5GEMMA | UNEQUAL | {"attention_scale": 0.25, "max_decoder_positions": 30, "d_decoder": 24},
    ),
    ("trifold", T5GEMMA | UNEQUAL | {"embedding_scale": 4.0}),
    ("trifold", T5GEMMA | UNEQUAL | {"rotary_width": 6}),
    ("trifold", T5GEMMA | {"sliding_window": 1}),
    ("trifold", T5GEMMA | {"target_vocab_size": None}),
    ("trifold", T5 | {"logits_scale": 0.5}),
    ("trifold", T5 | {"n_decoder_heads": 2}),
    ("trifold", T5 | {"attention_scale": None}),
    ("trifold", T5 | {"lm_head_bias": True}),
    ("reformer", REFORMER),
    (
        "reformer",
        REFORMER
        | {"shape": "encoder", "heads": ["lm"], "lsh": {"chunk": 4, "seed": 1, "hashes": 2}},
    ),
    ("trifold", REFORMER | {"positions": "rotary", "axial_shape": None, "axial_widths": None}),
    ("trifold", REFORMER | {"positions": "learned", "axial_shape": None, "axial_widths": None}),
    ("trifold", REFORMER | {"residual": "sequential"}),
]


REFERENCE_CLASSES = {
    "xlnet": "XLNetLMHeadModel",
    "marian": "MarianMTModel",
    "bart": "BartForConditionalGeneration",
    "mbart": "MBartForConditionalGeneration",
    "pegasus": "PegasusForConditionalGeneration",
    "m2m_100": "M2M100ForConditionalGeneration",
    "bigbird_pegasus": "BigBirdPegasusForConditionalGeneration",
    "led": "LEDForConditionalGeneration",
    "longt5": "LongT5ForConditionalGeneration",
    "t5": "T5ForConditionalGeneration",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "t5gemma": "T5GemmaForConditionalGeneration",
    "reformer": "ReformerModelWithLMHead",
}


@pytest.mark.parametrize(("family", "values"), NEW)
def test_a_new_model_is_saved_in_the_family_that_fits(
    family: str, values: dict[str, Any], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = randomised(Transformer(ModelConfig.parse(values)))
    save_model(tmp_path, model)
    assert settings(tmp_path)["model_type"] == family
    loaded, _ = load_model(tmp_path)
    assert loaded.config == model.config and equal(loaded, model)
    if family == "trifold" or "lm" not in model.config.chosen_heads:
        return
    name = REFERENCE_CLASSES.get(family, "AutoModelForMaskedLM")
    if values.get("shape") == "encoder" and family == "reformer":
        name = "ReformerForMaskedLM"
    reference, report = getattr(transformers, name).from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(
        report[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys")
    )
    tokens = torch.arange(5, 20)[None]
    both = model.encoder is not None and model.decoder is not None
    targets, second = ({"decoder_input_ids": tokens}, Inputs(tokens)) if both else ({}, None)
    if family == "led":
        targets["global_attention_mask"] = (tokens == 5).long()
    with torch.no_grad():
        got = model.head_outputs(Inputs(tokens), second, heads=["lm"])["lm"]
        expected = reference.eval()(tokens, **targets).logits
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_classifier_dropout_is_written(saved: Saved, tmp_path: Path) -> None:
    folder = saved("distilbert", "ForSequenceClassification")
    edit(folder, seq_classif_dropout=0.4)
    ours, _ = load_model(folder)
    assert ours.config.classifier_dropout == 0.4
    save_model(tmp_path / "back", ours)
    assert (
        transformers.DistilBertConfig.from_pretrained(tmp_path / "back").seq_classif_dropout == 0.4
    )
    masked = ours.config.model_copy(
        update={"heads": ("lm",), "lm_head_transform": "gelu", "lm_head_bias": True}
    )
    distilbert = families.FAMILIES["distilbert"]
    assert not distilbert.fits(masked.model_copy(update={"classifier_transform": None}))
