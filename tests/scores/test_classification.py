"""Scores of classification equal those of scikit-learn, and the calibration error equals its
definition.
"""

from __future__ import annotations

import numpy as np
import pytest

from trifold.errors import DataError
from trifold.scores.classification import (
    BINS,
    ClassificationScore,
    MultiLabelScore,
    accuracy,
    calibration_error,
    confusion_matrix,
    macro_f1,
    matthews,
    reliability_table,
)


def test_scores_of_a_confusion_matrix():
    table = confusion_matrix(np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 0, 0]), 4)
    assert table.tolist() == [[2, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert accuracy(table) == pytest.approx(100 * 3 / 6)
    assert macro_f1(table) == pytest.approx(100 * (4 / 7 + 2 / 4 + 0) / 3)


def draw(random, classes, size):
    """Labels and predictions; often some classes, or all but one, do not occur."""
    some = [
        random.choice(classes, random.integers(1, classes + 1), replace=False) for _ in range(2)
    ]
    labels, predictions = (random.choice(each, size) for each in some)
    return labels, np.where(random.random(size) < random.random(), labels, predictions)


def batches(random, size):
    """Slices that cover `size` examples, some of them empty."""
    ends = sorted(random.integers(0, size + 1, random.integers(0, 4)))
    return [slice(start, end) for start, end in zip([0, *ends], [*ends, size], strict=True)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:A single label was found")
def test_scores_equal_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(1)
    for case in range(250):
        classes = 2 if case % 2 else int(random.integers(2, 7))
        labels, predictions = draw(random, classes, int(random.integers(1, 40)))
        score = ClassificationScore(classes, positive=case % 3 % 2)
        for part in batches(random, len(labels)):
            score.add(labels[part], predictions[part])

        def f1(**options):
            return 100 * metrics.f1_score(labels, predictions, zero_division=0, **options)  # noqa: B023

        expected = {
            "accuracy": 100 * metrics.accuracy_score(labels, predictions),
            "micro_f1": f1(average="micro"),
            "macro_f1": f1(average="macro"),
            "matthews": metrics.matthews_corrcoef(labels, predictions),
        }
        if classes == 2:
            # average="binary" rejects data in which only one class occurs, unless it is class 0 or
            # 1 of two.
            expected["f1"] = f1(labels=[case % 3 % 2], average="macro")
        assert score.values() == pytest.approx(expected, abs=1e-9)
        names = list(range(classes))
        assert (score.table == metrics.confusion_matrix(labels, predictions, labels=names)).all()


def test_binary_f1_is_that_of_the_positive_class():
    metrics = pytest.importorskip("sklearn.metrics")
    labels, predictions = [0, 1, 1, 1, 0], [1, 1, 0, 1, 0]
    for positive in (0, 1):
        score = ClassificationScore(2, positive)
        score.add(labels, predictions)
        assert score.values()["f1"] == pytest.approx(
            100 * metrics.f1_score(labels, predictions, pos_label=positive)
        )


def test_matthews_correlation_of_one_class_is_zero_for_any_number_of_examples():
    table = np.array([[10**8 + 7, 0], [3 * 10**8 + 11, 0]])  # squares that float64 rounds
    assert matthews(table) == matthews(table.T) == 0
    assert matthews(np.array([[10**8, 0], [0, 10**8 + 1]])) == pytest.approx(1)


def test_the_calibration_error_equals_its_definition():
    random = np.random.default_rng(2)
    for case in range(250):
        size = int(random.integers(1, 60))
        labels, predictions = draw(random, 3, size)
        confidences = random.random(size) ** (0.2 if case % 2 else 1)
        edges = random.random(size) < 0.2
        confidences[edges] = (
            random.integers(1, BINS + 1, edges.sum()) / BINS
        )  # ties with the limits of the bins
        score = ClassificationScore(3)
        for part in batches(random, size):
            score.add(labels[part], predictions[part], confidences[part])
        expected = 0.0
        for m in range(1, BINS + 1):
            inside = [i for i in range(size) if (m - 1) / BINS < confidences[i] <= m / BINS]
            if inside:
                correct = np.mean([labels[i] == predictions[i] for i in inside])
                expected += (
                    len(inside) / size * abs(correct - np.mean([confidences[i] for i in inside]))
                )
            assert score.reliability[m - 1, 0] == len(inside)
        assert score.values()["calibration_error"] == pytest.approx(100 * expected, abs=1e-9)


def test_calibrated_predictions_have_no_calibration_error():
    labels, predictions = np.array([0, 0, 0, 1]), np.zeros(4, np.int64)
    table = reliability_table(labels, predictions, [0.75] * 4)
    assert table[11].tolist() == [4, 3, 3]
    assert calibration_error(table) == 0
    assert calibration_error(reliability_table(labels, predictions, [1.0] * 4)) == 25
    assert calibration_error(np.zeros((BINS, 3))) == 0


@pytest.mark.slow
def test_scores_of_label_sets_equal_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(3)
    for _ in range(200):
        size, classes = random.integers(1, 20), random.integers(2, 6)
        labels, predictions = (
            random.random((2, size, classes)) < random.random((2, 1, classes)) ** 2
        )
        score = MultiLabelScore(int(classes))
        for part in batches(random, int(size)):
            score.add(labels[part], predictions[part])
        expected = {
            "micro_f1": 100
            * metrics.f1_score(labels, predictions, average="micro", zero_division=0),
            "macro_f1": 100
            * metrics.f1_score(labels, predictions, average="macro", zero_division=0),
            "subset_accuracy": 100 * metrics.accuracy_score(labels, predictions),
        }
        assert score.values() == pytest.approx(expected, abs=1e-9)


def test_nothing_scores_zero():
    assert set(ClassificationScore(2).values().values()) == {0.0}
    assert set(MultiLabelScore(3).values().values()) == {0.0}


def test_unknown_classes_and_different_lengths_are_errors():
    with pytest.raises(DataError, match="class 2 is unknown; the classes are 0 to 1"):
        ClassificationScore(2).add([0, 1], [0, 2])
    with pytest.raises(DataError, match="class -1 is unknown"):
        ClassificationScore(2).add([-1], [0])
    with pytest.raises(DataError, match="1 predictions but 2 labels; the numbers must be equal"):
        ClassificationScore(2).add([0, 1], [0])
    with pytest.raises(DataError, match="2 predictions but 4 labels"):
        MultiLabelScore(2).add([[0, 1], [0, 0]], [[0], [1]])
