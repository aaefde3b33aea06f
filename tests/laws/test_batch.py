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


@torch.no_grad()
@cases("batch")
def test_a_row_does_not_depend_on_its_batch(name: str, operations: str) -> None:
    model, rows = model_in(operations, name), equal_rows(name, 3)
    alone = torch.cat([hidden_of(model, row) for row in rows])
    for order in ([0, 1, 2], [2, 0], [1]):
        together = hidden_of(model, padded([rows[number] for number in order]))
        assert_close(together, alone[order], limit_of(operations))


@cases("batch")
def test_the_gradient_of_a_batch_is_the_sum_of_those_of_its_rows(
    name: str, operations: str
) -> None:
    model, rows = model_in(operations, name), equal_rows(name, 2)
    found = []
    for batch in ([padded(rows)], rows):
        total = sum(loss_of(hidden_of(model, each)) for each in batch)
        found.append(gradients_of(total, model))
    assert_gradients_close(*found, 10 * limit_of(operations))
