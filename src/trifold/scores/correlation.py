"""Pearson and Spearman correlation, equal to scipy's, and the area under a ROC curve."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trifold.errors import DataError
from trifold.scores.counts import check_lengths

Values = NDArray[np.float64]


def pearson(x: Values, y: Values) -> float:
    """Correlation of two vectors, -1 to 1; 0 if one of them is constant, where scipy returns
    NaN.
    """
    if not len(x) or x.min() == x.max() or y.min() == y.max():
        return 0.0
    x = x - x.mean()
    y = y - y.mean()
    x, y = x / np.abs(x).max(), y / np.abs(y).max()  # squares of large values overflow
    return float(np.clip(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)), -1, 1))


def ranks(x: Values) -> Values:
    """Ranks from 1; equal values have the mean of their ranks."""
    _, places, counts = np.unique(x, return_inverse=True, return_counts=True)
    means: Values = np.cumsum(counts) - (counts - 1) / 2
    return means[places]


def area_under_curve(x: Values, positive: NDArray[np.bool_]) -> float:
    """The probability that a positive has a larger value than another, in percent, which is the
    area under the ROC curve; equal values count half. 50 if all are positive, or none is.
    """
    count = int(positive.sum())
    pairs = count * (len(x) - count)
    if not pairs:
        return 50.0
    return 100 * float(ranks(x)[positive].sum() - count * (count + 1) / 2) / pairs


class CorrelationScore:
    """Pearson and Spearman correlation. Ranks depend on all values, so 16 bytes per example are
    kept.
    """

    signature = "ties:mean_rank|constant:0"

    def __init__(self) -> None:
        self.batches: list[Values] = []

    def add(self, references: ArrayLike, predictions: ArrayLike) -> None:
        """Add values (B,). Raises DataError for NaN and infinity."""
        labels = np.asarray(references, np.float64)
        found = np.asarray(predictions, np.float64)
        check_lengths(labels, found)
        batch = np.stack([labels, found])
        if not np.isfinite(batch).all():
            raise DataError(
                "correlation: a reference or prediction is non-finite (NaN or infinity)"
            )
        self.batches.append(batch)

    def values(self) -> dict[str, float]:
        """pearson and spearman, -1 to 1."""
        x, y = np.concatenate([np.zeros((2, 0)), *self.batches], 1)
        return {"pearson": pearson(x, y), "spearman": pearson(ranks(x), ranks(y))}
