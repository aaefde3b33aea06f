"""A corpus of any size as rows of equal length, planned in constant memory.

The documents are concatenated, and every `width` tokens form a row. A row holds a chunk of one
document, or the end of one and the beginning of the next. Row n of an epoch is found by binary
search, and the order of the rows is a computed permutation, so no array grows with the corpus.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trifold.batches.plan import BatchSettings, Plan, random_bits
from trifold.ragged import Chunks, Integers, positions

_ROUNDS = 6  # of the Feistel network in `permute`


@dataclass(frozen=True)
class Blocks:
    """Rows of `width` tokens; the first and the last may be shorter.

    starts (documents + 1,): the first token of each document and the end of the last, in memory or
    on disk. shift: the first row is this much shorter, so that row boundaries differ between
    epochs. skip_last: the number of tokens at the end of each document that are in no row. A
    language model predicts them but does not read them.
    """

    starts: Any  # indexed like an array
    width: int
    shift: int = 0
    skip_last: int = 0

    @property
    def tokens(self) -> int:
        """The number of tokens in all rows."""
        documents = len(self.starts) - 1
        return int(self.starts[documents]) - self.skip_last * documents

    def __len__(self) -> int:
        """The number of rows."""
        return (self.tokens + self.shift + self.width - 1) // self.width

    @property
    def lengths(self) -> Integers:
        """(rows, 1) `width` for every row, in the memory of one number."""
        return np.broadcast_to(np.int64(self.width), (len(self), 1))

    def select(self, rows: Integers) -> Chunks:
        """The chunks of documents in the given rows, in order."""
        begins = np.maximum(rows * self.width - self.shift, 0)
        ends = np.minimum((rows + 1) * self.width - self.shift, self.tokens)
        first = self._find_document(begins)
        last = self._find_document(ends - 1)
        counts = last - first + 1
        documents = positions(first, counts)
        begins = np.maximum(np.repeat(begins, counts), self._begin(documents))
        lengths = np.minimum(np.repeat(ends, counts), self._begin(documents + 1)) - begins
        non_empty = lengths > 0  # a document of skipped tokens alone has no chunk
        starts = begins + self.skip_last * documents
        return Chunks(starts[non_empty], lengths[non_empty])

    def plan(self, settings: BatchSettings, *, seed: int, epoch: int) -> Plan:
        """Batches of as many rows as fit, in an order drawn from seed and epoch."""
        size = max(1, settings.tokens // self.width)
        return ShuffledRows(len(self), min(size, settings.rows or size), seed=seed, epoch=epoch)

    def _begin(self, documents: Integers) -> Integers:
        """Where documents begin, counting only tokens that are in rows."""
        begins: Integers = self.starts[documents] - self.skip_last * documents
        return begins

    def _find_document(self, positions: Integers) -> Integers:
        """The document of each position, by binary search, which does not read all offsets from
        disk.
        """
        low = np.zeros_like(positions)
        high = np.full_like(positions, len(self.starts) - 1)
        while (high - low > 1).any():
            middle = (low + high) // 2
            before = self._begin(middle) <= positions
            low = np.where(before, middle, low)
            high = np.where(before, high, middle)
        return low


class ShuffledRows(Sequence[Integers]):
    """The plan of an epoch: batches of `size` rows, in an order drawn from (seed, epoch)."""

    def __init__(self, rows: int, size: int, *, seed: int, epoch: int) -> None:
        self.rows = rows
        self.size = size
        self._keys = random_bits(seed, epoch).random_raw(_ROUNDS)

    def __len__(self) -> int:
        return (self.rows + self.size - 1) // self.size

    def __getitem__(self, number: Any) -> Any:
        chosen = range(len(self))[number]
        if isinstance(chosen, range):
            return [self[one] for one in chosen]
        start = chosen * self.size
        return permute(np.arange(start, min(start + self.size, self.rows)), self.rows, self._keys)


def permute(positions: Integers, count: int, keys: NDArray[np.uint64]) -> Integers:
    """The values of a pseudorandom permutation of range(count), given by `keys`, at `positions`.

    A Feistel network over the next power of four (Luby and Rackoff 1988). Results of `count` or
    more are permuted again until they are smaller (cycle walking, Black and Rogaway 2002).
    """
    bits = np.uint64(max(1, (max(count - 1, 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << bits) - np.uint64(1)
    values = positions.astype(np.uint64)
    outside = np.ones(len(values), dtype=np.bool_)  # not yet permuted, or beyond `count`
    while outside.any():
        left = values[outside] >> bits
        right = values[outside] & mask
        for key in keys:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        values[outside] = left << bits | right
        outside = values >= np.uint64(count)
    return values.astype(np.int64)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64 (Steele et al. 2014): each input bit flips half of the output
    bits.
    """
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)
