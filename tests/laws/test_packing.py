"""Packed rows give the states, logits and gradients of padded rows."""

from __future__ import annotations

from tests.laws.configs import cases
from tests.laws.models import assert_same_outcome, outcome_of


@cases("packing", fast_alone=True)
def test_packed_rows_equal_padded_rows(name: str, operations: str) -> None:
    outcomes = (outcome_of(name, operations, form) for form in ("packed", "right"))
    assert_same_outcome(*outcomes, operations)


@cases("packing", "order", shapes=["encoder"])
def test_packed_rows_in_an_order_equal_padded_ones(name: str, operations: str) -> None:
    outcomes = (outcome_of(name, operations, form, ordered=True) for form in ("packed", "right"))
    assert_same_outcome(*outcomes, operations)
