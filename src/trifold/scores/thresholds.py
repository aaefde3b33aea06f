"""The threshold of an output at which a score of two classes is highest."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# (correct, predicted, labels, all) -> score: the first two are arrays with a number for each
# threshold, of the positive class.
Measure = Callable[[Floats, Floats, int, int], Floats]


def f1_of(correct: Floats, predicted: Floats, labels: int, count: int) -> Floats:
    """F1 of the positive class, as a share."""
    return 2 * correct / np.maximum(predicted + labels, 1)


def macro_f1_of(correct: Floats, predicted: Floats, labels: int, count: int) -> Floats:
    """The mean of the F1 of both classes."""
    rejected = count - predicted
    others = count - labels
    return (
        f1_of(correct, predicted, labels, count)
        + f1_of(rejected - (labels - correct), rejected, others, count)
    ) / 2


def matthews_of(correct: Floats, predicted: Floats, labels: int, count: int) -> Floats:
    """Matthews correlation; 0 if one class is predicted or true."""
    scale = np.sqrt(predicted * (count - predicted) * float(labels) * (count - labels))
    return np.where(scale > 0, (correct * count - predicted * labels) / np.maximum(scale, 1), 0.0)


def best_threshold(
    outputs: NDArray[np.floating], labels: NDArray[np.bool_], measure: Measure
) -> float:
    """The threshold above which an output is positive, so that the measure is highest: 0 if no
    other one is better, and otherwise the middle between two outputs.
    """
    count = len(outputs)
    order = np.argsort(-outputs, kind="stable")
    ranked = outputs[order].astype(np.float64)
    correct = np.cumsum(labels[order], dtype=np.float64)
    predicted = np.arange(1, count + 1, dtype=np.float64)
    total = int(labels.sum())
    scores = measure(correct, predicted, total, count)
    # Between equal outputs there is no threshold; below the last one everything is positive.
    scores = np.where(np.append(ranked[1:] < ranked[:-1], False), scores, -np.inf)
    positive = outputs > 0
    kept = measure(
        np.array([float((labels & positive).sum())]),
        np.array([float(positive.sum())]),
        total,
        count,
    )
    best = int(scores.argmax())
    if scores[best] <= kept[0]:
        return 0.0
    return float(ranked[best] + ranked[best + 1]) / 2
