"""Muon: hidden matrices move along their momentum made orthogonal, and AdamW moves embeddings, heads, norms, biases.

    M ← μ M + (1 − μ) G,   O = orthogonal((1 − μ) G + μ M) ≈ U Vᵀ where U S Vᵀ is its SVD,   w ← w − η λ w − η s(n, m) O

Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/, with Nesterov's momentum; `orthogonal` is in bf16 as
there where training computes in low precision, else in fp32. The scale s for n × m weights (out × in): √max(1, n / m)
there ("original"), 0.2 √max(n, m) in Liu et al. 2025, section 2.2 ("match-rms"), which gives the updates the size of
AdamW's, so that one learning rate serves both.
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
from trifold.train.optimizers.orthogonal import POLYNOMIALS, orthogonal
from trifold.train.weights import FlatWeights

# train.muon_scale -> the scale of an n × m update
SCALES: dict[str, Callable[[int, int], float]] = {
    "match-rms": lambda n, m: 0.2 * math.sqrt(max(n, m)),
    "original": lambda n, m: math.sqrt(max(1.0, n / m)),
    "none": lambda n, m: 1.0,
}


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
        decay, polynomial = 1 - rate * settings.weight_decay, POLYNOMIALS[settings.muon_polynomial]
        for shape, names in self._alike.items():
            momenta = self._momenta[shape]
            directions = torch.empty_like(momenta, dtype=self._dtype)
            # One matrix after another, each of which stays in the processor's caches until it is done with.
            for name, momentum, direction in zip(names, momenta, directions, strict=True):
                momentum.lerp_(slopes[name], 1 - settings.momentum)
                direction.copy_(slopes[name].lerp(momentum, settings.momentum))
            updates = orthogonal(directions, polynomial, settings.muon_iterations)
            scale = rate * SCALES[settings.muon_scale](*shape)
            for name, update in zip(names, updates, strict=True):
                self._views[name].mul_(decay).add_(update, alpha=-scale)

    @property
    def state(self) -> dict[str, Tensor]:
        """momentum.NAME of the hidden matrices, and AdamW's state of the rest."""
        momenta = {
            f"momentum.{name}": momentum
            for shape, names in self._alike.items()
            for name, momentum in zip(names, self._momenta[shape], strict=True)
        }
        return {**momenta, **self._rest.state}
