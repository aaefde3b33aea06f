"""T5's span corruption, with the distribution of the authors' code."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tests.text.noise_rows import SENTINELS, long_row, restored, rows

from trifold.text.corruption import corrupt_spans, draw_noise_mask, max_spans
from trifold.text.spans import example_rng, find_runs

seeds = st.integers(0, 2**64 - 1)
rates = st.sampled_from([0.15, 0.15, 0.3, 0.5, 0.9])
means = st.sampled_from([1.0, 3.0, 3.0, 10.0])


@given(rows(), seeds, rates, means)
def test_the_row_can_be_restored_and_special_tokens_stay(row, seed, rate, mean):
    ids, free, _ = row
    found = corrupt_spans(ids, free, example_rng(seed, 0), SENTINELS, rate, mean)
    assert restored(*found, SENTINELS) == ids.tolist()
    assert sorted(found.inputs[found.inputs < 10]) == sorted(ids[~free])
    # Every token is on one side, once; sentinels stand in order, on both sides.
    both = np.concatenate([found.inputs, found.targets])
    assert sorted(both[both < 1000]) == sorted(ids)
    used = SENTINELS[: (found.inputs >= 1000).sum()]
    for side in found:
        assert side[side >= 1000].tolist() == used.tolist()


@given(st.integers(2, 600), seeds, rates, means)
def test_counts_match_the_paper(size, seed, rate, mean):
    mask = draw_noise_mask(size, example_rng(seed, 0), rate, mean)
    noise = min(max(round(size * rate), 1), size - 1)
    assert mask.sum() == noise
    spans = find_runs(mask)
    assert len(spans) == min(max(round(noise / mean), 1), size - noise) <= max_spans(size, rate, mean)
    if len(spans) > 1:
        assert not mask[0] and mask[-1]  # begins with what stays, ends with a span


def test_512_tokens_lose_77_in_26_spans():
    mask = draw_noise_mask(512, example_rng(0, 0), 0.15, 3.0)
    assert (mask.sum(), len(find_runs(mask))) == (77, 26)


def test_all_partitions_are_equally_likely():
    seen = Counter(tuple(draw_noise_mask(8, example_rng(0, row), 0.5, 2.0).tolist()) for row in range(3600))
    assert len(seen) == 9  # 4 tokens of noise in 2 pieces, 3 ways, and as many for the others
    assert all(abs(count - 400) < 4.5 * np.sqrt(400) for count in seen.values())


def test_a_single_span_is_placed_anywhere():
    seen = Counter(int(np.argmax(draw_noise_mask(20, example_rng(0, row), 0.15, 3.0))) for row in range(3600))
    assert sorted(seen) == list(range(18))  # 3 tokens of noise
    assert all(abs(count - 200) < 4.5 * np.sqrt(200) for count in seen.values())


def test_rows_of_0_and_1_tokens_are_unchanged():
    for size in (0, 1):
        ids = np.arange(20, 20 + size)
        found = corrupt_spans(ids, np.ones(size, np.bool_), example_rng(1, 1), SENTINELS)
        assert (found.inputs == ids).all() and not len(found.targets)


def test_a_row_without_free_tokens_is_unchanged():
    ids = np.array([5, 6, 7])
    found = corrupt_spans(ids, np.zeros(3, np.bool_), example_rng(1, 1), SENTINELS)
    assert (found.inputs == ids).all() and not len(found.targets)


def test_seeds_and_examples_determine_the_result():
    ids, free, _ = long_row(300)
    found = {
        key: tuple(corrupt_spans(ids, free, example_rng(*key), SENTINELS).inputs)
        for key in [(1, 1), (1, 2), (2, 1)]
    }
    assert len(set(found.values())) == 3
    assert tuple(corrupt_spans(ids, free, example_rng(1, 1), SENTINELS).inputs) == found[1, 1]


def test_too_few_sentinels_are_an_error():
    ids, free, _ = long_row(300)
    with pytest.raises(ValueError, match="spans need as many sentinels; the tokenizer has 2"):
        corrupt_spans(ids, free, example_rng(1, 1), SENTINELS[:2])
