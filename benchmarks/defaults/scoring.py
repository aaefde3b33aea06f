"""Scores of the predictions of baselines and peers, by the functions that trifold is measured with.

Each equals its reference tool (docs/scores.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rows import Row

from trifold.scores.correlation import CorrelationScore
from trifold.scores.entities import EntityScore
from trifold.scores.rouge import RougeScore
from trifold.scores.squad import SquadScore


def score(made_of: str, rows: Sequence[Row], predictions: Sequence[Any]) -> float:
    """The score of a set, in percent or as a correlation."""
    if len(rows) != len(predictions):
        raise ValueError(f"{len(predictions)} predictions for {len(rows)} rows")
    return SCORES[made_of](rows, predictions)


def _accuracy(rows: Sequence[Row], predictions: Sequence[Any]) -> float:
    right = sum(row["label"] == label for row, label in zip(rows, predictions, strict=True))
    return 100 * right / len(rows)


def _pearson(rows: Sequence[Row], predictions: Sequence[Any]) -> float:
    correlation = CorrelationScore()
    correlation.add([float(row["label"]) for row in rows], [*map(float, predictions)])
    return correlation.values()["pearson"]


def _entity_f1(rows: Sequence[Row], predictions: Sequence[Any]) -> float:
    entities = EntityScore()
    entities.add([row["tags"] for row in rows], [*map(list, predictions)])
    return entities.values()["f1"]


def _class_accuracy(rows: Sequence[Row], predictions: Sequence[Any]) -> float:
    pairs = [
        (one, other)
        for row, tags in zip(rows, predictions, strict=True)
        for one, other in zip(row["tags"], tags, strict=True)
    ]
    return 100 * sum(one == other for one, other in pairs) / len(pairs)


def _answer_f1(rows: Sequence[Row], predictions: Sequence[Any]) -> float:
    answers = SquadScore()
    answers.add([row["answer"] for row in rows], predictions)
    return answers.values()["f1"]


def _rouge(rows: Sequence[Row], predictions: Sequence[Any]) -> float:
    rouge = RougeScore()
    rouge.add([row["targets"] for row in rows], predictions)
    return rouge.values()["rougeL"]


SCORES: dict[str, Callable[[Sequence[Row], Sequence[Any]], float]] = {
    "texts": _accuracy,
    "pairs": _accuracy,
    "images": _accuracy,
    "numbers": _pearson,
    "ratings": _pearson,
    "words": _entity_f1,
    "classes of words": _class_accuracy,
    "questions": _answer_f1,
    "summaries": _rouge,
}
