"""Adafactor: the second moments of a matrix from the means of its rows and columns (Shazeer & Stern 2018, algorithm 4).

    R ← β R + (1 − β) mean over columns of (G² + ε₁)        C ← β C + (1 − β) mean over rows of (G² + ε₁)
    U = G / √(R Cᵀ / mean R)                                 β = 1 − t^−0.8
    w ← w − η · max(ε₂, rms(w)) · U / max(1, rms(U) / d)     without the factor of w: steps that are not relative

A vector's squares are kept whole. There is no first moment: beside the weights it remembers next to nothing.
The paper's rates, min(10⁻⁶ t, 1/√t), are those of schedule inverse-sqrt with learning_rate 0.01 and warmup 10,000.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trifold.recipe import TrainSettings
from trifold.train.optimizers.groups import decaying
from trifold.train.weights import FlatWeights

LEAST_SQUARE = 1e-30  # ε₁
LEAST_SIZE = 1e-3  # ε₂
FORGETTING = -0.8  # the exponent of 1 − β


class Adafactor:
    """Remembers n + m numbers for n × m weights."""

    def __init__(self, weights: FlatWeights, settings: TrainSettings) -> None:
        self._weights, self._settings = weights, settings
        self._views = weights.named(weights.master)
        self._decaying = decaying(self._views, settings.weight_decay_on)
        self._step = torch.zeros(1)
        self._rows = {name: torch.zeros_like(w[..., :1]) for name, w in self._views.items() if w.dim() > 1}
        self._columns = {name: torch.zeros_like(self._views[name][..., :1, :]) for name in self._rows}
        self._squares = {
            name: torch.zeros_like(w) for name, w in self._views.items() if name not in self._rows
        }

    @torch.no_grad()
    def step(self, gradient: Tensor, rate: float) -> None:
        """One update with `gradient` (P,) at learning rate `rate`."""
        settings = self._settings
        self._step += 1
        newest = float(self._step) ** FORGETTING
        for name, slope in self._weights.named(gradient).items():
            weight = self._views[name]
            update = self._normed(name, slope, newest)
            size = _rms(weight).clamp_min_(LEAST_SIZE) if settings.relative_step else 1.0
            update *= rate * size / (_rms(update) / settings.update_clip).clamp_min_(1.0)
            if name in self._decaying:
                weight *= 1 - rate * settings.weight_decay
            weight -= update

    def _normed(self, name: str, slope: Tensor, newest: float) -> Tensor:
        """G / √V, and V moved on."""
        squares = slope.square().add_(LEAST_SQUARE)
        if name in self._squares:
            return slope * self._squares[name].lerp_(squares, newest).rsqrt()
        rows = self._rows[name].lerp_(squares.mean(-1, keepdim=True), newest)
        columns = self._columns[name].lerp_(squares.mean(-2, keepdim=True), newest)
        # Next to a huge row a silent one would round to 0, and its inverse not be finite.
        shares = (rows / rows.mean(-2, keepdim=True)).clamp_min_(LEAST_SQUARE)
        return slope * shares.rsqrt_() * columns.rsqrt()

    @property
    def state(self) -> dict[str, Tensor]:
        """row.NAME (…, n, 1) and column.NAME (…, 1, m) of matrices, square.NAME of vectors, step (1,)."""
        kinds = {"row": self._rows, "column": self._columns, "square": self._squares}
        named = {f"{kind}.{name}": value for kind, held in kinds.items() for name, value in held.items()}
        return {**named, "step": self._step}


def _rms(x: Tensor) -> Tensor:
    """The root of the mean square, ()."""
    return torch.linalg.vector_norm(x) / x.numel() ** 0.5
