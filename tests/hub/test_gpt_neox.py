"""GPT-NeoX, against the reference."""

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
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "pad_token_id": 0,
    "bos_token_id": 1,
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "parallel": ("GPTNeoXForCausalLM", {}),
    "sequential, half rotary": ("GPTNeoXForCausalLM", {"use_parallel_residual": False, "rotary_pct": 0.5}),
    "no biases, all rotary, tied": (
        "GPTNeoXForCausalLM",
        {"attention_bias": False, "rotary_pct": 1.0, "tie_word_embeddings": True, "rotary_emb_base": 500.0},
    ),
    "stretched": (
        "GPTNeoXForCausalLM",
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "hidden_act": "gelu_new", "rotary_pct": 0.5},
    ),
    "bare": ("GPTNeoXModel", {"layer_norm_eps": 1e-3}),
    "sequence": ("GPTNeoXForSequenceClassification", {"num_labels": 3}),
    "token": ("GPTNeoXForTokenClassification", {"classifier_dropout": 0.3}),
    "span": ("GPTNeoXForQuestionAnswering", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_reference(case: str) -> None:
    name, options = CASES[case]
    check(randomised(getattr(transformers, name)(transformers.GPTNeoXConfig(**SMALL | options))))
