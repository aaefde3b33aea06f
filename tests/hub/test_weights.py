"""Shards and their index. More files with errors are in test_hostile.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st
from safetensors.torch import save_file

from trifold.errors import CheckpointError
from trifold.hub.weights import (
    parse_size,
    read_weights,
    shard_names,
    split_into_shards,
    write_weights,
)


def test_sizes_are_parsed() -> None:
    sizes = {
        "5GB": 5 * 10**9,
        "1.5 kb": 1500,
        "2MiB": 2 * 2**20,
        "700": 700,
        "3B": 3,
        "1TB": 10**12,
    }
    assert {text: parse_size(text) for text in sizes} == sizes
    assert parse_size(12) == 12


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.integers(1, 60))
def test_shards_are_filled_in_order(sizes: list[int], limit: int) -> None:
    tensors = {f"t{n}": torch.empty(size, dtype=torch.uint8) for n, size in enumerate(sizes)}
    shards = split_into_shards(tensors, limit)
    assert [name for shard in shards for name in shard] == list(tensors)
    used = [sum(len(tensors[name]) for name in shard) for shard in shards]
    for index, shard in enumerate(shards):
        assert shard and (used[index] <= limit or len(tensors[shard[0]]) > limit)
        if index:
            assert used[index - 1] + len(tensors[shard[0]]) > limit


def test_shards_are_numbered_and_a_single_file_is_not() -> None:
    assert shard_names(1) == ["model.safetensors"]
    assert shard_names(12)[-1] == "model-00012-of-00012.safetensors"


def test_shards_are_measured_in_the_stored_precision(tmp_path: Path) -> None:
    tensors = {f"{number}": torch.randn(100).bfloat16() for number in range(8)}  # 200 bytes each
    write_weights(tmp_path, tensors, max_shard_size=600)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text(encoding="utf-8"))
    assert index["metadata"]["total_size"] == 1600
    names_of_shard: dict[str, list[str]] = {}
    for name, file in index["weight_map"].items():
        names_of_shard.setdefault(file, []).append(name)
    assert [len(names) for names in names_of_shard.values()] == [3, 3, 2]


def test_a_disk_error_leaves_the_old_file(tmp_path: Path) -> None:
    write_weights(tmp_path, {"a": torch.zeros(3)})
    before = (tmp_path / "model.safetensors").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(
        CheckpointError, match=r"model\.safetensors: cannot be written \(No space left"
    ):
        write_weights(tmp_path, {"a": torch.ones(3)}, on_written=full)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_an_index_that_disagrees_with_its_shards_lists_all_problems(tmp_path: Path) -> None:
    first, second = shard_names(2)
    save_file({"a": torch.ones(1)}, tmp_path / first)
    save_file({"b": torch.ones(1)}, tmp_path / second)
    index = {"metadata": {}, "weight_map": {"a": first, "c": second}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(
        CheckpointError, match=r"index\.json: the index and its shards disagree"
    ) as caught:
        read_weights(tmp_path)
    assert str(caught.value).splitlines()[1:] == [
        "  'b' is in model-00002-of-00002.safetensors, and not in the index",
        "  'c' is listed in model-00002-of-00002.safetensors and is not there",
    ]
