"""Scores of entities equal those of seqeval."""

from __future__ import annotations

import random

import pytest

from trifold.errors import DataError
from trifold.scores.entities import Entity, EntityScore, count_invalid, find_entities

TYPES = ("PER", "LOC", "work-of-art")


def draw(source, prefixes):
    """Tags of some sentences, and predictions that differ in some; any prefix follows any other."""
    tags = ["O", *(f"{prefix}-{name}" for prefix in prefixes for name in TYPES)]
    sentences = [source.choices(tags, k=source.randint(1, 9)) for _ in range(source.randint(1, 5))]
    change = source.random()
    predictions = [
        [source.choice(tags) if source.random() < change else tag for tag in sentence]
        for sentence in sentences
    ]
    return sentences, predictions


def score_of(references, predictions, scheme=None):
    score = EntityScore(scheme)
    for pair in zip(references, predictions, strict=True):
        score.add(*([each] for each in pair))
    return score


def check(score, report):
    """Compare with a report of seqeval."""
    micro = report.pop("micro avg", None)
    names = ("precision", "recall", "f1-score")
    assert [*score.values().values()] == pytest.approx([100 * micro[name] for name in names])
    found = {name: [*values.values()] for name, values in score.by_type().items()}
    types = {name: each for name, each in report.items() if not name.endswith(" avg")}
    assert found.keys() == types.keys()
    for name, each in types.items():
        assert found[name] == pytest.approx([100 * each[key] for key in names])


@pytest.mark.parametrize("prefixes", ["BI", "BIES"])
def test_scores_equal_seqeval(prefixes):
    seqeval = pytest.importorskip("seqeval.metrics")
    source = random.Random(1)
    compared = 0
    while compared < 200:
        references, predictions = draw(source, prefixes)
        score = score_of(references, predictions)
        if not score.by_type():
            continue  # seqeval raises an exception if there is no entity
        check(
            score,
            seqeval.classification_report(
                references, predictions, output_dict=True, zero_division=0
            ),
        )
        compared += 1


@pytest.mark.parametrize(("scheme", "name"), [("BIO", "IOB2"), ("BIOES", "IOBES")])
def test_strict_scores_equal_seqeval(scheme, name):
    seqeval = pytest.importorskip("seqeval.metrics")
    from seqeval import scheme as schemes

    options = {
        "mode": "strict",
        "scheme": getattr(schemes, name),
        "output_dict": True,
        "zero_division": 0,
    }
    source = random.Random(2)
    compared = 0
    while compared < 200:
        references, predictions = draw(source, scheme.replace("O", ""))
        score = score_of(references, predictions, scheme)
        if not score.by_type():
            continue
        check(score, seqeval.classification_report(references, predictions, **options))
        compared += 1


def test_entities_of_invalid_sequences():
    def found(tags, scheme=None):
        return [tuple(entity) for entity in find_entities(tags.split(), scheme)]

    assert [*find_entities(["B-PER", "I-PER", "O"])] == [Entity("PER", 0, 2)]
    assert found("O I-PER I-PER") == [("PER", 1, 3)]
    assert found("O I-PER I-PER", "BIO") == []
    assert found("B-PER I-LOC") == [("PER", 0, 1), ("LOC", 1, 2)]
    assert found("B-PER I-LOC", "BIO") == [("PER", 0, 1)]
    assert found("B-PER B-PER") == [("PER", 0, 1), ("PER", 1, 2)]
    assert found("B I O S", "BIOES") == [("_", 3, 4)]
    assert found("B-PER E-PER E-PER", "BIOES") == [("PER", 0, 2)]
    assert found("") == []


@pytest.mark.parametrize("letters", ["LU", "EU", "LS"])
@pytest.mark.parametrize("scheme", [None, "BIOES"])
def test_bilou_is_bioes_in_other_letters(letters, scheme):
    source = random.Random(3)
    for _ in range(100):
        sentences, predictions = draw(source, "BIES")
        table = str.maketrans("ES", letters)
        renamed = [
            [[tag[0].translate(table) + tag[1:] for tag in tags] for tags in each]
            for each in (sentences, predictions)
        ]
        score, other = score_of(sentences, predictions, scheme), score_of(*renamed, scheme)
        assert (score.values(), score.by_type()) == (other.values(), other.by_type())
        assert [*map(count_invalid, sentences)] == [*map(count_invalid, renamed[0])]
    found = find_entities("U-PER O B-LOC I-LOC L-LOC B-PER L-PER U-PER".split(), scheme)
    assert [tuple(entity) for entity in found] == [
        ("PER", 0, 1), ("LOC", 2, 5), ("PER", 5, 7), ("PER", 7, 8),
    ]  # fmt: skip
    assert [*find_entities("B-X M-X E-X S-Y".split())] == [Entity("X", 0, 3), Entity("Y", 3, 4)]


def test_nothing_scores_zero():
    score = score_of([["O", "O"], []], [["O", "O"], []])
    assert score.values() == {"precision": 0, "recall": 0, "f1": 0}
    assert score.by_type() == {}


def test_the_signature_names_the_mode():
    assert EntityScore().signature == "average:micro|mode:default|scheme:any"
    assert EntityScore("BIO").signature == "average:micro|mode:strict|scheme:BIO"


def test_invalid_tags_are_errors():
    for tag in ("PER", "Other", "", "B_PER"):
        with pytest.raises(DataError, match=f"'{tag}' is not a tag of the scheme BIOES"):
            [*find_entities(["O", tag])]
    with pytest.raises(DataError, match="'S-PER' is not a tag of the scheme BIO;"):
        [*find_entities(["S-PER"], "BIO")]
    with pytest.raises(DataError, match="1 predictions but 2 words in a sentence"):
        EntityScore().add([["O", "O"]], [["O"]])
    with pytest.raises(DataError, match="1 predictions but 0 sentences"):
        EntityScore().add([], [["O"]])


@pytest.mark.parametrize("scheme", ["BIO", "BIOES"])
def test_tags_that_follow_a_scheme_are_valid_and_each_lost_beginning_is_counted(scheme):
    source = random.Random(5)
    for _ in range(200):
        tags = []
        for _ in range(source.randint(1, 4)):
            name, size = source.choice(TYPES), source.randint(2, 4)
            tags += [f"B-{name}", *[f"I-{name}"] * (size - 1), *["O"] * source.randint(0, 2)]
        if scheme == "BIOES":
            following = [*tags[1:], "O"]
            ends = [
                tag[0] == "I" and after[0] != "I"
                for tag, after in zip(tags, following, strict=True)
            ]
            tags = [f"E{tag[1:]}" if end else tag for tag, end in zip(tags, ends, strict=True)]
        assert count_invalid(tags) == 0
        assert [*find_entities(tags)] == [*find_entities(tags, scheme)]
        lost = ["O" if tag[0] == "B" else tag for tag in tags]
        assert count_invalid(lost) == len([tag for tag in tags if tag[0] == "B"])
        assert count_invalid(
            [tag if tag[0] != "B" else "B-other" for tag in tags]
        ) == count_invalid(lost)
