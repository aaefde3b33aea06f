"""Padding on either side changes neither the states and logits of a row nor its gradient."""

from __future__ import annotations

import pytest
import torch
from tests.laws.configs import cases, config_of
from tests.laws.models import (
    assert_close,
    gradients_of,
    head_outputs,
    hidden_of,
    limit_of,
    model_in,
    padded,
    real_states,
    rows_of,
)


@pytest.mark.parametrize("side", ["left", "right"])
@cases("padding")
def test_padding_on_a_side_changes_nothing(name: str, side: str, operations: str) -> None:
    model, rows = model_in(operations, name), rows_of(config_of(name))
    found = []
    for batch in ([padded(rows, left=side == "left")], rows):
        states = torch.cat([real_states(hidden_of(model, each), each) for each in batch])
        with torch.no_grad():
            heads = [head_outputs(model, each) for each in batch]
        outputs = [torch.cat(each) for each in zip(*heads, strict=True)]
        weights = torch.linspace(-1, 1, states.shape[1], dtype=states.dtype)
        gradients = gradients_of((states * weights).sum(1).square().sum(), model)
        found.append((states, outputs, gradients))
    (states, outputs, gradients), (alone, of_rows, summed) = found
    assert_close(states, alone, limit_of(operations))
    for got, expected in zip(outputs, of_rows, strict=True):
        assert_close(got, expected, 1e-5)  # logits are in float32
    largest = max(float(each.abs().max()) for each in summed)
    for got, expected in zip(gradients, summed, strict=True):
        assert_close(got / largest, expected / largest, 10 * limit_of(operations))
