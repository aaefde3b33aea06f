"""Adam on everything alike: the flat vector of adam.py, its moments by name."""

from __future__ import annotations

from torch import Tensor

from trifold.recipe import TrainSettings
from trifold.train.adam import Adam
from trifold.train.weights import FlatWeights


class PlainAdam:
    """Adam (Kingma & Ba 2015, algorithm 1); weight decay, if there is any, is decoupled and takes every parameter."""

    def __init__(self, weights: FlatWeights, settings: TrainSettings) -> None:
        self._weights = weights
        betas = (settings.beta1, settings.beta2)
        self.inner = Adam(weights.master, betas, settings.epsilon, settings.weight_decay)

    def step(self, gradient: Tensor, rate: float) -> None:
        """One update with `gradient` (P,) at learning rate `rate`."""
        self.inner.step(gradient, rate)

    @property
    def state(self) -> dict[str, Tensor]:
        """exp_avg.NAME and exp_avg_sq.NAME in the shapes of the parameters, step (1,)."""
        held = self.inner.state
        named = {
            f"{kind}.{name}": value
            for kind in ("exp_avg", "exp_avg_sq")
            for name, value in self._weights.named(held[kind]).items()
        }
        return {**named, "step": held["step"].view(1)}
