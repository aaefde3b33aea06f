"""The moving average of the weights."""

import math

import torch
from torch import Tensor


class MovingAverage:
    """An exponential moving average of the weights, validated and kept in their place.

        mean_t = Σ_i d^(t−i) w_i / Σ_i d^(t−i)         w_i: the weights after update i, d: the decay

    This is the bias-corrected average of Adam, applied to weights (Kingma & Ba 2015, section 7.2;
    after Polyak & Juditsky 1992), so the initial weights have no influence. It is computed as
    mean_t = mean_(t−1) + (w_t − mean_(t−1)) · (1 − d) / (1 − d^t).

    `updates` may be less than the step, since updates can be skipped. The optimizer's `step` has
    the same value.
    """

    def __init__(self, master: Tensor, decay: float) -> None:
        self._master = master
        self._decay = decay
        self.mean = master.clone()
        self.updates = 0

    @torch.no_grad()
    def update(self) -> None:
        """Include the current weights."""
        self.updates += 1
        total = -math.expm1(self.updates * math.log(self._decay))  # 1 − d^t
        newest = (1 - self._decay) / total  # falls from 1 to 1 − d
        self.mean.lerp_(self._master, min(1.0, newest))
