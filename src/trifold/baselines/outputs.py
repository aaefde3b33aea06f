"""From features to what an objective predicts: one label, several, or a number."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trifold.baselines.baseline import LabelledRows, Poll
from trifold.linear.logistic import LinearModel, fit_classes, fit_labels
from trifold.linear.matrix import FeatureMatrix
from trifold.linear.ngrams import Ids
from trifold.linear.ridge import fit_ridge
from trifold.nn.config import MULTI, REGRESSION


def problem_of(task: Any) -> str:
    """The problem of an objective; that of scores of pairs is a regression."""
    problem: str = getattr(task, "problem", REGRESSION)
    return problem


def known_rows(task: Any, labels: NDArray[Any]) -> Ids:
    """The numbers of the rows whose class the model has."""
    if problem_of(task) in (MULTI, REGRESSION):
        return np.arange(len(labels))
    return np.flatnonzero(labels < task.classes)


def fit_outputs(
    task: Any, features: FeatureMatrix, train: LabelledRows, strength: float, poll: Poll
) -> LinearModel:
    """The linear model of the labels. strength: C of logistic regression, 1 / alpha of ridge."""
    labels = torch.from_numpy(train.labels)
    if problem_of(task) == REGRESSION:
        return fit_ridge(features, labels, 1 / strength)
    if problem_of(task) == MULTI:
        return fit_labels(features, labels[:, : task.classes], strength, poll)
    return fit_classes(features, labels, task.classes, strength, poll)


def predict_outputs(task: Any, model: LinearModel, features: FeatureMatrix) -> NDArray[Any]:
    """(N,) classes or numbers, or (N, C) labels."""
    logits = model.logits(features).numpy()
    if problem_of(task) == REGRESSION:
        numbers: NDArray[Any] = logits[:, 0]
        return numbers
    if problem_of(task) == MULTI:
        return (logits > 0).astype(np.float32)
    classes: NDArray[Any] = logits.argmax(1)
    return classes
