"""GPT-Neo, against the reference."""

from __future__ import annotations

from typing import Any

import pytest
from tests.hub.parity import check, randomised

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

SMALL = {"vocab_size": 61, "max_position_embeddings": 32, "hidden_size": 32, "num_layers": 4, "num_heads": 4}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "global and local": ("GPTNeoForCausalLM", {"attention_types": [[["global", "local"], 2]]}),
    "uneven": (
        "GPTNeoForCausalLM",
        {"attention_types": [[["local"], 1], [["global", "local", "local"], 1]], "intermediate_size": 48},
    ),
    "all global, untied": (
        "GPTNeoForCausalLM",
        {"attention_types": [[["global"], 4]], "tie_word_embeddings": False, "embed_dropout": 0.1},
    ),
    "bare": ("GPTNeoModel", {"attention_types": [[["local"], 4]], "activation_function": "gelu"}),
    "sequence": (
        "GPTNeoForSequenceClassification",
        {"attention_types": [[["global", "local"], 2]], "num_labels": 3},
    ),
    "token": ("GPTNeoForTokenClassification", {"attention_types": [[["local", "global"], 2]]}),
    "span": ("GPTNeoForQuestionAnswering", {"attention_types": [[["local", "global"], 2]]}),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_reference(case: str) -> None:
    name, options = CASES[case]
    config = transformers.GPTNeoConfig(**SMALL | IDS | {"window_size": 3} | options)
    check(randomised(getattr(transformers, name)(config)))
