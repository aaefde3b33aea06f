"""Documents of all lengths to batches that are full: who trains on raw text pays for no token that is not there.

Rows are taken in a random order, and the end of each batch is filled with the longest rows that still fit (best fit,
Johnson 1973). Where a gap remains that is worth it, a row is cut there. Like every plan, this is a pure function of
(lengths, settings, seed, epoch).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trifold.batches.plan import Plan, random_bits
from trifold.errors import DataError

Cut = Literal["pieces", "windows", "drop"]
Numbers = NDArray[np.int64]

_SHELF = 1024  # rows kept at hand to fill the ends of batches with
_GAP = 128  # a gap of less than this share of a batch is left


@dataclass(frozen=True)
class Laid:
    """An epoch of raw text. Piece i is `lengths[i]` tokens of document `documents[i]`, from its token `firsts[i]` on.

    plan: the pieces of each batch. tokens: places in a batch. dropped: documents that are left out.
    """

    documents: Numbers
    firsts: Numbers
    lengths: Numbers
    plan: Plan
    tokens: int
    dropped: Numbers

    @property
    def real_share(self) -> float:
        """Of all places in all batches, the share that holds a token."""
        return float(self.lengths.sum()) / max(1, len(self.plan) * self.tokens)


class _Filled(NamedTuple):
    """Parts of rows, batch after batch: `batches[i]` of them in batch i."""

    rows: Numbers
    firsts: Numbers
    lengths: Numbers
    batches: Numbers


def lay(
    lengths: NDArray[np.integer],
    *,
    width: int,
    tokens: int,
    seed: int,
    epoch: int,
    cut: Cut = "pieces",
    shuffle: bool = True,
) -> Laid:
    """Lay documents of `lengths` (N,) into batches of `tokens` places, no piece longer than `width`.

    Every token of every document is in exactly one piece, but for documents longer than `width` where `cut` is "drop".
    A longer document is cut at every `width` tokens; where `cut` is "windows" its first piece is of a random length, so
    that the cuts fall at other places each epoch. All batches but the last are filled to 99 % at least, which may cut
    one more row in each; not where `cut` is "drop": there documents stay whole, and only best fit fills the batches.
    Raises DataError where no token is left.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    if not 1 <= width <= tokens:
        raise ValueError(f"pieces of up to {width} tokens in batches of {tokens}")
    bits = random_bits(seed, epoch)
    dropped = np.flatnonzero(lengths > width) if cut == "drop" else np.empty(0, np.int64)
    documents, firsts, sizes = _pieces(lengths, width, cut, bits)
    if not len(sizes):
        raise DataError(
            f"no token is left: of {len(lengths):,} documents {len(dropped):,} are longer than {width}"
        )
    order = _order(len(sizes), bits, shuffle)
    filled = _filled(sizes, order, tokens, None if cut == "drop" else tokens // _GAP)
    ends = np.cumsum(filled.batches)
    plan = np.split(np.arange(len(filled.rows)), ends[:-1])
    if shuffle:
        plan = [plan[place] for place in _order(len(plan), bits, shuffle)]
    return Laid(
        documents[filled.rows], firsts[filled.rows] + filled.firsts, filled.lengths, plan, tokens, dropped
    )


def pack_epoch(
    lengths: NDArray[np.integer], tokens: int, *, seed: int, epoch: int, shuffle: bool = True
) -> Plan:
    """The batches of one epoch: every row of `lengths` (N,) that has a token, whole, in exactly one of them.

    At most `tokens` tokens a batch, by best fit. Raises DataError for a row that is longer than that.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    rows = np.flatnonzero(lengths)
    if not len(rows):
        return []
    if lengths.max() > tokens:
        worst = int(lengths.argmax())
        raise DataError(f"row {worst}: {lengths[worst]:,} tokens, more than a batch of {tokens:,} holds")
    bits = random_bits(seed, epoch)
    filled = _filled(lengths[rows], _order(len(rows), bits, shuffle), tokens, None)
    plan = np.split(rows[filled.rows], np.cumsum(filled.batches)[:-1])
    return [plan[place] for place in _order(len(plan), bits, shuffle)]


def _pieces(
    lengths: Numbers, width: int, cut: Cut, bits: np.random.PCG64
) -> tuple[Numbers, Numbers, Numbers]:
    """Document, first token and length of every piece, none of them empty."""
    heads = np.minimum(lengths, width)
    if cut == "drop":
        lengths = np.where(lengths > width, 0, lengths)
        heads = lengths
    if cut == "windows":
        drawn = (bits.random_raw(len(lengths)) % np.uint64(width)).astype(np.int64) + 1
        heads = np.where(lengths > width, drawn, heads)
    counts = (lengths > 0) - (heads - lengths) // width  # the head, and the rest by the width, rounded up
    documents = np.repeat(np.arange(len(lengths)), counts)
    numbers = np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)
    firsts = np.where(numbers == 0, 0, heads[documents] + (numbers - 1) * width)
    ends = np.minimum(heads[documents] + numbers * width, lengths[documents])
    return documents, firsts, ends - firsts


def _order(count: int, bits: np.random.PCG64, shuffle: bool) -> Numbers:
    return np.argsort(bits.random_raw(count), kind="stable") if shuffle else np.arange(count)


def _filled(lengths: Numbers, order: Numbers, tokens: int, gap: int | None) -> _Filled:
    """Every row into a batch; a row is cut only to fill a gap of more than `gap` tokens, never where it is None."""
    rows, firsts, sizes, counts = [], [], [], []
    for whole, parts in _batches(lengths, order, tokens, gap):
        places = [place for _, place, _ in parts]
        rows.append(np.concatenate((whole, order[places])))
        firsts.append(np.array([0] * len(whole) + [first for _, _, first in parts], np.int64))
        sizes.append(np.concatenate((lengths[whole], np.array([size for size, _, _ in parts], np.int64))))
        counts.append(len(rows[-1]))
    return _Filled(np.concatenate(rows), np.concatenate(firsts), np.concatenate(sizes), np.array(counts))


def _batches(
    lengths: Numbers, order: Numbers, tokens: int, gap: int | None
) -> Iterator[tuple[Numbers, list[tuple[int, int, int]]]]:
    """Of each batch the rows as they come in `order`, and what its end is filled with: (length, place in `order`,
    first token).
    """
    total = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths[order])))
    longest = int(lengths.max())
    most = min(_SHELF, max(1, len(order) // 8))  # of few rows most are to come by chance, not by their length
    shelf: list[tuple[int, int, int]] = []  # the shortest first; equals lie by chance
    place = 0

    def stock(least: int) -> None:
        nonlocal place
        while place < len(order) and len(shelf) < least:
            insort(shelf, (int(lengths[order[place]]), place, 0))
            place += 1

    while place < len(order) or shelf:
        stock(most)
        # As they come, as long as whatever comes fits; one at least.
        stop = int(np.searchsorted(total, total[place] + tokens - longest, side="right")) - 1
        stop = max(stop, min(place + 1, len(order)))
        whole, room = order[place:stop], tokens - int(total[stop] - total[place])
        place = stop
        stock(1)
        parts = []
        while (fits := bisect_right(shelf, room, key=_length) - 1) >= 0:
            parts.append(shelf.pop(fits))
            room -= parts[-1][0]
            stock(1)
        if gap is not None and room > gap and shelf:
            size, row, first = shelf.pop()
            parts.append((room, row, first))
            insort(shelf, (size - room, row, first + room))
        yield whole, parts


def _length(part: tuple[int, int, int]) -> int:
    return part[0]
