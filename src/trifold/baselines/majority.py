"""The same answer for every row: the most frequent label, label set or choice, or the mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trifold.baselines.baseline import Baseline, LabelledRows, Poll, State
from trifold.nn.config import MULTI, REGRESSION


@dataclass
class FrequentLabel(Baseline):
    """The most frequent class, or set of labels. labels: its numbers."""

    answer: str
    labels: list[int]

    @property
    def name(self) -> str:
        return f"always answering {self.answer!r:.40}"

    @classmethod
    def fit(cls, task: Any, train: LabelledRows, poll: Poll) -> FrequentLabel | None:
        if task.problem == REGRESSION:
            return None
        names = [*task.numbers]
        if task.problem == MULTI:
            sets, counts = np.unique(train.labels, axis=0, return_counts=True)
            labels = np.flatnonzero(sets[counts.argmax()]).tolist()
            return cls(", ".join(names[label] for label in labels), labels)
        label = int(np.bincount(train.labels).argmax())
        return cls(names[label], [label])

    def predict(self, task: Any, rows: LabelledRows) -> NDArray[Any]:
        if task.problem != MULTI:
            return np.full(len(rows), self.labels[0])
        table = np.zeros((len(rows), task.classes), np.float32)
        table[:, [label for label in self.labels if label < task.classes]] = 1
        return table

    def state(self) -> State:
        return State({"answer": self.answer, "labels": self.labels}, {})

    @classmethod
    def restore(cls, state: State) -> FrequentLabel:
        return cls(str(state.values["answer"]), [*map(int, state.values["labels"])])


@dataclass
class Mean(Baseline):
    """The mean of the training numbers, which correlates with nothing."""

    mean: float

    @property
    def name(self) -> str:
        return f"always answering the mean, {self.mean:.3g}"

    @classmethod
    def fit(cls, task: Any, train: LabelledRows, poll: Poll) -> Mean | None:
        if task.problem != REGRESSION:
            return None
        return cls(float(train.labels.mean()))

    def predict(self, task: Any, rows: LabelledRows) -> NDArray[Any]:
        return np.full(len(rows), self.mean)

    def state(self) -> State:
        return State({"mean": self.mean}, {})

    @classmethod
    def restore(cls, state: State) -> Mean:
        return cls(float(state.values["mean"]))


@dataclass
class FrequentChoice(Baseline):
    """The choice at the place that is most often right, from 0."""

    place: int

    @property
    def name(self) -> str:
        return f"always choosing number {self.place + 1}"

    @classmethod
    def fit(cls, task: Any, train: LabelledRows, poll: Poll) -> FrequentChoice:
        return cls(int(np.bincount(train.labels).argmax()))

    def predict(self, task: Any, rows: LabelledRows) -> NDArray[Any]:
        return np.full(len(rows), self.place)

    def state(self) -> State:
        return State({"place": self.place}, {})

    @classmethod
    def restore(cls, state: State) -> FrequentChoice:
        return cls(int(state.values["place"]))
