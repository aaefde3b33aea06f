"""StarCoder 2, against the reference."""

from __future__ import annotations

from typing import Any

import pytest
from tests.hub.parity import check, randomised

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

SMALL = {
    "vocab_size": 61,
    "max_position_embeddings": 32,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "window": ("Starcoder2ForCausalLM", {"sliding_window": 3, "residual_dropout": 0.1}),
    "no biases, untied": ("Starcoder2ForCausalLM", {"use_bias": False, "tie_word_embeddings": False}),
    "one head of keys, gelu": (
        "Starcoder2ForCausalLM",
        {
            "num_key_value_heads": 1,
            "hidden_act": "gelu",
            "rope_parameters": {"rope_theta": 999.5, "rope_type": "default"},
        },
    ),
    "bare": ("Starcoder2Model", {"norm_epsilon": 1e-3}),
    "sequence": ("Starcoder2ForSequenceClassification", {"num_labels": 3}),
    "token": ("Starcoder2ForTokenClassification", {"num_key_value_heads": 4}),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_reference(case: str) -> None:
    name, options = CASES[case]
    check(randomised(getattr(transformers, name)(transformers.Starcoder2Config(**SMALL | options))))
