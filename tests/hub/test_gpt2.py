"""GPT-2 and what is made of it, against the reference."""

from __future__ import annotations

from typing import Any

import pytest
from tests.hub.parity import check, randomised

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

SMALL = {"vocab_size": 61, "n_positions": 32, "n_embd": 32, "n_layer": 3, "n_head": 4}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("GPT2LMHeadModel", {"eos_token_id": 2, "bos_token_id": 2}),
    "scaled by layer, reordered": (
        "GPT2LMHeadModel",
        {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True, "n_inner": 48},
    ),
    "unscaled, untied, relu": (
        "GPT2LMHeadModel",
        {
            "scale_attn_weights": False,
            "tie_word_embeddings": False,
            "activation_function": "relu",
            "embd_pdrop": 0.2,
        },
    ),
    "no ends": ("GPT2LMHeadModel", {"bos_token_id": None, "eos_token_id": None, "layer_norm_epsilon": 1e-3}),
    "bare": ("GPT2Model", {"activation_function": "gelu"}),
    "sequence": ("GPT2ForSequenceClassification", {**IDS, "num_labels": 5}),
    "token": ("GPT2ForTokenClassification", {**IDS, "num_labels": 3, "classifier_dropout": 0.2}),
    "span": ("GPT2ForQuestionAnswering", IDS),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_reference(case: str) -> None:
    name, options = CASES[case]
    config = transformers.GPT2Config(**SMALL | {"bos_token_id": 1, "eos_token_id": 2} | options)
    ours = check(randomised(getattr(transformers, name)(config)))
    assert ours.family == "gpt2"
