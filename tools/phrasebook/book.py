"""A phrasebook, English and French, composed from a few hundred words and some hundred constructions.

It is a sample made to learn on, not a corpus of the language: its sentences are correct and plain, and say nothing
of how often people say what. It lets a small Transformer show in minutes that it composes: what is held out is the
meeting of a word with a construction, both of them known from elsewhere.

One English sentence has one French one. For that the book settles what English leaves open: `you` is vous, said to
several people, except to a friend called by name, who is tu; `they` is ils; the one who says `I` is a man; a trade
without a person to it is a man's; questions begin with est-ce que; the past is the passé composé, and the imperfect
for being, having and knowing; a plain space stands before `?` and `!`; apostrophes are straight.

Read it in this order: `lexicon` (the words), `english` and `french` (their forms), `grammar` (phrases and clauses in
both at once), `slots` (what may stand where), `sayings`, `deeds` and `states` (the constructions).
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
from tools.phrasebook.sayings import Construction

from trifold.errors import UsageError

__all__ = ["Phrase", "constructions", "lemmas", "meetings", "pairs", "phrases_of", "split", "word_forms"]

PHRASES_PER_CONSTRUCTION = 420
LONGEST = 10  # English words
HELD_OUT_SHARE = 0.08
KNOWN_AFTER = 5  # times met in train


class Phrase(NamedTuple):
    """One sentence in both languages; `words` are lemmas (`dog.n`), `verbs` lemma, tense and person (0 to 5)."""

    english: str
    french: str
    construction: str
    words: tuple[str, ...]
    verbs: tuple[str, ...]


def constructions() -> list[str]:
    """The names of all constructions."""
    return [construction.name for construction in TABLE]


@cache
def lemmas() -> tuple[str, ...]:
    """All words that occur in the book, names of people and pronouns not counted."""
    return tuple(sorted({word for phrase in _book() for word in phrase.words}))


def pairs() -> list[Phrase]:
    """The whole book, always the same: every English sentence once."""
    return list(_book())


@cache
def _book() -> tuple[Phrase, ...]:
    book: dict[str, Phrase] = {}
    for construction in TABLE:
        for phrase in phrases_of(construction):
            book.setdefault(phrase.english, phrase)
    return tuple(book.values())


def phrases_of(construction: Construction) -> Iterable[Phrase]:
    """The first combination of the slots, and others drawn evenly from the rest."""
    sizes = [len(slot) for slot in construction.slots]
    total = prod(sizes)
    drawn = random.Random(construction.name).sample(range(total), min(total, PHRASES_PER_CONSTRUCTION))
    for number in (0, *drawn):
        said = grammar.sentence(construction.say(*_choices(construction.slots, number)), construction.mark)
        if len(said.english.split()) <= LONGEST:
            yield Phrase(said.english, said.french, construction.name, said.words, said.verbs)


def _choices(slots: Sequence[Sequence[object]], number: int) -> Iterable[object]:
    """One combination out of all, by its number; plain tuples are spread out."""
    for slot in slots:
        number, index = divmod(number, len(slot))
        choice = slot[index]
        yield from choice if type(choice) is tuple else (choice,)


def meetings(phrase: Phrase) -> set[tuple[str, str]]:
    """The (word, construction) pairs of a phrase."""
    return {(word, phrase.construction) for word in phrase.words}


def word_forms(phrase: Phrase) -> set[str]:
    """The words of both sides as they are spelled, the languages kept apart: `en dogs`, `fr chiens`, `fr l'`."""
    return {
        f"{language} {form}"
        for language, text in (("en", phrase.english), ("fr", phrase.french))
        for form in text.lower().replace("'", "' ").replace(",", " ").rstrip(".?! ").split()
    }


def split(train_rows: int, test_rows: int, seed: int = 1) -> tuple[list[Phrase], list[Phrase], list[Phrase]]:
    """Train, validation and test rows, both of the latter `test_rows` long.

    For every construction some words are drawn that never meet it in train. Each row of validation and test holds
    such a meeting; all its words, spelled forms, verb forms and its construction are met five times in train. Raises
    UsageError where the book has not enough phrases.
    """
    chance = random.Random(f"phrasebook {seed}")
    held_out = _held_out(chance)
    seen: list[Phrase] = []
    unseen: list[Phrase] = []
    shuffled = chance.sample(_book(), len(_book()))
    for phrase in sorted(shuffled, key=lambda phrase: phrase.english not in _leading()):
        (seen if held_out.isdisjoint(meetings(phrase)) else unseen).append(phrase)
    train = seen[:train_rows]
    met = Counter(fact for phrase in train for fact in _facts(phrase))
    known = {fact for fact, times in met.items() if times >= KNOWN_AFTER}
    fair = [phrase for phrase in unseen if known.issuperset(_facts(phrase))]
    if train_rows > len(seen):
        raise UsageError(f"phrasebook: {train_rows} rows to train; it has {len(seen)}: ask for fewer")
    if 2 * test_rows > len(fair):
        raise UsageError(
            f"phrasebook: twice {test_rows} rows to test; it has {len(fair)} whose words are known after "
            f"{train_rows} rows of training: ask for fewer, or train on more"
        )
    dealt = _round_robin(fair)[: 2 * test_rows]
    return train, dealt[::2], dealt[1::2]


@cache
def _leading() -> set[str]:
    """The first sentence of each construction (I love dogs.): whatever is asked for, these are not left over."""
    first: dict[str, str] = {}
    for phrase in _book():
        first.setdefault(phrase.construction, phrase.english)
    return set(first.values())


def _held_out(chance: random.Random) -> set[tuple[str, str]]:
    """The meetings to hold out: of each construction a share of its words, at least one where it has ten."""
    words: dict[str, set[str]] = {}
    for phrase in _book():
        words.setdefault(phrase.construction, set()).update(phrase.words)
    return {
        (word, name)
        for name, met in words.items()
        for word in chance.sample(sorted(met), max(round(HELD_OUT_SHARE * len(met)), len(met) >= 10))
    }


def _facts(phrase: Phrase) -> set[str]:
    """Everything that must be known before a phrase can be understood, other than how it is put together."""
    return (
        word_forms(phrase)
        | {f"lemma {word}" for word in phrase.words}
        | {f"verb {form}" for form in phrase.verbs}
        | {f"construction {phrase.construction}"}
    )


def _round_robin(phrases: Iterable[Phrase]) -> list[Phrase]:
    """One phrase of each construction in turn, so that a short list shows them all."""
    turns: Counter[str] = Counter()
    ranked = []
    for phrase in phrases:
        ranked.append((turns[phrase.construction], phrase))
        turns[phrase.construction] += 1
    return [phrase for _, phrase in sorted(ranked, key=lambda pair: pair[0])]
