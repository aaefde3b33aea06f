"""Token sequences of different lengths in one array, with the offset of each; splitting them into
chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Integers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """N sequences: ids (total tokens,) int32, starts (N + 1,) int64."""

    ids: NDArray[np.int32]
    starts: Integers

    @staticmethod
    def of(sequences: Sequence[Sequence[int]]) -> Ragged:
        """Sequences from lists of ids."""
        lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        ids = np.fromiter(chain.from_iterable(sequences), dtype=np.int32, count=int(starts[-1]))
        return Ragged(ids, starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Integers:
        return np.diff(self.starts)

    def tolist(self) -> list[list[int]]:
        """The sequences as lists."""
        if not len(self):
            return []
        return [part.tolist() for part in np.split(self.ids, self.starts[1:-1])]

    def joined(self, rows: Integers, lengths: Integers) -> NDArray[np.int32]:
        """The first `lengths` tokens of each of `rows`, concatenated: (sum of lengths,)."""
        return self.ids[positions(self.starts[rows], lengths)]

    def select(self, rows: Integers, lengths: Integers | None = None) -> Ragged:
        """The given sequences, or the first `lengths` tokens of each."""
        if lengths is None:
            lengths = self.lengths[rows]
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        return Ragged(self.joined(rows, lengths), starts)

    def padded(self, rows: Integers, width: int, pad: int) -> Tensor:
        """The given rows, truncated or padded to `width`: (len(rows), width) int64."""
        import torch  # only here, so that text and data load without it

        lengths = np.minimum(self.lengths[rows], width)
        columns = np.arange(width)
        real = columns < lengths[:, None]
        table = np.full(real.shape, pad, dtype=np.int64)
        table[real] = self.ids[(self.starts[rows][:, None] + columns)[real]]
        return torch.from_numpy(table)


def positions(starts: Integers, lengths: Integers) -> Integers:
    """The positions start, start + 1, … start + length - 1 of every range, concatenated: (sum of
    lengths,).
    """
    ends = np.cumsum(lengths)  # of each range in the result
    shifts = np.repeat(starts - (ends - lengths), lengths)
    return shifts + np.arange(len(shifts))


class Chunks(NamedTuple):
    """Chunk n is the `sizes[n]` tokens from position `starts[n]` of the ids."""

    starts: Integers
    sizes: Integers


def split_into_chunks(
    starts: Integers,
    lengths: Integers,
    size: int,
    *,
    first: Integers | None = None,
    drop: bool = False,
) -> Chunks:
    """Split sequences into chunks of at most `size` tokens, in order and without overlap.

    first: (N,) the size of the first chunk of each sequence that is longer than `size`; `size` by
        default.
    drop: leave out the longer sequences instead of splitting them.
    """
    long = lengths > size
    if drop:
        head = lengths = np.where(long, 0, lengths)
    else:
        head = np.where(long, size if first is None else first, lengths)
    rest = lengths - head
    count = (lengths > 0) + -(-rest // size)  # the head, and the rest, rounded up
    # Of each chunk: its sequence, and its number in the sequence, from 0.
    sequence = np.repeat(np.arange(len(lengths)), count)
    number = np.arange(len(sequence)) - np.repeat(np.cumsum(count) - count, count)
    begins = np.where(number == 0, 0, head[sequence] + (number - 1) * size)
    ends = np.minimum(head[sequence] + number * size, lengths[sequence])
    return Chunks(starts[sequence] + begins, ends - begins)
