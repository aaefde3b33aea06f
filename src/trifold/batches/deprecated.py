"""What version 0.1 had under names that now mean something else, or nothing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trifold.batches.plan import Plan


class Stretches(NamedTuple):
    """`lengths[i]` tokens of document `documents[i]`, from position `places[i]` of the corpus."""

    documents: NDArray[np.int64]
    places: NDArray[np.int64]
    lengths: NDArray[np.int64]


def deal(plan: Plan, rank: int, world: int) -> Plan:
    """The batches of one rank: batch n * world + rank of the plan at step n, without rows where the plan has ended."""
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} of {world} ranks")
    steps = -(-len(plan) // world)
    numbers = range(rank, steps * world, world)
    return [plan[number] if number < len(plan) else np.empty(0, np.int64) for number in numbers]
