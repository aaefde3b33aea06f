"""Bootstrap resampling: would a score, or the difference of two systems' scores, hold on other
examples (Koehn 2004)?

A resample is as many examples as there are, drawn with replacement; each system is scored on it.
Draws and p-values are those of sacreBLEU.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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

    @property
    def is_decided(self) -> bool:
        """Whether the interval is on one side of 0."""
        return self.low > 0 or self.high < 0


RESAMPLES = 10_000
FEWER_RESAMPLES = 1_000  # of many examples, or of scores that take long
MANY_EXAMPLES = 10_000


@dataclass(frozen=True)
class Resampled:
    """Scores that can be computed on some of `examples`, which `noun` names. columns: what they are
    computed from, if that is arrays with a row for each example.
    """

    scorer: Scorer = field(compare=False)
    examples: int
    noun: str
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict, compare=False)


def default_samples(examples: int, *, is_cheap: bool = True) -> int:
    """The number of resamples: 10,000, or 1,000 of many examples or scores that take long."""
    if is_cheap and examples <= MANY_EXAMPLES:
        return RESAMPLES
    return FEWER_RESAMPLES


def score_intervals(
    resampled: Resampled, samples: int = FEWER_RESAMPLES, seed: int = 12345
) -> dict[str, tuple[float, float]]:
    """The 95 % confidence interval of each score, from `samples` resamples."""
    intervals = {}
    for name, values in resampled_scores(resampled, samples, seed).items():
        low, high = np.quantile(values, (0.025, 0.975)).tolist()
        intervals[name] = (low, high)
    return intervals


def resampled_scores(
    resampled: Resampled, samples: int = FEWER_RESAMPLES, seed: int = 12345
) -> dict[str, NDArray[np.float64]]:
    """(samples,) the values of each score. Systems with as many examples have the same
    resamples.
    """
    drawn = _resamples(resampled.examples, samples, seed)
    scores = [resampled.scorer(rows) for rows in drawn]
    return {name: np.array([values[name] for values in scores]) for name in scores[0]}


def _resamples(examples: int, samples: int, seed: int) -> Iterator[NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    return (rng.choice(examples, examples) for _ in range(samples))


def paired_bootstrap(
    a: Scorer, b: Scorer, examples: int, samples: int = 1000, seed: int = 12345
) -> dict[str, Difference]:
    """The differences of all scores, from `samples` resamples."""
    results = {}
    drawn = chain([np.arange(examples)], _resamples(examples, samples, seed))
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


def mean_scorer(values: Mapping[str, Sequence[float]]) -> Scorer:
    """The scorer for scores that are means; values: of each example, by the name of the score."""
    columns = {name: np.array(column, np.float64) for name, column in values.items()}
    return lambda rows: {name: float(column[rows].mean()) for name, column in columns.items()}


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
        counts = np.bincount(rows, minlength=len(examples))  # how often each example is drawn
        sums = {name: np.tensordot(counts, values, 1) for name, values in numbers.items()}
        return score({**sums, **{name: [values[rows]] for name, values in lists.items()}})

    return scorer
