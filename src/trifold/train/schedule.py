"""The learning rate as a function of the step: a linear rise to the peak, then one of these.

inverse-sqrt         d^-0.5 · min(step^-0.5, step · warmup^-1.5)        (Vaswani et al. 2017, equation 3)
linear               down to the final share of the peak at the last step
cosine               the same in half a wave                            (Loshchilov & Hutter 2017, equation 5)
constant             as it is
warmup-stable-decay  constant, and down in the last `decay` steps       (Hu et al. 2024, section 4),
                     in a line or as 1 − sqrt                           (Hägele et al. 2024, section 3)

inverse-sqrt is written with its peak, reached at step = warmup: peak · min(step / warmup, sqrt(warmup / step)).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple


class Course(NamedTuple):
    """How far a schedule has come; the last `decay` steps of a warmup-stable-decay fall, in this form."""

    step: int
    warmup: int
    steps: int
    decay: int = 1
    form: str = "linear"


def _stable_decay(at: Course) -> float:
    """1, then what is left of the fall."""
    done = (at.step - (at.steps - at.decay)) / at.decay
    return FALLS[at.form](min(1.0, max(0.0, done)))


# Share of a fall that is done -> what is left of the height.
FALLS: dict[str, Callable[[float], float]] = {
    "linear": lambda done: 1.0 - done,
    "1-sqrt": lambda done: 1.0 - math.sqrt(done),
}
# Shapes after the warm-up: how far it has come -> share of the way from the final rate up to the peak.
SHAPES: dict[str, Callable[[Course], float]] = {
    "inverse-sqrt": lambda at: math.sqrt(max(at.warmup, 1) / at.step),
    "linear": lambda at: max(0.0, (at.steps - at.step) / max(at.steps - at.warmup, 1)),
    "cosine": lambda at: (
        0.5 * (1 + math.cos(math.pi * min(1.0, (at.step - at.warmup) / (at.steps - at.warmup))))
    ),
    "constant": lambda at: 1.0,
    "warmup-stable-decay": _stable_decay,
}


def peak_rate(d_model: int, warmup: int) -> float:
    """The paper's peak: d_model^-0.5 · warmup^-0.5."""
    return float(d_model**-0.5 * max(warmup, 1) ** -0.5)


def rate(
    shape: str,
    step: int,
    *,
    peak: float,
    warmup: int,
    steps: int,
    final: float = 0.0,
    decay: int = 1,
    form: str = "linear",
) -> float:
    """Learning rate of update number `step`, counted from 1; `final` is the share of the peak where a fall ends."""
    if step < warmup:
        return peak * step / warmup
    return peak * (final + (1 - final) * SHAPES[shape](Course(step, warmup, steps, decay, form)))
