"""The forms of words in sentences: the word, its shape, ends and starts, and its neighbors.

Linear models tell the tag of a word by them (features as in Toutanova & Manning 2000, "Enriching
the Knowledge Sources Used in a Maximum Entropy Part-of-Speech Tagger"). `hashed_forms` numbers them
by hashes, so that the forms of a word depend on nothing but its sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, groupby

import numpy as np

from trifold.linear.hashed import hashed_names
from trifold.linear.ngrams import Ids

AFFIXES = (2, 3)  # letters of the ends and starts of words
CLASSES = ((str.isupper, "X"), (str.isdigit, "d"), (str.isalpha, "x"))  # of characters
FORMS = 13  # of a word
NEIGHBORS = 2  # on each side
SIDES = {"here": NEIGHBORS, "before": NEIGHBORS - 1, "after": NEIGHBORS + 1}
MOST_WORDS = 300_000  # that a linear model is fitted on, so that it takes seconds


@dataclass(frozen=True)
class Place:
    """around: a word between the NEIGHBORS before and after it; empty ones at the ends of a
    sentence.
    """

    around: tuple[str, ...]


def places_of(sentences: Sequence[Sequence[str]]) -> list[Place]:
    """Each word of sentences with its neighbors."""
    ends = [""] * NEIGHBORS
    width = 2 * NEIGHBORS + 1
    places = []
    for words in sentences:
        padded = (*ends, *words, *ends)
        places += [Place(padded[first : first + width]) for first in range(len(words))]
    return places


def chosen_sentences(sizes: Ids) -> Ids:
    """The numbers of the sentences that a linear model is fitted on: all, or some from all parts of
    the data, with about MOST_WORDS words. sizes (N,): the words of each sentence.
    """
    words = int(sizes.sum())
    if words <= MOST_WORDS:
        return np.arange(len(sizes))
    count = max(1, len(sizes) * MOST_WORDS // words)
    return np.linspace(0, len(sizes) - 1, count).astype(np.int64)


@lru_cache(maxsize=2**16)
def shape_of(word: str) -> str:
    """The kinds of characters in turn: `Xx` of `Ada`, `d-X` of `12-A`."""
    return "".join(kind for kind, _ in groupby(map(_class_of, word)))


def _class_of(character: str) -> str:
    return next((name for is_one, name in CLASSES if is_one(character)), character)


def forms_of(place: Place) -> Iterator[str]:
    """The `FORMS` names of the forms of a place."""
    shapes = [*map(shape_of, place.around)]
    word = place.around[NEIGHBORS]
    yield f"word {word}"
    for size in AFFIXES:
        yield f"end {word[-size:]}"
        yield f"start {word[:size]}"
    for side, number in SIDES.items():
        yield f"{side} {place.around[number].lower()}"
        yield f"{side}, shape {shapes[number]}"
    yield f"three shapes {' '.join(shapes[1:-1])}"
    yield f"five shapes {' '.join(shapes)}"


def hashed_forms(sentences: Sequence[Sequence[str]], buckets: int) -> Ids:
    """(W, FORMS) the buckets of the forms of all words, in turn."""
    names = [*chain.from_iterable(map(forms_of, places_of(sentences)))]
    distinct = list(dict.fromkeys(names))
    numbers = dict(zip(distinct, hashed_names(distinct, buckets).tolist(), strict=True))
    found = np.fromiter(map(numbers.__getitem__, names), np.int64, len(names))
    return found.reshape(-1, FORMS)
