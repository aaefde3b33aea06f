"""GPT of 2018, against the reference."""

from __future__ import annotations

from typing import Any

import pytest
from tests.hub.parity import check, randomised

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

SMALL = {"vocab_size": 61, "n_positions": 32, "n_embd": 32, "n_layer": 3, "n_head": 4}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("OpenAIGPTLMHeadModel", {}),
    "relu": ("OpenAIGPTLMHeadModel", {"afn": "relu", "n_head": 2, "layer_norm_epsilon": 1e-3}),
    "silu, ids": (
        "OpenAIGPTLMHeadModel",
        {"afn": "silu", "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0},
    ),
    "bare": ("OpenAIGPTModel", {"embd_pdrop": 0.0}),
    "sequence": ("OpenAIGPTForSequenceClassification", {"num_labels": 3, "pad_token_id": 0}),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_reference(case: str) -> None:
    name, options = CASES[case]
    check(randomised(getattr(transformers, name)(transformers.OpenAIGPTConfig(**SMALL | options))))
