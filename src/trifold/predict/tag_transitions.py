"""The most probable tags of a sentence, some of which follow each other more often than others.

    argmax_y Σ_t log P(y_t | sentence) + ½ · (log P(y_t | y_{t-1}) − log P(y_t))

The model decides about each word by itself, so `I-PER` may follow `B-LOC`. P(y_t | y_{t-1}) and
P(y_t) are counted in the training sentences; their ratio is above 1 for tags that often follow each
other (the scaled likelihoods of Bourlard & Morgan 1994, "Connectionist Speech Recognition"). The
ratio has the exponent ½, because the model has seen the neighbors of a word, too; it was chosen on
validation sentences of CoNLL-2003. The algorithm of Viterbi finds the maximum (Rabiner 1989).

Shapes: W words, C classes; s is the start of a sentence, the last row of a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trifold.errors import UsageError
from trifold.text import Tokenizer

TRANSITIONS = "tag_transitions"  # setting of a tokenizer: the table
MOST_CLASSES = 128  # of a table; the time of a word grows with their square
EXPONENT = 0.5
UNSEEN = 0.5  # added to each count, so that nothing is impossible
SMALLEST_PROBABILITY = 1e-30
LARGEST = 1e6  # absolute value of a number in a table
CHUNK = 2**22  # transitions of a word in all sentences that are searched at a time
DIGITS = 3

Classes = NDArray[np.int64]
Probabilities = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Transitions:
    """table (C + 1, C): what is added to the score of a tag after each tag, and after s."""

    table: NDArray[np.float64]

    @classmethod
    def count(
        cls, sentences: Iterable[Sequence[str]], numbers: Mapping[str, int]
    ) -> Transitions | None:
        """The transitions of the tags of sentences; None for more than MOST_CLASSES. numbers: the
        class of each tag.
        """
        classes = len(numbers)
        if classes > MOST_CLASSES:
            return None
        counts = np.full((classes + 1, classes), UNSEEN)
        for tags in sentences:
            found = [numbers[tag] for tag in tags]
            np.add.at(counts, ([classes, *found[:-1]], found), 1)
        after = counts / counts.sum(1, keepdims=True)
        alone = counts.sum(0) / counts.sum()
        return cls(EXPONENT * np.log(after / alone))

    @classmethod
    def of(cls, tokenizer: Tokenizer, classes: int) -> Transitions | None:
        """Those that were counted in training; None of a model without them. Raises UsageError for
        a table that is not one of so many classes.
        """
        rows = (tokenizer.settings or {}).get(TRANSITIONS)
        if rows is None:
            return None
        if not _is_table(rows, classes):
            raise UsageError(
                f"tokenizer_config.json: {TRANSITIONS} is not a list of {classes + 1} lists of "
                f"{classes} numbers; remove it, and each word is tagged by itself"
            )
        return cls(np.array(rows, np.float64))

    def as_setting(self) -> dict[str, Any]:
        """The entry of the settings of a tokenizer."""
        return {TRANSITIONS: self.table.round(DIGITS).tolist()}

    def best(self, sentences: Sequence[Probabilities]) -> list[Classes]:
        """The classes (W,) of the words of each sentence, from probabilities (W, C)."""
        size = max(1, CHUNK // self.table.size)
        chunks = (sentences[start : start + size] for start in range(0, len(sentences), size))
        return [classes for chunk in chunks for classes in self._best(chunk)]

    def _best(self, sentences: Sequence[Probabilities]) -> list[Classes]:
        """`best` of sentences whose words are searched together, the first ones first."""
        lengths = np.array([*map(len, sentences)])
        rows = np.arange(len(sentences))
        emitted = np.zeros((int(lengths.max()), len(sentences), self.table.shape[1]))
        for row, probabilities in enumerate(sentences):
            floor = np.maximum(probabilities, SMALLEST_PROBABILITY)
            emitted[: len(floor), row] = np.log(floor)
        scores = np.broadcast_to(self.table[-1], emitted.shape[1:])
        if len(emitted):
            scores = scores + emitted[0]
        befores = []  # of each word but the first: the best class before it
        for word in range(1, len(emitted)):
            paths = scores[:, :, None] + self.table[:-1]
            before = paths.argmax(1)
            is_inside = (word < lengths)[:, None]
            befores.append(np.where(is_inside, before, np.arange(before.shape[1])))
            longer = np.take_along_axis(paths, before[:, None], 1)[:, 0] + emitted[word]
            scores = np.where(is_inside, longer, scores)
        chosen = [scores.argmax(1)]
        for before in reversed(befores):
            chosen.append(before[rows, chosen[-1]])
        columns = np.stack(chosen[::-1], 1)
        return [columns[row, :length] for row, length in enumerate(lengths)]


def _is_table(rows: Any, classes: int) -> bool:
    """Whether a value of a file has the shape of a table, with numbers that can be added."""
    return (
        isinstance(rows, list)
        and len(rows) == classes + 1
        and all(isinstance(row, list) and len(row) == classes for row in rows)
        and all(_is_number(value) for row in rows for value in row)
    )


def _is_number(value: Any) -> bool:
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return is_one and abs(value) <= LARGEST


def best_classes(
    transitions: Transitions | None, sentences: Sequence[Probabilities]
) -> list[Classes]:
    """The classes of the words of each sentence; without transitions, that of each word alone."""
    if transitions is None:
        return [probabilities.argmax(-1) for probabilities in sentences]
    return transitions.best(sentences)
