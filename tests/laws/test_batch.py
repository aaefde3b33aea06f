"""A row does not depend on its batch, and neither does its gradient."""

from __future__ import annotations

import torch
from tests.laws.configs import cases, config_of
from tests.laws.models import (
    Example,
    assert_close,
    assert_gradients_close,
    gradients_of,
    hidden_of,
    limit_of,
    loss_of,
    model_in,
    padded,
    rows_of,
)


def equal_rows(name: str, rows: int) -> list[Example]:
    """Rows of one length."""
    return [rows_of(config_of(name), seed)[0] for seed in range(rows)]


@cases("batch", fast_alone=True)
def test_a_row_does_not_depend_on_its_batch(name: str, operations: str) -> None:
    """States and summed gradients; in another order of rows without gradients."""
    model, rows, found = model_in(operations, name), equal_rows(name, 2), []
    for batches in ([padded(rows)], rows):
        states = torch.cat([hidden_of(model, each) for each in batches])
        found.append((states, gradients_of(loss_of(states), model)))
    (together, gradients), (alone, summed) = found
    assert_close(together, alone, limit_of(operations))
    assert_gradients_close(gradients, summed, 10 * limit_of(operations))
    with torch.no_grad():
        others = hidden_of(model, padded([rows[1], rows[0], rows[1]]))
    assert_close(others, alone[[1, 0, 1]], limit_of(operations))
