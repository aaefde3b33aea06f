"""Precision, recall and F1 of entities in tagged words, equal to seqeval's.

By default any sequence of tags has entities, as in conlleval: I-PER after O or after I-LOC begins
one. With a scheme, only entities that follow it count, as in seqeval's strict mode.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from trifold.errors import DataError
from trifold.scores.counts import check_lengths, f1

Scheme = Literal["BIO", "BIOES"]
FORMS = {None: "[^O]+", "BIO": "BI*", "BIOES": "S|BI*E"}  # prefixes of an entity
# Prefixes of BIOES in the letters of other schemes: BILOU, BMES and BMEWO.
LETTERS = str.maketrans("LUMW", "ESIS")


class Entity(NamedTuple):
    """Words `start` to `end` - 1, of one type."""

    type: str
    start: int
    end: int


def find_entities(tags: Sequence[str], scheme: Scheme | None = None) -> Iterator[Entity]:
    """The entities of the tags of a sentence, such as B-PER, I-PER and O; BILOU and BMES are BIOES
    in other letters. Raises DataError for an invalid tag.
    """
    for tag in tags:
        prefix = tag[:1].translate(LETTERS)
        if prefix not in tuple(scheme or "BIOES") or tag[1:2] not in ("", "-"):
            raise DataError(
                f"{tag!r} is not a tag of the scheme {scheme or 'BIOES'}; a tag is O, or a prefix "
                "such as B- and a type"
            )
    prefixes = "".join(tag[0] for tag in tags).translate(LETTERS) + "O"
    types = [*(tag[2:] or "_" for tag in tags), ""]
    start = 0
    for end in range(1, len(prefixes)):
        if prefixes[end - 1] in "OES" or prefixes[end] in "OBS" or types[end - 1] != types[end]:
            if re.fullmatch(FORMS[scheme], prefixes[start:end]):
                yield Entity(types[start], start, end)
            start = end


def count_invalid(tags: Sequence[str]) -> int:
    """The tags with I- and E- that continue no entity of their type, as after O or after B- of
    another type.
    """
    tags = [tag[0].translate(LETTERS) + tag[1:] for tag in tags]
    pairs = zip(["O", *tags], tags, strict=False)
    return sum(
        tag[0] in "IE" and (before[0] not in "BI" or before[1:] != tag[1:]) for before, tag in pairs
    )


class EntityScore:
    """An entity is correct if its words and its type are. scheme: see `find_entities`."""

    def __init__(self, scheme: Scheme | None = None) -> None:
        self.scheme = scheme
        # Correct, references, predictions.
        self.counts = (Counter[str](), Counter[str](), Counter[str]())
        mode = "strict" if scheme else "default"
        self.signature = f"average:micro|mode:{mode}|scheme:{scheme or 'any'}"

    def add(
        self, references: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
    ) -> None:
        """Add the tags of sentences, one per word. Raises DataError for numbers of tags that
        differ.
        """
        check_lengths(references, predictions, "sentences")
        for expected, tags in zip(references, predictions, strict=True):
            check_lengths(expected, tags, "words in a sentence")
            labels = {*find_entities(expected, self.scheme)}
            predicted = {*find_entities(tags, self.scheme)}
            entities = (labels & predicted, labels, predicted)
            for counter, counted in zip(self.counts, entities, strict=True):
                counter.update(entity.type for entity in counted)

    def values(self) -> dict[str, float]:
        """precision, recall and f1 over all entities, in percent."""
        return entity_scores(*(counter.total() for counter in self.counts))

    def by_type(self) -> dict[str, dict[str, float]]:
        """`values` of each type that occurs."""
        types = sorted(self.counts[1] | self.counts[2])
        return {name: entity_scores(*(counter[name] for counter in self.counts)) for name in types}


ENTITY_COUNTS = ("correct", "references", "predictions")


def count_entities(reference: Sequence[str], prediction: Sequence[str]) -> dict[str, int]:
    """The number of entities of one sentence by the names of ENTITY_COUNTS."""
    score = EntityScore()
    score.add([reference], [prediction])
    totals = [counter.total() for counter in score.counts]
    return dict(zip(ENTITY_COUNTS, totals, strict=True))


def entity_scores(correct: int, references: int, predictions: int) -> dict[str, float]:
    """precision, recall and f1 in percent, from numbers of entities."""
    precision = 100 * correct / max(predictions, 1)
    recall = 100 * correct / max(references, 1)
    return {
        "precision": precision,
        "recall": recall,
        "f1": 100 * f1(correct, references, predictions),
    }
