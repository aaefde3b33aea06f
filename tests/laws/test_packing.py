"""Packed rows give the states, logits and gradients of padded rows."""

from __future__ import annotations

import torch
from tests.laws.configs import cases
from tests.laws.models import (
    assert_close,
    assert_gradients_close,
    gradients_of,
    head_outputs,
    hidden_of,
    limit_of,
    loss_of,
    model_in,
    packed,
    padded,
    real_states,
    rows_of,
)

from trifold.nn import Transformer


@cases("packing")
def test_packed_rows_equal_padded_rows(name: str, operations: str) -> None:
    assert_equal_when_packed(model_in(operations, name), operations)


@cases("packing", parts=["two streams"])
def test_packed_rows_in_an_order_equal_padded_ones(name: str, operations: str) -> None:
    assert_equal_when_packed(model_in(operations, name), operations, ordered=True)


def assert_equal_when_packed(model: Transformer, operations: str, *, ordered: bool = False) -> None:
    """Whether packed and padded rows give the same."""
    rows = rows_of(model.config, ordered=ordered)
    found = []
    for example in (packed(rows), padded(rows)):
        states = real_states(hidden_of(model, example), example)
        with torch.no_grad():
            heads = head_outputs(model, example)
        gradients = gradients_of(loss_of(states), model)
        found.append((states, heads, gradients))
    (states, heads, gradients), (padded_states, padded_heads, padded_gradients) = found
    assert_close(states, padded_states, limit_of(operations))
    for got, expected in zip(heads, padded_heads, strict=True):
        assert_close(got, expected, 1e-5)
    assert_gradients_close(gradients, padded_gradients, 10 * limit_of(operations))
