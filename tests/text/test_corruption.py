"""Masks, BART's noises, T5's sentinels and orders of prediction: contents, rates and distributions."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tests.text.corruptions import (
    CORRUPTIONS,
    MASK,
    SENTINELS,
    SPECIAL,
    long_row,
    mask_row,
    restored,
    rows,
)

from trifold.text.corruption import (
    MASK_CHOICES,
    NOISES,
    PREDICTION_CHOICES,
    NoiseInput,
    apply_noises,
    corrupt_spans,
    draw_noise_mask,
    draw_ranks,
    infill_spans,
    max_spans,
)
from trifold.text.spans import example_rng, find_runs, find_words

seeds = st.integers(0, 2**64 - 1)
every_mask = pytest.mark.parametrize("kind", MASK_CHOICES)


# --- every corruption -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("corrupt", CORRUPTIONS.values(), ids=CORRUPTIONS)
@given(row=rows(), seed=seeds, rate=st.sampled_from([0.1, 0.3, 0.6, 1.0]))
def test_equal_generators_give_equal_rows_and_the_input_is_unchanged(corrupt, row, seed, rate):
    before = [array.copy() for array in row]
    first, second = (corrupt(*row, example_rng(seed, 7), rate) for _ in range(2))
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    assert all((a == b).all() for a, b in zip(row, before, strict=True))


@pytest.mark.parametrize("corrupt", CORRUPTIONS.values(), ids=CORRUPTIONS)
def test_examples_and_epochs_differ(corrupt):
    row, keys = long_row(200), [(1, 1), (1, 2), (2, 1), (2, 2)]
    found = {tuple(corrupt(*row, example_rng(*key), 0.5)[0].tolist()) for key in keys}
    assert len(found) >= 3  # a row may stay as it is


@pytest.mark.parametrize("corrupt", CORRUPTIONS.values(), ids=CORRUPTIONS)
@pytest.mark.parametrize("ids", [[], [5, 6], [5, 6, 7]])
def test_rows_without_free_tokens_are_unchanged(corrupt, ids):
    nothing = np.zeros(len(ids), np.bool_)
    inputs, *_ = corrupt(np.array(ids, np.int64), nothing, nothing, example_rng(0, 0), 0.5)
    assert inputs.tolist() in (ids, [])


# --- masks ----------------------------------------------------------------------------------------


@given(st.sampled_from(list(MASK_CHOICES)), rows(), seeds, st.sampled_from([0.15, 0.5, 0.9]))
def test_masked_row_can_be_restored_and_special_tokens_stay(kind, row, seed, rate):
    ids, free, starts = row
    found = mask_row(kind, ids, free, starts, example_rng(seed, 0), rate)
    assert (found.original == ids).all() and len(found.inputs) == len(ids)
    assert (found.targets == ids[found.positions]).all()
    assert free[found.positions].all() and (np.diff(found.positions) > 0).all()
    chosen = np.zeros(len(ids), np.bool_)
    chosen[found.positions] = True
    assert (found.inputs[~chosen] == ids[~chosen]).all()
    assert found.spans.tolist() == find_runs(chosen).tolist()


@pytest.mark.slow
@every_mask
@pytest.mark.parametrize("size", [9, 40, 700])
def test_masking_rate_is_kept_at_every_length(kind, size):
    shares = []
    for number in range(1500 if size < 50 else 100):
        ids, free, starts = long_row(size, seed=number)
        found = mask_row(kind, ids, free, starts, example_rng(0, number), 0.15)
        shares.append(len(found.positions) / free.sum())
    shares = np.array(shares)
    assert abs(shares.mean() - 0.15) < 4 * shares.std() / np.sqrt(len(shares)) + 0.001


@pytest.mark.slow
@every_mask
def test_single_token_is_masked_at_the_rate(kind):
    one = np.array([20]), np.array([True]), np.array([True])
    hidden = sum(
        len(mask_row(kind, *one, example_rng(0, number), 0.15).positions) for number in range(3000)
    )
    assert hidden / 3000 == pytest.approx(0.15, abs=0.027)


@every_mask
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


# --- noises ---------------------------------------------------------------------------------------


every_noise = st.sampled_from(list(NOISES))


@given(rows(), seeds, st.dictionaries(every_noise, st.sampled_from([0.0, 0.1, 0.3, 0.9, 1.0])))
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


@given(rows(), seeds, st.sampled_from(["mask", "delete", "infill"]))
def test_noises_that_do_not_move_tokens_keep_their_order(row, seed, kind):
    found = NOISES[kind](NoiseInput(*row), example_rng(seed, 0), 0.5, MASK)
    assert (np.diff(found.origin[found.origin >= 0]) > 0).all()


@given(rows(), seeds, st.sampled_from(["permute", "rotate"]))
def test_permutation_and_rotation_keep_all_tokens(row, seed, kind):
    ids, free, starts = row
    found = NOISES[kind](NoiseInput(ids, free, starts), example_rng(seed, 0), 1.0, MASK)
    assert sorted(found.origin) == list(range(len(ids)))
    assert (found.inputs[~free] == ids[~free]).all()
    back = np.empty_like(ids)
    back[found.origin] = found.inputs
    assert (back == ids).all()


def test_permuted_sentences_stay_whole_and_all_orders_are_equally_likely():
    starts = np.array([1, 0, 0, 1, 1, 0], np.bool_)
    row = NoiseInput(np.arange(20, 26), np.ones(6, np.bool_), starts)
    seen = Counter(
        tuple(NOISES["permute"](row, example_rng(0, n), 1.0, MASK).origin.tolist())
        for n in range(3000)
    )
    sentences = [(0, 1, 2), (3,), (4, 5)]
    orders = {
        a + b + c for a in sentences for b in sentences for c in sentences if len({a, b, c}) == 3
    }
    assert set(seen) == orders
    assert all(abs(count - 500) < 4.5 * np.sqrt(500) for count in seen.values())


def test_permutation_rate_is_the_share_of_moved_sentences():
    row = NoiseInput(np.arange(20, 220), np.ones(200, np.bool_), np.arange(200) % 2 == 0)
    moved = [
        (NOISES["permute"](row, example_rng(0, n), 0.3, MASK).origin != np.arange(200)).mean()
        for n in range(300)
    ]
    assert np.mean(moved) == pytest.approx(
        0.3 * 29 / 30, abs=0.01
    )  # one of thirty falls into its own place


@pytest.mark.slow
def test_rotated_row_starts_anywhere():
    row = NoiseInput(np.arange(20, 25), np.ones(5, np.bool_), np.zeros(5, np.bool_))
    seen = Counter(
        int(NOISES["rotate"](row, example_rng(0, n), 1.0, MASK).inputs[0]) for n in range(5000)
    )
    assert all(abs(seen[first] - 1000) < 4.5 * np.sqrt(1000) for first in range(20, 25))
    still = sum(
        int(NOISES["rotate"](row, example_rng(0, n), 0.25, MASK).inputs[0]) == 20
        for n in range(4000)
    )
    assert still / 4000 == pytest.approx(0.75 + 0.05, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("size", [8, 1000])
@pytest.mark.parametrize("kind", ["delete", "mask", "infill"])
def test_rate_of_noises_is_kept(kind, size):
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
        assert not (
            np.diff(np.flatnonzero(found.inputs == MASK)) == 1
        ).any()  # no mask beside another
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
    found = apply_noises(
        NoiseInput(ids, free, starts), example_rng(0, 0), dict.fromkeys(NOISES, 0.0), MASK
    )
    assert (found.inputs == ids).all() and found.origin.tolist() == list(range(50))


# --- sentinels ------------------------------------------------------------------------------------


rates = st.sampled_from([0.15, 0.15, 0.3, 0.5, 0.9])
means = st.sampled_from([1.0, 3.0, 3.0, 10.0])


@given(rows(), seeds, rates, means)
def test_row_with_sentinels_can_be_restored_and_special_tokens_stay(row, seed, rate, mean):
    ids, free, _ = row
    found = corrupt_spans(ids, free, example_rng(seed, 0), SENTINELS, rate, mean)
    assert restored(*found, SENTINELS) == ids.tolist()
    assert sorted(found.inputs[found.inputs < 10]) == sorted(ids[~free])
    # Every token is on one side, once; sentinels are in order on both sides.
    both = np.concatenate([found.inputs, found.targets])
    assert sorted(both[both < 1000]) == sorted(ids)
    used = SENTINELS[: (found.inputs >= 1000).sum()]
    for side in found:
        assert side[side >= 1000].tolist() == used.tolist()


@given(st.integers(2, 600), seeds, rates, means)
def test_counts_of_spans_match_the_paper(size, seed, rate, mean):
    mask = draw_noise_mask(size, example_rng(seed, 0), rate, mean)
    noise = min(max(round(size * rate), 1), size - 1)
    assert mask.sum() == noise
    spans = find_runs(mask)
    assert (
        len(spans) == min(max(round(noise / mean), 1), size - noise) <= max_spans(size, rate, mean)
    )
    if len(spans) > 1:
        assert not mask[0] and mask[-1]  # starts with kept tokens, ends with a span


def test_512_tokens_lose_77_in_26_spans():
    mask = draw_noise_mask(512, example_rng(0, 0), 0.15, 3.0)
    assert (mask.sum(), len(find_runs(mask))) == (77, 26)


@pytest.mark.slow
def test_all_partitions_into_spans_are_equally_likely():
    seen = Counter(
        tuple(draw_noise_mask(8, example_rng(0, row), 0.5, 2.0).tolist()) for row in range(3600)
    )
    assert len(seen) == 9  # 4 tokens of noise in 2 pieces, 3 ways, and as many for the others
    assert all(abs(count - 400) < 4.5 * np.sqrt(400) for count in seen.values())


def test_single_span_is_placed_anywhere():
    seen = Counter(
        int(np.argmax(draw_noise_mask(20, example_rng(0, row), 0.15, 3.0))) for row in range(3600)
    )
    assert sorted(seen) == list(range(18))  # 3 tokens of noise
    assert all(abs(count - 200) < 4.5 * np.sqrt(200) for count in seen.values())


def test_row_of_one_token_is_unchanged():
    found = corrupt_spans(np.array([20]), np.ones(1, np.bool_), example_rng(1, 1), SENTINELS)
    assert found.inputs.tolist() == [20] and not len(found.targets)


def test_too_few_sentinels_are_an_error():
    ids, free, _ = long_row(300)
    with pytest.raises(ValueError, match="spans need as many sentinels; the tokenizer has 2"):
        corrupt_spans(ids, free, example_rng(1, 1), SENTINELS[:2])


# --- orders of prediction -------------------------------------------------------------------------


flags = st.lists(st.booleans(), min_size=0, max_size=60).map(
    lambda values: np.array(values, dtype=np.bool_)
)


@given(
    flags, st.sampled_from(sorted(PREDICTION_CHOICES)), st.integers(1, 7), st.integers(1, 5), seeds
)
def test_predicted_tokens_are_free_and_unique(free, choice, share, longest, draw):
    found = PREDICTION_CHOICES[choice](free, share, longest, example_rng(draw, 3)).tolist()
    assert len(set(found)) == len(found)
    assert free[found].all()
    if share == 1:
        assert sorted(found) == np.flatnonzero(free).tolist()


@pytest.mark.parametrize("choice", sorted(PREDICTION_CHOICES))
@pytest.mark.parametrize("size", [5, 31, 200])
def test_share_of_predicted_tokens_is_kept_at_every_length(choice, size):
    free, share, rounds = np.ones(size, np.bool_), 6, 3000
    counts = np.array(
        [
            len(PREDICTION_CHOICES[choice](free, share, 5, example_rng(1, row)))
            for row in range(rounds)
        ]
    )
    error = counts.std() / np.sqrt(rounds)
    assert counts.mean() == pytest.approx(size / share, abs=4 * error + 1e-9)


def test_every_token_is_predicted_equally_often():
    seen = np.zeros(40)
    for row in range(6000):
        seen[PREDICTION_CHOICES["tokens"](np.ones(40, np.bool_), 4, 5, example_rng(2, row))] += 1
    assert seen / 6000 == pytest.approx(np.full(40, 0.25), abs=0.03)


def test_predicted_spans_are_at_most_the_longest_within_their_context():
    lengths = set()
    for row in range(300):
        flagged = np.zeros(240, np.bool_)
        flagged[PREDICTION_CHOICES["spans"](np.ones(240, np.bool_), 6, 4, example_rng(3, row))] = (
            True
        )
        found = find_runs(flagged)
        # Two neighbouring spans may touch, three may not.
        assert (found[:, 1] - found[:, 0]).max() <= 8
        lengths |= set((found[:, 1] - found[:, 0]).tolist())
    assert {1, 2, 3, 4} <= lengths


@given(flags, seeds)
def test_ranks_number_the_positions_and_are_0_elsewhere(free, draw):
    places = np.flatnonzero(free)
    ranks = draw_ranks(places, len(free), example_rng(draw, 0))
    assert sorted(ranks[places].tolist()) == list(range(1, len(places) + 1))
    assert not ranks[~free].any()


def test_all_orders_are_drawn():
    found = {tuple(draw_ranks(np.arange(3), 3, example_rng(9, row)).tolist()) for row in range(200)}
    assert len(found) == 6
