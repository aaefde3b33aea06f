"""Paired bootstrap resampling: would the difference of two systems' scores hold on other examples
(Koehn 2004)?

A resample is as many examples as there are, drawn with replacement; both systems are scored on it.
Draws and p-values are those of sacreBLEU.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

# Numbers of examples (N,) -> the scores on these examples, by name.
Scorer: TypeAlias = Callable[[NDArray[np.int64]], Mapping[str, float]]


class Difference(NamedTuple):
    """A score of two systems, b - a with its 95 % confidence interval, and the one-sided p-value of
    the difference.
    """

    a: float
    b: float
    difference: float
    low: float
    high: float
    p_value: float


def paired_bootstrap(
    a: Scorer, b: Scorer, examples: int, samples: int = 1000, seed: int = 12345
) -> dict[str, Difference]:
    """The differences of all scores, from `samples` resamples."""
    rng = np.random.default_rng(seed)
    results = {}
    drawn = chain([np.arange(examples)], (rng.choice(examples, examples) for _ in range(samples)))
    pairs = [(a(rows), b(rows)) for rows in drawn]
    for name in pairs[0][0]:
        # The first pair is that of all examples.
        (first, second), *resampled = ((x[name], y[name]) for x, y in pairs)
        differences = np.array([y - x for x, y in resampled])
        sizes = np.abs(differences)
        by_chance = int((sizes - sizes.mean() > abs(second - first)).sum())
        p_value = (by_chance + 1) / (samples + 1) if sizes.any() else 1.0
        low, high = np.quantile(differences, (0.025, 0.975)).tolist()
        results[name] = Difference(first, second, second - first, low, high, p_value)
    return results


def sums_scorer(
    examples: Sequence[Mapping[str, Any]], score: Callable[[Any], Mapping[str, float]]
) -> Scorer:
    """The scorer for scores that are functions of sums over examples.

    examples: the statistics of each by name: numbers and arrays, which are added, or lists of
    arrays, which are joined. Lists of anything else are left out.
    """
    columns = {name: [values[name] for values in examples] for name in examples[0]}
    joined = {name: [*chain(*x)] for name, x in columns.items() if isinstance(x[0], list)}
    numbers = {name: np.array(x, np.float64) for name, x in columns.items() if name not in joined}
    lists = {name: np.concatenate(x) for name, x in joined.items() if isinstance(x[0], np.ndarray)}

    def scorer(rows: NDArray[np.int64]) -> Mapping[str, float]:
        # How often each example is drawn; a resample has as many rows as there are examples.
        counts = np.bincount(rows, minlength=len(rows))
        sums = {name: np.tensordot(counts, values, 1) for name, values in numbers.items()}
        return score({**sums, **{name: [values[rows]] for name, values in lists.items()}})

    return scorer
