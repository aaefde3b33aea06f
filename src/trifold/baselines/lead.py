"""The first sentences of a text, as its summary."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any

from trifold.baselines.baseline import Baseline, LabelledRows, Poll, State
from trifold.scripts import split_words
from trifold.text.sentences import split_sentences

SOME = 500  # rows whose lengths are compared
MOST = 10  # sentences


@dataclass
class LeadSentences(Baseline):
    """The first `count` sentences: as many as come closest to the length of the training
    summaries.
    """

    count: int

    @property
    def name(self) -> str:
        return "the first sentence" if self.count == 1 else f"the first {self.count} sentences"

    @classmethod
    def fit(cls, task: Any, train: LabelledRows, poll: Poll) -> LeadSentences:
        sources = train.rows.sources[:SOME]
        targets = train.rows.targets[:SOME]
        wanted = fmean(len(split_words(text)) for text in targets)
        sentences = [split_sentences(text) for text in sources]

        def distance(count: int) -> float:
            lead = fmean(len(split_words("".join(parts[:count]))) for parts in sentences)
            return abs(lead - wanted)

        return cls(min(range(1, MOST + 1), key=distance))

    def predict(self, task: Any, rows: LabelledRows) -> list[str]:
        return ["".join(split_sentences(text)[: self.count]).strip() for text in rows.rows.sources]

    def state(self) -> State:
        return State({"count": self.count}, {})

    @classmethod
    def restore(cls, state: State) -> LeadSentences:
        return cls(int(state.values["count"]))
