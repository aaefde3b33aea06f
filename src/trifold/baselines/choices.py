"""The choice that shares most words with the text, as the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trifold.baselines.baseline import Baseline, LabelledRows, Poll, State
from trifold.baselines.files import overlap_of, overlap_state
from trifold.linear.overlap import Overlap
from trifold.scripts import unicode_words


@dataclass
class OverlappingChoice(Baseline):
    """The choice with the largest share of its idf in words that the text or the question also
    has; of several, the first one.
    """

    overlap: Overlap
    name = "the choice with most words of the text"

    @classmethod
    def fit(cls, task: Any, train: LabelledRows, poll: Poll) -> OverlappingChoice:
        return cls(Overlap.fit(_read_texts(train)))

    def predict(self, task: Any, rows: LabelledRows) -> NDArray[Any]:
        both = zip(_read_texts(rows), rows.column("choices"), strict=True)
        return np.array([self._choose({*unicode_words(text)}, choices) for text, choices in both])

    def _choose(self, known: set[str], choices: Sequence[str]) -> int:
        shares = []
        for choice in choices:
            words = {*unicode_words(choice)}
            whole = self.overlap.weight(words)
            shares.append(self.overlap.weight(words & known) / whole if whole else 0.0)
        return max(range(len(shares)), key=shares.__getitem__)

    def state(self) -> State:
        return State(*overlap_state(self.overlap))

    @classmethod
    def restore(cls, state: State) -> OverlappingChoice:
        return cls(overlap_of(state))


def _read_texts(rows: LabelledRows) -> list[str]:
    """The text of each row with its question."""
    both = zip(rows.column("text"), rows.column("question"), strict=True)
    return [" ".join(filter(None, pair)) for pair in both]
