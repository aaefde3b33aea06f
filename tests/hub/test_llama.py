"""LLaMA 1, 2 and 3, against the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
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
    "pad_token_id": 0,
}
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 8},
    "yarn, all keys": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 8,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
        "truncate": False,
    },
    "yarn, magnitude": {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 16,
        "attention_factor": 1.3,
    },
    "llama3": {
        "factor": 8.0,
        "original_max_position_embeddings": 16,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "longrope": {
        "original_max_position_embeddings": 20,
        "short_factor": [1.0, 1.5, 2.0, 4.0],
        "long_factor": [2.0, 3.0, 5.0, 9.0],
    },
    "longrope, all keys": {
        "rope_type": "longrope",
        "factor": 8.0,
        "attention_factor": 1.4,
        "original_max_position_embeddings": 4,
        "short_factor": [1.0, 1.5, 2.0, 4.0],
        "long_factor": [2.0, 3.0, 5.0, 9.0],
    },
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "first": ("LlamaForCausalLM", {}),
    "few heads of keys, biases": (
        "LlamaForCausalLM",
        {"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"},
    ),
    "tied, wide heads": (
        "LlamaForCausalLM",
        {"tie_word_embeddings": True, "head_dim": 12, "num_key_value_heads": 1, "rms_norm_eps": 1e-3},
    ),
    "bare": ("LlamaModel", {"attention_bias": True}),
    "sequence": ("LlamaForSequenceClassification", {"num_labels": 3}),
    "token": ("LlamaForTokenClassification", {"mlp_bias": True}),
    "span": ("LlamaForQuestionAnswering", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_reference(case: str) -> None:
    name, options = CASES[case]
    check(randomised(getattr(transformers, name)(transformers.LlamaConfig(**SMALL | options))))


@pytest.mark.parametrize("case", SCALINGS)
def test_stretched_positions(case: str) -> None:
    rope = {"rope_type": case, "rope_theta": 500.0} | SCALINGS[case]
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, rope_parameters=rope))
    check(randomised(model))


LATE: dict[str, dict[str, Any]] = {
    "dynamic": {"factor": 2.0},
    "longrope": SCALINGS["longrope"] | {"original_max_position_embeddings": 6, "factor": 2.0},
}


@pytest.mark.parametrize("kind", LATE)
def test_positions_beyond_the_first_training(kind: str) -> None:
    """Rows of one length: the reference stretches by the longest row of a batch, we by each row's own length."""
    rope = {"rope_type": kind, "rope_theta": 500.0} | LATE[kind]
    small = SMALL | {"max_position_embeddings": 6, "rope_parameters": rope}
    tokens = torch.randint(3, 61, (2, 11), generator=torch.Generator().manual_seed(0))
    check(randomised(transformers.LlamaForCausalLM(transformers.LlamaConfig(**small))), tokens=tokens)
