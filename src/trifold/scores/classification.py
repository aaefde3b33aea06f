"""Scores of classification, equal to scikit-learn's, and the calibration error of Guo et al.
(2017).

The functions take sums over examples, so the sums of batches can be added. Values are in percent;
Matthews correlation is between -1 and 1.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trifold.errors import DataError
from trifold.scores.counts import check_lengths, f1

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
BINS = 15  # of the calibration error, as in Guo et al. (2017)


def confusion_matrix(labels: Counts, predictions: Counts, classes: int) -> Counts:
    """(C, C) the number of examples with the row's label and the column's prediction."""
    counts = np.bincount(labels * classes + predictions, minlength=classes * classes)
    return counts.reshape(classes, classes)


def accuracy(table: Counts) -> float:
    """Percent of correct predictions. Micro F1 over all classes is the same number."""
    return 100 * float(np.trace(table)) / max(int(table.sum()), 1)


def macro_f1(table: Counts) -> float:
    """Percent: 2 · correct / (labels + predictions), mean over the classes that occur as label or
    prediction.
    """
    both = table.sum(0) + table.sum(1)
    occurs = both > 0
    if not occurs.any():
        return 0.0
    return 100 * float((2 * np.diag(table)[occurs] / both[occurs]).mean())


def balanced_accuracy(table: Counts) -> float:
    """Percent: the mean recall of the classes that occur as label."""
    labels = table.sum(1)
    occurs = labels > 0
    if not occurs.any():
        return 0.0
    return 100 * float((np.diag(table)[occurs] / labels[occurs]).mean())


def binary_f1(table: Counts, positive: int = 1) -> float:
    """Percent: F1 of one class."""
    return 100 * float(
        f1(table[positive, positive], table[positive].sum(), table[:, positive].sum())
    )


def matthews(table: Counts) -> float:
    """Matthews correlation of any number of classes (Gorodkin 2004), -1 to 1; 0 if one class is
    predicted or true.
    """
    labels = table.sum(1)
    predictions = table.sum(0)
    total = int(table.sum())
    covariance = int(np.trace(table)) * total - int(labels @ predictions)
    scale = math.prod(math.sqrt(total * total - int(each @ each)) for each in (labels, predictions))
    return covariance / scale if scale else 0.0


def reliability_table(labels: Counts, predictions: Counts, confidences: Floats) -> Floats:
    """(M, 3) number of examples, sum of their confidences, and number of correct ones, by
    confidence.

    confidences (B,): the probability of each prediction. Bin m of M contains ((m - 1) / M, m / M].
    """
    places = np.searchsorted(np.arange(1, BINS) / BINS, confidences)
    columns = (None, confidences, (labels == predictions).astype(float))
    return np.stack([np.bincount(places, column, BINS) for column in columns], 1)


def calibration_error(table: Floats) -> float:
    """Expected calibration error in percent: Σ_m n_m / n · |accuracy_m - mean confidence_m| (Guo et
    al. 2017).
    """
    return 100 * float(np.abs(table[:, 2] - table[:, 1]).sum()) / max(float(table[:, 0].sum()), 1.0)


class ClassificationScore:
    """Scores of predicted classes 0 to `classes` - 1. `positive`: the class of the binary F1, if
    there are two.
    """

    def __init__(self, classes: int, positive: int = 1) -> None:
        self.positive = positive
        self.table = np.zeros((classes, classes), np.int64)
        self.reliability = np.zeros((BINS, 3))
        self.signature = f"classes:{classes}|macro:occurring|positive:{positive}|bins:{BINS}"

    def add(
        self, references: ArrayLike, predictions: ArrayLike, confidences: ArrayLike | None = None
    ) -> None:
        """Add classes (B,), and the probabilities of the predictions (B,). Raises DataError for an
        unknown class.
        """
        labels = np.asarray(references, np.int64)
        predicted = np.asarray(predictions, np.int64)
        check_lengths(labels, predicted, "labels")
        classes = len(self.table)
        if unknown := {*labels.tolist(), *predicted.tolist()} - {*range(classes)}:
            raise DataError(f"class {min(unknown)} is unknown; the classes are 0 to {classes - 1}")
        self.table += confusion_matrix(labels, predicted, classes)
        if confidences is not None:
            probabilities = np.asarray(confidences, np.float64)
            self.reliability += reliability_table(labels, predicted, probabilities)

    def values(self) -> dict[str, float]:
        """accuracy, micro_f1, macro_f1, matthews; f1 of two classes; calibration_error if there are
        confidences.
        """
        percent = accuracy(self.table)
        values = {"accuracy": percent, "micro_f1": percent, "macro_f1": macro_f1(self.table)}
        if len(self.table) == 2:
            values["f1"] = binary_f1(self.table, self.positive)
        values["matthews"] = matthews(self.table)
        if self.reliability[:, 0].any():
            values["calibration_error"] = calibration_error(self.reliability)
        return values


class MultiLabelScore:
    """F1 and subset accuracy of label sets. Unlike that of single labels, macro F1 is the mean over
    all classes.
    """

    def __init__(self, classes: int) -> None:
        self.counts = np.zeros((3, classes), np.int64)  # correct, labels, predictions
        self.examples = self.equal = 0
        self.signature = f"classes:{classes}|macro:all"

    def add(self, references: ArrayLike, predictions: ArrayLike) -> None:
        """Add label sets: (B, C), true where a label applies."""
        labels = np.asarray(references, bool)
        predicted = np.asarray(predictions, bool)
        check_lengths(labels.ravel(), predicted.ravel(), "labels")
        self.equal += int((labels == predicted).all(1).sum())
        self.counts += [(labels & predicted).sum(0), labels.sum(0), predicted.sum(0)]
        self.examples += len(labels)

    def values(self) -> dict[str, float]:
        """micro_f1, macro_f1, and subset_accuracy: the percentage of rows in which all labels are
        correct.
        """
        return {
            "micro_f1": 100 * float(f1(*self.counts.sum(1))),
            "macro_f1": 100 * float(np.mean([f1(*column) for column in self.counts.T])),
            "subset_accuracy": 100 * self.equal / max(self.examples, 1),
        }
