"""Random spans and words: how many tokens a corruption changes, how long its spans are, and where
they lie.

A rate is the expected share of changed tokens: of n tokens, rate * n are selected on average for
every n. A fractional remainder is rounded up or down at random, never always in the same direction.

    free     (T,) bool: tokens that may change; special tokens may not
    starts   (T,) bool: first tokens of words (or sentences)
"""

from collections.abc import Callable
from functools import cache
from math import exp
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from trifold.ragged import positions

Ids: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
Rng: TypeAlias = np.random.Generator

# Beyond it too many drawn spans do not fit, and the expected rate is not reached.
MAX_SPAN_RATE = 0.5


def example_rng(draw: int, row: int) -> Rng:
    """Random generator of one example: a function of the epoch's `draw` (64 bits) and the row
    number.
    """
    return np.random.Generator(np.random.Philox(key=np.array([draw % 2**64, row], dtype=np.uint64)))


def round_randomly(value: float, rng: Rng) -> int:
    """Round up or down at random so that the mean is `value`."""
    return int(value + rng.random())


def find_runs(flags: Flags) -> Ids:
    """(S, 2): start and end (exclusive) of every run of True."""
    steps = np.diff(flags.astype(np.int8), prepend=0, append=0)
    return np.stack([np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)], axis=1)


def expand_spans(bounds: Ids) -> Ids:
    """All positions in (S, 2) spans, span by span."""
    return positions(bounds[:, 0], bounds[:, 1] - bounds[:, 0])


def find_words(free: Flags, starts: Flags) -> Ids:
    """(W, 2): start and end (exclusive) of every word; a token that is not free ends the word
    before it.
    """
    after_fixed = np.concatenate([[True], ~free[:-1]])[: len(free)]
    begins = free & (starts | after_fixed)
    edges = np.flatnonzero(np.append(begins | ~free, True))
    first = np.flatnonzero(begins)
    return np.stack([first, edges[np.searchsorted(edges, first, side="right")]], axis=1)


def choose_units(lengths: Ids, rate: float, rng: Rng) -> Ids:
    """Indices, in order, of units drawn at random until they hold rate * (all tokens).

    lengths: tokens per unit. The unit that exceeds the target is taken with the probability that
    makes the mean exact.
    """
    order = rng.permutation(len(lengths))
    sizes = lengths[order]
    # Tokens still to select before each unit.
    missing = rate * sizes.sum() - (np.cumsum(sizes) - sizes)
    return np.sort(order[rng.random() * sizes < missing])


# --- spans ----------------------------------------------------------------------------------------

# Maximum length -> the probability of each length 0, 1, … and the mean length.
LengthDistribution: TypeAlias = Callable[[int], tuple[NDArray[np.float64], float]]


@cache
def geometric(limit: int, p: float = 0.2, longest: int = 10) -> tuple[NDArray[np.float64], float]:
    """P(l) ∝ p (1 - p)^(l-1) for l = 1 … longest (Joshi et al. 2020, section 3.1: p = 0.2, longest
    10, mean 3.8).
    """
    lengths = np.arange(min(longest, limit) + 1)
    return _normalize(np.where(lengths > 0, (1 - p) ** (lengths - 1.0), 0.0))


@cache
def poisson(limit: int, mean: float = 3.0) -> tuple[NDArray[np.float64], float]:
    """P(l) = λ^l e^-λ / l! for l = 0, 1, … (Lewis et al. 2020, section 2.2: λ = 3)."""
    longest = min(limit, round(4 * mean) + 16)  # the tail is below one in a million
    weights = np.full(longest + 1, exp(-mean))
    weights[1:] *= np.cumprod(mean / np.arange(1, longest + 1))
    return _normalize(weights)


def _normalize(weights: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    probabilities = weights / weights.sum()
    return probabilities, float(probabilities @ np.arange(len(weights)))


def draw_span_lengths(items: int, rate: float, distribution: LengthDistribution, rng: Rng) -> Ids:
    """Independent lengths of spans that cover rate * items on average.

    A span covers at most half of the items (but may always cover one), so that context remains.
    Spans that do not fit next to the others are dropped.
    """
    probabilities, mean = distribution(max(1, items // 2))
    if not items or not mean:
        return np.zeros(0, np.int64)
    count = round_randomly(rate * items / mean, rng)
    lengths = rng.choice(len(probabilities), count, p=probabilities)
    taken = np.cumsum(lengths + (lengths > 0))  # each non-empty span needs one item as a separator
    return lengths[taken <= items + 1]


def place_spans(lengths: Ids, items: int, rng: Rng) -> Ids:
    """Start positions of non-empty spans in this order that never touch; all placements are equally
    likely.
    """
    count = len(lengths)
    gaps = 0  # items in no span and no separator
    if count:
        gaps = items - int(lengths.sum()) - (count - 1)
    bars = np.sort(rng.permutation(gaps + count)[:count])
    return bars + np.cumsum(lengths) - lengths
