"""Schemes of positions, and the linear relation of sinusoids."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from tests.models import TWO_LAYERS

from trifold.look.schemes import check_relation, schemes, shift_matrix
from trifold.nn import ModelConfig, Transformer
from trifold.nn.config import Positions, Sinusoids
from trifold.nn.positions import sinusoids

SIZES = {**TWO_LAYERS, "vocab_size": 7, "max_positions": 12, "shape": "encoder"}


def test_parameters_are_those_of_built_models():
    config = ModelConfig(**SIZES, positions="learned")
    found = {scheme.name: scheme for scheme in schemes(config)}
    assert [*found] == [*get_args(Positions)]
    assert [name for name in found if found[name].own] == ["learned"]

    def count(**keys: object) -> int:
        return Transformer(ModelConfig(**SIZES, **keys)).count_parameters()

    axial = {"axial_shape": (3, 4), "axial_widths": (8, 8)}
    without = count(positions="none")
    for name, scheme in found.items():
        keys = axial if name == "axial" else {}
        assert scheme.parameters == count(positions=name, **keys) - without, name
    assert (found["learned"].parameters, found["learned"].formula) == (12 * 16, "P·E")
    assert found["rotary"].parameters == found["sinusoidal"].parameters == 0


def test_a_scheme_that_the_shape_excludes_has_its_problem():
    config = ModelConfig(**SIZES | {"shape": "decoder"}, positions="rotary")
    problem = {scheme.name: scheme.problem for scheme in schemes(config)}
    assert problem["disentangled"].startswith("positions: disentangled needs shape: encoder")
    assert problem["rotary"] == ""


@pytest.mark.parametrize("kind", get_args(Sinusoids))
def test_sinusoids_of_a_distance_are_a_linear_function(kind):
    """Vaswani et al. 2017, section 3.5."""
    table = sinusoids(torch.arange(40), 10, kind).double()
    matrix = shift_matrix(3, 10, kind)
    torch.testing.assert_close(table[:-3] @ matrix.T, table[3:], atol=1e-6, rtol=0)
    assert check_relation(3, 40, 10, kind).error < 1e-14


def test_the_matrix_of_two_steps_is_the_square_of_that_of_one():
    one = shift_matrix(1, 8)
    torch.testing.assert_close(one @ one, shift_matrix(2, 8))
    torch.testing.assert_close(one @ one.T, torch.eye(8, dtype=torch.float64))
