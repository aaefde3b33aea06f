"""Solve linear equations by products with their matrix (Hestenes & Stiefel 1952)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def conjugate_gradients(
    apply: Callable[[Tensor], Tensor],
    target: Tensor,
    tolerance: float,
    steps: int,
    diagonal: Tensor | float = 1.0,
    radius: float = math.inf,
) -> tuple[Tensor, Tensor]:
    """x with apply(x) = target, from zero, and apply(x). apply: a product with a positive definite
    matrix; tolerance: of the residual, as a share of the first one.

    diagonal: about that of the matrix, by which directions are scaled (Jacobi). radius: x ends
    where Σ diagonal · x² reaches its square (Steihaug 1983).
    """
    solution = torch.zeros_like(target)
    residual = target
    scaled = residual / diagonal
    direction = scaled
    square = (residual * scaled).sum()
    smallest = square * tolerance**2
    for _ in range(steps):
        if square <= smallest:
            break
        image = apply(direction)
        step = square / (direction * image).sum()
        longer = solution + step * direction
        if radius < math.inf and (diagonal * longer**2).sum() >= radius**2:
            step = _step_to_edge(solution, direction, diagonal, radius)
            return solution + step * direction, target - residual + step * image
        solution = longer
        residual = residual - step * image
        scaled = residual / diagonal
        previous = square
        square = (residual * scaled).sum()
        direction = scaled + square / previous * direction
    return solution, target - residual


def _step_to_edge(
    solution: Tensor, direction: Tensor, diagonal: Tensor | float, radius: float
) -> Tensor:
    """How far from the solution, along the direction, Σ diagonal · x² is the squared radius."""
    a, b, c = (
        (diagonal * first * second).sum()
        for first, second in ((direction, direction), (direction, solution), (solution, solution))
    )
    return (-b + (b**2 + a * (radius**2 - c)).sqrt()) / a
