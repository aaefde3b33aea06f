"""Permutation language modelling: which tokens are predicted, and in which order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from trifold.text.corruption import PREDICTION_CHOICES, draw_ranks
from trifold.text.spans import example_rng, find_runs

flags = st.lists(st.booleans(), min_size=0, max_size=60).map(lambda values: np.array(values, dtype=np.bool_))
ways = st.sampled_from(sorted(PREDICTION_CHOICES))


@given(flags, ways, st.integers(1, 7), st.integers(1, 5), st.integers(0, 2**64 - 1))
def test_predicted_tokens_are_free_unique_and_reproducible(free, way, share, longest, draw):
    one, again = (PREDICTION_CHOICES[way](free, share, longest, example_rng(draw, 3)) for _ in range(2))
    assert one.tolist() == again.tolist()
    assert len(set(one.tolist())) == len(one)
    assert free[one].all()
    if share == 1:
        assert sorted(one.tolist()) == np.flatnonzero(free).tolist()


@pytest.mark.parametrize("way", sorted(PREDICTION_CHOICES))
@pytest.mark.parametrize("size", [5, 31, 200])
def test_the_share_of_predicted_tokens_is_kept_at_every_length(way, size):
    free, share, rounds = np.ones(size, np.bool_), 6, 3000
    counts = np.array(
        [len(PREDICTION_CHOICES[way](free, share, 5, example_rng(1, row))) for row in range(rounds)]
    )
    error = counts.std() / np.sqrt(rounds)
    assert counts.mean() == pytest.approx(size / share, abs=4 * error + 1e-9)


def test_every_token_is_predicted_equally_often():
    seen = np.zeros(40)
    for row in range(6000):
        seen[PREDICTION_CHOICES["tokens"](np.ones(40, np.bool_), 4, 5, example_rng(2, row))] += 1
    assert seen / 6000 == pytest.approx(np.full(40, 0.25), abs=0.03)


def test_spans_are_at_most_the_longest_within_their_context():
    lengths = set()
    for row in range(300):
        flagged = np.zeros(240, np.bool_)
        flagged[PREDICTION_CHOICES["spans"](np.ones(240, np.bool_), 6, 4, example_rng(3, row))] = True
        found = find_runs(flagged)
        # Neighbours of two contexts may touch, but no three.
        assert (found[:, 1] - found[:, 0]).max() <= 8
        lengths |= set((found[:, 1] - found[:, 0]).tolist())
    assert {1, 2, 3, 4} <= lengths


@given(flags, st.integers(0, 2**64 - 1))
def test_ranks_number_the_positions_and_are_0_elsewhere(free, draw):
    places = np.flatnonzero(free)
    ranks = draw_ranks(places, len(free), example_rng(draw, 0))
    assert sorted(ranks[places].tolist()) == list(range(1, len(places) + 1))
    assert not ranks[~free].any()


def test_all_orders_are_equally_likely():
    found = {tuple(draw_ranks(np.arange(3), 3, example_rng(9, row)).tolist()) for row in range(200)}
    assert len(found) == 6
