"""Conjugate gradients solve linear equations, or stop at the edge of a region."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trifold.linear.conjugate_gradients import conjugate_gradients


def problem() -> tuple[Tensor, Tensor]:
    """A positive definite matrix (30, 30) of very different scales, and a target (30, 2)."""
    torch.manual_seed(0)
    root = torch.randn(30, 30, dtype=torch.float64) / 30**0.5
    scales = torch.logspace(-2, 2, 30, dtype=torch.float64)
    matrix = scales[:, None] * (root @ root.T + torch.eye(30) / 10) * scales
    return matrix, torch.randn(30, 2, dtype=torch.float64)


def test_the_solution_is_that_of_a_direct_method() -> None:
    matrix, target = problem()
    expected = torch.linalg.solve(matrix, target)
    scales = matrix.diagonal()[:, None]
    found, image = conjugate_gradients(matrix.matmul, target, 1e-12, 60, scales)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(image, target)
    unscaled, _ = conjugate_gradients(matrix.matmul, target, 1e-12, 60)
    assert (unscaled - expected).norm() > 0.01 * expected.norm()  # which 60 steps do not find


@pytest.mark.parametrize("share", [0.001, 0.3, 0.9])
def test_a_solution_stops_at_the_edge(share: float) -> None:
    matrix, target = problem()
    scales = matrix.diagonal()[:, None]

    def length(x: Tensor) -> float:
        return float((scales * x**2).sum() ** 0.5)

    whole, _ = conjugate_gradients(matrix.matmul, target, 1e-12, 60, scales)
    radius = share * length(whole)
    found, image = conjugate_gradients(matrix.matmul, target, 1e-12, 60, scales, radius)
    assert length(found) == pytest.approx(radius)
    torch.testing.assert_close(image, matrix @ found)

    def value(x: Tensor) -> float:
        return float((x * (matrix @ x / 2 - target)).sum())

    inside, _ = conjugate_gradients(matrix.matmul, target, 1e-12, 60, scales, radius / 2)
    assert value(whole) < value(found) < value(inside) < 0
