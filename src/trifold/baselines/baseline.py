"""What all baselines share: fit, predict, and what a file keeps of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from torch import Tensor

from trifold.linear.ngrams import Ids

Poll: TypeAlias = Callable[[], None]


@dataclass(frozen=True)
class LabelledRows:
    """Rows of an objective. labels (N, …): their classes, numbers or label sets, as its examples
    have them; None if they have none for each row.
    """

    rows: Any
    labels: Any

    @classmethod
    def of(cls, rows: Any, examples: Any) -> LabelledRows:
        """The rows, and the labels of their examples."""
        labels = getattr(examples, "labels", None)
        if not isinstance(labels, np.ndarray) or len(labels) != len(rows):
            labels = None
        return cls(rows, labels)

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, numbers: Ids) -> LabelledRows:
        """The rows of these numbers."""
        rows = self.rows.select(numbers.tolist(), self.rows.report.name)
        return LabelledRows(rows, None if self.labels is None else self.labels[numbers])

    def column(self, role: str) -> list[Any]:
        """The values of a role; empty if the rows lack it."""
        values: list[Any] = self.rows.columns.get(role, [])
        return values

    @property
    def has_pairs(self) -> bool:
        """Whether each row has a second text."""
        pairs = self.column("pair")
        return bool(pairs) and all(pair is not None for pair in pairs)

    @property
    def texts(self) -> list[str]:
        """The text of each row, with its second text if it has one."""
        if not self.has_pairs:
            return self.column("text")
        both = zip(self.column("text"), self.column("pair"), strict=True)
        return [f"{text} {pair}" for text, pair in both]


class State(NamedTuple):
    """What a file keeps of a fitted baseline: values of JSON, and tensors by name."""

    values: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


class Baseline(ABC):
    """A fitted baseline. rows: the number of training rows that it is fitted on, in `seconds`."""

    rows = 0
    seconds = 0.0

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is, in words: `a linear model on words`."""

    @classmethod
    @abstractmethod
    def fit(cls, task: Any, train: LabelledRows, poll: Poll) -> Self | None:
        """The baseline of training rows; None if it does not apply to them."""

    @abstractmethod
    def predict(self, task: Any, rows: LabelledRows) -> Any:
        """The predictions for rows, as `scoring` expects them of the objective."""

    @abstractmethod
    def state(self) -> State:
        """What `restore` needs."""

    @classmethod
    @abstractmethod
    def restore(cls, state: State) -> Self:
        """The baseline with a state. Raises KeyError, TypeError or ValueError for a damaged one."""
