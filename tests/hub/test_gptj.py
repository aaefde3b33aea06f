"""GPT-J, against the reference."""

from __future__ import annotations

from typing import Any

import pytest
from tests.hub.parity import check, randomised

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

SMALL = {"vocab_size": 61, "n_positions": 32, "n_embd": 32, "n_layer": 3, "n_head": 4, "rotary_dim": 4}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "partly rotary": ("GPTJForCausalLM", {}),
    "all rotary, relu": ("GPTJForCausalLM", {"rotary_dim": 8, "n_inner": 48, "activation_function": "relu"}),
    "tied": ("GPTJForCausalLM", {"tie_word_embeddings": True, "rotary_dim": 2, "layer_norm_epsilon": 1e-3}),
    "bare": ("GPTJModel", {"n_head": 2}),
    "sequence": ("GPTJForSequenceClassification", {"num_labels": 3}),
    "span": ("GPTJForQuestionAnswering", {"rotary_dim": 6}),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_reference(case: str) -> None:
    name, options = CASES[case]
    check(randomised(getattr(transformers, name)(transformers.GPTJConfig(**SMALL | IDS | options))))
