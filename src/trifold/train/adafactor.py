"""Adafactor (Shazeer & Stern 2018, algorithm 4).

The second moments of a matrix come from the means of its rows and columns:

    R ← β R + (1 − β) mean over columns of (G² + ε₁)   C ← β C + (1 − β) mean over rows of (G² + ε₁)
    U = G / √(R Cᵀ / mean R)                                 β = 1 − t^−0.8
    w ← w − η · max(ε₂, rms(w)) · U / max(1, rms(U) / d)
                                             without the factor of w if `relative_step` is off

The squares of a vector are stored in full. There is no first moment. The rates of the paper,
min(10⁻⁶ t, 1/√t), are those of schedule inverse-sqrt with learning_rate 0.01 and warmup 10,000.
"""

import torch
from torch import Tensor

from trifold.recipe import TrainSettings
from trifold.train.adam import decay_group
from trifold.train.master_weights import MasterWeights

MIN_SQUARE = 1e-30  # ε₁
MIN_RMS = 1e-3  # ε₂
DECAY_EXPONENT = -0.8  # of 1 − β


class Adafactor:
    """Stores n + m numbers for an n × m matrix."""

    def __init__(self, weights: MasterWeights, settings: TrainSettings) -> None:
        self._weights = weights
        self._settings = settings
        self._views = weights.named(weights.master)
        self._decayed = decay_group(self._views, settings.weight_decay_on)
        self._step = torch.zeros(1)
        self._rows = {
            name: torch.zeros_like(w[..., :1]) for name, w in self._views.items() if w.dim() > 1
        }
        self._columns = {
            name: torch.zeros_like(self._views[name][..., :1, :]) for name in self._rows
        }
        self._squares = {
            name: torch.zeros_like(w) for name, w in self._views.items() if w.dim() <= 1
        }

    @torch.no_grad()
    def step(self, gradient: Tensor, rate: float) -> None:
        """One update with `gradient` (P,) at learning rate `rate`."""
        settings = self._settings
        self._step += 1
        newest = float(self._step) ** DECAY_EXPONENT  # 1 − β
        for name, grad in self._weights.named(gradient).items():
            weight = self._views[name]
            own_rate = rate * self._weights.factors.get(name, 1.0)
            update = self._normalize(name, grad, newest)
            scale: Tensor | float = 1.0
            if settings.relative_step:
                scale = _rms(weight).clamp_min_(MIN_RMS)
            update *= own_rate * scale / (_rms(update) / settings.update_clip).clamp_min_(1.0)
            if name in self._decayed:
                weight *= 1 - own_rate * settings.weight_decay
            weight -= update

    def _normalize(self, name: str, grad: Tensor, newest: float) -> Tensor:
        """G / √V, after updating V."""
        squares = grad.square().add_(MIN_SQUARE)
        if name in self._squares:
            return grad * self._squares[name].lerp_(squares, newest).rsqrt()
        rows = self._rows[name].lerp_(squares.mean(-1, keepdim=True), newest)
        columns = self._columns[name].lerp_(squares.mean(-2, keepdim=True), newest)
        # Without the limit, a row that is tiny next to a huge one rounds to 0, and its inverse is
        # infinite.
        shares = (rows / rows.mean(-2, keepdim=True)).clamp_min_(MIN_SQUARE)
        return grad * shares.rsqrt_() * columns.rsqrt()

    @property
    def state(self) -> dict[str, Tensor]:
        """row.PARAMETER (…, n, 1), column.PARAMETER (…, 1, m), square.PARAMETER of vectors, and
        step (1,).
        """
        kinds = {"row": self._rows, "column": self._columns, "square": self._squares}
        state = {
            f"{kind}.{name}": values
            for kind, tensors in kinds.items()
            for name, values in tensors.items()
        }
        return {**state, "step": self._step}


def _rms(x: Tensor) -> Tensor:
    """The root mean square, ()."""
    rms: Tensor = torch.linalg.vector_norm(x) / x.numel() ** 0.5
    return rms
