"""Building blocks of constructions: larger than the phrases of `grammar`, smaller than a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tools.phrasebook import english, french, slots as s
from tools.phrasebook.grammar import (
    ADVERBS,
    BE,
    NOUNS,
    VERB,
    Adjective,
    Nominal,
    Noun,
    Piece,
    Verb,
    clause,
    nominal,
    nouns,
    np,
)


class Construction(NamedTuple):
    """A sentence pattern; `build` takes one choice of every slot, in order."""

    name: str
    mark: str
    slots: tuple[Sequence[object], ...]
    build: s.Builder


def all_of(noun: Noun) -> Piece:
    """Generic: dogs, les chiens; coffee, le café."""
    return np("all", noun, not noun.mass)


def some(noun: Noun) -> Piece:
    """An indefinite amount: apples, des pommes; water, de l'eau."""
    return np("some", noun, not noun.mass)


def none(noun: Noun) -> Piece:
    """After a negation: de pommes, d'eau."""
    return np("none", noun, not noun.mass)


# In French these are part of the place: à Paris.
TO, IN = Piece("to", ""), Piece("in", "")
THAT, BECAUSE = Piece("that", "que"), Piece("because", "parce que")
THERE_IS, THERE_ARE = Piece("there is", "il y a"), Piece("there are", "il y a")
HOW_MANY = Piece("how many", "combien de")
FEEL = Verb("feel.v", BE.english, "avoir", ())  # to be hungry is avoir faim
HURT = Verb("hurt.v", english.verb("hurt hurt"), "avoir mal", ())
GO, PLAY, SPEAK, LIVE, WORK, HAVE, WANT, NEED, PUT = (
    VERB[name] for name in "go play speak live work have want need put".split()
)
THE_INSTRUMENT = [Piece("", "de") + np("the", noun) for noun in NOUNS["instrument"]]
AT_SPORT = [
    Piece("", "à") + np("the", noun)._replace(english=noun.english) for noun in NOUNS["sport"]
]
PLAYED = THE_INSTRUMENT + AT_SPORT
LANGUAGES = [np("bare", noun) for noun in NOUNS["language"]]
ONE_ANIMAL = [
    nominal("the", noun, many) for noun in NOUNS["animal"] for many in (False, False, True)
]
NUMBERS = ADVERBS["number"]
HOURS = NUMBERS[:10]
TOMORROW = [time for time in ADVERBS["soon"] if time.english in ("tomorrow", "tonight")]
THINK = Verb("believe.v", english.verb("think thought"), "penser", ())
PERCEPTION_VERBS = [VERB[name] for name in "see meet hear understand find".split()]
ANYTHING = nouns(
    "animal object furniture building sight clothing instrument room vehicle craft text plant opening"
)
PLACES_TO_FIND = nouns("building museum church castle park zoo")


def pain(
    who: Nominal,
    part: Noun,
    plural: bool,
    tense: str = "present",
    *,
    negative: bool = False,
    question: bool = False,
) -> Piece:
    """Her head hurts, elle a mal à la tête: the owner is a determiner in English and the subject in
    French.
    """
    has_pain = clause(
        who,
        FEEL,
        tense,
        Piece("", "mal à") + np("the", part, plural),
        negative=negative,
        question=question,
    )
    owned = nominal(s.OWNER[who.piece.english], part, plural)
    hurts = clause(owned, HURT, tense, negative=negative, question=question)
    return has_pain._replace(english=hurts.english, words=(part.key, HURT.key))


def one(noun: Noun, determiner: str = "the") -> Nominal:
    """A singular subject."""
    return nominal(determiner, noun)


def many(noun: Noun, determiner: str = "the") -> Nominal:
    """A plural subject."""
    return nominal({"these": "this", "those": "that"}.get(determiner, determiner), noun, True)


def possessive(noun: Noun, who: Nominal) -> Piece:
    """My sister's car, la voiture de ma sœur; the boys' car."""
    owner = who.piece.english + ("'" if who.plural and who.piece.english.endswith("s") else "'s")
    thing = f"{np('the', noun).french} de {who.piece.french}"
    return Piece(f"{owner} {noun.english}", thing, (noun.key, *who.piece.words))


def comparison(noun: Noun, adjective: Adjective, degree: str, other: Noun) -> Piece:
    """The dog is bigger (less big, as big) than the cat: le chien est plus (moins, aussi) grand que
    le chat.
    """
    form = adjective.french.agree(noun.feminine, False)
    en, fr = {
        "more": (f"{english.comparative(adjective.english)} than", f"plus {form}"),
        "less": (f"less {adjective.english} than", f"moins {form}"),
        "as": (f"as {adjective.english} as", f"aussi {form}"),
    }[degree]
    if fr.startswith("plus bon"):
        fr = "meilleur" + "e" * noun.feminine
    return clause(
        one(noun), BE, "present", Piece(en, f"{fr} que", (adjective.key,)) + np("the", other)
    )


def order(verb: Verb, person: int, *, negative: bool = False) -> Piece:
    """An imperative of tu, nous or vous (1, 3, 4)."""
    plain = " ".join((verb.english.base, verb.english.particle))
    en = f"do not {plain}" if negative else f"let us {plain}" if person == 3 else plain
    fr = french.imperative(verb.french, person)
    return Piece(
        en, f"ne {fr} pas" if negative else fr, (verb.key,), (f"{verb.key} imperative {person}",)
    )


def called(name: Piece) -> Piece:
    """The friend who is addressed, at the end: …, Marie."""
    return Piece(", ", ", ") + name


def every(day: Piece) -> Piece:
    """Mondays, le lundi."""
    return day._replace(english=day.english + "s", french="le " + day.french)


def with_relative_clause(noun: Noun, verb: Verb) -> Nominal:
    """The woman who is singing, la femme qui chante."""
    return one(noun)._replace(piece=np("the", noun) + clause(s.WHO, verb, "progressive"))
