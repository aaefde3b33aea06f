"""What holds for every family of decoders: keys known and refused, tensors named, old layouts read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.hub.parity import randomised

from trifold.errors import CheckpointError
from trifold.hub import load_model, read_config, save_model
from trifold.hub.families import FAMILIES
from trifold.nn import Inputs, ModelConfig, Transformer

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

GPT = {"vocab_size": 40, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 4}
MORE = {
    "vocab_size": 40,
    "max_position_embeddings": 16,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
NEO = {
    "vocab_size": 40,
    "max_position_embeddings": 16,
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 4,
    "attention_types": [[["global", "local"], 1]],
}
WITHOUT_GROUPS = {key: value for key, value in MORE.items() if key != "num_key_value_heads"}
# model_type -> (stem of the classes, sizes, prefix of the base model, an old buffer of a layer)
DECODERS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "gpt2": ("GPT2", GPT, "transformer", "h.0.attn.bias"),
    "openai-gpt": ("OpenAIGPT", GPT, "transformer", "h.0.attn.bias"),
    "gpt_bigcode": ("GPTBigCode", GPT, "transformer", "h.0.attn.bias"),
    "gptj": ("GPTJ", GPT | {"rotary_dim": 2}, "transformer", "h.0.attn.masked_bias"),
    "codegen": ("CodeGen", GPT | {"rotary_dim": 2}, "transformer", "h.0.attn.causal_mask"),
    "gpt_neo": ("GPTNeo", NEO, "transformer", "h.0.attn.attention.masked_bias"),
    "gpt_neox": ("GPTNeoX", WITHOUT_GROUPS | {"rotary_pct": 0.5}, "gpt_neox", "layers.0.attention.bias"),
    "llama": ("Llama", MORE, "model", "layers.0.self_attn.rotary_emb.inv_freq"),
    "mistral": ("Mistral", MORE, "model", "layers.0.self_attn.rotary_emb.inv_freq"),
    "starcoder2": ("Starcoder2", MORE, "model", "layers.0.self_attn.rotary_emb.inv_freq"),
    "falcon": ("Falcon", WITHOUT_GROUPS, "transformer", "h.0.self_attention.rotary_emb.inv_freq"),
}
LM = {"gpt2": "LMHeadModel", "openai-gpt": "LMHeadModel"}
each_family = pytest.mark.parametrize("family", DECODERS)


def tiny(family: str, suffix: str | None = None) -> Any:
    stem, sizes, _, _ = DECODERS[family]
    sizes = sizes if family != "falcon" else {k: v for k, v in sizes.items() if k != "intermediate_size"}
    config = getattr(transformers, f"{stem}Config")(**sizes, **IDS)
    suffix = LM.get(family, "ForCausalLM") if suffix is None else suffix
    return randomised(getattr(transformers, stem + suffix)(config))


def saved(family: str, folder: Path, suffix: str | None = None) -> Path:
    tiny(family, suffix).save_pretrained(folder)
    return folder


def edit(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")


def logits(model: Transformer) -> torch.Tensor:
    with torch.no_grad():
        return model.head_outputs(Inputs(torch.arange(3, 15)[None]))["lm"]


def test_all_families_are_here() -> None:
    decoders = {name for name in FAMILIES if name in DECODERS}
    assert decoders == set(DECODERS)


@each_family
def test_every_key_of_the_reference_is_known(family: str, tmp_path: Path) -> None:
    saved(family, tmp_path)
    short = read_config(tmp_path)
    full = getattr(transformers, f"{DECODERS[family][0]}Config").from_pretrained(tmp_path).to_dict()
    (tmp_path / "config.json").write_text(json.dumps(full), encoding="utf-8")
    assert read_config(tmp_path) == short
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}), encoding="utf-8")
    defaults = getattr(transformers, f"{DECODERS[family][0]}Config")()
    assert read_config(tmp_path).d_model == defaults.hidden_size
    assert read_config(tmp_path).n_layers == defaults.num_hidden_layers
    assert read_config(tmp_path).vocab_size == defaults.vocab_size
    assert read_config(tmp_path).max_positions == defaults.max_position_embeddings


ALL_REFUSE: dict[str, object] = {
    "hidden_sise": 16,
    "add_cross_attention": True,
    "is_encoder_decoder": True,
    "vocab_size": "40",
    "architectures": ["GPT2DoubleHeadsModel"],
}
REFUSED: dict[str, dict[str, object]] = {
    "gpt2": {"activation_function": "mish", "resid_pdrop": 1.5, "n_head": 3},
    "openai-gpt": {"afn": "gelu_new"},
    "gpt_bigcode": {"multi_query": 1},
    "gptj": {"rotary_dim": None, "activation_function": "relu6"},
    "codegen": {"n_head": 2, "rotary_dim": 3},
    "gpt_neo": {"attention_types": [[["global", "sparse"], 1]], "num_layers": 3, "window_size": 0},
    "gpt_neox": {"rope_parameters": {"rope_type": "longrope", "factor": 2.0}, "rotary_pct": 1.5},
    "llama": {
        "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5},
        "rope_scaling": {"type": "linear"},
        "sliding_window": 4,
        "hidden_act": "relu2",
    },
    "mistral": {"attention_bias": True, "layer_types": ["full_attention"] * 2},
    "starcoder2": {"mlp_type": "gated", "norm_type": "rms_norm"},
    "falcon": {"num_ln_in_parallel_attn": 2, "apply_residual_connection_post_layernorm": True},
}


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [(family, key, value) for family, own in REFUSED.items() for key, value in (own | ALL_REFUSE).items()],
)
def test_a_key_that_we_cannot_follow_is_refused(family: str, key: str, value: object, tmp_path: Path) -> None:
    folder = saved(family, tmp_path)
    edit(folder, **{key: value})
    with pytest.raises(CheckpointError, match=r"config\.json: ") as refused:
        read_config(folder)
    assert key.split("_", maxsplit=1)[0] in str(refused.value)


@each_family
def test_missing_extra_and_misshapen_tensors_are_one_error(family: str, tmp_path: Path) -> None:
    folder = saved(family, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    missing, misshapen = sorted(tensors)[:2]
    del tensors[missing]
    tensors[misshapen] = tensors[misshapen][:-1].contiguous()
    tensors["strange.weight"] = torch.ones(2)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError) as refused:
        load_model(folder)
    said = str(refused.value)
    assert f"missing: {missing}" in said
    assert f"wrong shape: {misshapen}" in said
    assert "not known: 'strange.weight'" in said


@each_family
def test_old_files_are_read(family: str, tmp_path: Path) -> None:
    """Without the prefix of the base model; with masks and waves among the tensors; with the tied copy."""
    _, _, prefix, buffer = DECODERS[family]
    folder = saved(family, tmp_path)
    today = logits(load_model(folder)[0])
    tensors = load_file(folder / "model.safetensors")
    old = {name.removeprefix(f"{prefix}."): tensor for name, tensor in tensors.items()}
    assert old.keys() != tensors.keys()
    old[buffer] = torch.ones(1, 1, 16, 16)
    table = next(name for name in old if old[name].shape == (40, 16))
    heads = [name for name in old if name in ("lm_head.weight", "embed_out.weight")]
    if heads:  # NeoX has had both names
        old["lm_head.weight"] = old.pop(heads[0])
    else:
        old["lm_head.weight"] = old[table].clone()
    save_file(old, folder / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(logits(load_model(folder)[0]), today)


@each_family
def test_a_bare_model_with_the_prefix_is_read(family: str, tmp_path: Path) -> None:
    folder = saved(family, tmp_path, "Model")
    before, _ = load_model(folder)
    assert before.config.chosen_heads == ()
    tensors = load_file(folder / "model.safetensors")
    named = {f"{DECODERS[family][2]}.{name}": tensor for name, tensor in tensors.items()}
    save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
    after, _ = load_model(folder)
    for mine, again in zip(before.parameters(), after.parameters(), strict=True):
        assert torch.equal(mine, again)


@each_family
def test_the_only_copy_of_a_tied_table_may_have_the_heads_name(family: str, tmp_path: Path) -> None:
    model, _ = load_model(saved(family, tmp_path))
    if not model.config.tie_lm_head:
        model = Transformer(model.config.model_copy(update={"tie_lm_head": True})).eval()
        model.family = family
    save_model(tmp_path, model)
    today = logits(load_model(tmp_path)[0])
    tensors = load_file(tmp_path / "model.safetensors")
    table = next(name for name in tensors if tensors[name].shape == (40, 16))
    tensors["embed_out.weight" if family == "gpt_neox" else "lm_head.weight"] = tensors.pop(table)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(logits(load_model(tmp_path)[0]), today)


@each_family
def test_what_we_make_in_that_form_is_saved_in_it(family: str, tmp_path: Path) -> None:
    """From a config alone: no folder of theirs was there before. LLaMA and Mistral can say the same things."""
    made, _ = load_model(saved(family, tmp_path / "theirs"))
    fresh = Transformer(made.config)
    save_model(tmp_path / "ours", fresh)
    values = json.loads((tmp_path / "ours" / "config.json").read_text(encoding="utf-8"))
    assert values["model_type"] in {family, "llama"} | (
        {"gptj", "codegen"} if family in ("gptj", "codegen") else set()
    )
    back, _ = load_model(tmp_path / "ours")
    assert back.config == made.config
    assert all(torch.equal(a, b) for a, b in zip(fresh.parameters(), back.parameters(), strict=True))


def test_special_tokens_of_all_manners(tmp_path: Path) -> None:
    folder = saved("llama", tmp_path)

    def ids(**values: object) -> tuple[int, int, int]:
        edit(folder, **values)
        config: ModelConfig = read_config(folder)
        return config.pad_id, config.bos_id, config.eos_id

    assert ids() == (0, 1, 2)
    assert ids(eos_token_id=[7, 8]) == (0, 1, 7)
    assert ids(pad_token_id=-1) == (7, 1, 7)  # LLaMA of 2023
    assert ids(pad_token_id=None, bos_token_id=None) == (7, 7, 7)
    assert ids(eos_token_id=None) == (0, 0, 40)  # an id that no token has


def test_old_keys_of_rotary_positions(tmp_path: Path) -> None:
    folder = saved("llama", tmp_path)
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


def test_heads_that_the_caller_declares_new(tmp_path: Path) -> None:
    folder = saved("llama", tmp_path)
    writer, _ = load_model(folder)
    model, _ = load_model(folder, heads=["sequence"], n_labels=5)
    assert model.config.chosen_heads == ("sequence",)
    assert (model.config.n_labels, model.config.classifier_input) == (5, "last")
    said = model.head_outputs(Inputs(torch.arange(3, 15)[None]))["sequence"]
    assert said.shape == (1, 5)
    before = dict(writer.named_parameters())
    for name, parameter in model.named_parameters():
        assert name.startswith("heads.") or torch.equal(parameter, before[name])

    save_model(tmp_path / "classes", model)
    again, _ = load_model(tmp_path / "classes", heads=["sequence"])
    assert torch.equal(again.heads["sequence"].out_proj.weight, model.heads["sequence"].out_proj.weight)
    other, _ = load_model(tmp_path / "classes", heads=["sequence"], n_labels=3)
    assert other.heads["sequence"].out_proj.weight.shape == (3, 16)
    with pytest.raises(CheckpointError, match=r"a llama with the heads \('pooler',\) is not known"):
        load_model(folder, heads=["pooler"])
