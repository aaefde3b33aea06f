from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from trifold.hub.sharding import cut, file_names, size_of


def test_sizes() -> None:
    said = {"5GB": 5 * 10**9, "1.5 kb": 1500, "2MiB": 2 * 2**20, "700": 700, "3B": 3, "1TB": 10**12}
    assert {text: size_of(text) for text in said} == said
    assert size_of(12) == 12


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.integers(1, 60))
def test_every_tensor_is_in_one_shard_in_order_and_no_shard_could_take_more(
    sizes: list[int], limit: int
) -> None:
    tensors = {f"t{n}": torch.empty(size, dtype=torch.uint8) for n, size in enumerate(sizes)}
    shards = cut(tensors, limit)
    assert [name for shard in shards for name in shard] == list(tensors)
    filled = [sum(len(tensors[name]) for name in shard) for shard in shards]
    for place, shard in enumerate(shards):
        assert shard and (filled[place] <= limit or len(tensors[shard[0]]) > limit)
        if place:
            assert filled[place - 1] + len(tensors[shard[0]]) > limit


def test_one_file_is_no_shard() -> None:
    assert file_names(1) == ["model.safetensors"]
    assert file_names(12)[-1] == "model-00012-of-00012.safetensors"
