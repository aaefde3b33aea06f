"""Where noise lies in a row of tokens: how many, how long, at which places. What is done there, say its callers.

A rate is a promise about the mean: with n tokens that may change, rate · n of them do on average, whatever n is. What
is left over when rate · n is no whole number is decided by chance, never rounded away.

    free     (T,) boolean: True at tokens that may change; special tokens may not
    starts   (T,) boolean: True where a word (or a sentence) begins
"""

from __future__ import annotations

from functools import cache
from math import exp
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ids: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
Random: TypeAlias = np.random.Generator


def keyed(draw: int, row: int) -> Random:
    """The random numbers of one example: a function of the epoch's `draw` (64 bits) and the number of its row."""
    return np.random.Generator(np.random.Philox(key=np.array([draw % 2**64, row], dtype=np.uint64)))


def by_chance(wanted: float, rng: Random) -> int:
    """A whole number whose mean is `wanted`."""
    return int(wanted + rng.random())


def runs(flags: Flags) -> Ids:
    """(S, 2): the places [from, to) of every run of True."""
    steps = np.diff(flags.astype(np.int8), prepend=0, append=0)
    return np.stack([np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)], axis=1)


# --- words ---------------------------------------------------------------------------------------------


def words(free: Flags, starts: Flags) -> Ids:
    """(W, 2): the places [from, to) of every word; a token that may not change ends the word before it."""
    after_fixed = np.concatenate([[True], ~free[:-1]])[: len(free)]
    begins = free & (starts | after_fixed)
    edges = np.flatnonzero(np.append(begins | ~free, True))
    first = np.flatnonzero(begins)
    return np.stack([first, edges[np.searchsorted(edges, first, side="right")]], axis=1)


def choose(lengths: Ids, rate: float, rng: Random) -> Ids:
    """Units of `lengths` tokens, drawn until rate · (all tokens) are together: which, in order.

    The unit that would go beyond is taken with the probability that makes the mean exact.
    """
    order = rng.permutation(len(lengths))
    sizes = lengths[order]
    left = rate * sizes.sum() - (
        np.cumsum(sizes) - sizes
    )  # tokens still wanted when the turn of a unit comes
    return np.sort(order[rng.random() * sizes < left])


# --- spans ---------------------------------------------------------------------------------------------


class Law(NamedTuple):
    """How long spans are: the probability of each length from 0 on, and their mean."""

    probabilities: NDArray[np.float64]
    mean: float


class Geometric(NamedTuple):
    """P(l) ∝ p (1 - p)^(l-1) for l = 1 … longest (Joshi et al. 2020, section 3.1: p = 0.2, longest 10, mean 3.8)."""

    p: float = 0.2
    longest: int = 10

    def within(self, limit: int) -> Law:
        """The same of no more than `limit` items."""
        return _geometric(self.p, min(self.longest, limit))


class Poisson(NamedTuple):
    """P(l) = λ^l e^-λ / l! for l = 0, 1, … (Lewis et al. 2020, section 2.2: λ = 3)."""

    mean: float = 3.0

    def within(self, limit: int) -> Law:
        """The same of no more than `limit` items."""
        return _poisson(self.mean, min(limit, round(4 * self.mean) + 16))  # beyond, less than a millionth


MOST_IN_SPANS = 0.5  # of the items: beyond, too many spans do not fit, and a rate is a promise


def draw_spans(items: int, rate: float, kind: Geometric | Poisson, rng: Random) -> Ids:
    """Lengths of the spans that together cover rate · items on average: independent, each by the law.

    No span covers more than half of the items (nor less than one may be): some context always stays. What does not fit
    beside the others is left out.
    """
    law = kind.within(max(1, items // 2))
    if not items or not law.mean:
        return np.zeros(0, np.int64)
    lengths = rng.choice(len(law.probabilities), by_chance(rate * items / law.mean, rng), p=law.probabilities)
    taken = np.cumsum(lengths + (lengths > 0))  # with the item that parts a span from the next
    return lengths[taken <= items + 1]


def spread(lengths: Ids, items: int, rng: Random) -> Ids:
    """Where spans of `lengths` (each at least 1) begin among so many items, in this order and never touching.

    All ways of laying them are equally likely.
    """
    count = len(lengths)
    gaps = items - int(lengths.sum()) - (count - 1) if count else 0  # items that no span needs
    bars = np.sort(rng.permutation(gaps + count)[:count])
    return bars + np.cumsum(lengths) - lengths


@cache
def _geometric(p: float, longest: int) -> Law:
    lengths = np.arange(longest + 1)
    weights = np.where(lengths > 0, (1 - p) ** (lengths - 1.0), 0.0)
    return _law(weights)


@cache
def _poisson(mean: float, longest: int) -> Law:
    weights = np.full(longest + 1, exp(-mean))
    weights[1:] *= np.cumprod(mean / np.arange(1, longest + 1))
    return _law(weights)


def _law(weights: NDArray[np.float64]) -> Law:
    probabilities = weights / weights.sum()
    return Law(probabilities, float(probabilities @ np.arange(len(weights))))
