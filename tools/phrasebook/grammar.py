"""Words of the lexicon, and phrases and clauses built in both languages at once.

A `Piece` is a pair of equivalent texts without elision, contraction and capitals, which depend on
the neighbors and are applied at the end, by `sentence`.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from tools.phrasebook import english, french, lexicon


class Piece(NamedTuple):
    """Equivalent texts, their lemmas, and their finite verbs as `lemma tense person`."""

    english: str
    french: str
    words: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()

    def __add__(self, other: object) -> Piece:
        assert isinstance(other, Piece)
        return Piece(
            f"{self.english} {other.english}",
            f"{self.french} {other.french}",
            self.words + other.words,
            self.verbs + other.verbs,
        )


class Noun(NamedTuple):
    """A noun with both its plurals; `feminine` is its gender, `she` the form for a woman of that
    trade.
    """

    key: str
    english: str
    english_plural: str
    french: str
    french_plural: str
    feminine: bool
    mass: bool
    she: str


class Verb(NamedTuple):
    """A verb, and the keys of the nouns that can be its object."""

    key: str
    english: english.EnglishVerb
    french: str
    objects: tuple[str, ...]


class Adjective(NamedTuple):
    """An adjective; `before`: it precedes the noun."""

    key: str
    english: str
    french: french.Adjective
    before: bool


class Nominal(NamedTuple):
    """A subject: a pronoun, a name or a noun phrase, with the person (0 to 5) and gender for the
    verb.
    """

    piece: Piece
    person: int
    feminine: bool = False

    @property
    def plural(self) -> bool:
        """Whether the subject is plural."""
        return self.person > 2


class Clitic(NamedTuple):
    """An object pronoun: after the verb in English, before it in French."""

    english: str
    french: str
    feminine: bool = False
    plural: bool = False
    direct: bool = True


TU, IL, ILS = 1, 2, 5
PRONOUNS = [
    Nominal(Piece("I", "je"), 0),
    Nominal(Piece("you", "vous"), 4),
    Nominal(Piece("he", "il"), IL),
    Nominal(Piece("she", "elle"), IL, feminine=True),
    Nominal(Piece("we", "nous"), 3),
    Nominal(Piece("they", "ils"), ILS),
]


def entries(text: str) -> list[tuple[str, str]]:
    """The (English, French) entries of a table of the lexicon."""
    pairs = (entry.partition(" = ") for entry in " ".join(text.split()).split(";") if entry.strip())
    return [(left.strip(), right.strip()) for left, _, right in pairs]


def _noun(left: str, right: str, kind: str) -> Noun:
    word, _, words = left.replace("_", " ").partition("/")
    mot, gender, *she = right.split()
    gender, _, mots = gender.partition("/")
    mot, mots = mot.replace("_", " "), mots.replace("_", " ")
    mass = kind in lexicon.MASS
    she_form = she[0] if she else ""
    return Noun(
        left.partition("/")[0] + ".n",
        word,
        words or english.plural(word),
        mot,
        mots or french.plural(mot),
        gender == "f",
        mass,
        she_form,
    )


NOUNS = {
    kind: [_noun(*entry, kind) for entry in entries(text)] for kind, text in lexicon.NOUNS.items()
}
NOUN = {noun.key: noun for nouns in NOUNS.values() for noun in nouns}


def nouns(classes: str) -> list[Noun]:
    """The nouns of some classes, or single nouns, each once, in order."""
    found: dict[str, Noun] = {}
    for name in classes.split():
        members = NOUNS.get(name) or nouns(lexicon.ALSO.get(name, "")) or [NOUN[name + ".n"]]
        found.update((noun.key, noun) for noun in members)
    return list(found.values())


def _verb(left: str, right: str) -> Verb:
    infinitive, _, takes = right.partition(" : ")
    objects = () if takes == "-" else tuple(noun.key for noun in nouns(takes))
    return Verb(
        left.split(maxsplit=1)[0] + ".v", english.verb(left), infinitive.replace("_", " "), objects
    )


VERBS = {kind: [_verb(*entry) for entry in entries(text)] for kind, text in lexicon.VERBS.items()}
VERB = {verb.key.removesuffix(".v"): verb for verbs in VERBS.values() for verb in verbs}
BE = VERB["be"] = VERB["be"]._replace(english=english.BE)


def _adjective(left: str, right: str) -> Adjective:
    word = left.removeprefix("+")
    return Adjective(word + ".a", word, french.adjective(*right.split()), left != word)


ADJECTIVES = {
    kind: [_adjective(*entry) for entry in entries(text)]
    for kind, text in lexicon.ADJECTIVES.items()
}
ADVERBS = {
    kind: [Piece(en, fr, (f"{en.replace(' ', '_')}.{kind}",)) for en, fr in entries(text)]
    for kind, text in lexicon.ADVERBS.items()
}
NAMES = [
    Nominal(Piece(name, name), IL, feminine=gender == "f")
    for name, gender in (entry.split() for entry in lexicon.NAMES.split("; "))
]

# English before a singular, before a plural; French before a masculine, a feminine, a plural.
# Possessives are listed under their owner.
DETERMINERS = {
    "the": ("the", "the", "le", "la", "les"),
    "a": ("a", "", "un", "une", "des"),
    "this": ("this", "these", "ce", "cette", "ces"),
    "that": ("that", "those", "ce", "cette", "ces"),
    "all": ("", "", "le", "la", "les"),
    "some": ("", "", "de le", "de la", "des"),
    "none": ("", "", "de", "de", "de"),
    "not a": ("a", "", "de", "de", "de"),
    "no": ("no", "no", "de", "de", "de"),
    "bare": ("", "", "", "", ""),
    "my": ("my", "my", "mon", "ma", "mes"),
    "his": ("his", "his", "son", "sa", "ses"),
    "her": ("her", "her", "son", "sa", "ses"),
    "our": ("our", "our", "notre", "notre", "nos"),
    "your": ("your", "your", "votre", "votre", "vos"),
    "their": ("their", "their", "leur", "leur", "leurs"),
}
OWNERS = ("my", "his", "her", "our", "your", "their")


@cache
def np(
    determiner: str, noun: Noun, plural: bool = False, adjective: Adjective | None = None
) -> Piece:
    """A noun phrase: determiner, adjective before or after the noun, noun."""
    one, many, le, la, les = DETERMINERS[determiner]
    article = les if plural else la if noun.feminine else le
    mot = noun.french_plural if plural else noun.french
    word = noun.english_plural if plural else noun.english
    words: tuple[str, ...] = (noun.key,)
    if adjective is not None:
        form = adjective.french.agree(noun.feminine, plural)
        if adjective.before:
            if not plural and not noun.feminine and french.starts_with_vowel(mot):
                form = adjective.french.liaison
            article = "de" if article == "des" else article
        mot = f"{form} {mot}" if adjective.before else f"{mot} {form}"
        word = f"{adjective.english} {word}"
        words = (adjective.key, noun.key)
    return Piece(f"{many if plural else one} {word}", f"{article} {mot}", words)


def nominal(determiner: str, noun: Noun, plural: bool = False) -> Nominal:
    """A noun phrase as a subject."""
    return Nominal(np(determiner, noun, plural), ILS if plural else IL, noun.feminine)


def agree(adjective: Adjective, subject: Nominal) -> Piece:
    """A predicate adjective that agrees with the subject."""
    return Piece(
        adjective.english,
        adjective.french.agree(subject.feminine, subject.plural),
        (adjective.key,),
    )


# tense -> (the French verb that is finite, its tense, the preposition before the infinitive)
PERIPHRASES = {
    "recent": ("venir", "present", "de"),
    "going to": ("aller", "present", ""),
    "can": ("pouvoir", "present", ""),
    "must": ("devoir", "present", ""),
    "want": ("vouloir", "present", ""),
    "would like": ("vouloir", "conditional", ""),
    "know how": ("savoir", "present", ""),
}
SIMPLE = {
    "present": french.present,
    "progressive": french.present,
    "future": french.future,
    "imperfect": french.imperfect,
    "conditional": french.conditional,
}
# These verbs form the past with the imparfait, others with the passé composé.
STATIVE = ("être", "avoir", "avoir besoin", "vouloir", "connaître")


@cache
def conjugate(infinitive: str, tense: str, person: int, feminine: bool) -> tuple[str, str]:
    """(finite verb, words after the negation) of a French verb in a tense."""
    infinitive, _, rest = infinitive.partition(" ")
    if tense == "past" and infinitive in STATIVE:
        tense = "imperfect"
    if tense in SIMPLE:
        return SIMPLE[tense](infinitive, person), rest
    if tense in PERIPHRASES:
        finite, its_tense, link = PERIPHRASES[tense]
        return SIMPLE[its_tense](finite, person), f"{link} {infinitive} {rest}"
    goes_with_etre = infinitive in french.WITH_ETRE
    auxiliary = french.present("être" if goes_with_etre else "avoir", person)
    form = french.participle(infinitive, *((feminine, person > IL) if goes_with_etre else ()))
    return auxiliary, f"{form} {rest}"


def clause(
    subject: Nominal,
    verb: Verb,
    tense: str,
    tail: Piece | None = None,
    *,
    negative: bool = False,
    never: bool = False,
    question: bool = False,
    adverb: Piece | None = None,
    clitic: Clitic | None = None,
) -> Piece:
    """Subject, verb and complements in both languages; a question begins with est-ce que.

    A clitic stands before the verb that governs it, and a participle with avoir agrees with it when
    it is direct.
    """
    person = subject.person
    finite, rest = conjugate(verb.french, tense, person, subject.feminine)
    en_adverb, fr_adverb = (adverb.english, adverb.french) if adverb else ("", "")
    ne, pas = ("ne", "pas") if negative else ("ne", "jamais") if never else ("", "")
    en = english.clause(
        subject.piece.english,
        person,
        verb.english,
        tense,
        negative=negative,
        question=question,
        adverb="never" if never else en_adverb,
    )
    near, far = ("", "")
    if clitic is not None:
        en = f"{en} {clitic.english}"
        near, far = ("", clitic.french) if tense in PERIPHRASES else (clitic.french, "")
        if tense == "past" and clitic.direct:
            rest = french.participle(verb.french, clitic.feminine, clitic.plural)
    fr = f"{subject.piece.french} {ne} {near} {finite} {pas} {fr_adverb} {far} {rest}"
    if question:
        fr = "est-ce que " + fr
    words = (*subject.piece.words, verb.key, *(adverb.words if adverb else ()))
    said = Piece(en, fr, words, (*subject.piece.verbs, f"{verb.key} {tense} {person}"))
    return said + tail if tail else said


def sentence(piece: Piece, mark: str = ".") -> Piece:
    """The finished sentence: both sides spelled, closed by `.`, `?` or `!` (in French after a
    space).
    """
    closing = mark if mark == "." else " " + mark
    return piece._replace(
        english=english.spell(piece.english) + mark, french=french.spell(piece.french) + closing
    )
