"""English word forms and English word order: plurals, verb forms, comparatives, do-support, a or
an.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple


class EnglishVerb(NamedTuple):
    """The five forms of a verb, and its particle (look *for*)."""

    base: str
    third: str
    past: str
    participle: str
    gerund: str
    particle: str = ""


BE = EnglishVerb("be", "is", "was", "been", "being")
PRESENT_OF_BE = ("am", "are", "is", "are", "are", "are")
PAST_OF_BE = ("was", "were", "was", "were", "were", "were")
THIRD_SINGULAR = 2

SIBILANT = re.compile(r"(s|x|z|ch|sh|o)$")
CONSONANT_Y = re.compile(r"([^aeiou])y$")
# run, swim; forget, prefer; and, in British spelling, travel
DOUBLES = re.compile(r"^[^aeiou]*[aeiou][^aeiouwxy]$|[^aeiou][aeiou]l$|^(for|pre)[^aeiou]e[rt]$")
VOWEL_SOUND = re.compile(r"\ba (?=(?!uni|use|one|eu)[aeiou]|hour|honest)", re.IGNORECASE)


def plural(noun: str) -> str:
    """The regular plural; irregular plurals are in the lexicon (children, wolves)."""
    if re.search(r"(pian|phot|zo|cell)o$", noun):
        return noun + "s"
    if SIBILANT.search(noun):
        return noun + "es"
    return CONSONANT_Y.sub(r"\1ie", noun) + "s"


def verb(words: str) -> EnglishVerb:
    """All forms of `base [past [participle]]`; a base with a particle is joined by an underscore:
    `look_for`.
    """
    base, *irregular = words.split()
    head, _, particle = base.partition("_")
    stem = head + head[-1] if DOUBLES.search(head) else re.sub(r"([^eo])e$", r"\1", head)
    regular = CONSONANT_Y.sub(r"\1i", stem) + "ed"
    past = irregular[0] if irregular else regular
    participle = irregular[-1] if irregular else regular
    third = "has" if head == "have" else plural(head)
    gerund = re.sub(r"i$", "y", stem) + "ing"  # lie, lying
    return EnglishVerb(head, third, past, participle, gerund, particle)


def comparative(adjective: str) -> str:
    """bigger, easier, more famous, better."""
    if adjective in ("good", "bad"):
        return "better" if adjective == "good" else "worse"
    syllables = len(re.findall(r"[aeiouy]+", adjective.removesuffix("e")))
    if syllables > 2 or (syllables == 2 and not adjective.endswith("y")):
        return "more " + adjective
    if DOUBLES.search(adjective):
        adjective += adjective[-1]
    return CONSONANT_Y.sub(r"\1i", adjective).removesuffix("e") + "er"


@cache
def predicate(verb: EnglishVerb, tense: str, person: int) -> tuple[str, str]:
    """(auxiliary, rest) of a verb in a tense of `grammar.TENSES`; a plain statement merges them
    (`merge_auxiliary`).
    """
    be = PRESENT_OF_BE[person]
    if verb is BE and tense in ("present", "past"):
        return (be if tense == "present" else PAST_OF_BE[person]), ""
    singular = person == THIRD_SINGULAR
    has = "has" if singular else "have"
    auxiliary, rest = {
        "present": ("does" if singular else "do", verb.base),
        "progressive": (be, verb.gerund),
        "past": ("did", verb.base),
        "perfect": (has, verb.participle),
        "recent": (has, "just " + verb.participle),
        "future": ("will", verb.base),
        "going to": (be, "going to " + verb.base),
        "can": ("can", verb.base),
        "must": ("must", verb.base),
        "want": ("does" if singular else "do", "want to " + verb.base),
        "would like": ("would", "like to " + verb.base),
        "know how": ("does" if singular else "do", "know how to " + verb.base),
    }[tense]
    return auxiliary, f"{rest} {verb.particle}" if verb.particle else rest


def merge_auxiliary(verb: EnglishVerb, auxiliary: str, rest: str) -> tuple[str, str]:
    """Remove `do` in a plain statement: does eat -> eats, did eat -> ate, does want to eat -> wants
    to eat.
    """
    first, _, more = rest.partition(" ")
    form = {
        "do": first,
        "does": verb.third if first == verb.base else plural(first),
        "did": verb.past,
    }.get(auxiliary)
    return (auxiliary, rest) if form is None else ("", f"{form} {more}".rstrip())


def clause(
    subject: str,
    person: int,
    verb: EnglishVerb,
    tense: str,
    *,
    negative: bool = False,
    question: bool = False,
    adverb: str = "",
) -> str:
    """Subject and verb in the word order of a statement or a question."""
    auxiliary, rest = predicate(verb, tense, person)
    if not (negative or question):
        auxiliary, rest = merge_auxiliary(verb, auxiliary, rest)
    words = (auxiliary, subject) if question else (subject, auxiliary)
    return " ".join(word for word in (*words, "not" if negative else "", adverb, rest) if word)


def spell(text: str) -> str:
    """Apply spelling: an before a vowel sound, cannot, one space between words, a capital first
    letter.
    """
    text = " ".join(VOWEL_SOUND.sub("an ", text).replace("can not ", "cannot ").split())
    text = text.replace(" ,", ",")
    return text[0].upper() + text[1:]
