"""Number, length and placement of random spans."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, strategies as st

from trifold.text.spans import (
    choose_units,
    draw_span_lengths,
    example_rng,
    find_runs,
    find_words,
    geometric,
    place_spans,
    poisson,
    round_randomly,
)

LAWS = [geometric, partial(geometric, p=0.5, longest=3), poisson, partial(poisson, mean=0.5)]


def test_every_example_has_its_own_random_numbers():
    drawn = {
        key: tuple(example_rng(*key).random(4))
        for key in [(1, 1), (1, 2), (2, 1), (2**64 - 1, 0), (0, 2**63)]
    }
    assert len(set(drawn.values())) == 5
    assert all(tuple(example_rng(*key).random(4)) == numbers for key, numbers in drawn.items())


@given(st.lists(st.booleans()))
def test_runs_cover_every_true(flags):
    flags = np.array(flags, dtype=np.bool_)
    back = np.zeros_like(flags)
    for start, end in find_runs(flags):
        assert start < end and not back[max(0, start - 1) : end].any()
        back[start:end] = True
    assert (back == flags).all()


@given(st.lists(st.tuples(st.booleans(), st.booleans())))
def test_words_partition_the_free_tokens(flags):
    free, starts = np.array(flags, dtype=np.bool_).reshape(-1, 2).T
    bounds = find_words(free, starts)
    covered = [place for start, end in bounds for place in range(start, end)]
    assert covered == np.flatnonzero(free).tolist()
    for start, end in bounds:
        assert starts[start] or start == 0 or not free[start - 1]
        assert not starts[start + 1 : end].any()


def test_random_rounding_keeps_the_mean():
    rng = example_rng(0, 0)
    drawn = np.array([round_randomly(2.3, rng) for _ in range(20_000)])
    assert set(drawn) == {2, 3} and drawn.mean() == pytest.approx(2.3, abs=0.015)
    assert {round_randomly(7.0, rng) for _ in range(100)} == {7}


@pytest.mark.parametrize("lengths", [[1] * 7, [1] * 40, [3, 1, 2, 2, 5], [4], [1, 9]])
@pytest.mark.parametrize("rate", [0.15, 0.5])
def test_units_are_chosen_at_the_rate_for_all_lengths(lengths, rate):
    lengths, rng = np.array(lengths), example_rng(1, 2)
    totals = np.array([lengths[choose_units(lengths, rate, rng)].sum() for _ in range(2000)])
    error = totals.std() / np.sqrt(len(totals))
    assert abs(totals.mean() - rate * lengths.sum()) < 4 * error + 1e-9


def test_single_tokens_differ_from_the_rate_by_less_than_one():
    sizes = {
        len(choose_units(np.ones(1000, np.int64), 0.15, example_rng(0, row))) for row in range(50)
    }
    assert sizes == {150}
    assert {
        len(choose_units(np.ones(10, np.int64), 0.15, example_rng(0, row))) for row in range(50)
    } == {
        1,
        2,
    }


# --- lengths --------------------------------------------------------------------------------------


def test_the_geometric_distribution_is_that_of_spanbert():
    probabilities, mean = geometric(1000)
    assert len(probabilities) == 11 and probabilities[0] == 0
    assert probabilities[2:] / probabilities[1:-1] == pytest.approx(np.full(9, 0.8))
    assert mean == pytest.approx(3.8, abs=0.01)  # Joshi et al. 2020, section 3.1


def test_the_poisson_distribution_is_correct():
    probabilities, mean = poisson(1000)
    assert probabilities[:4] == pytest.approx([np.exp(-3) * x for x in (1, 3, 4.5, 4.5)])
    assert mean == pytest.approx(3, abs=1e-6)


@pytest.mark.parametrize("law", LAWS)
def test_lengths_follow_their_distribution_and_cover_the_rate(law):
    rng, items = example_rng(5, 5), 400
    drawn = [draw_span_lengths(items, 0.15, law, rng) for _ in range(500)]
    totals = np.array([lengths.sum() for lengths in drawn])
    assert abs(totals.mean() - 0.15 * items) < 4 * totals.std() / np.sqrt(len(totals))
    lengths = np.concatenate(drawn)
    expected, _ = law(items // 2)
    counts = np.bincount(lengths, minlength=len(expected))
    error = np.sqrt(expected * (1 - expected) / len(lengths))
    assert (np.abs(counts / len(lengths) - expected) < 4.5 * error + 1e-9).all()


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("items", [1, 2, 5, 9, 13])
def test_short_rows_keep_the_rate_and_half_of_their_context(law, items):
    rng = example_rng(5, items)
    drawn = [draw_span_lengths(items, 0.15, law, rng) for _ in range(2500)]
    assert max(int(lengths.max(initial=0)) for lengths in drawn) <= max(1, items // 2)
    totals = np.array([lengths.sum() for lengths in drawn])
    assert (
        abs(totals.mean() - 0.15 * items) < 4 * totals.std() / np.sqrt(len(totals)) + 0.004 * items
    )


@given(st.integers(0, 60), st.floats(0.01, 0.99), st.sampled_from(LAWS), st.integers(0, 1000))
def test_spans_fit_between_each_other(items, rate, law, seed):
    lengths = draw_span_lengths(items, rate, law, example_rng(seed, 0))
    lengths = lengths[lengths > 0]
    first = place_spans(lengths, items, example_rng(seed, 1))
    ends = first + lengths
    assert len(first) == 0 or (first[0] >= 0 and ends[-1] <= items)
    assert (first[1:] > ends[:-1]).all()


def test_all_placements_of_spans_are_equally_likely():
    lengths, items = np.array([2, 1]), 7
    rng = example_rng(9, 9)
    seen = Counter(tuple(place_spans(lengths, items, rng).tolist()) for _ in range(8000))
    ways = [(a, b) for a, b in combinations(range(items), 2) if a + 2 < b]
    assert set(seen) == set(ways) and len(ways) == comb(7 - 3 - 1 + 2, 2)
    mean = 8000 / len(ways)
    assert all(abs(count - mean) < 4.5 * np.sqrt(mean) for count in seen.values())
