"""Falcon of every kind, against the reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.hub.parity import check, randomised

from trifold.hub import read_config

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

SMALL = {
    "vocab_size": 61,
    "max_position_embeddings": 32,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
OLD = {"multi_query": False, "parallel_attn": False, "alibi": True, "bias": True}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "7b": ("FalconForCausalLM", {}),
    "40b": (
        "FalconForCausalLM",
        {
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "ffn_hidden_size": 48,
            "tie_word_embeddings": False,
        },
    ),
    "11b: groups on one norm": (
        "FalconForCausalLM",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    "rw: ALiBi": ("FalconForCausalLM", OLD),
    "ALiBi, six heads": ("FalconForCausalLM", OLD | {"num_attention_heads": 6, "hidden_size": 36}),
    "ALiBi on one head of keys": (
        "FalconForCausalLM",
        {"alibi": True, "parallel_attn": True, "activation": "gelu_new"},
    ),
    "sequential, rotary": ("FalconForCausalLM", OLD | {"alibi": False, "hidden_dropout": 0.1}),
    "all heads of keys": ("FalconForCausalLM", {"multi_query": False, "bias": True}),
    "bare": ("FalconModel", {"new_decoder_architecture": True, "num_kv_heads": 4}),
    "sequence": ("FalconForSequenceClassification", {"num_labels": 3}),
    "token": ("FalconForTokenClassification", {"bias": True}),
    "span": ("FalconForQuestionAnswering", OLD),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_reference(case: str) -> None:
    name, options = CASES[case]
    check(randomised(getattr(transformers, name)(transformers.FalconConfig(**SMALL | options))))


def test_the_new_layout_has_as_many_heads_of_keys_as_of_queries_where_nothing_is_said(tmp_path: Path) -> None:
    values = {
        "model_type": "falcon",
        "hidden_size": 32,
        "num_attention_heads": 4,
        "new_decoder_architecture": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    theirs = transformers.FalconConfig.from_pretrained(tmp_path)
    assert read_config(tmp_path).kv_heads == theirs.num_kv_heads == 4
