"""Adam on one flat vector (Kingma & Ba 2015), with decoupled weight decay (Loshchilov & Hutter 2019)."""

from __future__ import annotations

import torch
from torch import Tensor


class Adam:
    """The library's fused Adam over the master weights; `state` is all that a checkpoint needs of it."""

    def __init__(
        self, master: Tensor, betas: tuple[float, float], epsilon: float, weight_decay: float
    ) -> None:
        self._vector = torch.nn.Parameter(master)
        self._inner = torch.optim.AdamW(
            [self._vector], lr=0.0, betas=betas, eps=epsilon, weight_decay=weight_decay, fused=True
        )
        # The moments are there from the start, so that a checkpoint of step 0 looks like any other.
        self._inner.state[self._vector] = {
            "step": torch.zeros((), dtype=torch.float32, device=master.device),
            "exp_avg": torch.zeros_like(master),
            "exp_avg_sq": torch.zeros_like(master),
        }

    @torch.no_grad()
    def step(self, gradient: Tensor, rate: float) -> None:
        """One update with `gradient` (P,) at learning rate `rate`."""
        self._inner.param_groups[0]["lr"] = rate
        self._vector.grad = gradient
        self._inner.step()
        self._vector.grad = None

    @property
    def state(self) -> dict[str, Tensor]:
        """First and second moments (P,), and the number of updates."""
        held: dict[str, Tensor] = self._inner.state[self._vector]
        return held

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on from saved moments."""
        for name, value in self.state.items():
            value.copy_(state[name])
