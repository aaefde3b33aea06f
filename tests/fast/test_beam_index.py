"""The beam index equals moved keys."""

from __future__ import annotations

import torch
from hypothesis import given, strategies as st

from trifold.fast.beam_index import current_index
from trifold.nn.cache import Cache, SlidingKeys


@given(st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), max_size=6), st.integers(1, 3))
def test_a_beam_index_equals_moved_keys(moves: list[list[int]], prompt: int) -> None:
    moved, indexed = Cache(2), Cache(2)
    generator = torch.Generator().manual_seed(0)
    for step, parents in enumerate([None, *moves]):
        for cache in (moved, indexed):
            if parents is not None:
                cache.reorder(torch.tensor(parents))
        random_chunk = torch.randn(2, 2, 4, 3, prompt if step == 0 else 1, 5, generator=generator)
        for layer, (keys, values) in enumerate(random_chunk):
            for cache in (moved, indexed):
                cache.layers[layer].past.update(keys, values)
        index = current_index(indexed)
        assert index is None or index.shape[1] > indexed.length
    indexed.move_keys()
    assert indexed.row_order is None
    for ours, theirs in zip(indexed.layers, moved.layers, strict=True):
        assert ours.past.buffers is not None and theirs.past.buffers is not None
        for one, other in zip(ours.past.buffers, theirs.past.buffers, strict=True):
            assert torch.equal(one[:, :, : moved.length], other[:, :, : moved.length])


def test_selection_applies_the_beam_index() -> None:
    cache = Cache(1)
    assert current_index(cache) is None
    keys = torch.randn(4, 2, 3, 5)
    cache.layers[0].past.update(keys, keys)
    cache.reorder(torch.tensor([1, 1, 3, 2]))
    cache.select(torch.tensor([0, 2]), torch.tensor([0]))
    held = cache.layers[0].past.buffers
    assert held is not None and torch.equal(held[0][:, :, :3], keys[[1, 3]])


def test_windows_evict_keys_of_moved_rows() -> None:
    cache = Cache([SlidingKeys(4)])
    assert current_index(cache) is None and cache.row_order is None
