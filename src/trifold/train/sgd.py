"""Stochastic gradient descent with momentum (Polyak 1964; Sutskever et al. 2013), as in PyTorch.

    g ← g + λ w
    m ← μ m + g
    w ← w − η m                  or, with Nesterov momentum, w ← w − η (g + μ m)

With μ = 0 it is plain gradient descent. λ is 0 outside the decay group, which is everything by
default; the L2 term enters the momentum, unlike the decoupled decay of AdamW.
"""

import torch
from torch import Tensor

from trifold.recipe import TrainSettings
from trifold.train.adam import decay_group
from trifold.train.master_weights import MasterWeights


class SGD:
    """One momentum for each weight."""

    def __init__(self, weights: MasterWeights, settings: TrainSettings) -> None:
        self._weights = weights
        self._settings = settings
        self._views = weights.named(weights.master)
        self._decayed = decay_group(self._views, settings.weight_decay_on or "everything")
        self._momentum = torch.zeros_like(weights.master)
        self._step = torch.zeros(1)

    @torch.no_grad()
    def step(self, gradient: Tensor, rate: float) -> None:
        """One update with `gradient` (P,) at learning rate `rate`."""
        settings = self._settings
        self._step += 1
        if settings.weight_decay:
            gradient = self._with_decay(gradient, settings.weight_decay)
        self._momentum.mul_(settings.momentum).add_(gradient)
        direction = self._momentum
        if settings.nesterov:
            direction = gradient.add(self._momentum, alpha=settings.momentum)
        for name, part in self._weights.named(direction).items():
            self._views[name].add_(part, alpha=-rate * self._weights.factors.get(name, 1.0))

    def _with_decay(self, gradient: Tensor, weight_decay: float) -> Tensor:
        """The gradient (P,) with that of the L2 penalty added."""
        total = gradient.clone()
        parts = self._weights.named(total)
        for name in self._decayed:
            parts[name].add_(self._views[name], alpha=weight_decay)
        return total

    @property
    def state(self) -> dict[str, Tensor]:
        """momentum.PARAMETER, and step (1,)."""
        named = self._weights.named(self._momentum)
        return {**{f"momentum.{name}": value for name, value in named.items()}, "step": self._step}
