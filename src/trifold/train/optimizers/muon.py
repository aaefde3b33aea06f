"""Muon: hidden matrices move along their momentum made orthogonal, and AdamW moves embeddings, heads, norms, biases.

    M ← μ M + (1 − μ) G,   O = orthogonal((1 − μ) G + μ M) ≈ U Vᵀ where U S Vᵀ is its SVD,   w ← w − η λ w − η s(n, m) O

Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/, with Nesterov's momentum and Newton–Schulz steps
(five; `muon_iterations`), in bf16 as there where training computes in low precision, else in fp32. The scale s for
n × m weights (out × in): √max(1, n / m) there ("original"), 0.2 √max(n, m) in Liu et al. 2025, section 2.2
("match-rms"), which gives the updates the size of AdamW's, so that one learning rate serves both.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor

from trifold.recipe import TrainSettings
from trifold.train.optimizers.adamw import AdamW
from trifold.train.optimizers.groups import is_hidden
from trifold.train.weights import FlatWeights

# train.muon_scale -> the scale of an n × m update
SCALES: dict[str, Callable[[int, int], float]] = {
    "match-rms": lambda n, m: 0.2 * math.sqrt(max(n, m)),
    "original": lambda n, m: math.sqrt(max(1.0, n / m)),
    "none": lambda n, m: 1.0,
}
# x ↦ a x + b x³ + c x⁵ lifts small singular values quickest, and leaves them all within about 0.7 … 1.2.
QUINTIC = (3.4445, -4.7750, 2.0315)


class Muon:
    """Matrices of one shape are made orthogonal together."""

    def __init__(self, weights: FlatWeights, settings: TrainSettings) -> None:
        self._weights, self._settings = weights, settings
        self._views = weights.named(weights.master)
        self._alike: dict[tuple[int, int], list[str]] = defaultdict(list)
        for name, view in self._views.items():
            if is_hidden(name, view):
                self._alike[view.shape[0], view.shape[1]].append(name)
        self._momenta = {
            shape: weights.master.new_zeros(len(names), *shape) for shape, names in self._alike.items()
        }
        self._dtype = torch.bfloat16 if weights.low_precision else torch.float32
        hidden = {name for names in self._alike.values() for name in names}
        self._rest = AdamW(weights, settings, self._views.keys() - hidden)

    @torch.no_grad()
    def step(self, gradient: Tensor, rate: float) -> None:
        """One update with `gradient` (P,), of the rest at learning rate `rate`, of matrices at muon_rate times it."""
        settings = self._settings
        self._rest.step(gradient, rate)
        rate *= settings.muon_rate
        slopes = self._weights.named(gradient)
        for shape, names in self._alike.items():
            ahead = torch.stack([slopes[name] for name in names])
            momentum = self._momenta[shape].lerp_(ahead, 1 - settings.momentum)
            ahead = ahead.lerp_(momentum, settings.momentum).to(self._dtype)
            updates = orthogonal(ahead, settings.muon_iterations)
            scale = rate * SCALES[settings.muon_scale](*shape)
            for name, update in zip(names, updates, strict=True):
                self._views[name].mul_(1 - rate * settings.weight_decay).add_(update, alpha=-scale)

    @property
    def state(self) -> dict[str, Tensor]:
        """momentum.NAME of the hidden matrices, and AdamW's state of the rest."""
        momenta = {
            f"momentum.{name}": momentum
            for shape, names in self._alike.items()
            for name, momentum in zip(names, self._momenta[shape], strict=True)
        }
        return {**momenta, **self._rest.state}


def orthogonal(x: Tensor, iterations: int) -> Tensor:
    """(N, n, m) -> matrices with the same singular vectors and values near 1, by Newton–Schulz steps in x's dtype.

    A step lifts small values by 3.4445 at most: of five, those above 0.2 % of the matrix's norm end above 0.65.
    """
    a, b, c = QUINTIC
    if x.shape[-2] > x.shape[-1]:  # the smaller of the two products
        return orthogonal(x.mT, iterations).mT
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp_min(1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
