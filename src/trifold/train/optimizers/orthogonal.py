"""The orthogonal matrix nearest to another, about: its singular values are brought near 1 by products alone.

With x = U S Vᵀ, f(x xᵀ) x is U f(S²) S Vᵀ for every polynomial f. A step of Newton and Schulz is a quintic of the
singular values, s ↦ a s + b s³ + c s⁵, that is f(g) = a + b g + c g² of x's Gram matrix g = x xᵀ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Quintic = tuple[float, float, float]

# Lifts small singular values by 3.4445 at most, and leaves large ones within about 0.7 … 1.2: of five steps, those
# above 0.2 % of the matrix's norm end above 0.65 (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/).
JORDAN: Quintic = (3.4445, -4.7750, 2.0315)

# The quintics that together bring the smallest values, up from 0.12 (of one step), 0.03 (two), 0.007, 0.0016, 0.0004
# (five) of the largest, to 0.6 … 1.4: each the best for what the one before leaves, and for 1 % of rounding on top.
# OPENING[n] is the first of n; those behind it are the last of LATER (Amsel et al. 2025, The Polar Express, section 3,
# https://arxiv.org/abs/2505.16932).
OPENING: dict[int, Quintic] = {
    1: (5.25158, -12.35594, 8.39787),
    2: (7.33703, -20.31592, 14.56682),
    3: (8.14128, -23.42087, 16.98533),
    4: (8.35964, -24.26579, 17.64412),
    5: (8.41320, -24.47315, 17.80584),
}
LATER: tuple[Quintic, ...] = (
    (4.18666, -3.04815, 0.55591),
    (4.09869, -2.98855, 0.54933),
    (3.77438, -2.76574, 0.52479),
    (2.93587, -2.15881, 0.45857),
)


class Polynomial(NamedTuple):
    """The steps, by their number; and what values are divided by before the first, so that none is above 1.

    That is (Σ s²)^½, the norm; or where `tight` (Σ s⁸)^⅛ = ‖g²‖^¼, which is no less than the largest value either but
    much nearer to it, and comes of the first step's products.
    """

    steps: Callable[[int], Sequence[Quintic]]
    tight: bool


# train.muon_polynomial -> what it is
POLYNOMIALS = {
    "jordan": Polynomial(lambda n: [JORDAN] * n, tight=False),
    "polar-express": Polynomial(lambda n: [OPENING[n], *LATER[len(LATER) + 1 - n :]], tight=True),
}


def orthogonal(x: Tensor, polynomial: Polynomial, iterations: int) -> Tensor:
    """(N, n, m) -> matrices with the same singular vectors, and of their values the polynomial, in x's dtype."""
    if x.shape[-2] > x.shape[-1]:  # the smaller of the two Gram matrices
        return orthogonal(x.mT, polynomial, iterations).mT
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp_min(1e-7)
    steps = polynomial.steps(iterations)
    two_at_once = 2 * x.shape[-2] <= x.shape[-1]  # by products n × n for products n × m
    for number in range(0, iterations, 1 + two_at_once):
        gram = x @ x.mT
        square = gram @ gram
        if polynomial.tight and number == 0:
            largest = torch.linalg.vector_norm(square, dim=(-2, -1), keepdim=True).clamp_min(1e-9) ** 0.25
            x, gram, square = x / largest, gram / largest**2, square / largest**4
        a, b, c = steps[number]
        factor = square.mul_(c).add_(gram, alpha=b)
        if two_at_once and number + 1 < iterations:
            factor.diagonal(dim1=-2, dim2=-1).add_(a)
            gram = factor @ gram @ factor  # of factor @ x
            a, b, c = steps[number + 1]
            second = (gram @ gram).mul_(c).add_(gram, alpha=b)
            x = torch.baddbmm(factor, second, factor, beta=a) @ x
        else:
            x = torch.baddbmm(x, factor, x, beta=a)
    return x
