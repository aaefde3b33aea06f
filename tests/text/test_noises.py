"""BART's noises: origins, rates, and special tokens."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tests.text.noise_rows import MASK, SPECIAL, long_row, rows

from trifold.text.corruption import NOISES, NoiseInput, apply_noises, infill_spans
from trifold.text.spans import example_rng, find_runs

seeds = st.integers(0, 2**64 - 1)
KINDS = list(NOISES)


@given(rows(), seeds, st.dictionaries(st.sampled_from(KINDS), st.sampled_from([0.0, 0.1, 0.3, 0.9, 1.0])))
def test_every_input_token_comes_from_its_origin(row, seed, rates):
    ids, free, starts = row
    found = apply_noises(NoiseInput(ids, free, starts), example_rng(seed, 0), rates, MASK)
    old = found.origin >= 0
    assert (found.inputs[~old] == MASK).all()
    same = found.inputs[old] == ids[found.origin[old]]
    assert (same | (found.inputs[old] == MASK)).all()
    assert len(set(found.origin[old].tolist())) == old.sum()  # no token twice
    # Special tokens stay, in their order.
    kept = found.inputs[(found.inputs < SPECIAL) & (found.inputs != MASK)]
    assert kept.tolist() == ids[~free].tolist()


@given(rows(), seeds, st.sampled_from(KINDS))
def test_equal_generators_give_equal_rows(row, seed, kind):
    first, second = (NOISES[kind](NoiseInput(*row), example_rng(seed, 1), 0.5, MASK) for _ in range(2))
    assert all((a == b).all() for a, b in zip(first, second, strict=True))


@given(rows(), seeds, st.dictionaries(st.sampled_from(KINDS), st.sampled_from([0.1, 0.6, 1.0])))
def test_equal_generators_give_equal_rows_for_all_noises_together(row, seed, rates):
    first, second = (apply_noises(NoiseInput(*row), example_rng(seed, 1), rates, MASK) for _ in range(2))
    assert all((a == b).all() for a, b in zip(first, second, strict=True))


@given(rows(), seeds, st.sampled_from(["mask", "delete", "infill"]))
def test_noises_that_do_not_move_tokens_keep_their_order(row, seed, kind):
    found = NOISES[kind](NoiseInput(*row), example_rng(seed, 0), 0.5, MASK)
    assert (np.diff(found.origin[found.origin >= 0]) > 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_examples_differ(kind):
    row = NoiseInput(*long_row(100))
    assert len({tuple(NOISES[kind](row, example_rng(1, n), 0.9, MASK).inputs) for n in range(4)}) >= 3


@given(rows(), seeds, st.sampled_from(["permute", "rotate"]))
def test_permutation_and_rotation_keep_all_tokens(row, seed, kind):
    ids, free, starts = row
    found = NOISES[kind](NoiseInput(ids, free, starts), example_rng(seed, 0), 1.0, MASK)
    assert sorted(found.origin) == list(range(len(ids)))
    assert (found.inputs[~free] == ids[~free]).all()
    back = np.empty_like(ids)
    back[found.origin] = found.inputs
    assert (back == ids).all()


def test_sentences_stay_whole_and_all_orders_are_equally_likely():
    starts = np.array([1, 0, 0, 1, 1, 0], np.bool_)
    row = NoiseInput(np.arange(20, 26), np.ones(6, np.bool_), starts)
    seen = Counter(
        tuple(NOISES["permute"](row, example_rng(0, n), 1.0, MASK).origin.tolist()) for n in range(3000)
    )
    sentences = [(0, 1, 2), (3,), (4, 5)]
    orders = {a + b + c for a in sentences for b in sentences for c in sentences if len({a, b, c}) == 3}
    assert set(seen) == orders
    assert all(abs(count - 500) < 4.5 * np.sqrt(500) for count in seen.values())


def test_the_rate_is_the_share_of_moved_sentences():
    row = NoiseInput(np.arange(20, 220), np.ones(200, np.bool_), np.arange(200) % 2 == 0)
    moved = [
        (NOISES["permute"](row, example_rng(0, n), 0.3, MASK).origin != np.arange(200)).mean()
        for n in range(300)
    ]
    assert np.mean(moved) == pytest.approx(0.3 * 29 / 30, abs=0.01)  # one of thirty falls into its own place


def test_a_rotated_row_starts_anywhere():
    row = NoiseInput(np.arange(20, 25), np.ones(5, np.bool_), np.zeros(5, np.bool_))
    seen = Counter(int(NOISES["rotate"](row, example_rng(0, n), 1.0, MASK).inputs[0]) for n in range(5000))
    assert all(abs(seen[first] - 1000) < 4.5 * np.sqrt(1000) for first in range(20, 25))
    still = sum(
        int(NOISES["rotate"](row, example_rng(0, n), 0.25, MASK).inputs[0]) == 20 for n in range(4000)
    )
    assert still / 4000 == pytest.approx(0.75 + 0.05, abs=0.03)


@pytest.mark.parametrize("size", [8, 1000])
@pytest.mark.parametrize("kind", ["delete", "mask", "infill"])
def test_the_rate_is_kept(kind, size):
    lost = []
    for number in range(2000 if size < 50 else 100):
        ids, free, starts = long_row(size, seed=number)
        found = NOISES[kind](NoiseInput(ids, free, starts), example_rng(3, number), 0.3, MASK)
        kept = found.origin[(found.origin >= 0) & (found.inputs != MASK)]
        lost.append(1 - (len(kept) - 2) / (size - 2))
    lost = np.array(lost)
    assert abs(lost.mean() - 0.3) < 4 * lost.std() / np.sqrt(len(lost)) + 0.003


def test_infilled_spans_follow_barts_poisson_distribution():
    row = NoiseInput(np.arange(20, 3020), np.ones(3000, np.bool_), np.zeros(3000, np.bool_))
    lengths = []
    for number in range(40):
        found = infill_spans(row, example_rng(0, number), 0.3, MASK)
        assert not (np.diff(np.flatnonzero(found.inputs == MASK)) == 1).any()  # no mask beside another
        there = found.origin[found.origin >= 0]
        gone = np.ones(3000, np.bool_)
        gone[there] = False
        spans = find_runs(gone)
        new = (found.inputs == MASK).sum() - len(spans)
        lengths += [*(spans[:, 1] - spans[:, 0]), *[0] * new]
    lengths = np.array(lengths)
    assert lengths.mean() == pytest.approx(3, abs=4 * lengths.std() / np.sqrt(len(lengths)))
    assert (lengths == 0).mean() == pytest.approx(np.exp(-3), abs=0.008)


@given(st.integers(1, 12), seeds)
def test_inserted_masks_respect_the_maximum_length(size, seed):
    row = NoiseInput(
        np.arange(20, 20 + size), np.ones(size, np.bool_), np.zeros(size, np.bool_), max_length=size
    )
    assert len(infill_spans(row, example_rng(seed, 0), 0.9, MASK).inputs) <= size


def test_rates_of_0_leave_a_row_unchanged():
    ids, free, starts = long_row(50)
    found = apply_noises(NoiseInput(ids, free, starts), example_rng(0, 0), dict.fromkeys(KINDS, 0.0), MASK)
    assert (found.inputs == ids).all() and found.origin.tolist() == list(range(50))
