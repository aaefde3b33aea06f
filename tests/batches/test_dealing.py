"""Ranks and workers together train on every row of every batch exactly once."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from trifold.batches import ShuffledRows, deal_batch, split_batch


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
