"""An interpolated Kneser-Ney model of words (Chen & Goodman 1999, equation 4.21: one discount) that
fills gaps.

    p_n(w | h) = max(c(h w) - D, 0) / c(h ·) + D t(h) / c(h ·) · p_{n-1}(w | h without its first
    word)

c counts n-grams at the highest order, and distinct preceding words below it; t(h) is the number of
distinct words after h. Words are numbers; n-grams are identified by 64-bit hashes in sorted arrays.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FACTOR = np.uint64(0x9E3779B97F4A7C15)
OTHER = np.uint64(0xD6E8FEB86659FD93)
BEGIN, END = 0, 1  # words are numbered from 2
Words = NDArray[np.int64]
Hashes = NDArray[np.uint64]


class Counts:
    """A sorted table of hashes and their numbers."""

    def __init__(self, hashes: Hashes, numbers: NDArray[np.int64]) -> None:
        self.hashes, self.numbers = hashes, numbers

    def __getitem__(self, keys: Hashes) -> NDArray[np.int64]:
        if not len(self.hashes):
            return np.zeros(keys.shape, np.int64)
        index = np.minimum(np.searchsorted(self.hashes, keys), len(self.hashes) - 1)
        return np.where(self.hashes[index] == keys, self.numbers[index], 0)


class KneserNey:
    """A model fitted to sentences of words in [2, vocabulary)."""

    def __init__(
        self,
        sentences: Sequence[Sequence[int]],
        vocabulary: int,
        order: int = 5,
        discount: float = 0.75,
    ) -> None:
        self.order, self.vocabulary, self.discount = order, vocabulary, discount
        pad = [BEGIN] * (order - 1)
        text = np.array([word for one in sentences for word in (*pad, *one, END)], dtype=np.int64)
        ends = np.flatnonzero(text != BEGIN)
        self.grams: list[Counts] = []  # c(h w), from order 1 on
        self.totals: list[Counts] = []  # c(h ·)
        self.kinds: list[Counts] = []  # t(h)
        hashes = [
            _hashed([text[ends - back] for back in range(size - 1, -1, -1)], like=ends)
            for size in range(order + 1)
        ]
        contexts = [
            _hashed([text[ends - back] for back in range(size, 0, -1)], like=ends)
            for size in range(order)
        ]
        _, seen, raw = np.unique(hashes[order], return_index=True, return_counts=True)
        for size in range(order, 0, -1):
            grams, first, times = np.unique(
                hashes[size][seen], return_index=True, return_counts=True
            )
            numbers = raw if size == order else times
            if size == order:
                grams, numbers = hashes[size][seen], raw
                first = np.arange(len(seen))
            context = contexts[size - 1][seen][first]
            known, inverse = np.unique(context, return_inverse=True)
            total = np.bincount(inverse, weights=numbers).astype(np.int64)
            by_hash = np.argsort(grams, kind="stable")
            self.grams.insert(0, Counts(grams[by_hash], numbers[by_hash]))
            self.totals.insert(0, Counts(known, total))
            self.kinds.insert(0, Counts(known, np.bincount(inverse)))
            if size > 1:
                _, seen = np.unique(hashes[size], return_index=True)

    def probabilities(self, context: Words, words: Words) -> NDArray[np.float64]:
        """p(words | context): context (…, order - 1) broadcasts against words (…)."""
        p = np.full(np.broadcast_shapes(context.shape[:-1], words.shape), 1 / self.vocabulary)
        for size in range(1, self.order + 1):
            history = [context[..., context.shape[-1] - back] for back in range(size - 1, 0, -1)]
            before = _hashed(history, like=context[..., 0])
            total = self.totals[size - 1][before]
            grams = self.grams[size - 1][_next(before, words)]
            left = self.discount * self.kinds[size - 1][before]
            seen = np.maximum(total, 1)
            p = np.where(total > 0, (np.maximum(grams - self.discount, 0) + left * p) / seen, p)
        return p

    def fill(
        self,
        left: Sequence[int],
        right: Sequence[int],
        allowed: Sequence[Words],
        beam: int = 8,
        candidates: int = 300,
    ) -> list[int]:
        """The most probable words between two sides, one from each of `allowed`, by beam search.

        The last word is ranked with the bigram probability of the word after the gap as well.
        """
        size = self.order - 1
        known = np.array([([BEGIN] * size + list(left))[-size:]], dtype=np.int64)
        following = np.array([*right, END][:size], dtype=np.int64)
        scores, filled = np.zeros(1), np.zeros((1, 0), np.int64)
        for position, words in enumerate(allowed):
            forward = np.log(self.probabilities(known[:, None], words))  # (beam, words)
            totals = scores[:, None] + forward
            ranked = totals
            if position == len(allowed) - 1:
                ranked = totals + np.log(self._bigrams(words, int(following[0])))
            row, column = np.divmod(
                np.argsort(-ranked, axis=None, kind="stable")[:candidates], len(words)
            )
            scores, chosen = totals[row, column], words[column]
            known = np.concatenate([known[row, 1:], chosen[:, None]], axis=1)
            filled = np.concatenate([filled[row], chosen[:, None]], axis=1)
            if position < len(allowed) - 1:
                known, filled, scores = known[:beam], filled[:beam], scores[:beam]
        for word in following:
            scores = scores + np.log(self.probabilities(known, np.broadcast_to(word, scores.shape)))
            known = np.concatenate([known[:, 1:], np.full((len(known), 1), word)], axis=1)
        return [int(word) for word in filled[int(scores.argmax())]]

    def _bigrams(self, words: Words, follows: int) -> NDArray[np.float64]:
        """p(follows | word), without a longer history."""
        pads = np.full((len(words), self.order - 2), -1)  # a word that does not occur
        return self.probabilities(np.concatenate([pads, words[:, None]], axis=1), np.array(follows))


def _next(hashes: Hashes, words: Words) -> Hashes:
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is intended
        return (hashes + np.uint64(1)) * FACTOR ^ (words.astype(np.uint64) + np.uint64(2)) * OTHER


def _hashed(words: Sequence[Words], like: Words | None = None) -> Hashes:
    """Hashes of the n-grams whose words are given as one array per position."""
    shape = words[0].shape if words else () if like is None else like.shape
    hashes = np.zeros(shape, np.uint64)
    for each in words:
        hashes = _next(hashes, each)
    return hashes
