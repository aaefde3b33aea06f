"""Batches to ranks and workers: which rows of a batch each process learns from.

The plan of an epoch does not depend on the number of ranks. An update consumes the same rows, however many ranks
and workers share them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trifold.batches.plan import Lengths, Plan, check_lengths

Rows = NDArray[np.int64]


class Share(NamedTuple):
    """The rows of one batch that one rank processes.

    parts: the micro-batches that it learns from. idle: a micro-batch that it only computes to stay in step with the
    other ranks, where the batch has fewer rows than there are ranks.
    """

    parts: Plan
    idle: Plan


def deal(
    lengths: Lengths,
    batch: Rows,
    index: int,
    *,
    accumulate: int = 1,
    rank: int = 0,
    world: int = 1,
    workers: int = 1,
) -> Share:
    """The share of `rank` in batch number `index` of an update of `accumulate` batches.

    If `accumulate` is a multiple of `world`, each rank learns from whole batches. Otherwise each rank learns from a
    part of every batch. The share of a rank is split again, into one micro-batch per worker.
    """
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} of {world} ranks")
    if accumulate % world == 0:
        return Share(split_batch(lengths, batch, workers) if index % world == rank else [], [])
    parts = split_batch(lengths, batch, workers * world)[rank::world]
    return Share(parts, [] if parts else [batch[:1]])


def split_batch(lengths: Lengths, rows: Rows, parts: int) -> Plan:
    """Split a batch into at most `parts` non-empty parts with similar numbers of tokens.

    Rows are assigned from the longest to the shortest in alternating direction: a, b, b, a, a, b, …
    """
    if parts == 1:
        return [rows]
    longest_first = rows[np.argsort(-check_lengths(lengths[rows]).sum(axis=1), kind="stable")]
    turn = np.arange(len(rows)) % (2 * parts)
    owner = np.where(turn < parts, turn, 2 * parts - 1 - turn)
    return [longest_first[owner == part] for part in range(min(parts, len(rows)))]
