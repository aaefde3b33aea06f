"""What the optimisers' fast products are compared with: the same by singular values, and the best quintics by Remez."""

from __future__ import annotations

import numpy as np
import torch

from trifold.train.muon import POLYNOMIALS


def slowly_orthogonal(x: torch.Tensor, name: str, iterations: int) -> torch.Tensor:
    """The polynomial of the singular values of x (n, m), by the singular values themselves."""
    u, s, v = torch.linalg.svd(x.double(), full_matrices=False)
    s = s / (s.pow(8).sum() ** (1 / 8) if name == "polar-express" else s.norm())
    for a, b, c in POLYNOMIALS[name].steps(iterations):
        s = a * s + b * s**3 + c * s**5
    return u @ torch.diag(s) @ v


def best_quintic(lowest: float, highest: float) -> tuple[tuple[float, float, float], float]:
    """Of all a x + b x³ + c x⁵ the nearest to 1 on lowest … highest, and how far it is at worst (Remez 1934)."""
    q, r = (3 * lowest + highest) / 4, (lowest + 3 * highest) / 4
    for _ in range(40):
        x = np.array([lowest, q, r, highest])
        a, b, c, error = np.linalg.solve(np.stack([x, x**3, x**5, [1, -1, 1, -1]], axis=1), np.ones(4))
        q, r = np.sqrt((-3 * b + np.array([-1, 1]) * np.sqrt(9 * b * b - 20 * a * c)) / (10 * c))
    return (float(a), float(b), float(c)), float(error)


def best_quintics(iterations: int, lowest: float) -> tuple[list[tuple[float, float, float]], float]:
    """One after the other, from lowest … 1, each with 2 % of room above; and how far from 1 the last ends."""
    found, highest = [], 1.0
    for _ in range(iterations):
        quintic, error = best_quintic(lowest, 1.02 * highest)
        found.append(quintic)
        lowest, highest = 1 - error, 1 + error
    return found, error
