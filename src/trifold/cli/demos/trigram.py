"""A trigram model of tokens: what one could write before there were neural ones.

Witten & Bell's interpolation, as Chen & Goodman 1999 (section 2.4) have it. With c(h) tokens seen behind the history h,
t(h) of them different, and h' the history without its first token:

    P(w | h) = (c(h w) + t(h) P(w | h')) / (c(h) + t(h)),    behind no history at all P(w | ·) = 1 / V
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Probabilities = NDArray[np.float64]


class Trigram:
    """Counted from documents of ids below `size`, each with its first token before it and its last behind it."""

    def __init__(self, documents: Sequence[Sequence[int]], size: int) -> None:
        self.size = size
        self.levels = [_Level(documents, size, length) for length in range(3)]

    def behind(self, history: Sequence[int]) -> Probabilities:
        """(V,) of what comes next."""
        found = np.full(self.size, 1 / self.size)
        for level in self.levels[: len(history) + 1]:
            found = level.mixed(found, level.key(history))
        return found

    def nats(self, documents: Sequence[Sequence[int]]) -> float:
        """- Σ log P over every token of the documents but the first of each."""
        total = 0.0
        for ids in documents:
            for place in range(1, len(ids)):
                total -= float(np.log(self.of(ids[place], ids[max(0, place - 2) : place])))
        return total

    def of(self, token: int, history: Sequence[int]) -> float:
        """The probability of one token."""
        found = 1 / self.size
        for level in self.levels[: len(history) + 1]:
            found = level.mixed_one(found, level.key(history), token)
        return found

    def write(
        self,
        prompt: Sequence[int],
        *,
        end: int,
        most: int,
        temperature: float,
        top_k: int,
        rng: np.random.Generator,
    ) -> list[int]:
        """At most `most` tokens behind the prompt, until `end`, which is left out; drawn as the demo's GPT draws."""
        ids = list(prompt)
        while len(ids) < len(prompt) + most:
            likely = self.behind(ids[-2:])
            best = np.argsort(-likely, kind="stable")[:top_k]
            weights = (likely[best] / likely[best[0]]) ** (1 / temperature)
            token = int(rng.choice(best, p=weights / weights.sum()))
            if token == end:
                break
            ids.append(token)
        return ids[len(prompt) :]


class _Level:
    """Counts of tokens behind histories of one length: rows sorted by history, then token."""

    def __init__(self, documents: Sequence[Sequence[int]], size: int, length: int) -> None:
        self.size, self.length = size, length
        parts = [self._keys(np.asarray(ids, dtype=np.int64)) for ids in documents]
        keys, counts = np.unique(np.concatenate(parts), return_counts=True)
        self.counts: Ids = counts
        self.histories, self.tokens = np.divmod(keys, size)

    def _keys(self, ids: Ids) -> Ids:
        """History and token of each place as one number; a history never reaches into another document."""
        key = np.zeros(max(0, len(ids) - max(1, self.length)), dtype=np.int64)
        for back in range(self.length, -1, -1):
            key = key * self.size + ids[len(ids) - len(key) - back : len(ids) - back]
        return key

    def key(self, history: Sequence[int]) -> int:
        """A history as a number, of its last tokens."""
        key = 0
        for token in history[len(history) - self.length :]:
            key = key * self.size + token
        return key

    def _rows(self, key: int) -> slice:
        first, behind = np.searchsorted(self.histories, [key, key + 1])
        return slice(int(first), int(behind))

    def mixed(self, shorter: Probabilities, key: int) -> Probabilities:
        """(V,) with that of the shorter history mixed in."""
        rows = self._rows(key)
        seen, kinds = int(self.counts[rows].sum()), rows.stop - rows.start
        if not kinds:
            return shorter
        found: Probabilities = kinds * shorter
        found[self.tokens[rows]] += self.counts[rows]
        found /= seen + kinds
        return found

    def mixed_one(self, shorter: float, key: int, token: int) -> float:
        """The same of one token."""
        rows = self._rows(key)
        seen, kinds = int(self.counts[rows].sum()), rows.stop - rows.start
        if not kinds:
            return shorter
        at = rows.start + int(np.searchsorted(self.tokens[rows], token))
        count = int(self.counts[at]) if at < rows.stop and self.tokens[at] == token else 0
        return float((count + kinds * shorter) / (seen + kinds))
