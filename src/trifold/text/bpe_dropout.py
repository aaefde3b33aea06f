"""BPE-dropout (Provilkov et al. 2020) with keyed randomness: a function of text, seed and index on
every machine.
"""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Library

from trifold.errors import SettingsError
from trifold.ragged import positions

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15  # of splitmix64
_UNSUPPORTED = (
    "continuing_subword_prefix end_of_word_suffix byte_fallback ignore_merges fuse_unk".split()
)
_NEVER = 1 << 62  # rank of a pair that is not a merge
MAX_TEXTS = 1 << 18  # texts whose words are cached; others are split into words each time
MAX_SEGMENTATIONS = 1 << 20  # with drops


class BPEDropout:
    """Segment words by a BPE model's merges; each merge is dropped with probability p when it is
    due.

    Algorithm 1 of the paper: of the possible merges that are not dropped in this round, apply the
    one with the highest priority, until none is left. Instead of one random number per merge, the
    number of merges until the next drop is drawn. Few words have more than one drop, so the
    segmentations are cached by these numbers.
    """

    def __init__(self, library: Library, unk_id: int, p: float) -> None:
        model = json.loads(library.to_str())["model"]
        if model["type"] != "BPE" or any(model.get(key) for key in _UNSUPPORTED):
            raise SettingsError(
                "tokenizer.dropout: this tokenizer has no plain BPE merges; set it to 0"
            )
        self._vocabulary: dict[str, int] = model["vocab"]
        self._ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
        self._library = library
        self._unk_id = unk_id
        self._log_keep = math.log1p(-p)
        self._texts: dict[str, list[str]] = {}  # text -> its words
        self._whole: dict[str, tuple[list[int], int]] = {}  # word -> its segmentation without drops
        self._dropped = lru_cache(MAX_SEGMENTATIONS)(self._merge)

    def encode(self, texts: Sequence[str], seed: int, indices: Sequence[int]) -> list[list[int]]:
        """Ids of every text: random, but a pure function of (text, seed, index)."""
        rows = [self._texts[text] if text in self._texts else self._split(text) for text in texts]
        keys = _make_keys(seed, indices, np.array(list(map(len, rows)), dtype=np.int64))
        # The number of merges until the first drop is geometric: inversion of the 53 high bits of
        # the key.
        until_drop = np.log(((keys >> np.uint64(11)) + np.uint64(1)) * 2.0**-53) / self._log_keep
        draws = zip(
            np.minimum(until_drop, _NEVER).astype(np.int64).tolist(), keys.tolist(), strict=True
        )
        return [self._segment(row, draws) for row in rows]

    def _segment(self, words: list[str], draws: Iterator[tuple[int, int]]) -> list[int]:
        """The ids of a text. draws: for each word, the number of merges until the first drop, and
        its key.
        """
        row: list[int] = []
        # The iterator `draws` goes on with the words of the next text.
        for word, (until_drop, key) in zip(words, draws, strict=False):
            ids, merges = self._whole[word]
            drops: tuple[int, ...] = ()
            while until_drop < merges:
                drops += (until_drop,)
                ids, merges = self._dropped(word, drops)
                key = _mix(key)
                until_drop = int(math.log(((key >> 11) + 1) * 2.0**-53) / self._log_keep)
            row += ids
        return row

    def _split(self, text: str) -> list[str]:
        """The words that the library splits a text into before it merges; new ones are
        segmented.
        """
        normalizer = self._library.normalizer
        pre_tokenizer = self._library.pre_tokenizer
        normal = text
        if normalizer is not None:
            normal = normalizer.normalize_str(text)
        words = [normal]
        if pre_tokenizer is not None:
            words = [word for word, _ in pre_tokenizer.pre_tokenize_str(normal)]
        words = [sys.intern(word) for word in words]
        self._whole |= {word: self._merge(word, ()) for word in {*words}.difference(self._whole)}
        if len(self._texts) < MAX_TEXTS:
            self._texts[text] = words
        return words

    def _merge(self, word: str, drops: tuple[int, ...]) -> tuple[list[int], int]:
        """The ids of a word, and the number of merges after the last drop; drops: merges before
        each drop.
        """
        ranks = self._ranks
        pieces = list(word)
        # Of merging pieces i and i + 1.
        priority = [ranks.get(pair, _NEVER) for pair in pairwise(pieces)]
        dropped: dict[int, int] = {}  # in this round: position -> priority
        remaining = list(drops)
        merges = 0  # since the last drop
        while (best := min(priority, default=_NEVER)) < _NEVER:
            at = priority.index(best)
            if remaining and merges == remaining[0]:
                dropped[at] = best
                priority[at] = _NEVER
                del remaining[0]
                merges = 0
                continue
            merges += 1
            for other, rank in dropped.items():
                priority[other] = rank
            dropped.clear()
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
            del priority[at]
            for left in range(max(at - 1, 0), min(at + 1, len(priority))):
                priority[left] = ranks.get((pieces[left], pieces[left + 1]), _NEVER)
        return [self._vocabulary.get(piece, self._unk_id) for piece in pieces], merges


def _mix(key: Any) -> Any:
    """The next number of a 64-bit random sequence (splitmix64, Steele et al. 2014), or an array of
    such.
    """
    key = (key + _STEP) & _MASK
    key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & _MASK
    return key ^ (key >> 31)


def _make_keys(seed: int, indices: Sequence[int], counts: NDArray[np.int64]) -> NDArray[np.uint64]:
    """One random number per word, from (seed, index of the text, position of the word)."""
    texts = np.array([_mix(_mix(seed & _MASK) ^ index) for index in indices], dtype=np.uint64)
    before = positions(np.full(len(counts), -1), counts).astype(np.uint64)
    return np.asarray(_mix(np.repeat(texts, counts) + before * np.uint64(_STEP)))
