"""The most probable tags of a sentence: Viterbi's algorithm beside all sequences of tags, counts of
training sentences, and tables of files.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from trifold.errors import UsageError
from trifold.predict import tag_transitions
from trifold.predict.tag_transitions import (
    MOST_CLASSES,
    TRANSITIONS,
    UNSEEN,
    Transitions,
    best_classes,
)

TAGS = {"O": 0, "B-PER": 1, "I-PER": 2, "B-LOC": 3, "I-LOC": 4}


def drawn(seed: int, lengths: list[int], classes: int) -> tuple[Transitions, list[Any]]:
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(classes + 1, classes))
    return Transitions(table), [rng.dirichlet(np.ones(classes), size=size) for size in lengths]


def score(table: np.ndarray, probabilities: np.ndarray, classes: tuple[int, ...]) -> float:
    befores = (len(table) - 1, *classes)
    emitted = sum(np.log(row[one]) for row, one in zip(probabilities, classes, strict=True))
    moves = zip(befores, classes, strict=False)
    return float(emitted + sum(table[before, one] for before, one in moves))


@given(st.integers(0, 10_000), st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_no_sequence_of_tags_is_better(seed, lengths):
    transitions, sentences = drawn(seed, lengths, 3)
    found = transitions.best(sentences)
    assert [*map(len, found)] == lengths
    for probabilities, classes in zip(sentences, found, strict=True):
        every = product(range(3), repeat=len(probabilities))
        best = max(score(transitions.table, probabilities, one) for one in every)
        ours = score(transitions.table, probabilities, tuple(classes.tolist()))
        assert ours == pytest.approx(best)


@given(st.integers(0, 10_000), st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_one_sentence_has_the_tags_that_it_has_among_many(seed, lengths):
    transitions, sentences = drawn(seed, lengths, 5)
    alone = [transitions.best([one])[0] for one in sentences]
    for one, other in zip(transitions.best(sentences), alone, strict=True):
        np.testing.assert_array_equal(one, other)


def test_sentences_are_searched_in_parts(monkeypatch):
    transitions, sentences = drawn(3, [3, 0, 5, 2, 4], 4)
    expected = transitions.best(sentences)
    monkeypatch.setattr(tag_transitions, "CHUNK", 2 * transitions.table.size)
    for one, other in zip(transitions.best(sentences), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert transitions.best([]) == []


def test_a_certain_word_keeps_its_tag_and_an_uncertain_one_follows():
    sentences = [["O", "B-PER", "I-PER", "O"], ["B-LOC", "I-LOC", "O", "O"]] * 20
    transitions = Transitions.count(sentences, TAGS)
    words = np.full((2, 5), 0.01)
    words[0, 3] = 0.96
    words[1, 2], words[1, 4] = 0.5, 0.47
    assert words.argmax(1).tolist() == [3, 2]
    assert transitions.best([words])[0].tolist() == [3, 4]
    words[1] = [0.001, 0.001, 0.996, 0.001, 0.001]
    assert transitions.best([words])[0].tolist() == [3, 2]


def test_the_table_has_the_ratios_of_frequencies():
    table = Transitions.count([["O", "B-PER", "I-PER"], ["O"]], TAGS).table
    words = 4 + UNSEEN * 30  # of six rows of five
    after_o = (1 + UNSEEN) / (1 + 5 * UNSEEN)
    of_person = (1 + 6 * UNSEEN) / words
    assert table[0, 1] == pytest.approx(0.5 * np.log(after_o / of_person))
    at_start = (2 + UNSEEN) / (2 + 5 * UNSEEN)
    of_o = (2 + 6 * UNSEEN) / words
    assert table[5, 0] == pytest.approx(0.5 * np.log(at_start / of_o))


def test_very_many_tags_have_no_table():
    names = {str(number): number for number in range(MOST_CLASSES + 1)}
    assert Transitions.count([["0", "1"]], names) is None
    del names[str(MOST_CLASSES)]
    assert Transitions.count([["0", "1"]], names).table.shape == (MOST_CLASSES + 1, MOST_CLASSES)


def test_without_a_table_each_word_has_its_most_probable_class():
    _, sentences = drawn(1, [4, 0, 2], 3)
    found = best_classes(None, sentences)
    assert [one.tolist() for one in found] == [one.argmax(1).tolist() for one in sentences]


def test_a_table_is_read_as_it_was_written(monkeypatch):
    written = Transitions.count([["O", "B-PER"]], TAGS)
    tokenizer: Any = SimpleNamespace(settings=written.as_setting())
    read = Transitions.of(tokenizer, 5)
    np.testing.assert_allclose(read.table, written.table, atol=10**-tag_transitions.DIGITS)
    assert read.as_setting() == written.as_setting()
    tokenizer.settings = {}
    assert Transitions.of(tokenizer, 5) is None
    tokenizer.settings = None
    assert Transitions.of(tokenizer, 5) is None


@pytest.mark.parametrize(
    "value",
    [
        "no table",
        [[0.0] * 2] * 2,
        [[0.0] * 2, [0.0] * 3, [0.0] * 2],
        [[0.0] * 2, [0.0] * 2, 1],
        [[0.0] * 2, [0.0, float("nan")], [0.0] * 2],
        [[0.0] * 2, [0.0, True], [0.0] * 2],
        [[0.0] * 2, [0.0, 10**400], [0.0] * 2],
        [[0.0] * 2, [0.0, -1e308], [0.0] * 2],
        [[0.0] * 2, [0.0, "1"], [0.0] * 2],
    ],
)
def test_what_is_no_table_of_the_classes_is_an_error(value):
    tokenizer: Any = SimpleNamespace(settings={TRANSITIONS: value})
    with pytest.raises(UsageError, match=r"tag_transitions is not a list of 3 lists of 2 numbers"):
        Transitions.of(tokenizer, 2)
