"""The learning rate as a function of the step.

inverse-sqrt (Vaswani et al. 2017, equation 3):  d^-0.5 · min(step^-0.5, step · warmup^-1.5)

Written with its peak, reached at step = warmup: peak · min(step / warmup, sqrt(warmup / step)).
"""

from __future__ import annotations

import math
from collections.abc import Callable

# Shapes after the warm-up: (step, warmup, steps) -> share of the peak.
SHAPES: dict[str, Callable[[int, int, int], float]] = {
    "inverse-sqrt": lambda step, warmup, steps: math.sqrt(max(warmup, 1) / step),
    "linear": lambda step, warmup, steps: max(0.0, (steps - step) / max(steps - warmup, 1)),
    "cosine": lambda step, warmup, steps: (
        0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / (steps - warmup))))
    ),
    "constant": lambda step, warmup, steps: 1.0,
}


def peak_rate(d_model: int, warmup: int) -> float:
    """The paper's peak: d_model^-0.5 · warmup^-0.5."""
    return float(d_model**-0.5 * max(warmup, 1) ** -0.5)


def rate(shape: str, step: int, *, peak: float, warmup: int, steps: int) -> float:
    """Learning rate of update number `step`, counted from 1."""
    if step < warmup:
        return peak * step / warmup
    return peak * SHAPES[shape](step, warmup, steps)
