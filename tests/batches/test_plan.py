"""A plan contains every row once, respects the limits, and is a pure function."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from trifold.batches import (
    BatchSettings,
    ShuffledRows,
    deal_batch,
    overlong,
    padding_share,
    plan_epoch,
    split_batch,
)
from trifold.errors import DataError, SettingsError

PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=80).map(
    lambda rows: np.array(rows, dtype=np.int64).reshape(-1, 2)
)
SINGLES = st.lists(st.integers(0, 60), max_size=80).map(
    lambda rows: np.array(rows, dtype=np.int32).reshape(-1, 1)
)
LENGTHS = st.one_of(PAIRS, SINGLES)
SETTINGS = st.builds(
    BatchSettings,
    tokens=st.integers(2, 300),
    rows=st.one_of(st.none(), st.integers(1, 9)),
)


def packed_size(lengths: Any, batch: Any) -> int:
    """Tokens of the longer side, plus the position that a packed row keeps free."""
    return int(lengths[batch].sum(axis=0).max()) + 1


@given(LENGTHS, SETTINGS, st.integers(0, 2**40), st.integers(0, 99), st.booleans())
def test_every_row_is_in_exactly_one_batch_and_limits_are_kept(
    lengths: Any, settings: BatchSettings, seed: int, epoch: int, shuffle: bool
) -> None:
    plan = plan_epoch(lengths, settings, seed=seed, epoch=epoch, shuffle=shuffle)
    assert sorted(np.concatenate([np.empty(0, np.int64), *plan]).tolist()) == list(
        range(len(lengths))
    )
    for batch in plan:
        assert len(batch) == 1 or packed_size(lengths, batch) <= settings.tokens
        assert 1 <= len(batch) <= (settings.rows or len(lengths))


@given(LENGTHS, SETTINGS)
def test_batches_are_as_large_as_the_order_allows(lengths: Any, settings: BatchSettings) -> None:
    plan = plan_epoch(lengths, settings, seed=0, epoch=0, shuffle=False)
    for batch, following in pairwise(plan):
        more = np.append(batch, following[0])
        assert packed_size(lengths, more) > settings.tokens or len(more) > (
            settings.rows or len(lengths)
        )


@given(LENGTHS, SETTINGS, st.integers(0, 2**40))
def test_a_plan_is_a_pure_function(lengths: Any, settings: BatchSettings, seed: int) -> None:
    before = lengths.copy()
    one, two = (plan_epoch(lengths, settings, seed=seed, epoch=3) for _ in range(2))
    assert [batch.tolist() for batch in one] == [batch.tolist() for batch in two]
    assert np.array_equal(lengths, before)


def many(rows: int) -> Any:
    rng = np.random.default_rng(0)
    source = rng.poisson(12, rows) + 1
    return np.stack([source, np.maximum(1, source + rng.integers(-4, 5, rows))], axis=1)


def test_epochs_and_seeds_differ_in_order_and_in_composition() -> None:
    lengths, settings = many(3000), BatchSettings(tokens=512)
    plans = [
        plan_epoch(lengths, settings, seed=seed, epoch=epoch)
        for seed, epoch in [(0, 0), (0, 1), (1, 0)]
    ]
    for i, plan in enumerate(plans):
        for other in plans[:i]:
            assert [len(batch) for batch in plan] != [len(batch) for batch in other]
            shared = {frozenset(batch.tolist()) for batch in plan} & {
                frozenset(b.tolist()) for b in other
            }
            assert len(shared) < len(plan) / 10


def test_without_shuffling_rows_are_sorted_by_length() -> None:
    lengths = many(500)
    order = np.concatenate(
        plan_epoch(lengths, BatchSettings(tokens=300), seed=0, epoch=0, shuffle=False)
    )
    assert (np.diff(lengths[order, 1]) >= 0).all()
    equal = (np.diff(lengths[order], axis=0) == 0).all(axis=1)
    assert (np.diff(order)[equal] > 0).all()


def test_a_recorded_plan_does_not_change() -> None:
    """Resuming relies on it: other numbers break existing runs."""
    lengths = np.array([[3, 4], [9, 9], [1, 2], [4, 4], [2, 2], [8, 9]])
    plan = plan_epoch(lengths, BatchSettings(tokens=12), seed=7, epoch=2)
    assert [batch.tolist() for batch in plan] == [[1], [2, 4, 0], [3], [5]]


def test_sorted_batches_need_little_padding() -> None:
    lengths = many(20_000)
    plan = plan_epoch(lengths, BatchSettings(tokens=4096), seed=0, epoch=0)
    assert padding_share(lengths[:, 1:], plan) < 0.02
    assert padding_share(lengths, plan) < 0.08
    at_random = np.array_split(np.random.default_rng(0).permutation(len(lengths)), len(plan))
    assert padding_share(lengths, at_random) > 0.3


def test_padding_is_counted_per_side() -> None:
    lengths = np.array([[2, 4], [4, 1]])
    assert padding_share(lengths, [np.array([0, 1])]) == pytest.approx(1 - 11 / 16)
    assert padding_share(lengths[:, 1:], [np.array([0, 1])]) == pytest.approx(1 - 5 / 8)
    assert padding_share(lengths, [np.array([0]), np.array([1])]) == 0
    assert padding_share(lengths, []) == 0


# --- overlong rows --------------------------------------------------------------------------------

LONG = np.array([[5, 5], [11, 2], [3, 12], [10, 10]])


def test_overlong_rows_are_dropped_truncated_or_rejected() -> None:
    drop, truncate, fail = (
        BatchSettings.parse({"tokens": 20, "max_length": 10, "on_overflow": way})
        for way in ("drop", "truncate", "error")
    )
    assert overlong(LONG, drop).tolist() == [False, True, True, False]
    assert sorted(np.concatenate(plan_epoch(LONG, drop, seed=0, epoch=0))) == [0, 3]
    plan = plan_epoch(LONG, truncate, seed=0, epoch=0)
    assert sorted(np.concatenate(plan)) == [0, 1, 2, 3]
    assert all(packed_size(np.minimum(LONG, 10), batch) <= 20 or len(batch) == 1 for batch in plan)
    with pytest.raises(
        DataError, match=r"row 2: 12 tokens, more than batch\.max_length=10 \(2 such rows\)"
    ):
        plan_epoch(LONG, fail, seed=0, epoch=0)


def test_a_row_longer_than_a_batch_forms_its_own_batch_or_is_rejected() -> None:
    plan = plan_epoch(LONG, BatchSettings(tokens=11), seed=0, epoch=0)
    assert sorted(map(len, plan)) == [1, 1, 1, 1]
    with pytest.raises(
        DataError, match=r"row 2: 12 tokens, more than batch\.tokens=11 \(1 such rows\)"
    ):
        plan_epoch(LONG, BatchSettings(tokens=11, on_overflow="error"), seed=0, epoch=0)


def test_a_plan_without_rows_is_an_error() -> None:
    with pytest.raises(DataError, match="no rows remain: all 4 are longer than 2 tokens"):
        plan_epoch(LONG, BatchSettings(max_length=2), seed=0, epoch=0)
    assert plan_epoch(LONG[:0], BatchSettings(max_length=2), seed=0, epoch=0) == []


@pytest.mark.parametrize(
    "values", [{"tokens": 0}, {"rows": 0}, {"on_overflow": "cut"}, {"token": 5}]
)
def test_errors_name_the_key(values: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=rf"batches\.{next(iter(values))}: "):
        BatchSettings.parse(values, at="batches")


def test_wrong_shapes_are_rejected() -> None:
    for shape in [(4,), (4, 3), (4, 2, 1)]:
        with pytest.raises(ValueError, match="expected"):
            plan_epoch(np.ones(shape, dtype=int), BatchSettings(), seed=0, epoch=0)


def test_a_plan_for_165_000_rows_takes_less_than_a_second() -> None:
    lengths = many(165_000)
    start = time.process_time()
    plan_epoch(lengths, BatchSettings(tokens=4096), seed=0, epoch=0)
    assert time.process_time() - start < 1


# --- ranks and workers ----------------------------------------------------------------------------


@given(
    batches=st.integers(1, 12),
    worlds=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    accumulate=st.integers(1, 4),
    workers=st.integers(1, 3),
    size=st.integers(1, 9),
)
def test_every_row_is_dealt_once_also_if_the_number_of_ranks_changes(
    batches: int, worlds: tuple[int, int], accumulate: int, workers: int, size: int
) -> None:
    plan = ShuffledRows(batches * size, size, seed=1, epoch=0)
    lengths = np.random.default_rng(batches).integers(1, 30, (batches * size, 2))
    change = batches // 2 // accumulate * accumulate
    for number, batch in enumerate(plan):
        world = worlds[number >= change]
        shares = [
            deal_batch(
                lengths, batch, number % accumulate,
                accumulate=accumulate, rank=rank, world=world, workers=workers,
            )
            for rank in range(world)
        ]  # fmt: skip
        rows = np.concatenate([part for share in shares for part in share.parts])
        assert sorted(rows) == sorted(batch)
        assert all(len(share.parts) <= workers for share in shares)
        if accumulate % world == 0:
            assert [bool(share.parts) for share in shares] == [
                number % accumulate % world == r for r in range(world)
            ]
            assert not any(share.idle for share in shares)
        else:  # every rank computes something in every batch
            assert all(bool(share.parts) != bool(share.idle) for share in shares)


@given(st.integers(1, 60), st.integers(1, 8), st.integers(0, 99))
def test_the_parts_of_a_batch_have_similar_sizes(rows: int, parts: int, seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(5, 30, (100, 2))
    batch = np.random.default_rng(seed).permutation(100)[:rows]
    split = split_batch(lengths, batch, parts)
    assert len(split) == min(parts, rows) and all(len(part) for part in split)
    assert sorted(np.concatenate(split)) == sorted(batch)
    tokens = [int(lengths[part].sum()) for part in split]
    assert max(tokens) - min(tokens) <= 60  # at most the longest row
