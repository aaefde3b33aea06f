"""CodeGen, against the reference."""

from __future__ import annotations

from typing import Any

import pytest
from tests.hub.parity import check, randomised

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

SMALL = {"vocab_size": 61, "n_positions": 32, "n_embd": 32, "n_layer": 3, "n_head": 4, "rotary_dim": 4}
IDS = {"bos_token_id": 1, "eos_token_id": 2}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "a head a machine": ("CodeGenForCausalLM", {}),
    "two heads a machine": (
        "CodeGenForCausalLM",
        {"n_head": 8, "n_inner": 48, "activation_function": "gelu"},
    ),
    "all rotary, tied": ("CodeGenForCausalLM", {"rotary_dim": 8, "tie_word_embeddings": True}),
    "bare": ("CodeGenModel", {"rotary_dim": 2}),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_reference(case: str) -> None:
    name, options = CASES[case]
    check(randomised(getattr(transformers, name)(transformers.CodeGenConfig(**SMALL | IDS | options))))
