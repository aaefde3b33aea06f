"""Padding on either side changes neither the states and logits of a row nor its gradient."""

from __future__ import annotations

import pytest
import torch
from tests.laws.configs import CONFIGS, breaks, cases, config_of
from tests.laws.models import (
    assert_close,
    assert_gradients_close,
    gradients_of,
    head_outputs,
    hidden_of,
    limit_of,
    loss_of,
    model_in,
    padded,
    real_states,
    rows_of,
)


@cases("padding")
def test_padding_on_the_right_changes_nothing(name: str, operations: str) -> None:
    assert_padding_changes_nothing(name, operations)


@pytest.mark.parametrize(
    "name",
    [n for n in CONFIGS if not breaks("padding", n) and not breaks("padding on the left", n)],
)
def test_padding_on_the_left_changes_nothing(name: str, operations: str) -> None:
    assert_padding_changes_nothing(name, operations, left=True)


def assert_padding_changes_nothing(name: str, operations: str, *, left: bool = False) -> None:
    """Whether padded rows give the states, logits and summed gradients of rows alone."""
    model, rows = model_in(operations, name), rows_of(config_of(name))
    found = []
    for batch in ([padded(rows, left=left)], rows):
        states = torch.cat([real_states(hidden_of(model, each), each) for each in batch])
        with torch.no_grad():
            heads = [head_outputs(model, each) for each in batch]
        outputs = [torch.cat(each) for each in zip(*heads, strict=True)]
        gradients = gradients_of(loss_of(states), model)
        found.append((states, outputs, gradients))
    (states, outputs, gradients), (alone, of_rows, summed) = found
    assert_close(states, alone, limit_of(operations))
    for got, expected in zip(outputs, of_rows, strict=True):
        assert_close(got, expected, 1e-5)  # logits are in float32
    assert_gradients_close(gradients, summed, 10 * limit_of(operations))
