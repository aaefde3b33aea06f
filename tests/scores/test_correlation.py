"""Correlations equal those of scipy."""

from __future__ import annotations

import numpy as np
import pytest

from trifold.errors import DataError
from trifold.scores.correlation import CorrelationScore, area_under_curve, pearson


def score_of(x, y, ends=()):
    score = CorrelationScore()
    for one, other in zip(np.split(x, ends), np.split(y, ends), strict=True):
        score.add(one, other)
    return score.values()


def test_correlations_equal_scipy():
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(1)
    for case in range(250):
        size = int(random.integers(2, 50))
        x, y = random.normal(size=(2, size))
        y = y + random.normal() * x
        if case % 2:  # ties
            x, y = np.round(2 * x) / 2, np.round(y)
        if case % 3 == 0:  # a mean that is large next to the deviations
            x, y = x + 10.0 ** random.integers(0, 8), 10.0 ** random.integers(-30, 30) * y
        if x.min() == x.max() or y.min() == y.max():
            x[0], y[0] = x[0] + 1, y[0] + 1
        ends = np.sort(random.integers(0, size + 1, 3))
        expected = {"pearson": stats.pearsonr(x, y)[0], "spearman": stats.spearmanr(x, y)[0]}
        assert score_of(x, y, ends) == pytest.approx(expected, abs=1e-9)


def test_a_constant_has_no_correlation():
    assert score_of(np.full(7, 0.1), np.arange(7.0)) == {"pearson": 0.0, "spearman": 0.0}
    assert score_of(np.arange(7.0), np.full(7, 0.1)) == {"pearson": 0.0, "spearman": 0.0}
    assert CorrelationScore().values() == {"pearson": 0.0, "spearman": 0.0}


def test_the_area_under_the_curve_equals_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(3)
    for size in (2, 5, 50):
        positive = np.arange(size) % 3 == 1
        for values in (rng.normal(size=size), rng.integers(4, size=size).astype(float)):
            expected = 100 * metrics.roc_auc_score(positive, values)
            assert area_under_curve(values, positive) == pytest.approx(expected)
    assert area_under_curve(np.arange(3.0), np.zeros(3, np.bool_)) == 50


def test_large_values_do_not_overflow():
    x = np.array([1.0, 2.0, 4.0])
    assert pearson(x * 1e200, x * 1e300) == pytest.approx(1)
    assert pearson(x * 1e-200, -x * 1e-300) == pytest.approx(-1)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_non_finite_values_are_errors(value):
    with pytest.raises(DataError, match="non-finite"):
        CorrelationScore().add([1.0, 2.0], [1.0, value])


def test_different_lengths_are_errors():
    with pytest.raises(DataError, match="3 predictions but 2 references"):
        CorrelationScore().add([1.0, 2.0], [1.0, 2.0, 3.0])
