"""Gradients in float64: those of finite differences, and the same with the fast operations."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.laws.configs import cases, config_of
from tests.laws.models import (
    assert_gradients_close,
    gradients_of,
    hidden_of,
    loss_of,
    model_of,
    packed,
    padded,
    real_states,
    rows_of,
    trained_of,
)
from tests.laws.operations import plain
from torch import Tensor

from trifold.nn import Transformer

STEP = 1e-7  # larger ones cross kinks


def total_of(model: Transformer, name: str) -> Tensor:
    """A sum of all real states."""
    rows = rows_of(config_of(name))
    example = padded(rows) if config_of(name).patch_size else packed(rows)
    states = real_states(hidden_of(model, example), example)
    return loss_of(states)


@pytest.mark.parametrize("operations", ["plain"], indirect=True)
@cases("finite differences")
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    """Along a random direction of all parameters."""
    model = copy.deepcopy(model_of(name))
    directions = [torch.randn_like(p) for p in trained_of(model)]
    gradients = gradients_of(total_of(model, name), model)
    expected = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
    values = []
    with torch.no_grad():
        for step in (STEP, -2 * STEP):
            for parameter, direction in zip(trained_of(model), directions, strict=True):
                parameter += step * direction
            values.append(float(total_of(model, name)))
    assert (values[0] - values[1]) / (2 * STEP) == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("operations", ["fast"], indirect=True)
@cases("gradients")
def test_fast_gradients_in_float64_are_the_plain_ones(name: str) -> None:
    model = model_of(name)
    got = gradients_of(total_of(model, name), model)
    with plain():
        expected = gradients_of(total_of(model, name), model)
    assert_gradients_close(got, expected, 1e-9)
