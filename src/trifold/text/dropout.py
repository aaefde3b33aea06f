"""BPE-dropout with keyed randomness: the same text, seed and index give the same pieces, on every machine."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import pairwise

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

    def encode(self, texts: Sequence[str], seed: int, indices: Sequence[int]) -> list[list[int]]:
        """Ids of every text, random but a pure function of (text, seed, index)."""
        rows = [self._words(text) for text in texts]
        counts = np.array([len(row) for row in rows], dtype=np.int64)
        keys = _keys(seed, indices, counts)
        until_drop = np.log(((keys >> np.uint64(11)) + np.uint64(1)) * 2.0**-53) / self._log_keep
        luck = zip(np.minimum(until_drop, _NEVER).astype(np.int64).tolist(), keys.tolist(), strict=True)
        return [[token for word in row for token in self._segment(word, *next(luck))] for row in rows]

    def _words(self, text: str) -> list[str]:
        normalizer, pre_tokenizer = self._library.normalizer, self._library.pre_tokenizer
        normal = normalizer.normalize_str(text) if normalizer is not None else text
        if pre_tokenizer is None:
            return [normal]
        return [word for word, _ in pre_tokenizer.pre_tokenize_str(normal)]

    def _segment(self, word: str, until_drop: int, key: int) -> list[int]:
        if word not in self._usual:
            pieces = self._merge(word, len(word), 0)
            self._usual[word] = self._ids(pieces), len(word) - len(pieces)
        ids, merges = self._usual[word]
        return ids if until_drop >= merges else self._ids(self._merge(word, until_drop, key))

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
