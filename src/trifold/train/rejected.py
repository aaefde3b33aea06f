"""Which updates are rejected: those with a non-finite loss or gradient, or a loss spike.
`recovery.py` says what follows.
"""

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal

from trifold.errors import TrifoldError
from trifold.recipe import TrainSettings


class RejectedUpdate(TrifoldError):
    """An update was rejected because of a non-finite loss or gradient, or a loss spike. The weights
    are unchanged.

    The decision depends only on the run itself: a resumed run rejects the same updates as an
    uninterrupted one.
    """

    def __init__(
        self, kind: Literal["non-finite", "spike"], step: int, loss: float, norm: float
    ) -> None:
        cause = f"loss {loss}, gradient norm {norm}"
        if kind == "spike":
            cause += ", a spike"
        super().__init__(f"step {step}: {cause}; the weights were not changed")
        self.kind = kind
        self.step = step
        self.loss = loss
        self.norm = norm

    @property
    def details(self) -> dict[str, str]:
        """The values to record, as text, because JSON has no NaN and infinity."""
        return {"what": self.kind, "loss": str(self.loss), "gradient_norm": str(self.norm)}


def spike_threshold(settings: TrainSettings, losses: Sequence[float]) -> float:
    """The largest loss that is no spike: a multiple of the median of the last ones; infinity while
    they are too few.
    """
    if settings.on_spike == "accept" or len(losses) < settings.spike_window:
        return math.inf
    return settings.spike_factor * median(losses)


def check_update(step: int, loss: float, norm: float, max_loss: float = math.inf) -> None:
    """Raises RejectedUpdate if the loss or the gradient norm is not finite, or the loss exceeds
    `max_loss`.
    """
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise RejectedUpdate("non-finite", step, loss, norm)
    if loss > max_loss:
        raise RejectedUpdate("spike", step, loss, norm)
