"""The best threshold is that of a search over all thresholds."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, f1_score, matthews_corrcoef

from trifold.scores.classification import balanced_accuracy, confusion_matrix
from trifold.scores.thresholds import best_threshold, f1_of, macro_f1_of, matthews_of

ORACLES = {
    "f1": (f1_of, lambda labels, found: f1_score(labels, found, zero_division=0.0)),
    "macro_f1": (
        macro_f1_of,
        lambda labels, found: f1_score(labels, found, average="macro", zero_division=0.0),
    ),
    "matthews": (matthews_of, matthews_corrcoef),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("score", ORACLES)
def test_no_other_threshold_is_better(score, seed):
    measure, oracle = ORACLES[score]
    rng = np.random.default_rng(seed)
    labels = rng.random(60) < 0.15
    outputs = np.round(rng.normal(size=60) + labels - 1, 1).astype(np.float32)  # with equal ones
    threshold = best_threshold(outputs, labels, measure)
    ranked = np.unique(outputs)
    others = [0.0, *((ranked[1:] + ranked[:-1]) / 2)]
    best = max(oracle(labels, outputs > other) for other in others)
    assert oracle(labels, outputs > threshold) == pytest.approx(best)


def test_a_threshold_that_changes_no_score_stays():
    labels = np.array([True, True, False, False])
    outputs = np.array([2.0, 1.0, -1.0, -2.0])
    assert best_threshold(outputs, labels, f1_of) == 0.0
    assert best_threshold(np.zeros(4), labels, f1_of) == 0.0
    assert best_threshold(outputs - 3, labels, f1_of) == -3.0


def test_the_balanced_accuracy_is_that_of_scikit_learn():
    rng = np.random.default_rng(1)
    labels, found = rng.integers(0, 3, 50), rng.integers(0, 4, 50)
    table = confusion_matrix(labels, found, 4)
    with pytest.warns(UserWarning, match="y_pred contains classes not in y_true"):
        expected = balanced_accuracy_score(labels, found)
    assert balanced_accuracy(table) == pytest.approx(100 * expected)
