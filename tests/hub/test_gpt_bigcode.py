"""GPT-BigCode, against the reference."""

from __future__ import annotations

from typing import Any

import pytest
from tests.hub.parity import check, randomised

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

SMALL = {"vocab_size": 61, "n_positions": 32, "n_embd": 32, "n_layer": 3, "n_head": 4}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "one head of keys": ("GPTBigCodeForCausalLM", {}),
    "all heads": ("GPTBigCodeForCausalLM", {"multi_query": False, "n_inner": 48}),
    "unscaled, untied": (
        "GPTBigCodeForCausalLM",
        {"scale_attn_weights": False, "tie_word_embeddings": False, "activation_function": "gelu"},
    ),
    "bare": ("GPTBigCodeModel", {"n_head": 1}),
    "sequence": ("GPTBigCodeForSequenceClassification", {"num_labels": 3}),
    "token": ("GPTBigCodeForTokenClassification", {"multi_query": False}),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_reference(case: str) -> None:
    name, options = CASES[case]
    check(randomised(getattr(transformers, name)(transformers.GPTBigCodeConfig(**SMALL | IDS | options))))
