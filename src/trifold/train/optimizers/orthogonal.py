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

# The quintics that together bring values up from 0.16 (of one step), 0.04 (two), 0.01, 0.0023, 0.0006 (five), where
# the largest may be 1, to 0.7 … 1.3: each the best for what the one before leaves, and for 2 % of rounding on top.
# OPENING[n] is the first of n; those behind it are the last of LATER (Amsel et al. 2025, The Polar Express, section 3,
# https://arxiv.org/abs/2505.16932).
OPENING: dict[int, Quintic] = {
    1: (4.63355, -9.91999, 6.43155),
    2: (6.93302, -18.47111, 12.91091),
    3: (7.95619, -22.33959, 15.86382),
    4: (8.25010, -23.45441, 16.71598),
    5: (8.32384, -23.73430, 16.93000),
}
LATER: tuple[Quintic, ...] = (
    (4.13460, -2.95221, 0.52845),
    (4.01645, -2.87401, 0.52011),
    (3.60475, -2.59629, 0.49060),
    (2.68662, -1.93370, 0.42148),
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
    wide = 2 * x.shape[-2] <= x.shape[-1]
    for number, (a, b, c) in enumerate(steps, start=1):
        gram = x @ x.mT
        square = gram @ gram
        if polynomial.tight and number == 1:
            largest = torch.linalg.vector_norm(square, dim=(-2, -1), keepdim=True).clamp_min(1e-9) ** 0.25
            x, gram, square = x / largest, gram / largest**2, square / largest**4
        change = square.mul_(c).add_(gram, alpha=b)
        if wide and number == iterations - 1:
            change.diagonal(dim1=-2, dim2=-1).add_(a)
            return _last_two(change, gram, steps[-1]) @ x
        x = torch.baddbmm(x, change, x, beta=a)
    return x


def _last_two(first: Tensor, gram: Tensor, last: Quintic) -> Tensor:
    """The first factor of x and that of the last step in one, (N, n, n): products n × n for products n × m.

    Its own rounding is not in the Gram matrix that it goes by, which more steps behind it could not bear.
    """
    gram = first @ gram @ first  # of first @ x
    a, b, c = last
    change = (gram @ gram).mul_(c).add_(gram, alpha=b)
    return torch.baddbmm(first, change, first, beta=a)
