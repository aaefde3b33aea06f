"""Recomputed blocks have the bits of stored ones, dropout included; reversible blocks have the
gradients of stored states."""

from __future__ import annotations

import torch
from tests.laws.configs import CONFIGS, cases, config_of
from tests.laws.models import (
    assert_close,
    gradients_of,
    hidden_of,
    loss_of,
    new_model,
    packed,
    padded,
    real_states,
    rows_of,
)
from torch import Tensor

from trifold.nn import Transformer, capture
from trifold.nn.rng import use_thread_rng
from trifold.train.blocks import recompute_blocks


def results(model: Transformer, seed: int = 1) -> list[Tensor]:
    """Real states and all gradients."""
    rows = rows_of(model.config)
    example = padded(rows) if model.config.patch_size else packed(rows)
    with use_thread_rng(torch.Generator().manual_seed(seed)):
        states = real_states(hidden_of(model, example), example)
        gradients = gradients_of(loss_of(states), model) if states.requires_grad else []
        return [states, *gradients]


@cases("recompute", fast_alone=True)
def test_recomputation_does_not_change_bits(name: str, operations: str) -> None:
    """About every fourth config in bf16."""
    dropout = {"dropout": 0.2, "activation_dropout": 0.1}
    if config_of(name).attention in ("softmax", "lsh", "spans"):
        dropout["attention_dropout"] = 0.1
    model = new_model(config_of(name).model_copy(update=dropout)).train()
    if operations == "fast" and list(CONFIGS).index(name) % 4 == 0:
        model.bfloat16()
    stored = results(model)
    with torch.no_grad():
        assert not torch.equal(stored[0], results(model, seed=2)[0]), "the seed determines dropout"
    recompute_blocks(model)
    for got, expected in zip(results(model), stored, strict=True):
        assert torch.equal(got, expected)


@cases("recompute", parts=["reversible"])
def test_reversible_blocks_have_the_gradients_of_stored_states(name: str) -> None:
    """While a hook point is watched, states are stored."""
    model = new_model(config_of(name)).double().train()
    reversed_ = results(model)
    with capture(model, "states.0"):
        stored = results(model)
    for got, expected in zip(reversed_, stored, strict=True):
        assert_close(got, expected, 1e-9)
