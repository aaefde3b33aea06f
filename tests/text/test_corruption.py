"""Masking: rates, replacements, and that the row can be restored."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tests.text.noise_rows import MASK, SPECIAL, long_row, mask_row, rows

from trifold.text.corruption import MASK_CHOICES
from trifold.text.spans import example_rng, find_runs, find_words

KINDS = list(MASK_CHOICES)
seeds = st.integers(0, 2**64 - 1)


@given(st.sampled_from(KINDS), rows(), seeds, st.sampled_from([0.15, 0.5, 0.9]))
def test_the_row_can_be_restored_and_special_tokens_stay(kind, row, seed, rate):
    ids, free, starts = row
    before = ids.copy()
    found = mask_row(kind, ids, free, starts, example_rng(seed, 0), rate)
    assert (ids == before).all()
    assert (found.original == ids).all() and len(found.inputs) == len(ids)
    assert (found.targets == ids[found.positions]).all()
    assert free[found.positions].all() and (np.diff(found.positions) > 0).all()
    chosen = np.zeros(len(ids), np.bool_)
    chosen[found.positions] = True
    assert (found.inputs[~chosen] == ids[~chosen]).all()
    assert found.spans.tolist() == find_runs(chosen).tolist()


@given(st.sampled_from(KINDS), rows(), seeds)
def test_equal_generators_give_equal_masks(kind, row, seed):
    first, second = (mask_row(kind, *row, example_rng(seed, 7), 0.3) for _ in range(2))
    assert all((a == b).all() for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_examples_and_epochs_differ(kind):
    row = long_row(200)
    found = {
        tuple(mask_row(kind, *row, example_rng(draw, number), 0.15).positions)
        for draw in (1, 2)
        for number in (1, 2)
    }
    assert len(found) == 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [9, 40, 700])
def test_the_rate_is_kept_at_every_length(kind, size):
    shares = []
    for number in range(1500 if size < 50 else 100):
        ids, free, starts = long_row(size, seed=number)
        shares.append(
            len(mask_row(kind, ids, free, starts, example_rng(0, number), 0.15).positions) / free.sum()
        )
    shares = np.array(shares)
    assert abs(shares.mean() - 0.15) < 4 * shares.std() / np.sqrt(len(shares)) + 0.001


@pytest.mark.parametrize("kind", KINDS)
def test_replacements_are_80_10_10(kind):
    row = long_row(20_000)
    found = [mask_row(kind, *row, example_rng(0, number), 0.15) for number in range(3)]
    inputs = np.concatenate([each.inputs[each.positions] for each in found])
    targets = np.concatenate([each.targets for each in found])
    masked, same = (inputs == MASK).mean(), (inputs == targets).mean()
    error = 4 * np.sqrt(0.16 / len(inputs) * (3.8 if kind == "spans" else 1) * 1.7)
    assert masked == pytest.approx(0.8, abs=error)
    assert same == pytest.approx(0.1 + 0.1 / 490, abs=error)
    others = inputs[(inputs != MASK) & (inputs != targets)]
    assert others.min() >= SPECIAL and len(set(others.tolist())) > 300  # any ordinary token


@pytest.mark.parametrize("kind", ["words", "spans"])
@given(row=rows(), seed=seeds)
def test_words_are_masked_whole(kind, row, seed):
    ids, free, starts = row
    hidden = set(mask_row(kind, ids, free, starts, example_rng(seed, 0), 0.3).positions.tolist())
    for start, end in find_words(free, starts):
        assert len(hidden.intersection(range(start, end))) in (0, end - start)


def test_spans_have_spanbert_lengths_and_one_replacement_each():
    ids, free, starts = long_row(3000)
    starts = np.ones_like(starts)  # words of one token each: lengths can be counted
    found = [mask_row("spans", ids, free, starts, example_rng(0, number)) for number in range(60)]
    lengths = np.concatenate([each.spans[:, 1] - each.spans[:, 0] for each in found])
    assert lengths.max() == 10
    assert lengths.mean() == pytest.approx(3.8, abs=4 * lengths.std() / np.sqrt(len(lengths)))
    for each in found:
        for start, end in each.spans:
            masked = each.inputs[start:end] == MASK
            assert masked.all() or not masked.any()


@given(row=rows(), seed=seeds)
def test_tokens_on_both_sides_of_a_span_stay_visible(row, seed):
    ids, free, starts = row
    found = mask_row("spans", ids, free, starts, example_rng(seed, 0), 0.4)
    for start, end in found.spans:
        assert start == 0 or start - 1 not in found.positions
        assert end not in found.positions


@pytest.mark.parametrize("kind", KINDS)
def test_empty_rows_and_rows_without_free_tokens_are_unchanged(kind):
    for ids, free in (
        (np.zeros(0, np.int64), np.zeros(0, np.bool_)),
        (np.array([5, 6]), np.zeros(2, np.bool_)),
    ):
        found = mask_row(kind, ids, free, np.zeros(len(ids), np.bool_), example_rng(0, 0), 0.5)
        assert (found.inputs == ids).all() and not len(found.positions) and found.spans.shape == (0, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_token_is_masked_at_the_rate(kind):
    one = np.array([20]), np.array([True]), np.array([True])
    hidden = sum(len(mask_row(kind, *one, example_rng(0, number), 0.15).positions) for number in range(3000))
    assert hidden / 3000 == pytest.approx(0.15, abs=0.027)
