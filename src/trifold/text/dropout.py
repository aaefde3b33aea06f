"""BPE-dropout with keyed randomness: the same text, seed and index give the same pieces, on every machine."""

from __future__ import annotations

import importlib
import json
import math
from array import array
from collections.abc import Sequence
from functools import cache, cached_property
from itertools import pairwise
from types import ModuleType

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Library

from trifold.errors import SettingsError

_MASK = (1 << 64) - 1
_UNSUPPORTED = (
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "byte_fallback",
    "ignore_merges",
    "fuse_unk",
)
_NEVER = 1 << 62  # the rank of what is no merge
MOST_TEXTS = 1 << 18  # so many are kept as numbers; beyond that a text is cut into words whenever it comes


class MergeDropout:
    """Segment words by a BPE model's merges, each merge left out with probability p whenever its turn comes.

    Provilkov et al. 2020, algorithm 1: of the merges that are possible and not dropped this time, the one of
    highest priority is made, until none is left. Instead of a random number a merge we draw how many are made
    until the next one is dropped. For most words that is more than they have: their usual pieces are looked up.
    """

    def __init__(self, library: Library, unk_id: int, p: float) -> None:
        model = json.loads(library.to_str())["model"]
        if model["type"] != "BPE" or any(model.get(key) for key in _UNSUPPORTED):
            raise SettingsError("tokenizer.dropout: this tokenizer has no plain merges to drop; set it to 0")
        merges = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in model["merges"]]
        self._vocabulary: dict[str, int] = model["vocab"]
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}
        self._library = library
        self._unk_id = unk_id
        self._log_keep = math.log1p(-p)
        self._usual: dict[str, tuple[list[int], int]] = {}  # word -> its ids and the merges they take
        self._known = _Words()

    def encode(self, texts: Sequence[str], seed: int, indices: Sequence[int]) -> list[list[int]]:
        """Ids of every text, random but a pure function of (text, seed, index)."""
        loops = _loops()
        return (
            self._plainly(texts, seed, indices)
            if loops is None
            else self._compiled(loops, texts, seed, indices)
        )

    def _plainly(self, texts: Sequence[str], seed: int, indices: Sequence[int]) -> list[list[int]]:
        rows = [self._words(text) for text in texts]
        luck = zip(*(each.tolist() for each in self._luck(list(map(len, rows)), seed, indices)), strict=True)
        return [[token for word in row for token in self._segment(word, *next(luck))] for row in rows]

    def _compiled(
        self, loops: ModuleType, texts: Sequence[str], seed: int, indices: Sequence[int]
    ) -> list[list[int]]:
        """The same, with words and pieces as numbers."""
        known = self._known
        rows = [known.texts[text] if text in known.texts else self._learn(text) for text in texts]
        counts = np.array(list(map(len, rows)), dtype=np.int64)
        words = np.concatenate([np.empty(0, np.int64), *rows])
        until_drop, keys = self._luck(counts, seed, indices)
        symbols, starts, usual, usual_starts = known.arrays()
        out = np.empty(int((starts[words + 1] - starts[words]).sum()), np.int64)
        ends = np.zeros(len(words) + 1, np.int64)
        tables = (symbols, starts, usual, usual_starts, *self._table)
        loops.segment(words, until_drop, keys, *tables, self._log_keep, out, ends[1:])
        out[out < 0] = self._unk_id
        pieces, bounds = out.tolist(), ends[np.concatenate([[0], counts.cumsum()])].tolist()
        return [pieces[start:end] for start, end in pairwise(bounds)]

    def _learn(self, text: str) -> NDArray[np.int64]:
        """A text as numbers of words; what is new among them becomes known."""
        known, numbers = self._known, []
        for word in self._words(text):
            if word not in known.numbers:
                ids, _ = self._usually(word)
                known.add(word, [self._vocabulary.get(symbol, -1) for symbol in word], ids)
            numbers.append(known.numbers[word])
        row = np.array(numbers, dtype=np.int64)
        if len(known.texts) < MOST_TEXTS:
            known.texts[text] = row
        return row

    @cached_property
    def _table(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Every merge: its two sides in one number, sorted by it; its rank; what it makes."""
        ids = self._vocabulary
        rows = [(ids[one] << 32 | ids[two], rank, ids[one + two]) for (one, two), rank in self._ranks.items()]
        columns = np.array(sorted(rows), dtype=np.int64).reshape(-1, 3).T
        return tuple(map(np.ascontiguousarray, columns))  # type: ignore[return-value]

    def _luck(
        self, counts: Sequence[int] | NDArray[np.int64], seed: int, indices: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """For every word of texts of so many words: the merges made until one is dropped, and a key for the rest."""
        keys = _keys(seed, indices, np.asarray(counts, dtype=np.int64))
        until_drop = np.log(((keys >> np.uint64(11)) + np.uint64(1)) * 2.0**-53) / self._log_keep
        return np.minimum(until_drop, _NEVER).astype(np.int64), keys

    def _words(self, text: str) -> list[str]:
        """What the library cuts a text into before it merges."""
        normalizer, pre_tokenizer = self._library.normalizer, self._library.pre_tokenizer
        normal = normalizer.normalize_str(text) if normalizer is not None else text
        if pre_tokenizer is None:
            return [normal]
        return [word for word, _ in pre_tokenizer.pre_tokenize_str(normal)]

    def _segment(self, word: str, until_drop: int, key: int) -> list[int]:
        ids, merges = self._usually(word)
        return ids if until_drop >= merges else self._ids(self._merge(word, until_drop, key))

    def _usually(self, word: str) -> tuple[list[int], int]:
        if word not in self._usual:
            pieces = self._merge(word, len(word), 0)
            self._usual[word] = self._ids(pieces), len(word) - len(pieces)
        return self._usual[word]

    def _merge(self, word: str, until_drop: int, key: int) -> list[str]:
        """The pieces of `word` when `until_drop` merges are made before one is dropped, then as `key` goes on."""
        ranks, pieces = self._ranks, list(word)
        priority = [ranks.get(pair, _NEVER) for pair in pairwise(pieces)]  # of merging pieces i and i + 1
        dropped: dict[int, int] = {}  # for this turn: place -> priority
        while (best := min(priority, default=_NEVER)) < _NEVER:
            place = priority.index(best)
            if not until_drop:
                dropped[place], priority[place] = best, _NEVER
                key = _mix(key)
                until_drop = self._until_drop(key)
                continue
            until_drop -= 1
            for other, rank in dropped.items():
                priority[other] = rank
            dropped.clear()
            pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
            del priority[place]
            for left in range(max(place - 1, 0), min(place + 1, len(priority))):
                priority[left] = ranks.get((pieces[left], pieces[left + 1]), _NEVER)
        return pieces

    def _until_drop(self, key: int) -> int:
        """Geometric with parameter p, by inversion of the 53 high bits of `key`."""
        return int(math.log(((key >> 11) + 1) * 2.0**-53) / self._log_keep)

    def _ids(self, pieces: list[str]) -> list[int]:
        return [self._vocabulary.get(piece, self._unk_id) for piece in pieces]


class _Words:
    """The words met so far, numbered: how each is written, and its usual pieces; and texts as numbers of words."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.texts: dict[str, NDArray[np.int64]] = {}
        self._symbols, self._starts = array("q"), array("q", [0])
        self._usual, self._usual_starts = array("q"), array("q", [0])

    def add(self, word: str, symbols: list[int], usual: list[int]) -> None:
        """Give a word the next number."""
        self.numbers[word] = len(self.numbers)
        for ids, flat, starts in (
            (symbols, self._symbols, self._starts),
            (usual, self._usual, self._usual_starts),
        ):
            flat.extend(ids)
            starts.append(len(flat))

    def arrays(self) -> list[NDArray[np.int64]]:
        """Symbols and where each word's begin; usual pieces likewise."""
        held = (self._symbols, self._starts, self._usual, self._usual_starts)
        return [np.array(each, dtype=np.int64) for each in held]


@cache
def _loops() -> ModuleType | None:
    try:
        return importlib.import_module("trifold.text.merges")
    except ImportError:
        return None


def _mix(key: int) -> int:
    """The next of a sequence of random 64-bit numbers (splitmix64, Steele et al. 2014)."""
    key = (key + 0x9E3779B97F4A7C15) & _MASK
    key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & _MASK
    return key ^ (key >> 31)


def _keys(seed: int, indices: Sequence[int], counts: NDArray[np.int64]) -> NDArray[np.uint64]:
    """One random number for every word of every text, from (seed, index of the text, place of the word)."""
    places = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    texts = np.array([_mix(_mix(seed & _MASK) ^ index) for index in indices], dtype=np.uint64)
    keys = np.repeat(texts, counts) + places.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        keys = (keys ^ (keys >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(keys ^ (keys >> np.uint64(31)), dtype=np.uint64)
