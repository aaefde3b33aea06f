"""A model and its baselines, compared on the same rows by the score that selects the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trifold.baselines.baseline import Baseline, LabelledRows
from trifold.baselines.scoring import Scored, score
from trifold.baselines.table import evaluated
from trifold.errors import plural
from trifold.objectives.evaluation import Evaluation
from trifold.scores import DIGITS, score_name
from trifold.scores.bootstrap import Resampled, resampled_scores

RESAMPLES = 1_000  # as a model is compared after each best validation
FEWEST_ROWS = 2  # that can be resampled
MIDDLE = (0.025, 0.975)  # of the resamples: the 95 % interval
LOSS = "loss"


@dataclass(frozen=True)
class MeasuredSystem:
    """The scores of a model or a baseline, and the 95 % interval of each.

    lead: the interval of the score of the model minus that of the baseline, on the same resamples.
    rows, seconds: those that a baseline is fitted on, and in.
    """

    name: str
    scores: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    lead: tuple[float, float] | None = None
    rows: int = 0
    seconds: float = 0.0

    def describe(self, key: str) -> str:
        """`86.5 ± 1.5`: a score, and half of its interval."""
        digits = DIGITS.get(key, 1)
        value = f"{self.scores[key]:.{digits}f}"
        if key not in self.intervals:
            return value
        low, high = self.intervals[key]
        return f"{value} ± {(high - low) / 2:.{digits}f}"


@dataclass(frozen=True)
class Comparison:
    """A model and its baselines on `count` rows, which are called `noun`, by a score.

    parts: the scores of parts of the model alone, by their names.
    """

    score: str
    count: int
    noun: str
    model: MeasuredSystem
    baselines: tuple[MeasuredSystem, ...] = ()
    parts: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def best(self) -> MeasuredSystem | None:
        """The baseline with the highest score."""
        return max(self.baselines, key=lambda each: each.scores[self.score], default=None)

    @property
    def is_behind(self) -> bool:
        """Whether a baseline is ahead, beyond what other rows might change."""
        return any(each.lead is not None and each.lead[1] < 0 for each in self.baselines)

    @property
    def rivals(self) -> list[MeasuredSystem]:
        """The baselines that the model is not clearly ahead of."""
        return [each for each in self.baselines if each.lead is None or each.lead[0] <= 0]

    def lines(self) -> list[str]:
        """All scores in a line, and what the baselines were fitted on, if not on all rows."""
        what = f"{score_name(self.score)} of {self.count:,} {self.noun}"
        if not self.baselines and not self.parts:
            value = self.model.describe(self.score)
            return [f"{what}: {value} (95 %)"]
        listed = [f"{each.name}: {each.describe(self.score)}" for each in self.baselines]
        listed.append(f"this model: {self.model.describe(self.score)}")
        digits = DIGITS.get(self.score, 1)
        listed += [
            f"{name}: {scores[self.score]:.{digits}f}"
            for name, scores in self.parts.items()
            if self.score in scores
        ]
        return [f"{what}: {'; '.join(listed)}"]

    def as_json(self) -> dict[str, Any]:
        """Values of JSON; `from_json` reads them."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Any) -> Comparison:
        """The comparison of these values. Raises KeyError, TypeError or ValueError."""
        baselines = tuple(_measured(each) for each in values["baselines"])
        fields = str(values["score"]), int(values["count"]), str(values["noun"])
        parts = {
            str(name): {str(key): float(value) for key, value in scores.items()}
            for name, scores in values.get("parts", {}).items()
        }
        return cls(*fields, _measured(values["model"]), baselines, parts)


def _measured(values: Any) -> MeasuredSystem:
    lead = values["lead"]
    return MeasuredSystem(
        str(values["name"]),
        {str(name): float(value) for name, value in values["scores"].items()},
        {str(name): _interval(pair) for name, pair in values["intervals"].items()},
        None if lead is None else _interval(lead),
        int(values["rows"]),
        float(values["seconds"]),
    )


def _interval(pair: Any) -> tuple[float, float]:
    low, high = pair
    return float(low), float(high)


@dataclass
class _Resampled:
    """Scores of rows, and of resamples of them, which are drawn where a model is compared."""

    scores: dict[str, float]
    resampled: Resampled

    @cached_property
    def draws(self) -> dict[str, NDArray[np.float64]]:
        """The scores of resamples, which are the same rows for all that have as many."""
        if self.resampled.examples < FEWEST_ROWS:
            return {}
        return resampled_scores(self.resampled, RESAMPLES)

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        return {name: _middle(values) for name, values in self.draws.items()}


def _middle(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(values, MIDDLE).tolist()
    return low, high


@dataclass
class MeasuredBaselines:
    """Fitted baselines, measured on rows once; models are compared with them, one after the
    other.

    predictions: of each baseline for these rows.
    """

    task: Any
    fitted: Sequence[Baseline]
    measured: list[_Resampled] = field(default_factory=list)
    predictions: list[Any] = field(default_factory=list)

    @classmethod
    def on(
        cls, task: Any, fitted: Sequence[Baseline], rows: Any, examples: Any
    ) -> MeasuredBaselines:
        """The baselines, measured on rows and their examples."""
        task = evaluated(task)
        measured = cls(task, fitted)
        if fitted:
            labelled = LabelledRows.of(rows, examples)
            for baseline in fitted:
                predictions = baseline.predict(task, labelled)
                measured.add(score(task, labelled, predictions), predictions)
        return measured

    def add(self, scored: Scored, predictions: Any) -> None:
        """Add the measurement of the next baseline."""
        self.measured.append(_Resampled(scored.scores, scored.resampled))
        self.predictions.append(predictions)

    @property
    def score(self) -> str:
        """The score that selects the model; if it is the loss, the first score."""
        best_by: str = self.task.settings.best_by
        if best_by == LOSS and self.measured:
            return next(iter(self.measured[0].scores))
        return best_by

    def describe(self) -> list[str]:
        """A line with the score of each baseline; none without baselines."""
        if not self.fitted:
            return []
        listed = "; ".join(
            f"{name}: {value:.{DIGITS.get(self.score, 1)}f}"
            for name, value in self.values().items()
        )
        seconds = sum(baseline.seconds for baseline in self.fitted)
        rows = self.fitted[0].rows
        return [
            f"baselines, of {plural(rows, 'training row')} in {seconds:.1f} s: "
            f"{score_name(self.score)} of {listed}"
        ]

    def values(self) -> dict[str, float]:
        """The compared score of each baseline, by its name."""
        both = zip(self.fitted, self.measured, strict=True)
        return {baseline.name: measured.scores[self.score] for baseline, measured in both}

    def compare(self, evaluation: Evaluation) -> Comparison | None:
        """A model with the baselines; None if it has no score that can be resampled."""
        resampled = evaluation.resampled
        key = self.score
        scores = evaluation.scores
        if math.isfinite(evaluation.loss):
            scores = scores | {LOSS: evaluation.loss}
        if resampled is None or resampled.examples < FEWEST_ROWS or key not in scores:
            return None
        of_model = _Resampled(scores, resampled)
        model = MeasuredSystem("this model", of_model.scores, of_model.intervals)
        baselines = []
        for baseline, measured in zip(self.fitted, self.measured, strict=True):
            lead = None
            if key in of_model.draws and len(of_model.draws[key]) == len(measured.draws[key]):
                lead = _middle(of_model.draws[key] - measured.draws[key])
            facts = baseline.rows, baseline.seconds
            baselines.append(
                MeasuredSystem(baseline.name, measured.scores, measured.intervals, lead, *facts)
            )
        parts = {name: dict(of_part) for name, of_part in evaluation.parts.items()}
        return Comparison(key, resampled.examples, resampled.noun, model, tuple(baselines), parts)


def compare_texts(key: str, scores: dict[str, float], resampled: Resampled) -> Comparison | None:
    """The interval of a score of texts, which have no baselines; None if it cannot be resampled."""
    if resampled.examples < FEWEST_ROWS or key not in scores:
        return None
    of_model = _Resampled(scores, resampled)
    model = MeasuredSystem("this model", scores, of_model.intervals)
    return Comparison(key, resampled.examples, resampled.noun, model)
