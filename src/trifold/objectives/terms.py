"""What every task gives the loop: named terms of a loss, as sums with their counts, never as means.

The loop divides each sum by its own count over all micro-batches and ranks, so that accumulation, ragged batches
and ranks cannot change the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Term:
    """One part of a loss: weight · sum / count. `nll` is the same sum without smoothing, for the record."""

    sum: Tensor
    count: int
    weight: float = 1.0
    nll: Tensor | None = None
