"""Scores of the predictions of a baseline, by the code that scores the predictions of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trifold.baselines.baseline import LabelledRows
from trifold.errors import CheckpointError
from trifold.linear.ngrams import Ids
from trifold.nn.config import MULTI, SINGLE
from trifold.objectives.choose import Choose
from trifold.objectives.classify import Classify
from trifold.objectives.embed import Embed
from trifold.objectives.questions import score_answers
from trifold.objectives.summarize import Summarize
from trifold.objectives.tag import TagWords
from trifold.scores.bootstrap import Resampled, mean_scorer
from trifold.scores.correlation import CorrelationScore


class Scored(NamedTuple):
    """Scores by name, and what computes them on some of the rows."""

    scores: dict[str, float]
    resampled: Resampled


def score(task: Any, rows: LabelledRows, predictions: Any) -> Scored:
    """The scores of predictions for rows."""
    if isinstance(task, Classify):
        return _score_labels(task, rows, predictions)
    if isinstance(task, Choose):
        correct = (100.0 * (predictions == rows.labels)).tolist()
        return _score_means(task, {"accuracy": correct})
    if isinstance(task, Embed):
        return _score_similarities(task, rows, predictions)
    if isinstance(task, TagWords):
        references = rows.column("tags")
        scores, _ = task.score_tags(references, predictions)
        return Scored(scores, task.resampled_tags(references, predictions))
    if isinstance(task, Summarize):
        return _score_means(task, task.score(rows.rows, predictions).percentages)
    evaluation = score_answers(rows.rows, predictions, 0)
    assert evaluation.resampled is not None
    return Scored(evaluation.scores, evaluation.resampled)


def _score_labels(task: Classify, rows: LabelledRows, outputs: NDArray[Any]) -> Scored:
    def of_rows(numbers: Ids) -> Mapping[str, float]:
        return task.scores_of_sums({"labels": [labels[numbers]], "outputs": [outputs[numbers]]})

    labels = rows.labels
    _check_outputs(task, outputs)
    scores = of_rows(np.arange(len(labels)))
    return Scored(dict(scores), Resampled(of_rows, len(labels), task.row_name))


def _check_outputs(task: Classify, outputs: NDArray[Any]) -> None:
    """Raise CheckpointError for predictions of a baseline that is damaged, or of another model."""
    fits = np.isfinite(outputs).all()
    if task.problem == SINGLE:
        fits &= ((outputs >= 0) & (outputs < task.classes)).all()
    elif task.problem == MULTI:
        fits &= outputs.shape[1] == task.classes
    if not fits:
        raise CheckpointError("its baselines do not fit the model; train again")


def _score_similarities(task: Embed, rows: LabelledRows, outputs: NDArray[Any]) -> Scored:
    def of_rows(numbers: Ids) -> Mapping[str, float]:
        correlation = CorrelationScore()
        correlation.add(rows.labels[numbers], outputs[numbers])
        return correlation.values()

    scores = of_rows(np.arange(len(outputs)))
    return Scored(dict(scores), Resampled(of_rows, len(outputs), task.row_name))


def _score_means(task: Any, values: Mapping[str, Sequence[float]]) -> Scored:
    """Scores that are means over the rows."""
    scores = {name: float(np.mean(column)) for name, column in values.items()}
    rows = len(next(iter(values.values())))
    return Scored(scores, Resampled(mean_scorer(values), rows, task.row_name))
