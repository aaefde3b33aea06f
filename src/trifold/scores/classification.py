"""Scores of classification from a confusion matrix; they equal scikit-learn's, in percent."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


def confusion_matrix(labels: Counts, predictions: Counts, classes: int) -> Counts:
    """(C, C) the number of examples with the row's label and the column's prediction."""
    counts = np.bincount(labels * classes + predictions, minlength=classes * classes)
    return counts.reshape(classes, classes)


def accuracy(table: Counts) -> float:
    """Percent of correct predictions."""
    return 100 * float(np.trace(table)) / max(int(table.sum()), 1)


def macro_f1(table: Counts) -> float:
    """Percent: 2 · correct / (labels + predictions), mean over the classes that occur as label or prediction."""
    both = table.sum(0) + table.sum(1)
    occurs = both > 0
    return 100 * float((2 * np.diag(table)[occurs] / both[occurs]).mean()) if occurs.any() else 0.0
