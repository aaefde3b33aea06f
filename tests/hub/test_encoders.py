"""What holds for every family of encoders: keys known and refused, tensors named, what we train is theirs to load."""

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

PICTURES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "image_size": 8,
    "patch_size": 4,
}
TEXT = {
    "vocab_size": 40,
    "max_position_embeddings": 24,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
}
DISTILLED = {
    "vocab_size": 40,
    "max_position_embeddings": 24,
    "dim": 16,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 24,
}
XLNET = {"vocab_size": 40, "d_model": 16, "n_layer": 2, "n_head": 4, "d_inner": 24}
# model_type -> (stem of the classes, sizes, a head, prefix of the base model)
ENCODERS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "bert": ("Bert", TEXT, "ForMaskedLM", "bert"),
    "roberta": ("Roberta", TEXT, "ForMaskedLM", "roberta"),
    "camembert": ("Camembert", TEXT, "ForMaskedLM", "roberta"),
    "xlm-roberta": ("XLMRoberta", TEXT, "ForMaskedLM", "roberta"),
    "distilbert": ("DistilBert", DISTILLED, "ForMaskedLM", "distilbert"),
    "albert": ("Albert", TEXT | {"embedding_size": 8}, "ForMaskedLM", "albert"),
    "xlnet": ("XLNet", XLNET, "LMHeadModel", "transformer"),
    "vit": ("ViT", PICTURES, "ForImageClassification", "vit"),
}
each_family = pytest.mark.parametrize("family", ENCODERS)


def saved(family: str, folder: Path, suffix: str | None = None) -> Path:
    stem, sizes, head, _ = ENCODERS[family]
    config = getattr(transformers, f"{stem}Config")(**sizes)
    model = getattr(transformers, stem + (head if suffix is None else suffix))(config)
    randomised(model).save_pretrained(folder)
    return folder


def edit(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")


def parameters(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_model(folder)[0].named_parameters())


@each_family
def test_every_key_of_the_reference_is_known(family: str, tmp_path: Path) -> None:
    saved(family, tmp_path)
    short, kind = read_config(tmp_path), getattr(transformers, f"{ENCODERS[family][0]}Config")
    (tmp_path / "config.json").write_text(
        json.dumps(kind.from_pretrained(tmp_path).to_dict()), encoding="utf-8"
    )
    assert read_config(tmp_path) == short


@each_family
def test_what_is_left_out_is_at_the_default_of_the_reference(family: str, tmp_path: Path) -> None:
    kind = getattr(transformers, f"{ENCODERS[family][0]}Config")
    said = {key: value for key, value in kind().to_dict().items() if key != "model_type"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}), encoding="utf-8")
    short = read_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family} | said), encoding="utf-8")
    assert read_config(tmp_path) == short


@each_family
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_sise", 16),
        ("add_cross_attention", True),
        ("is_decoder", True),
        ("is_encoder_decoder", True),
        ("architectures", ["BertForMultipleChoice"]),
        ("architectures", "BertModel"),
    ],
)
def test_refused_keys(family: str, key: str, value: object, tmp_path: Path) -> None:
    saved(family, tmp_path)
    edit(tmp_path, **{key: value})
    with pytest.raises(CheckpointError, match=key):
        load_model(tmp_path)


@each_family
def test_refused_values(family: str, tmp_path: Path) -> None:
    act, drop, heads = {
        "distilbert": ("activation", "dropout", "n_heads"),
        "xlnet": ("ff_activation", "dropout", "n_head"),
    }.get(family, ("hidden_act", "hidden_dropout_prob", "num_attention_heads"))
    saved(family, tmp_path)
    for key, value, message in [
        (act, "mish", f"{act}: 'mish' is not known; known: relu"),
        (drop, 1.5, f"{drop}: .*got 1.5"),
        (heads, 3, "n_heads 3 does not divide d_model 16"),
        (heads, "4", f"{heads}: .*got '4'"),
    ]:
        before = (tmp_path / "config.json").read_text(encoding="utf-8")
        edit(tmp_path, **{key: value})
        with pytest.raises(CheckpointError, match=message):
            load_model(tmp_path)
        (tmp_path / "config.json").write_text(before, encoding="utf-8")


@each_family
def test_all_that_is_wrong_with_the_tensors_is_one_error(family: str, tmp_path: Path) -> None:
    saved(family, tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    lost, bent, *_ = sorted(name for name, tensor in tensors.items() if tensor.dim() == 2)
    del tensors[lost]
    tensors[bent] = torch.zeros(3, 5)
    tensors["adapter.weight"] = torch.zeros(2)
    save_file(tensors, path)
    with pytest.raises(CheckpointError) as caught:
        load_model(tmp_path)
    message = str(caught.value)
    assert f"missing: {lost}" in message
    assert f"wrong shape: {bent} is (3, 5)" in message
    assert "not known: 'adapter.weight'" in message


@each_family
def test_buffers_of_old_files_and_other_prefixes(family: str, tmp_path: Path) -> None:
    prefix = ENCODERS[family][3]
    path = saved(family, tmp_path) / "model.safetensors"
    expected, tensors = parameters(tmp_path), load_file(path)
    if family not in ("vit", "xlnet"):
        tensors[f"{prefix}.embeddings.position_ids"] = torch.arange(24)[None]
        tensors[f"{prefix}.embeddings.token_type_ids"] = torch.zeros(1, 24, dtype=torch.int64)
    for change in (lambda name: name, lambda name: name.removeprefix(f"{prefix}.")):
        save_file({change(name): tensor.clone() for name, tensor in tensors.items()}, path)
        again = parameters(tmp_path)
        assert all(torch.equal(again[name], tensor) for name, tensor in expected.items())


TEXT_LIKE: dict[str, Any] = {
    "shape": "encoder",
    "vocab_size": 40,
    "max_positions": 24,
    "d_model": 16,
    "n_layers": 2,
    "n_heads": 4,
    "d_ff": 24,
    "positions": "learned",
    "scale_embeddings": False,
    "embedding_norm": True,
    "attention_bias": True,
    "activation": "gelu",
    "heads": ["lm"],
    "lm_head_transform": "gelu",
    "lm_head_bias": True,
}
SIZES = ("vocab_size", "max_positions", "d_model", "n_layers", "n_heads", "d_ff")
OURS: dict[str, dict[str, Any]] = {
    "bert": TEXT_LIKE | {"n_token_types": 2},
    "roberta": TEXT_LIKE | {"n_token_types": 1, "pad_id": 1, "position_offset": 2, "activation": "relu"},
    "distilbert": TEXT_LIKE | {"norm_epsilon": 1e-12},
    "albert": TEXT_LIKE | {"n_token_types": 2, "d_embedding": 8, "block_of_layer": [0, 0]},
    "xlnet": {key: TEXT_LIKE[key] for key in ("shape", *SIZES, "activation", "heads", "lm_head_bias")}
    | {
        "positions": "relative-sinusoidal",
        "segment_offsets": True,
        "query_stream": True,
        "scale_embeddings": False,
        "attention_dropout": 0.1,
        "activation_dropout": 0.1,
    },
    "trifold": TEXT_LIKE | {"norm": "rms"},
}


@pytest.mark.parametrize("family", OURS)
def test_what_was_made_here_is_saved_in_the_family_that_it_fits(family: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = randomised(Transformer(ModelConfig.parse(OURS[family])))
    save_model(tmp_path, model)
    assert json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["model_type"] == family
    tokens = torch.arange(5, 20)[None]
    with torch.no_grad():
        mine = model.head_outputs(Inputs(tokens))["lm"]
        again, _ = load_model(tmp_path)
        assert torch.equal(mine, again.head_outputs(Inputs(tokens))["lm"])
        if family != "trifold":
            kind = transformers.XLNetLMHeadModel if family == "xlnet" else transformers.AutoModelForMaskedLM
            theirs = kind.from_pretrained(tmp_path).eval()(tokens).logits
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-4)


def test_all_families_are_here() -> None:
    assert set(ENCODERS) <= set(FAMILIES)


@each_family
@pytest.mark.parametrize("absurd", [2**52, 2**31 - 1])
def test_absurd_sizes_are_an_error_before_they_cost_anything(
    family: str, absurd: int, tmp_path: Path
) -> None:
    saved(family, tmp_path)
    before = (tmp_path / "config.json").read_text(encoding="utf-8")
    sizes = [*ENCODERS[family][1], *(["pad_token_id"] if family != "vit" else ["num_channels"])]
    for key in sizes:
        edit(tmp_path, **{key: absurd})
        with pytest.raises(CheckpointError):
            load_model(tmp_path)
        (tmp_path / "config.json").write_text(before, encoding="utf-8")
