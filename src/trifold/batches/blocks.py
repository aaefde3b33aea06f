"""A corpus of any size in rows of one length, planned in memory that does not depend on its size.

The documents lie one after the other, and every `width` tokens are a row: a piece of one document, or the end of one
and the beginning of the next. Row n of an epoch is found by looking where it begins, and the order of rows is a
permutation that is computed, not kept; so nothing is as long as the corpus but the corpus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from trifold.batches.plan import random_bits

Numbers = NDArray[np.int64]

_ROUNDS = 6


class Starts(Protocol):
    """(documents + 1,) the first token of each document, and the end of the last: an array in memory or on the disk."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: Any, /) -> Any: ...


class Stretches(NamedTuple):
    """`lengths[i]` tokens of document `documents[i]`, from place `places[i]` of the corpus on."""

    documents: Numbers
    places: Numbers
    lengths: Numbers


@dataclass(frozen=True)
class Blocks:
    """Rows of `width` tokens; the first and the last may be shorter.

    shift: the first row is that much shorter, so that rows begin elsewhere in each epoch. spare: the last so many
    tokens of each document are in no row (a language model is asked for them, and never reads them).
    """

    starts: Starts
    width: int
    shift: int = 0
    spare: int = 0

    @classmethod
    def of_epoch(cls, starts: Starts, width: int, *, seed: int, epoch: int, spare: int = 0) -> Blocks:
        """With a shift drawn from (seed, epoch)."""
        shift = int(random_bits(seed, epoch).random_raw() % width)
        return cls(starts, width, shift, spare)

    @property
    def tokens(self) -> int:
        """In all rows together."""
        documents = len(self.starts) - 1
        return int(self.starts[documents]) - self.spare * documents

    def __len__(self) -> int:
        """Rows."""
        return (self.tokens + self.shift + self.width - 1) // self.width

    @property
    def lengths(self) -> Numbers:
        """(rows, 1) `width` for every row, in the memory of one number."""
        return np.broadcast_to(np.int64(self.width), (len(self), 1))

    def stretches(self, rows: Numbers) -> Stretches:
        """What the chosen rows hold, one row after the other, and of each row one document after the other."""
        begins = np.maximum(rows * self.width - self.shift, 0)
        ends = np.minimum((rows + 1) * self.width - self.shift, self.tokens)
        first, last = self._document(begins), self._document(ends - 1)
        counts = last - first + 1
        inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        documents = np.repeat(first, counts) + inside
        here, behind = self._begin(documents), self._begin(documents + 1)
        begins = np.maximum(np.repeat(begins, counts), here)
        lengths = np.minimum(np.repeat(ends, counts), behind) - begins
        found = lengths > 0  # a document of spare tokens alone has none
        places = begins + self.spare * documents
        return Stretches(documents[found], places[found], lengths[found])

    def _begin(self, documents: Numbers) -> Numbers:
        """Where documents begin among the tokens that are in rows."""
        begins: Numbers = self.starts[documents] - self.spare * documents
        return begins

    def _document(self, places: Numbers) -> Numbers:
        """The document that each place is in, by halving; a row of documents on the disk is not read whole for it."""
        low, high = np.zeros_like(places), np.full_like(places, len(self.starts) - 1)
        while (high - low > 1).any():
            middle = (low + high) // 2
            before = self._begin(middle) <= places
            low, high = np.where(before, middle, low), np.where(before, high, middle)
        return low


class ShuffledRows(Sequence[Numbers]):
    """The plan of an epoch: every one of `rows` in one batch of `size`, in an order drawn from (seed, epoch)."""

    def __init__(self, rows: int, size: int, *, seed: int, epoch: int, shuffle: bool = True) -> None:
        self.rows, self.size, self.shuffle = rows, size, shuffle
        self._keys = random_bits(seed, epoch).random_raw(_ROUNDS)

    def __len__(self) -> int:
        return (self.rows + self.size - 1) // self.size

    @overload
    def __getitem__(self, number: int) -> Numbers: ...

    @overload
    def __getitem__(self, number: slice) -> list[Numbers]: ...

    def __getitem__(self, number: int | slice) -> Numbers | list[Numbers]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        if not -len(self) <= number < len(self):
            raise IndexError(f"batch {number} of {len(self)}")
        start = number % len(self) * self.size
        places = np.arange(start, min(start + self.size, self.rows))
        return permuted(places, self.rows, self._keys) if self.shuffle else places


def permuted(places: Numbers, count: int, keys: NDArray[np.uint64]) -> Numbers:
    """The numbers below `count` that a random permutation of them, given by `keys`, has at `places`.

    A Feistel network over the next power of four (Luby and Rackoff 1988): what it sends beyond `count` is sent on until
    it comes back (Black and Rogaway 2002).
    """
    bits = np.uint64(max(1, (max(count - 1, 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << bits) - np.uint64(1)
    values = places.astype(np.uint64)
    out = np.ones(len(values), dtype=np.bool_)
    while out.any():
        left, right = values[out] >> bits, values[out] & mask
        for key in keys:
            left, right = right, left ^ (_mixed(right ^ key) & mask)
        values[out] = left << bits | right
        out = values >= np.uint64(count)
    return values.astype(np.int64)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The end of splitmix64 (Steele et al. 2014): every bit of the input changes half of the output's."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)
