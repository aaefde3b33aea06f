"""Padding on either side changes neither the states and logits of a row nor its gradient."""

from __future__ import annotations

from tests.laws.configs import cases
from tests.laws.models import assert_same_outcome, outcome_of


@cases("padding", fast_alone=True)
def test_padding_on_the_right_changes_nothing(name: str, operations: str) -> None:
    outcomes = (outcome_of(name, operations, form) for form in ("right", "alone"))
    assert_same_outcome(*outcomes, operations)


@cases("padding", "padding on the left", fast_alone=True)
def test_padding_on_the_left_changes_nothing(name: str, operations: str) -> None:
    outcomes = (outcome_of(name, operations, form) for form in ("left", "alone"))
    assert_same_outcome(*outcomes, operations)
