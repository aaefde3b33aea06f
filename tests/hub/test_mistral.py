"""Mistral, against the reference."""

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
    "pad_token_id": 0,
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "window": ("MistralForCausalLM", {"sliding_window": 3}),
    "no window, tied": ("MistralForCausalLM", {"sliding_window": None, "tie_word_embeddings": True}),
    "wide heads, stretched": (
        "MistralForCausalLM",
        {
            "head_dim": 12,
            "num_key_value_heads": 4,
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0},
        },
    ),
    "bare": ("MistralModel", {"sliding_window": 4}),
    "sequence": ("MistralForSequenceClassification", {"num_labels": 3}),
    "token": ("MistralForTokenClassification", {}),
    "span": ("MistralForQuestionAnswering", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_reference(case: str) -> None:
    name, options = CASES[case]
    ours = check(randomised(getattr(transformers, name)(transformers.MistralConfig(**SMALL | options))))
    assert ours.family == "mistral"
