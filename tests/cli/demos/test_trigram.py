"""The trigram model against its formula, counted by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trifold.cli.demos.trigram import Trigram

SIZE = 6
documents = st.lists(st.lists(st.integers(0, SIZE - 1), min_size=2, max_size=9), min_size=1, max_size=6)
histories = st.lists(st.integers(0, SIZE - 1), min_size=0, max_size=2)


def by_hand(documents, history, word):
    """Witten & Bell's formula as it stands in the file."""
    if history is None:
        return 1 / SIZE
    behind = [
        ids[place]
        for ids in documents
        for place in range(max(1, len(history)), len(ids))
        if ids[place - len(history) : place] == history
    ]
    shorter = by_hand(documents, history[1:] if history else None, word)
    if not behind:
        return shorter
    kinds = len(set(behind))
    return (behind.count(word) + kinds * shorter) / (len(behind) + kinds)


@given(documents, histories)
def test_it_is_the_formula(documents, history):
    found = Trigram(documents, SIZE).behind(history)
    assert found == pytest.approx([by_hand(documents, history, word) for word in range(SIZE)])


@given(documents, histories)
def test_probabilities_add_up_to_one_and_none_is_nothing(documents, history):
    found = Trigram(documents, SIZE).behind(history)
    assert found.sum() == pytest.approx(1)
    assert found.min() > 0


@given(documents, documents)
def test_the_loss_is_that_of_the_probabilities(documents, held_out):
    model = Trigram(documents, SIZE)
    total = sum(
        -math.log(model.behind(ids[max(0, place - 2) : place])[ids[place]])
        for ids in held_out
        for place in range(1, len(ids))
    )
    assert model.nats(held_out) == pytest.approx(total)


def test_what_it_writes_ends_at_the_end_or_where_room_does():
    model = Trigram([[0, 1, 2, 3, 4, 5]] * 50, SIZE)
    how = {"temperature": 0.1, "top_k": 3, "rng": np.random.default_rng(1)}
    assert model.write([0], end=5, most=20, **how) == [1, 2, 3, 4]
    assert model.write([0, 1], end=5, most=2, **how) == [2, 3]


def test_the_same_numbers_write_the_same():
    model = Trigram([[0, 1, 2, 3], [0, 2, 1, 3], [0, 2, 2, 2, 3]], SIZE)
    how = {"end": 3, "most": 30, "temperature": 1.0, "top_k": SIZE}
    first, second = (model.write([0], rng=np.random.default_rng(7), **how) for _ in range(2))
    assert first == second


def test_only_the_likeliest_are_drawn_from():
    model = Trigram([[0, 1], [0, 1], [0, 1], [0, 2]], SIZE)
    rng = np.random.default_rng(3)
    drawn = {model.write([0], end=5, most=1, temperature=5.0, top_k=1, rng=rng)[0] for _ in range(50)}
    assert drawn == {1}
