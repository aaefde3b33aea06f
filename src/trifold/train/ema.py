"""A moving average of the weights, to be validated and kept instead of them.

    mean_t = Σ_i d^(t−i) w_i / Σ_i d^(t−i)          w_i: the weights after update i, d: the decay

That is Adam's average with its bias corrected, of weights (Kingma & Ba 2015, section 7.2; after Polyak & Juditsky
1992): the random weights of the start have no part in it. Kept as it is read, by
mean_t = mean_(t−1) + (w_t − mean_(t−1)) · (1 − d) / (1 − d^t).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


class MovingAverage:
    """`mean` (P,) of the master weights (P,), which it watches.

    `taken`: after how many updates. The optimiser's `step` in a checkpoint says it too, and not the number of the last
    step: updates may have been left out.
    """

    def __init__(self, master: Tensor, decay: float) -> None:
        self._master, self._decay = master, decay
        self.mean, self.taken = master.clone(), 0

    @torch.no_grad()
    def take(self) -> None:
        """The weights after another update have their part."""
        self.taken += 1
        self.mean.lerp_(self._master, newest_share(self._decay, self.taken))


def newest_share(decay: float, taken: int) -> float:
    """(1 − d) / (1 − d^t): 1 at the first, then falling to 1 − d."""
    return min(1.0, (1 - decay) / -math.expm1(taken * math.log(decay)))
