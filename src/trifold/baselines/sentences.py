"""The sentence of a context that has most words of the question, as the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trifold.baselines.baseline import Baseline, LabelledRows, Poll, State
from trifold.baselines.files import overlap_of, overlap_state
from trifold.linear.overlap import Overlap
from trifold.scripts import unicode_words
from trifold.text.sentences import split_sentences


@dataclass
class OverlappingSentence(Baseline):
    """The sentence with the largest idf of the words that the question also has; of several, the
    first one.
    """

    overlap: Overlap
    name = "the sentence with most words of the question"

    @classmethod
    def fit(cls, task: Any, train: LabelledRows, poll: Poll) -> OverlappingSentence:
        return cls(Overlap.fit([*dict.fromkeys(train.column("context"))]))

    def predict(self, task: Any, rows: LabelledRows) -> list[str]:
        sentences: dict[str, list[tuple[str, set[str]]]] = {}  # of each context, with its words
        answers = []
        both = zip(rows.column("question"), rows.column("context"), strict=True)
        for question, context in both:
            if context not in sentences:
                parts = [sentence.strip() for sentence in split_sentences(context)]
                sentences[context] = [(part, {*unicode_words(part)}) for part in parts]
            asked = {*unicode_words(question)}
            best = max(
                sentences[context],
                key=lambda each: self.overlap.weight(asked & each[1]),
                default=("", asked),
            )
            answers.append(best[0])
        return answers

    def state(self) -> State:
        return State(*overlap_state(self.overlap))

    @classmethod
    def restore(cls, state: State) -> OverlappingSentence:
        return cls(overlap_of(state))
