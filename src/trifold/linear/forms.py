"""The forms of words in sentences: the word, its shape, ends and starts, and its neighbors.

Linear models tell the tag of a word by them (features as in Toutanova & Manning 2000, "Enriching
the Knowledge Sources Used in a Maximum Entropy Part-of-Speech Tagger"). `hashed_forms` numbers them
by hashes, so that the forms of a word depend on nothing but its sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby

import numpy as np

from trifold.linear.hashed import hashed_names
from trifold.linear.ngrams import Ids

AFFIXES = (2, 3)  # letters of the ends and starts of words
CLASSES = ((str.isupper, "X"), (str.isdigit, "d"), (str.isalpha, "x"))  # of characters
FORMS = 11  # of a word
MOST_WORDS = 300_000  # that a linear model is fitted on, so that it takes seconds


@dataclass(frozen=True)
class Place:
    """A word between its neighbors; empty ones at the ends of a sentence."""

    before: str
    word: str
    after: str


def places_of(sentences: Sequence[Sequence[str]]) -> list[Place]:
    """Each word of sentences with its neighbors."""
    return [
        Place(*around)
        for words in sentences
        for around in zip(["", *words], words, [*words[1:], ""], strict=False)
    ]


def chosen_sentences(sizes: Ids) -> Ids:
    """The numbers of the sentences that a linear model is fitted on: all, or some from all parts of
    the data, with about MOST_WORDS words. sizes (N,): the words of each sentence.
    """
    words = int(sizes.sum())
    if words <= MOST_WORDS:
        return np.arange(len(sizes))
    count = max(1, len(sizes) * MOST_WORDS // words)
    return np.linspace(0, len(sizes) - 1, count).astype(np.int64)


def shape_of(word: str) -> str:
    """The kinds of characters in turn: `Xx` of `Ada`, `d-X` of `12-A`."""
    return "".join(kind for kind, _ in groupby(map(_class_of, word)))


def _class_of(character: str) -> str:
    return next((name for is_one, name in CLASSES if is_one(character)), character)


def forms_of(place: Place) -> Iterator[str]:
    """The `FORMS` names of the forms of a place."""
    word = place.word
    yield f"word {word}"
    for size in AFFIXES:
        yield f"end {word[-size:]}"
        yield f"start {word[:size]}"
    for side, text in (("here", word), ("before", place.before), ("after", place.after)):
        yield f"{side} {text.lower()}"
        yield f"{side}, shape {shape_of(text)}"


def hashed_forms(sentences: Sequence[Sequence[str]], buckets: int) -> Ids:
    """(W, FORMS) the buckets of the forms of all words, in turn."""
    names = [*chain.from_iterable(map(forms_of, places_of(sentences)))]
    distinct = list(dict.fromkeys(names))
    numbers = dict(zip(distinct, hashed_names(distinct, buckets).tolist(), strict=True))
    found = np.fromiter(map(numbers.__getitem__, names), np.int64, len(names))
    return found.reshape(-1, FORMS)
