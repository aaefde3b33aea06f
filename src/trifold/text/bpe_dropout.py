"""BPE-dropout (Provilkov et al. 2020) with keyed randomness: a function of text, seed and index on every machine."""

from __future__ import annotations

import importlib
import json
import math
from array import array
from collections.abc import Sequence
from functools import cache, cached_property, partial
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Library

from trifold.errors import SettingsError

_MASK = (1 << 64) - 1
_UNSUPPORTED = "continuing_subword_prefix end_of_word_suffix byte_fallback ignore_merges fuse_unk".split()
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
        self._numbers: dict[str, int] = {}  # word -> number
        self._words: list[tuple[str, list[int]]] = []  # by number: the word, and its ids without dropout
        self._texts: dict[str, NDArray[np.int64]] = {}  # text -> numbers of its words
        # For the compiled loop: the ids of the symbols of all words, where each word begins, and the same for its ids.
        self._symbols, self._starts = array("q"), array("q", [0])
        self._full, self._full_starts = array("q"), array("q", [0])

    def encode(self, texts: Sequence[str], seed: int, indices: Sequence[int]) -> list[list[int]]:
        """Ids of every text: random, but a pure function of (text, seed, index)."""
        rows = [self._texts[text] if text in self._texts else self._number_words(text) for text in texts]
        counts = np.array(list(map(len, rows)), dtype=np.int64)
        words = np.concatenate([np.empty(0, np.int64), *rows])
        keys = _make_keys(seed, indices, counts)
        # The number of merges until the first drop is geometric: inversion of the 53 high bits of the key.
        until_drop = np.log(((keys >> np.uint64(11)) + np.uint64(1)) * 2.0**-53) / self._log_keep
        until_drop = np.minimum(until_drop, _NEVER).astype(np.int64)
        loops = _import_loops()
        segment = self._segment if loops is None else partial(self._segment_compiled, loops)
        ids, ends = segment(words, until_drop, keys)
        bounds = ends[np.concatenate([[0], counts.cumsum()])].tolist()
        return [ids[start:end] for start, end in pairwise(bounds)]

    def _segment(self, words: Any, until_drop: Any, keys: Any) -> tuple[list[int], NDArray[np.int64]]:
        """The ids of all words (W,), and the end of each in them, after a 0 (W + 1,)."""
        ids: list[int] = []
        ends = [0]
        for number, left, key in zip(words.tolist(), until_drop.tolist(), keys.tolist(), strict=True):
            word, whole = self._words[number]
            ids += whole if left >= len(word) - len(whole) else self._to_ids(self._merge(word, left, key))
            ends.append(len(ids))
        return ids, np.array(ends, dtype=np.int64)

    def _segment_compiled(
        self, loops: ModuleType, words: Any, until_drop: Any, keys: Any
    ) -> tuple[list[int], NDArray[np.int64]]:
        held = (self._symbols, self._starts, self._full, self._full_starts)
        symbols, starts, full, full_starts = (np.array(each, dtype=np.int64) for each in held)
        out = np.empty(int((starts[words + 1] - starts[words]).sum()), np.int64)
        ends = np.zeros(len(words) + 1, np.int64)
        tables = (symbols, starts, full, full_starts, *self._merge_table)
        loops.segment(words, until_drop, keys, *tables, self._log_keep, out, ends[1:])
        out[out < 0] = self._unk_id
        return out.tolist(), ends

    def _number_words(self, text: str) -> NDArray[np.int64]:
        """A text as word numbers; new words are registered."""
        words = self._split(text)
        for word in words:
            if word not in self._numbers:
                ids = self._to_ids(self._merge(word, len(word), 0))
                self._numbers[word] = len(self._words)
                self._words.append((word, ids))
                self._symbols.extend(self._vocabulary.get(symbol, -1) for symbol in word)
                self._starts.append(len(self._symbols))
                self._full.extend(ids)
                self._full_starts.append(len(self._full))
        row = np.array([self._numbers[word] for word in words], dtype=np.int64)
        if len(self._texts) < MAX_TEXTS:
            self._texts[text] = row
        return row

    @cached_property
    def _merge_table(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Per merge, sorted by the first: both parts in one number, the rank, the resulting id."""
        ids = self._vocabulary
        rows = [(ids[one] << 32 | ids[two], rank, ids[one + two]) for (one, two), rank in self._ranks.items()]
        columns = np.array(sorted(rows), dtype=np.int64).reshape(-1, 3).T
        return tuple(map(np.ascontiguousarray, columns))  # type: ignore[return-value]

    def _split(self, text: str) -> list[str]:
        """The words that the library splits a text into before it merges."""
        normalizer, pre_tokenizer = self._library.normalizer, self._library.pre_tokenizer
        normal = normalizer.normalize_str(text) if normalizer is not None else text
        if pre_tokenizer is None:
            return [normal]
        return [word for word, _ in pre_tokenizer.pre_tokenize_str(normal)]

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
