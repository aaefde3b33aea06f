"""n-grams of texts in buckets: the number of a feature is a hash of its characters.

The n-grams are those of `ngrams`: words and pairs of adjacent words, and 2 to 5 characters of each
word. No list of names is needed, so the features of a text depend on nothing but the text. Two
n-grams may share a bucket. All distinct words of a batch are hashed in a few passes over one array.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trifold.linear.ngrams import Ids, words_of

LENGTHS = range(2, 6)  # characters of an n-gram
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd; 2^64 divided by the golden ratio
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # of SplitMix64
_FIRST_OF_PAIR = np.uint64(0xD6E8FEB86659FD93)
Hashes: TypeAlias = NDArray[np.uint64]


class SparseRows(NamedTuple):
    """Features of B rows in K blocks: of row b and block k, the columns `ids` and the `values` from
    `starts[b·K + k]` to the next start.
    """

    ids: Ids
    values: NDArray[np.float32]
    starts: Ids

    def select(self, rows: Ids, blocks: int) -> SparseRows:
        """Some of the rows, which have so many blocks."""
        places = (rows[:, None] * blocks + np.arange(blocks)).ravel()
        sizes = np.diff(self.starts)[places]
        ends = np.cumsum([0, *sizes])
        offsets = np.arange(ends[-1]) - np.repeat(ends[:-1], sizes)
        chosen = np.repeat(self.starts[:-1][places], sizes) + offsets
        return SparseRows(self.ids[chosen], self.values[chosen], ends)


def hashed_ngrams(texts: Sequence[str], words: int, characters: int) -> SparseRows:
    """How often each n-gram occurs in each text. Words and their pairs have the columns below
    `words`, n-grams of characters the `characters` columns after them; a block without columns is
    left out.
    """
    blocks = []
    if words:
        rows, hashes = _hashed_words(texts)
        blocks.append((rows, _buckets(hashes, words)))
    if characters:
        rows, hashes = _hashed_characters(texts)
        blocks.append((rows, words + _buckets(hashes, characters)))
    width = words + characters
    count = len(blocks)
    keys = [(rows * count + block) * width + ids for block, (rows, ids) in enumerate(blocks)]
    found, counts = _counted(np.concatenate(keys), count * len(texts) * width)
    places, ids = np.divmod(found, width)
    sizes = np.bincount(places, minlength=count * len(texts))
    return SparseRows(ids.astype(np.int64), counts.astype(np.float32), np.cumsum([0, *sizes]))


def _counted(keys: Ids, most: int) -> tuple[NDArray[np.integer], Ids]:
    """The distinct keys, which are below `most`, in order, and how often each occurs."""
    kind = np.int32 if most < 2**31 else np.int64  # half as many bytes are sorted faster
    ordered = np.sort(keys.astype(kind))
    is_first = np.ones(len(ordered) + 1, bool)  # also of a key after the last one
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:-1])
    firsts = np.flatnonzero(is_first)
    if not len(ordered):
        firsts = np.zeros(1, np.int64)
    return ordered[firsts[:-1]], np.diff(firsts)


def hashed_names(names: Sequence[str], count: int) -> Ids:
    """The bucket of each name, of `count`."""
    return _buckets(_hash_names(names), count)


def _hashed_words(texts: Sequence[str]) -> tuple[Ids, Hashes]:
    """The row and the hash of each word, and of each pair of adjacent words of a text."""
    names, ids, starts = _numbered(map(words_of, texts))
    rows = np.repeat(np.arange(len(texts)), np.diff(starts))
    hashes = _hash_names(names)[ids]
    is_adjacent = rows[1:] == rows[:-1]
    pairs = _mixed(hashes[:-1] * _FIRST_OF_PAIR + hashes[1:])[is_adjacent]
    return np.concatenate([rows, rows[:-1][is_adjacent]]), np.concatenate([hashes, pairs])


def _hashed_characters(texts: Sequence[str]) -> tuple[Ids, Hashes]:
    """The row and the hash of each n-gram of characters."""
    names, ids, starts = _numbered(text.lower().split() for text in texts)
    hashes, piece_starts = _hash_pieces([f" {name} " for name in names])
    counts = np.diff(piece_starts)[ids]  # of the n-grams of each word in the texts
    rows = np.repeat(np.arange(len(texts)), np.diff(starts))
    ends = np.cumsum(counts)
    offsets = np.arange(counts.sum()) - np.repeat(ends - counts, counts)
    chosen = hashes[np.repeat(piece_starts[:-1][ids], counts) + offsets]
    return np.repeat(rows, counts), chosen


def _numbered(sequences: Iterable[Sequence[str]]) -> tuple[list[str], Ids, Ids]:
    """The distinct names in sequences, the number of each name in turn, and where each sequence
    starts.
    """
    kept = list(sequences)
    flat = list(chain.from_iterable(kept))
    names = list(dict.fromkeys(flat))
    numbers = dict(zip(names, range(len(names)), strict=True))
    ids = np.fromiter(map(numbers.__getitem__, flat), np.int64, len(flat))
    return names, ids, np.cumsum([0, *map(len, kept)])


def _hash_names(names: Sequence[str]) -> Hashes:
    """A hash of each name: Σ (c_i + 1) · FACTORⁱ over its characters, mixed."""
    codes, starts = _characters(names)
    lengths = np.diff(starts)
    places = np.arange(len(codes)) - np.repeat(starts[:-1], lengths)
    terms = codes * _powers(int(lengths.max(initial=0)))[places]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
    return _mixed(sums[starts[1:]] - sums[starts[:-1]])


def _hash_pieces(names: Sequence[str]) -> tuple[Hashes, Ids]:
    """The hashes of the n-grams of characters of each name, and where those of each name start."""
    codes, starts = _characters(names)
    ends = np.repeat(starts[1:], np.diff(starts))  # of the name of each character
    room = ends - np.arange(len(codes))  # characters from this one to the end of its name
    powers = _powers(LENGTHS.stop)
    sums = codes * powers[0]
    found = []
    for length in range(2, LENGTHS.stop):
        following = np.zeros_like(codes)
        following[: 1 - length] = codes[length - 1 :]
        sums = sums + following * powers[length - 1]
        if length >= LENGTHS.start:
            first = np.flatnonzero(room >= length)
            found.append((first, _mixed(sums[first] + np.uint64(length))))
    owners = np.repeat(np.arange(len(names)), np.diff(starts))
    of_name = np.concatenate([owners[first] for first, _ in found])
    order = np.argsort(of_name, kind="stable")
    hashes = np.concatenate([hashes for _, hashes in found])[order]
    sizes = np.bincount(of_name, minlength=len(names))
    return hashes, np.cumsum([0, *sizes])


def _characters(names: Sequence[str]) -> tuple[Hashes, Ids]:
    """The number of each character of all names, from 1, and where each name starts."""
    content = "".join(names).encode("utf-32-le", "surrogatepass")
    codes = np.frombuffer(content, np.uint32).astype(np.uint64) + np.uint64(1)
    return codes, np.cumsum([0, *map(len, names)])


def _powers(count: int) -> Hashes:
    """FACTOR⁰ … modulo 2^64."""
    factors = np.full(max(count, 1), _FACTOR)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)


def _mixed(hashes: Hashes) -> Hashes:
    """Numbers whose bits all depend on all bits (SplitMix64)."""
    for shift, factor in zip((30, 27), _MIX, strict=True):
        hashes = (hashes ^ (hashes >> np.uint64(shift))) * factor
    return hashes ^ (hashes >> np.uint64(31))


def _buckets(hashes: Hashes, count: int) -> Ids:
    """Numbers below `count`."""
    return (hashes % np.uint64(count)).astype(np.int64)
