"""AdamW: Adam with decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2), for some parameters or all.

m ← β₁ m + (1 − β₁) g        v ← β₂ v + (1 − β₂) g²
w ← w − η (m̂ / (√v̂ + ε) + λ w)          m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ); λ is 0 outside the decay group
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from trifold.recipe import TrainSettings
from trifold.train.optimizers.groups import decaying
from trifold.train.weights import FlatWeights


class AdamW:
    """The library's fused one, over views of the master weights: all of them, or those of `names`."""

    def __init__(
        self, weights: FlatWeights, settings: TrainSettings, names: Collection[str] | None = None
    ) -> None:
        self._weights = weights
        named = weights.named(weights.master)
        self._views = {
            name: torch.nn.Parameter(view) for name, view in named.items() if names is None or name in names
        }
        drawn = decaying(named, settings.weight_decay_on)
        groups = [
            {
                "params": [view for name, view in self._views.items() if (name in drawn) is draws],
                "weight_decay": decay,
            }
            for draws, decay in ((True, settings.weight_decay), (False, 0.0))
        ]
        self._inner = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=0.0,
            betas=(settings.beta1, settings.beta2),
            eps=settings.epsilon,
            fused=True,
        )
        # The moments are there from the start, so that a checkpoint of step 0 looks like any other.
        self._steps = torch.zeros(len(self._views), dtype=torch.float32, device=weights.master.device)
        for view, step in zip(self._views.values(), self._steps, strict=True):
            self._inner.state[view] = {
                "step": step,
                "exp_avg": torch.zeros_like(view.data),
                "exp_avg_sq": torch.zeros_like(view.data),
            }

    @torch.no_grad()
    def step(self, gradient: Tensor, rate: float) -> None:
        """One update with `gradient` (P,) at learning rate `rate`."""
        gradients = self._weights.named(gradient)
        for group in self._inner.param_groups:
            group["lr"] = rate
        for name, view in self._views.items():
            view.grad = gradients[name]
        self._inner.step()
        for view in self._views.values():
            view.grad = None

    @property
    def state(self) -> dict[str, Tensor]:
        """exp_avg.NAME and exp_avg_sq.NAME in the shapes of the parameters, step: one number for each of them."""
        named = {
            f"{kind}.{name}": self._inner.state[view][kind]
            for kind in ("exp_avg", "exp_avg_sq")
            for name, view in self._views.items()
        }
        return {**named, "step": self._steps}
