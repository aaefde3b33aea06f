"""T5 of all versions, against the reference: numbers, gradients, bytes; and what in a folder is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.hub.parity import check, randomised

from trifold.errors import CheckpointError
from trifold.hub import load_model, save_model
from trifold.nn import ModelConfig, Transformer

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

SMALL: dict[str, Any] = {
    "vocab_size": 61,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": 0,
}


def small(name: str = "T5ForConditionalGeneration", *, own_head: bool = False, **values: Any) -> Any:
    """A reference model; a head is enlarged where its answers would be too small to compare."""
    kind = "MT5Config" if name.startswith("MT5") else "T5Config"
    model = getattr(transformers, name)(getattr(transformers, kind)(**SMALL | values))
    if own_head:
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    model = randomised(model)
    with torch.no_grad():
        if getattr(model, "lm_head", None) is not None and getattr(
            model.config, "scale_decoder_outputs", False
        ):
            model.lm_head.weight.mul_(5)
        if hasattr(model, "classification_head"):
            model.classification_head.out_proj.weight.mul_(4)
    return model


CASES: dict[str, dict[str, Any]] = {
    "1.0: tied and scaled": {},
    "1.0: wide heads, three layers that write": {"d_kv": 12, "num_decoder_layers": 3},
    "1.0: many buckets, exact gelu, one layer that writes": {
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "feed_forward_proj": "gelu",
        "num_decoder_layers": 1,
    },
    "1.1: gated, tied": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "Flan: gated, a head of its own": {
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "own_head": True,
        "d_kv": 5,
    },
    "a head of its own, scaled": {"own_head": True, "layer_norm_epsilon": 1e-5},
    "gated silu": {"feed_forward_proj": "gated-silu", "num_heads": 2},
    "mT5": {"name": "MT5ForConditionalGeneration"},
    "mT5: relu, a head of its own": {
        "name": "MT5ForConditionalGeneration",
        "feed_forward_proj": "relu",
        "own_head": True,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_it_writes_as_the_reference_does_and_goes_back(case: str) -> None:
    check(small(**CASES[case]))


BARE = ("T5Model", "T5EncoderModel", "T5ForTokenClassification", "T5ForQuestionAnswering", "MT5EncoderModel")


@pytest.mark.parametrize("name", BARE)
def test_other_heads_answer_as_the_reference_does(name: str) -> None:
    labels = {"num_labels": 5} if "Token" in name else {}
    model = check(small(name, feed_forward_proj="gated-gelu", **labels))
    assert (model.decoder is None) == ("Encoder" in name or "Token" in name)


@pytest.mark.parametrize("labels", [2, 5])
def test_classes_of_a_text_are_read_at_its_end(labels: int) -> None:
    tokens = torch.randint(2, 61, (3, 9))
    for row, length in enumerate((9, 5, 7)):
        tokens[row, length - 1], tokens[row, length:] = 1, 0
    check(small("T5ForSequenceClassification", num_labels=labels), tokens=tokens, decoder=False)


def saved(folder: Path, **values: Any) -> Path:
    small(**values).save_pretrained(folder)
    return folder


def change(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | values
    path.write_text(json.dumps({k: v for k, v in config.items() if v != "absent"}), encoding="utf-8")


def test_old_files_of_flan_say_less(tmp_path: Path) -> None:
    """Before version 5 the reference wrote tie_word_embeddings as it was, and nothing of scales and activations."""
    saved(tmp_path, feed_forward_proj="gated-gelu", tie_word_embeddings=False, own_head=True)
    new = load_model(tmp_path)[0].config
    change(tmp_path, tie_word_embeddings=False, n_positions=512, initializer_factor=1.0)
    for key in ("scale_decoder_outputs", "dense_act_fn", "is_gated_act"):
        change(tmp_path, **{key: "absent"})
    old = load_model(tmp_path)[0].config
    assert old == new
    assert not old.tie_lm_head and old.logits_scale == 1.0 and old.activation == "gelu-tanh"


def test_old_files_repeat_the_table_or_hold_it_under_another_name(tmp_path: Path) -> None:
    path = saved(tmp_path) / "model.safetensors"
    ours = load_model(tmp_path)[0].state_dict()
    tensors = load_file(path)
    copies = [f"{name}.weight" for name in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head")]
    leftover = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    repeated = tensors | {name: tensors["shared.weight"].clone() for name in copies}
    save_file(repeated | {leftover: torch.ones(8, 4)}, path, metadata={"format": "pt"})
    again = load_model(tmp_path)[0]
    assert again.config.tie_lm_head
    assert all(torch.equal(ours[name], tensor) for name, tensor in again.state_dict().items())

    del repeated["shared.weight"]
    save_file(repeated, path, metadata={"format": "pt"})
    again = load_model(tmp_path)[0]
    assert all(torch.equal(ours[name], tensor) for name, tensor in again.state_dict().items())


def test_all_that_is_wrong_with_the_tensors_is_one_error(tmp_path: Path) -> None:
    path = saved(tmp_path) / "model.safetensors"
    tensors = load_file(path)
    del tensors["encoder.final_layer_norm.weight"]
    tensors["encoder.block.0.layer.1.DenseReluDense.wi.weight"] = torch.zeros(3, 4)
    tensors["encoder.block.7.layer.0.SelfAttention.q.weight"] = torch.zeros(32, 32)
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError) as caught:
        load_model(tmp_path)
    said = str(caught.value)
    assert "missing: encoder.final_layer_norm.weight" in said
    assert "wrong shape: encoder.block.0.layer.1.DenseReluDense.wi.weight is (3, 4)" in said
    assert "not known: 'encoder.block.7.layer.0.SelfAttention.q.weight'" in said


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("num_head", 4, "num_head: unknown key; did you mean 'num_heads'?"),
        ("feed_forward_proj", "gated-swiglu", "swiglu"),
        ("d_kv", "8", "d_kv"),
        ("architectures", ["T5ForSomethingElse"], "T5ForConditionalGeneration"),
        ("attention_bias", True, "attention_bias: unknown key"),
    ],
)
def test_keys_that_are_not_known_are_refused(key: str, value: object, said: str, tmp_path: Path) -> None:
    saved(tmp_path)
    change(tmp_path, dense_act_fn="absent", **{key: value})
    with pytest.raises(CheckpointError, match=r"config\.json: ") as caught:
        load_model(tmp_path)
    assert said in str(caught.value)


OURS = {
    "positions": "relative",
    "norm": "rms",
    "norm_placement": "pre",
    "norm_epsilon": 1e-6,
    "feed_forward_bias": False,
    "scale_embeddings": False,
    "attention_scale": 1.0,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "activation_dropout": 0.1,
    "relative_buckets": 8,
    "relative_distance": 12,
    "vocab_size": 61,
    "d_model": 32,
    "d_ff": 48,
    "n_layers": 2,
    "n_heads": 4,
    "max_positions": 40,
    "bos_id": 0,
    "eos_id": 1,
}


@pytest.mark.parametrize(
    ("more", "family"),
    [
        ({}, "t5"),
        ({"gated": True, "activation": "silu", "tie_lm_head": False}, "t5"),
        ({"gated": True, "activation": "gelu", "logits_scale": 32**-0.5}, "t5"),
        ({"shape": "encoder"}, "t5"),
        ({"attention_dropout": 0.0}, "trifold"),
        ({"logits_scale": 0.5}, "trifold"),
        ({"n_decoder_heads": 2}, "trifold"),
        ({"attention_scale": None}, "trifold"),
        ({"lm_head_bias": True}, "trifold"),
    ],
)
def test_what_is_trained_here_is_a_t5_where_it_can_be(
    more: dict[str, Any], family: str, tmp_path: Path
) -> None:
    config = ModelConfig.parse(OURS | more)
    save_model(tmp_path, Transformer(config))
    assert json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["model_type"] == family
    assert load_model(tmp_path)[0].config == config
