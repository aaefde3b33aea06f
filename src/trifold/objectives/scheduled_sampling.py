"""Scheduled sampling (Bengio et al. 2015, section 2.4): a decoder reads the target tokens at first,
and later a growing share of its own predictions.

With ε_i, the probability that update i reads a token of the target, the share of predictions is
min(share, 1 − ε_i), where i counts the updates after the first `first` ones:

    constant          ε_i = 0
    linear            ε_i = 1 − k i                        k: what each update adds
    exponential       ε_i = k^i                            k < 1
    inverse-sigmoid   ε_i = k / (k + exp(i / k))           k ≥ 1
"""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from trifold.errors import SettingsError
from trifold.settings import Settings

MAX_EXPONENT = 700.0  # exp of more is no float


def linear(i: int, k: float) -> float:
    """The probability of a token of the target in update i = 1, 2, …"""
    return 1 - k * i


def exponential(i: int, k: float) -> float:
    """The probability of a token of the target in update i = 1, 2, …"""
    return float(k**i)


def inverse_sigmoid(i: int, k: float) -> float:
    """The probability of a token of the target in update i = 1, 2, …"""
    return k / (k + math.exp(min(i / k, MAX_EXPONENT)))


# schedule -> ε_i, from i and k; and the values of k that it allows, in words and as a test
PROBABILITIES: dict[str, Callable[[int, float], float]] = {
    "constant": lambda i, k: 0.0,
    "linear": linear,
    "exponential": exponential,
    "inverse-sigmoid": inverse_sigmoid,
}
LIMITS_OF_K: dict[str, tuple[str, Callable[[float], bool]]] = {
    "linear": ("above 0", lambda k: k > 0),
    "exponential": ("between 0 and 1", lambda k: 0 < k < 1),
    "inverse-sigmoid": ("1 or more", lambda k: k >= 1),
}


class ScheduledSampling(Settings):
    """The share of decoder inputs that are predictions, as a function of the step."""

    share: float = Field(
        0.0, ge=0, lt=1, description="largest share of predicted decoder inputs; 0: none"
    )
    schedule: Literal["linear", "exponential", "inverse-sigmoid", "constant"] = Field(
        "linear", description="how the share grows (Bengio et al. 2015, section 2.4)"
    )
    first: int = Field(0, ge=0, description="steps before, which read target tokens only")
    k: float | None = Field(
        None,
        description="constant of the schedule: what a step adds to the share (linear); ε = k^i "
        "(exponential, k < 1); ε = k / (k + exp(i / k)) (inverse-sigmoid, k ≥ 1). By default the "
        "largest share is reached at the last step",
    )

    @model_validator(mode="before")
    @classmethod
    def _check_group(cls, values: object) -> object:
        if isinstance(values, int | float):
            raise ValueError(
                f"a group of keys is required; write task.scheduled_sampling.share={values}"
            )
        return values

    @model_validator(mode="after")
    def _check_k(self) -> Self:
        if not self.share:
            if self.schedule != "linear" or self.first or self.k is not None:
                raise ValueError("share is 0, so nothing is sampled; set share, such as 0.25")
            return self
        if self.schedule == "constant":
            if self.k is not None:
                raise ValueError(f"k {self.k:g} has no effect with schedule constant; remove it")
            return self
        allowed, is_allowed = LIMITS_OF_K[self.schedule]
        if self.k is None or not is_allowed(self.k):
            raise ValueError(f"schedule {self.schedule} requires k {allowed}, not {self.k}")
        return self

    def share_at(self, step: int) -> float:
        """The share of predictions in update number `step`, counted from 1."""
        i = step - self.first
        if i <= 0 or not self.share:
            return 0.0
        return min(self.share, 1 - PROBABILITIES[self.schedule](i, self.k or 0.0))


def fitting_k(values: Mapping[str, Any], steps: int) -> float | None:
    """The constant with which the share is at its largest after `steps` steps. values: the other
    settings; None if they have no constant, or are wrong.
    """
    for k in (0.5, 1.0):  # each schedule with a constant allows one of them
        with suppress(SettingsError):
            settings = ScheduledSampling.parse({**values, "k": k})
            updates = max(1, steps - settings.first)
            return float(f"{FITTING[settings.schedule](settings.share, updates):.4g}")
    return None


def _fitting_sigmoid(share: float, updates: int) -> float:
    """The solution of 1 − k / (k + exp(n / k)) = share by bisection: the left side falls in k."""
    low = 1.0
    high = float(updates) + 1.0
    while 1 - inverse_sigmoid(updates, high) > share:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        if 1 - inverse_sigmoid(updates, middle) > share:
            low = middle
        else:
            high = middle
    return low


# schedule -> the constant, from the share and the number of updates
FITTING: dict[str, Callable[[float, int], float]] = {
    "linear": lambda share, updates: share / updates,
    "exponential": lambda share, updates: float((1 - share) ** (1 / updates)),
    "inverse-sigmoid": _fitting_sigmoid,
}
