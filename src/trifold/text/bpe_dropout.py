"""BPE-dropout (Provilkov et al. 2020) with keyed randomness: a function of text, seed and index on every machine."""

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
    *("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges", "fuse_unk"),
)
_NEVER = 1 << 62  # rank of a pair that is not a merge
MAX_TEXTS = 1 << 18  # texts whose words are cached; others are split into words each time


class BPEDropout:
    """Segment words by a BPE model's merges; each merge is dropped with probability p when it is due.

    Algorithm 1 of the paper: of the possible merges that are not dropped in this round, apply the one with the highest
    priority, until none is left. Instead of one random number per merge, the number of merges until the next drop is
    drawn. Most words have fewer merges than that and get their segmentation without dropout, which is cached.
    """

    def __init__(self, library: Library, unk_id: int, p: float) -> None:
        model = json.loads(library.to_str())["model"]
        if model["type"] != "BPE" or any(model.get(key) for key in _UNSUPPORTED):
            raise SettingsError("tokenizer.dropout: this tokenizer has no plain BPE merges; set it to 0")
        merges = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in model["merges"]]
        self._vocabulary: dict[str, int] = model["vocab"]
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}
        self._library = library
        self._unk_id = unk_id
        self._log_keep = math.log1p(-p)
        self._full: dict[str, tuple[list[int], int]] = {}  # word -> ids without dropout, number of merges
        self._words = _Words()

    def encode(self, texts: Sequence[str], seed: int, indices: Sequence[int]) -> list[list[int]]:
        """Ids of every text: random, but a pure function of (text, seed, index)."""
        loops = _import_loops()
        if loops is None:
            return self._encode_plain(texts, seed, indices)
        return self._encode_compiled(loops, texts, seed, indices)

    def _encode_plain(self, texts: Sequence[str], seed: int, indices: Sequence[int]) -> list[list[int]]:
        rows = [self._split(text) for text in texts]
        draws = self._draw(np.array(list(map(len, rows)), dtype=np.int64), seed, indices)
        drops = zip(*(each.tolist() for each in draws), strict=True)
        return [[token for word in row for token in self._segment(word, *next(drops))] for row in rows]

    def _encode_compiled(
        self, loops: ModuleType, texts: Sequence[str], seed: int, indices: Sequence[int]
    ) -> list[list[int]]:
        """`_encode_plain` with words and symbols as numbers."""
        cached = self._words.texts
        rows = [cached[text] if text in cached else self._number_words(text) for text in texts]
        counts = np.array(list(map(len, rows)), dtype=np.int64)
        words = np.concatenate([np.empty(0, np.int64), *rows])
        until_drop, keys = self._draw(counts, seed, indices)
        symbols, starts, full, full_starts = self._words.arrays()
        out = np.empty(int((starts[words + 1] - starts[words]).sum()), np.int64)
        ends = np.zeros(len(words) + 1, np.int64)
        tables = (symbols, starts, full, full_starts, *self._merge_table)
        loops.segment(words, until_drop, keys, *tables, self._log_keep, out, ends[1:])
        out[out < 0] = self._unk_id
        ids, bounds = out.tolist(), ends[np.concatenate([[0], counts.cumsum()])].tolist()
        return [ids[start:end] for start, end in pairwise(bounds)]

    def _number_words(self, text: str) -> NDArray[np.int64]:
        """A text as word numbers; new words are registered."""
        words, numbers = self._words, []
        for word in self._split(text):
            if word not in words.numbers:
                ids, _ = self._segment_fully(word)
                words.add(word, [self._vocabulary.get(symbol, -1) for symbol in word], ids)
            numbers.append(words.numbers[word])
        row = np.array(numbers, dtype=np.int64)
        if len(words.texts) < MAX_TEXTS:
            words.texts[text] = row
        return row

    @cached_property
    def _merge_table(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Per merge, sorted by the first: both parts in one number, the rank, the resulting id."""
        ids = self._vocabulary
        rows = [(ids[one] << 32 | ids[two], rank, ids[one + two]) for (one, two), rank in self._ranks.items()]
        columns = np.array(sorted(rows), dtype=np.int64).reshape(-1, 3).T
        return tuple(map(np.ascontiguousarray, columns))  # type: ignore[return-value]

    def _draw(
        self, counts: NDArray[np.int64], seed: int, indices: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """For every word of texts with `counts` words: merges until the first drop, and the key of later draws."""
        keys = _make_keys(seed, indices, counts)
        until_drop = np.log(((keys >> np.uint64(11)) + np.uint64(1)) * 2.0**-53) / self._log_keep
        return np.minimum(until_drop, _NEVER).astype(np.int64), keys

    def _split(self, text: str) -> list[str]:
        """The words that the library splits a text into before it merges."""
        normalizer, pre_tokenizer = self._library.normalizer, self._library.pre_tokenizer
        normal = normalizer.normalize_str(text) if normalizer is not None else text
        if pre_tokenizer is None:
            return [normal]
        return [word for word, _ in pre_tokenizer.pre_tokenize_str(normal)]

    def _segment(self, word: str, until_drop: int, key: int) -> list[int]:
        ids, merges = self._segment_fully(word)
        return ids if until_drop >= merges else self._to_ids(self._merge(word, until_drop, key))

    def _segment_fully(self, word: str) -> tuple[list[int], int]:
        if word not in self._full:
            pieces = self._merge(word, len(word), 0)
            self._full[word] = self._to_ids(pieces), len(word) - len(pieces)
        return self._full[word]

    def _merge(self, word: str, until_drop: int, key: int) -> list[str]:
        """The pieces of `word` if `until_drop` merges are applied before the first drop; `key` decides later drops."""
        ranks, pieces = self._ranks, list(word)
        priority = [ranks.get(pair, _NEVER) for pair in pairwise(pieces)]  # of merging pieces i and i + 1
        dropped: dict[int, int] = {}  # in this round: position -> priority
        while (best := min(priority, default=_NEVER)) < _NEVER:
            at = priority.index(best)
            if not until_drop:
                dropped[at], priority[at] = best, _NEVER
                key = _mix(key)
                # Geometric with parameter p, by inversion of the 53 high bits of the key.
                until_drop = int(math.log(((key >> 11) + 1) * 2.0**-53) / self._log_keep)
                continue
            until_drop -= 1
            for other, rank in dropped.items():
                priority[other] = rank
            dropped.clear()
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
            del priority[at]
            for left in range(max(at - 1, 0), min(at + 1, len(priority))):
                priority[left] = ranks.get((pieces[left], pieces[left + 1]), _NEVER)
        return pieces

    def _to_ids(self, pieces: list[str]) -> list[int]:
        return [self._vocabulary.get(piece, self._unk_id) for piece in pieces]


class _Words:
    """Known words by number, with their symbols and their ids without dropout; texts as word numbers."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.texts: dict[str, NDArray[np.int64]] = {}
        self._symbols, self._starts = array("q"), array("q", [0])
        self._full, self._full_starts = array("q"), array("q", [0])

    def add(self, word: str, symbols: list[int], full: list[int]) -> None:
        """Assign the next number to a word."""
        self.numbers[word] = len(self.numbers)
        self._symbols.extend(symbols)
        self._starts.append(len(self._symbols))
        self._full.extend(full)
        self._full_starts.append(len(self._full))

    def arrays(self) -> list[NDArray[np.int64]]:
        """Symbols, and where each word's begin; ids without dropout likewise."""
        held = (self._symbols, self._starts, self._full, self._full_starts)
        return [np.array(each, dtype=np.int64) for each in held]


@cache
def _import_loops() -> ModuleType | None:
    try:
        return importlib.import_module("trifold.text.bpe_dropout_loops")
    except ImportError:
        return None


def _mix(key: int) -> int:
    """The next number of a 64-bit random sequence (splitmix64, Steele et al. 2014)."""
    key = (key + 0x9E3779B97F4A7C15) & _MASK
    key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & _MASK
    return key ^ (key >> 31)


def _make_keys(seed: int, indices: Sequence[int], counts: NDArray[np.int64]) -> NDArray[np.uint64]:
    """One random number per word, from (seed, index of the text, position of the word)."""
    positions = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    texts = np.array([_mix(_mix(seed & _MASK) ^ index) for index in indices], dtype=np.uint64)
    keys = np.repeat(texts, counts) + positions.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        keys = (keys ^ (keys >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(keys ^ (keys >> np.uint64(31)), dtype=np.uint64)
