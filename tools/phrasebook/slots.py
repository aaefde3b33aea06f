"""The choices of the slots of constructions, each a plain list.

"you" is vous (plural), and a friend addressed by name is tu. "they" is ils, and "I" is a man. So
every English sentence has one translation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import ceil
from typing import TypeVar

from tools.phrasebook.grammar import (
    ADJECTIVES,
    ADVERBS,
    IL,
    ILS,
    NAMES,
    NOUN,
    NOUNS,
    OWNERS,
    PRONOUNS,
    TU,
    VERB,
    VERBS,
    Adjective,
    Clitic,
    Nominal,
    Noun,
    Piece,
    Verb,
    agree,
    nominal,
    nouns,
    np,
)
from tools.phrasebook.lexicon import DESCRIBES

Event = tuple[Verb, Piece]
Row = TypeVar("Row")


def balance(rows: list[Row], by: Callable[[Row], object], least: int = 30) -> list[Row]:
    """Repeat rows until each verb (or adjective) has about `least`; without this, verbs with many
    objects dominate.
    """
    count = Counter(map(by, rows))
    return [row for row in rows for _ in range(ceil(least / count[by(row)]))]


# Subjects. Pronouns are most frequent, so that every verb occurs in all persons.
_ONLY_ONE = {
    "mother": OWNERS,
    "father": OWNERS,
    "husband": ("my", "her", "your"),
    "wife": ("my", "his", "your"),
}
_FAMILY = [
    nominal(owner, noun, many)
    for noun in NOUNS["family"]
    for owner in _ONLY_ONE.get(noun.english, OWNERS)
    for many in ((False,) if noun.english in _ONLY_ONE else (False, True))
]
_TRADE = [
    nominal("the", noun, many)
    for noun in nouns("profession person")
    for many in (False, False, True)
]
PEOPLE = [*NAMES, *_FAMILY, *_TRADE]
SUBJECTS = PRONOUNS * 100 + NAMES * 6 + _FAMILY + _TRADE
PLURAL_SUBJECTS = [who for who in SUBJECTS if who.plural]
QUESTION_SUBJECTS = [who for who in SUBJECTS if who.piece.english not in ("I", "we")]
CHILDREN = [
    nominal(owner, noun, many)
    for noun in nouns("son daughter nephew niece boy girl child prince princess")
    for owner in (OWNERS if noun in NOUNS["family"] else ("the",))
    for many in (False, True)
]
OF_SOME_AGE = PRONOUNS * 5 + NAMES * 2 + CHILDREN
WHO = Nominal(Piece("who", "qui"), IL)
IT = Nominal(Piece("it", "il"), IL)
FRIENDS = [(Nominal(Piece("you", "tu"), TU, name.feminine), name.piece) for name in NAMES]
OWNER = dict(
    zip(
        (who.piece.english for who in PRONOUNS),
        ("my", "your", "his", "her", "our", "their"),
        strict=True,
    )
)

DIRECT_OBJECTS = [
    Clitic("him", "le"),
    Clitic("her", "la", feminine=True),
    Clitic("them", "les", plural=True),
    Clitic("us", "nous", plural=True),
    Clitic("me", "me"),
    Clitic("you", "vous", plural=True),
]
INDIRECT_OBJECTS = [
    Clitic(
        them.english,
        {"le": "lui", "la": "lui", "les": "leur"}.get(them.french, them.french),
        direct=False,
    )
    for them in DIRECT_OBJECTS
]


def is_reflexive(who: Nominal, whom: Clitic) -> bool:
    """Whether subject and object share a person, which requires `myself`: I … me, we … us, you …
    you.
    """
    return {who.piece.english, whom.english} in (
        {"I", "me"},
        {"we", "us"},
        {"you"},
        {"I", "us"},
        {"we", "me"},
    )


PRONOUN_PAIRS = [
    (who, whom) for who in SUBJECTS for whom in DIRECT_OBJECTS if not is_reflexive(who, whom)
]
QUESTION_PAIRS = [
    (who, whom)
    for who in QUESTION_SUBJECTS
    for whom in DIRECT_OBJECTS
    if not is_reflexive(who, whom)
]
GIFT_PAIRS = [
    (who, whom) for who in SUBJECTS for whom in INDIRECT_OBJECTS if not is_reflexive(who, whom)
]


def whole(noun: Noun) -> bool:
    """Whether the noun is neither countable nor divisible: French, history, Paris."""
    return noun.mass and noun not in nouns("food drink")


def events(verbs: list[Verb], determiner: str) -> list[Event]:
    """Every verb with all its objects: (eat, the apple), (read, the letter), (learn, French) …"""
    rows = [
        (verb, np(its_determiner, noun))
        for verb in verbs
        for noun in (NOUN[key] for key in verb.objects)
        for its_determiner in _fitting(determiner, noun)
    ]
    return balance(rows, by=lambda row: row[0])


def _fitting(determiner: str, noun: Noun) -> tuple[str, ...]:
    """The determiners that fit the noun: family members are possessed, languages and mass nouns are
    not counted.
    """
    if noun in NOUNS["family"]:
        return ("my", "her") if determiner == "the" else ()
    if noun.mass and determiner != "the":
        return ()
    return ("all",) if whole(noun) else (determiner,)


ACTIONS = events(VERBS["deed"], "the")
ACTIONS_WITH_A = events(VERBS["deed"], "a")
ACTIONS_WITH_THIS = events(VERBS["deed"], "this") + events(VERBS["deed"], "that")
PAST_EVENTS = ACTIONS + events(VERBS["event"], "the")
# Verbs whose English past equals the present need a time expression (I read the book yesterday).
DISTINCT_PAST_EVENTS = [
    event for event in PAST_EVENTS if event[0].english.past != event[0].english.base
]
ACTIONS_ON_OWN_THINGS = [
    (who, verb, NOUN[key])
    for who in PRONOUNS
    for verb in (
        VERB[name]
        for name in "wash clean repair paint open close sell look_for call invite thank help feed".split()
    )
    for key in verb.objects
    if NOUN[key] not in nouns("person profession")
]
# Never to have seen one: n'avoir jamais vu de baleine.
NEVER_DONE = [
    (verb, np("not a", NOUN[key]))
    for verb in VERBS["deed"] + VERBS["event"]
    for key in verb.objects
    if not (NOUN[key].mass or NOUN[key] in nouns("person profession family"))
]
ACTS = VERBS["act"]
INDOOR_ACTS = [verb for verb in ACTS if verb.key not in ("swim.v", "travel.v", "lie.v")]
SKILLS = [VERB[name] for name in "sing dance swim cook work sleep talk".split()]
MOVES = VERBS["move"]
ANIMAL_ACTS = [VERB[name] for name in "sleep run jump dream tremble".split()]
FEELINGS = VERBS["feeling"]
HELPING = [
    VERB[name]
    for name in "help call invite thank wait_for follow look_for listen_to admire".split()
]
KNOWING = [VERB[name] for name in "know love hate understand hear see".split()]
GIVING = [VERB[name] for name in "give show lend send bring".split()]
MODAL_TENSES = ["can", "must", "want", "would like", "going to"]
QUESTION_MODALS = ["can", "want", "would like", "going to"]

# Food and drink in indefinite amounts: bread, apples.
_TABLE_NOUNS = nouns("fruit snack food drink")
MEALS = [
    (VERB[name], noun)
    for name in ("eat", "drink", "buy", "bring", "prepare")
    for noun in _TABLE_NOUNS
    if noun.key in VERB[name].objects
]
POURED = [
    (measure, noun)
    for measure in ADVERBS["measure"][:2]
    for noun in nouns("water milk wine lemonade cider")
]
POURED += [(ADVERBS["measure"][2], noun) for noun in nouns("coffee tea")]
AMOUNTS = [
    (measure, verb, noun)
    for measure in ADVERBS["measure"][3:]
    for verb, noun in MEALS
    if noun.mass or measure.english == "a lot of"
]
GENERIC = 3 * nouns("dog pleasure") + nouns(
    "animal fruit snack food drink sport pleasure flower rose tulip film concert opera poem novel train boat plane "
    "museum castle"
)
GOODS = nouns(
    "dog cat horse rabbit bird donkey goat hen cow pig turtle monkey car lorry tractor van bicycle boat motorbike "
    "house flat clothing furniture object instrument"
)
THINGS = nouns("object furniture clothing text")
LOSABLE = nouns("object clothing")
# Parts of the body that hurt: one head, or both knees.
ACHES = [
    (who, part, False)
    for who in PRONOUNS
    if not who.plural
    for part in NOUNS["body"]
    if part.english != "tooth"
]
ACHES += [
    (who, part, True)
    for who in PRONOUNS
    for part in nouns("arm leg knee hand foot shoulder ear finger eye tooth")
]

# Nouns and the adjectives that fit them.
_DESCRIBED = [
    (noun, adjective)
    for kind, classes in DESCRIBES.items()
    if kind != "mood"
    for adjective in ADJECTIVES[kind]
    for noun in nouns(classes)
]
DESCRIBED = balance(_DESCRIBED, by=lambda row: row[1])
COUNTED = [(noun, adjective) for noun, adjective in DESCRIBED if not noun.mass]
BUYABLE = set(nouns("clothing vehicle craft furniture object instrument house flat text"))
BOUGHT = [(noun, adjective) for noun, adjective in COUNTED if noun in BUYABLE]
WORN = [(noun, adjective) for noun, adjective in COUNTED if noun in NOUNS["clothing"]]
OWNED = [(noun, adjective) for noun, adjective in COUNTED if noun in GOODS]
MOODS = ADJECTIVES["mood"]
GRADED_MOODS = [mood for mood in MOODS if mood.english not in ("alone", "ready")]
BAD_MOODS = [mood for mood in MOODS if mood.english not in ("happy", "ready", "surprised")]
QUALITIES = MOODS + ADJECTIVES["character"]
PREDICATED = [(noun, adjective) for noun, adjective in DESCRIBED if adjective.english != "new"]
PREDICATED_OF_MANY = [(noun, adjective) for noun, adjective in PREDICATED if not noun.mass]
UNGRADED = [*ADJECTIVES["colour"], *ADJECTIVES["load"][2:]]
GRADED = [(noun, adjective) for noun, adjective in PREDICATED if adjective not in UNGRADED]
OWNED_PREDICATED = [(noun, adjective) for noun, adjective in PREDICATED if noun in GOODS]
UNCOMPARED = ("mood", "colour")
COMPARED = [
    (one, adjective, other)
    for kind, classes in DESCRIBES.items()
    if kind not in UNCOMPARED
    for adjective in ADJECTIVES[kind]
    if adjective.english not in ("bad", "new", "small", "weak", "poor")
    and adjective not in UNGRADED
    for group in map(nouns, classes.split())
    for i, one in enumerate(group)
    for other in (group[i - 1], group[(i + 1) % len(group)])
    if one != other
]
TRADES = [(who, noun) for who in PRONOUNS + NAMES for noun in NOUNS["profession"]]
SAME_SEX = [
    (noun, kin)
    for noun in nouns("person profession")
    for kin in NOUNS["family"]
    if noun.feminine == kin.feminine
]


def trade(who: Nominal, noun: Noun) -> Piece:
    """A profession as a predicate: she is a baker, elle est boulangère; no article in French."""
    she = noun._replace(french=noun.she, french_plural=noun.she + "s") if who.feminine else noun
    return np("a", she, who.plural)._replace(french=she.french_plural if who.plural else she.french)


# Places.
def at(noun: Noun) -> Piece:
    """A place: à Paris, en Italie, au marché; the English preposition is separate."""
    if noun in NOUNS["city"]:
        return Piece(noun.english, f"à {noun.french}", (noun.key,))
    if noun in NOUNS["country"]:
        en = noun.feminine or noun.french[0] in "AEIOU"
        return Piece(noun.english, f"{'en' if en else 'à le'} {noun.french}", (noun.key,))
    return Piece(f"the {noun.english}", f"à {np('the', noun).french}", (noun.key,))


def inside(noun: Noun) -> Piece:
    """in the garden, dans le jardin; in the street, dans la rue."""
    return Piece("in", "dans") + np("the", noun)


DESTINATIONS = [
    at(noun)
    for noun in nouns(
        "city country building museum castle church cathedral palace zoo shop village park"
    )
]
COUNTRIES_AND_CITIES = [at(noun) for noun in nouns("city country")]
FOOD_PLACES = [inside(noun) for noun in nouns("kitchen fridge cupboard cellar basket")]
HERE = [
    inside(noun) for noun in nouns("room garden park forest street village field courtyard town")
]
SPOTS = [where + np("the", noun) for where in ADVERBS["where"] for noun in nouns("surface")] + [
    inside(noun) for noun in nouns("box bag basket drawer cupboard suitcase")
]
PLACES = nouns("building museum castle church cathedral palace zoo")
PORTABLE = nouns("portable")
CHASES = [
    (nominal("the", one, many), VERB[name], np("the", other))
    for one in NOUNS["animal"]
    for many in (False, False, True)
    for name in ("follow", "look_for")
    for other in NOUNS["animal"]
    if one != other
]
CREATURES = nouns("cat dog mouse rabbit bird frog spider snake hen") + PORTABLE

Builder = Callable[..., Piece]


def predicate_of(who: Nominal, adjective: Adjective, degree: Piece | None = None) -> Piece:
    """An inflected adjective, with an optional degree (very, too)."""
    word = agree(adjective, who)
    return degree + word if degree else word


def coordinate(one: Noun, other: Noun) -> Nominal:
    """Two subjects joined by "and"; feminine only if both are."""
    both = np("the", one) + Piece("and", "et") + np("the", other)
    return Nominal(both, ILS, one.feminine and other.feminine)
