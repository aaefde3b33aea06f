"""Rows of a stream contain every token once, in a computed order."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, strategies as st

from trifold.batches import Blocks, ShuffledRows

pytestmark = pytest.mark.slow


def offsets_of(lengths: list[int]) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)


LENGTHS = st.lists(st.one_of(st.integers(1, 4), st.integers(1, 60)), min_size=1, max_size=40)


@given(
    lengths=LENGTHS, width=st.integers(1, 30), shift=st.integers(0, 29), skip_last=st.integers(0, 1)
)
def test_every_token_is_in_one_row(
    lengths: list[int], width: int, shift: int, skip_last: int
) -> None:
    starts = offsets_of(lengths)
    blocks = Blocks(starts, width, shift % width, skip_last)
    if not blocks.tokens:
        return
    found: Counter[int] = Counter()
    for row in range(len(blocks)):
        begins, sizes = blocks.select(np.array([row]))
        documents = np.searchsorted(starts, begins, side="right") - 1
        assert 1 <= sizes.sum() <= width
        assert sizes.sum() == width or row in (0, len(blocks) - 1)
        for document, begin, size in zip(documents, begins, sizes, strict=True):
            assert starts[document] <= begin < begin + size <= starts[document + 1] - skip_last
            found.update(range(begin, begin + size))
    skipped = {end - 1 for end in starts[1:]} if skip_last else set()
    assert found == Counter(set(range(starts[-1])) - skipped)


@given(
    lengths=LENGTHS,
    width=st.integers(1, 30),
    rows=st.lists(st.integers(0, 10**6), min_size=1, max_size=9),
)
def test_chunks_of_several_rows_equal_those_of_each_row(
    lengths: list[int], width: int, rows: list[int]
) -> None:
    blocks = Blocks(offsets_of(lengths), width, 7 % width, skip_last=1)
    if not blocks.tokens:
        return
    chosen = np.array(rows) % len(blocks)
    together = blocks.select(chosen)
    alone = [blocks.select(chosen[n : n + 1]) for n in range(len(chosen))]
    for number, found in enumerate(together):
        assert found.tolist() == [value for one in alone for value in one[number]]


@given(
    rows=st.integers(1, 600),
    size=st.integers(1, 70),
    seed=st.integers(0, 9),
    epoch=st.integers(0, 9),
)
def test_the_order_is_a_permutation(rows: int, size: int, seed: int, epoch: int) -> None:
    plan = ShuffledRows(rows, size, seed=seed, epoch=epoch)
    assert sorted(row for batch in plan for row in batch.tolist()) == list(range(rows))
    assert [len(batch) for batch in plan][:-1] == [size] * (len(plan) - 1)
    assert plan[-1].tolist() == plan[len(plan) - 1].tolist()
    with pytest.raises(IndexError):
        plan[len(plan)]


def test_the_order_looks_random() -> None:
    """Fixed points, descents and matches between epochs are as frequent as in a random shuffle."""
    count = 20_000
    first, second = (
        np.concatenate(list(ShuffledRows(count, 500, seed=1, epoch=epoch))) for epoch in (0, 1)
    )
    assert np.count_nonzero(first == np.arange(count)) < 8
    assert np.count_nonzero(first == second) < 8
    assert abs(np.count_nonzero(np.diff(first) < 0) / count - 0.5) < 0.02
    assert abs(np.corrcoef(first, np.arange(count))[0, 1]) < 0.03
    halves = first.reshape(-1, 500) < count // 2  # each batch samples the whole corpus
    assert np.abs(halves.mean(axis=1) - 0.5).max() < 0.1


def test_a_plan_of_any_size_takes_no_time() -> None:
    plan = ShuffledRows(10**12, 64, seed=1, epoch=0)
    batch = plan[10**9]
    assert len(set(batch.tolist())) == 64
    assert 0 <= batch.min() < batch.max() < 10**12


def test_lengths_take_no_memory() -> None:
    blocks = Blocks(np.array([0, 10**12]), 1000)
    assert blocks.lengths.shape == (10**9, 1)
    assert blocks.lengths.strides == (0, 0)
