"""An English-French phrasebook, composed from a few hundred words and some hundred constructions.

It is training data for a demo, not a corpus: its sentences are correct and simple, and their
frequencies mean nothing. The test sentences combine a word with a construction that it does not
occur with in training; both are known from other sentences.

Every English sentence has one translation. Where English is ambiguous, the book decides: `you` is
vous (plural), except for a friend addressed by name, who is tu; `they` is ils; the speaker is a
man; a profession without a person is masculine; questions begin with est-ce que; the past is the
passé composé, or the imparfait of stative verbs; a plain space precedes `?` and `!`; apostrophes
are straight.

Reading order: `lexicon` (words), `english` and `french` (word forms), `grammar` (phrases and
clauses in both languages), `slots` (the choices of a construction), `phrases`, `actions` and
`states` (the constructions).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from math import prod
from typing import NamedTuple

from tools.phrasebook import grammar
from tools.phrasebook.constructions import TABLE
from tools.phrasebook.phrases import Construction

from trifold.errors import UsageError

PHRASES_PER_CONSTRUCTION = 420
MAX_WORDS = 10  # of the English sentence
HELD_OUT_SHARE = 0.08
MIN_TRAIN_OCCURRENCES = 5  # of everything in a test sentence


class Phrase(NamedTuple):
    """One sentence in both languages; `words` are lemmas (`dog.n`), `verbs` lemma, tense and person
    (0 to 5).
    """

    english: str
    french: str
    construction: str
    words: tuple[str, ...]
    verbs: tuple[str, ...]


def constructions() -> list[str]:
    """The names of all constructions."""
    return [construction.name for construction in TABLE]


@cache
def _book() -> tuple[Phrase, ...]:
    book: dict[str, Phrase] = {}
    for construction in TABLE:
        for phrase in phrases_of(construction):
            earlier = book.setdefault(phrase.english, phrase)
            assert earlier.french == phrase.french, f"{earlier} and {phrase} contradict each other"
    return tuple(book.values())


def phrases_of(construction: Construction) -> Iterable[Phrase]:
    """The first combination of the slots, and a uniform sample of the others."""
    sizes = [len(slot) for slot in construction.slots]
    total = prod(sizes)
    drawn = random.Random(construction.name).sample(
        range(total), min(total, PHRASES_PER_CONSTRUCTION)
    )
    for number in (0, *drawn):
        piece = grammar.sentence(
            construction.build(*_choices(construction.slots, number)), construction.mark
        )
        if len(piece.english.split()) <= MAX_WORDS:
            yield Phrase(piece.english, piece.french, construction.name, piece.words, piece.verbs)


def _choices(slots: Sequence[Sequence[object]], number: int) -> Iterable[object]:
    """The combination with this number; plain tuples are flattened."""
    for slot in slots:
        number, index = divmod(number, len(slot))
        choice = slot[index]
        yield from choice if type(choice) is tuple else (choice,)


def combinations(phrase: Phrase) -> set[tuple[str, str]]:
    """The (word, construction) pairs of a phrase."""
    return {(word, phrase.construction) for word in phrase.words}


def word_forms(phrase: Phrase) -> set[str]:
    """The word forms of both sides with their language: `en dogs`, `fr chiens`, `fr l'`."""
    return {
        f"{language} {form}"
        for language, text in (("en", phrase.english), ("fr", phrase.french))
        for form in text.lower().replace("'", "' ").replace(",", " ").rstrip(".?! ").split()
    }


def split(
    train_rows: int, test_rows: int, seed: int = 1
) -> tuple[list[Phrase], list[Phrase], list[Phrase]]:
    """Train, validation and test rows, both of the latter `test_rows` long.

    For every construction, some words are held out from train. Each row of validation and test has
    such a combination; its words, word forms, verb forms and construction all occur at least five
    times in train. Raises UsageError if the book has too few phrases.
    """
    rng = random.Random(f"phrasebook {seed}")
    held_out = _held_out(rng)
    seen: list[Phrase] = []
    unseen: list[Phrase] = []
    shuffled = rng.sample(_book(), len(_book()))
    for phrase in sorted(shuffled, key=lambda phrase: phrase.english not in _first_sentences()):
        (seen if held_out.isdisjoint(combinations(phrase)) else unseen).append(phrase)
    train = seen[:train_rows]
    counts = Counter(fact for phrase in train for fact in _facts(phrase))
    known = {fact for fact, count in counts.items() if count >= MIN_TRAIN_OCCURRENCES}
    usable = [phrase for phrase in unseen if known.issuperset(_facts(phrase))]
    if train_rows > len(seen):
        raise UsageError(
            f"phrasebook: {train_rows} training rows requested, {len(seen)} available; request fewer"
        )
    if 2 * test_rows > len(usable):
        raise UsageError(
            f"phrasebook: twice {test_rows} test rows requested, {len(usable)} available with words known from "
            f"{train_rows} training rows; request fewer, or more training rows"
        )
    test = _round_robin(usable)[: 2 * test_rows]
    return train, test[::2], test[1::2]


@cache
def _first_sentences() -> set[str]:
    """The first sentence of each construction (I love dogs.), which are always used."""
    first: dict[str, str] = {}
    for phrase in _book():
        first.setdefault(phrase.construction, phrase.english)
    return set(first.values())


def _held_out(rng: random.Random) -> set[tuple[str, str]]:
    """The combinations to hold out: a share of the words of each construction, at least one if it
    has ten.
    """
    words: dict[str, set[str]] = {}
    for phrase in _book():
        words.setdefault(phrase.construction, set()).update(phrase.words)
    return {
        (word, name)
        for name, members in words.items()
        for word in rng.sample(
            sorted(members), max(round(HELD_OUT_SHARE * len(members)), len(members) >= 10)
        )
    }


def _facts(phrase: Phrase) -> set[str]:
    """The parts of a phrase that must occur in train."""
    return (
        word_forms(phrase)
        | {f"lemma {word}" for word in phrase.words}
        | {f"verb {form}" for form in phrase.verbs}
        | {f"construction {phrase.construction}"}
    )


def _round_robin(phrases: Iterable[Phrase]) -> list[Phrase]:
    """Phrases ordered so that each construction occurs once before any occurs twice."""
    turns: Counter[str] = Counter()
    ranked = []
    for phrase in phrases:
        ranked.append((turns[phrase.construction], phrase))
        turns[phrase.construction] += 1
    return [phrase for _, phrase in sorted(ranked, key=lambda pair: pair[0])]
