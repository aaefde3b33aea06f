"""Packed rows give the states, logits and gradients of padded rows."""

from __future__ import annotations

import torch
from tests.laws.configs import cases
from tests.laws.models import (
    assert_close,
    gradients_of,
    head_outputs,
    hidden_of,
    limit_of,
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


@cases("packing", part="two streams")
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
        weights = torch.linspace(-1, 1, states.shape[1], dtype=states.dtype)
        gradients = gradients_of((states * weights).sum(1).square().sum(), model)
        found.append((states, heads, gradients))
    (states, heads, gradients), (padded_states, padded_heads, padded_gradients) = found
    assert_close(states, padded_states, limit_of(operations))
    for got, expected in zip(heads, padded_heads, strict=True):
        assert_close(got, expected, 1e-5)
    largest = max(float(each.abs().max()) for each in padded_gradients)
    for got, expected in zip(gradients, padded_gradients, strict=True):
        assert_close(got / largest, expected / largest, 10 * limit_of(operations))
