"""Lazy tensors, safetensors files and shards: the library's bytes, and one tensor in memory at a time."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st
from safetensors.torch import save_file
from torch import Tensor

from trifold.errors import CheckpointError
from trifold.hub.tensors import TYPE_NAMES, LazyTensors, RenamedTensors, TransformedTensors, write_tensors
from trifold.hub.weights import parse_size, read_weights, shard_names, split_into_shards, write_weights

DTYPES = st.sampled_from(list(TYPE_NAMES))
SHAPES = st.lists(st.integers(0, 5), max_size=3)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda w: w != "__metadata__")


def test_groups_are_made_on_demand_and_neighbours_once() -> None:
    made: list[str] = []

    def pair() -> list[torch.Tensor]:
        made.append("pair")
        return [torch.tensor(1), torch.tensor(2)]

    tensors = LazyTensors({("a", "b"): pair, ("c",): lambda: [torch.tensor(3)]})
    assert list(tensors) == ["a", "b", "c"] and len(tensors) == 3 and not made
    assert {name: int(tensor) for name, tensor in tensors.items()} == {"a": 1, "b": 2, "c": 3}
    assert made == ["pair"]
    assert int(tensors["a"]) == 1 and made == ["pair", "pair"]


def test_renamed_and_transformed() -> None:
    tensors = {"a": torch.tensor(1), "b": torch.tensor(2)}
    renamed = RenamedTensors({"x": (tensors, "b"), "y": (tensors, "b")})
    changed = TransformedTensors(renamed, lambda name, tensor: tensor * (2 if name == "x" else 3))
    assert {name: int(tensor) for name, tensor in changed.items()} == {"x": 4, "y": 6}
    assert len(changed) == len(renamed) == 2


@given(st.dictionaries(NAMES, st.tuples(DTYPES, SHAPES), max_size=6), st.randoms())
def test_a_file_is_byte_for_byte_that_of_the_library_and_is_read(
    tmp_path_factory: pytest.TempPathFactory, wanted: dict[str, tuple[torch.dtype, list[int]]], random: object
) -> None:
    folder = tmp_path_factory.mktemp("files")
    tensors = {
        name: (torch.randn(shape) * 100).to(dtype if dtype is not torch.bool else torch.int32).to(dtype)
        for name, (dtype, shape) in wanted.items()
    }
    shapes = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
    names = list(tensors)
    random.shuffle(names)  # type: ignore[attr-defined]
    heard: list[int] = []
    write_tensors(folder / "model.safetensors", tensors, shapes, names, heard.append)
    save_file(tensors, folder / "library", metadata={"format": "pt"})
    assert (folder / "model.safetensors").read_bytes() == (folder / "library").read_bytes()
    assert heard == [tensors[name].nbytes for name in names]
    back = read_weights(folder)
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], t) and back[name].dtype is t.dtype for name, t in tensors.items())


def test_tensors_that_are_not_contiguous_or_aligned(tmp_path: Path) -> None:
    tensor = torch.arange(12.0).view(3, 4)
    strange = {"turned": tensor.t(), "stepped": tensor[:, ::2], "repeated": torch.ones(1).expand(5)}
    write_weights(tmp_path, strange)
    back = read_weights(tmp_path)
    assert all(torch.equal(back[name], strange[name]) for name in strange)
    content = (tmp_path / "model.safetensors").read_bytes()  # as old files are
    size = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + size] + b" "
    (tmp_path / "model.safetensors").write_bytes(
        (size + 1).to_bytes(8, "little") + header + content[8 + size :]
    )
    back = read_weights(tmp_path)
    assert all(torch.equal(back[name], strange[name]) for name in strange)


class Counting(Mapping[str, Tensor]):
    """Tensors made on demand; `most` of them were alive at a time."""

    def __init__(self, count: int) -> None:
        self.count, self.most = count, 0
        self._alive: weakref.WeakSet[Tensor] = weakref.WeakSet()

    def __getitem__(self, name: str) -> Tensor:
        made = torch.full((100,), float(name))
        self._alive.add(made)
        self.most = max(self.most, len(self._alive))
        return made

    def __iter__(self) -> Iterator[str]:
        return map(str, range(self.count))

    def __len__(self) -> int:
        return self.count


@pytest.mark.parametrize("largest", ["1GB", "1KB"])
def test_one_tensor_is_in_memory_at_a_time(largest: str, tmp_path: Path) -> None:
    tensors = Counting(9)
    shapes = {name: torch.empty(100, device="meta") for name in tensors}
    write_weights(tmp_path, tensors, shapes=shapes, max_shard_size=largest)
    assert tensors.most == 1
    back = read_weights(tmp_path)
    assert {name: float(back[name].mean()) for name in back} == {str(n): float(n) for n in range(9)}


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="a file of Linux")
def test_a_file_is_mapped_once_and_a_released_tensor_is_not_in_memory(tmp_path: Path) -> None:
    write_weights(tmp_path, {name: torch.full((10**6,), float(n)) for n, name in enumerate("abc")})
    weights = read_weights(tmp_path)

    def resident() -> list[int]:
        """Kilobytes in memory of each mapping of the file."""
        parts = Path("/proc/self/smaps").read_text("utf-8").split(str(tmp_path))[1:]
        return [int(part.partition("Rss:")[2].split()[0]) for part in parts]

    total = sum(float(weights[name].sum()) for name in "abc")
    kept = weights["b"]
    assert (total, float(kept[0])) == (3 * 10**6, 1)
    assert len(resident()) == 1 and resident()[0] < 1000
    assert float(kept.sum()) == 10**6 and resident()[0] > 3000


# --- shards ----------------------------------------------------------------------------------------------


def test_sizes() -> None:
    sizes = {"5GB": 5 * 10**9, "1.5 kb": 1500, "2MiB": 2 * 2**20, "700": 700, "3B": 3, "1TB": 10**12}
    assert {text: parse_size(text) for text in sizes} == sizes
    assert parse_size(12) == 12


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.integers(1, 60))
def test_every_tensor_is_in_one_shard_in_order_and_no_shard_has_space_for_the_next(
    sizes: list[int], limit: int
) -> None:
    tensors = {f"t{n}": torch.empty(size, dtype=torch.uint8) for n, size in enumerate(sizes)}
    shards = split_into_shards(tensors, limit)
    assert [name for shard in shards for name in shard] == list(tensors)
    used = [sum(len(tensors[name]) for name in shard) for shard in shards]
    for place, shard in enumerate(shards):
        assert shard and (used[place] <= limit or len(tensors[shard[0]]) > limit)
        if place:
            assert used[place - 1] + len(tensors[shard[0]]) > limit


def test_a_single_file_has_no_number() -> None:
    assert shard_names(1) == ["model.safetensors"]
    assert shard_names(12)[-1] == "model-00012-of-00012.safetensors"


def test_shards_are_measured_in_the_precision_that_is_written(tmp_path: Path) -> None:
    tensors = {f"{number}": torch.randn(100).bfloat16() for number in range(8)}  # 200 bytes each
    write_weights(tmp_path, tensors, max_shard_size=600)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text(encoding="utf-8"))
    assert index["metadata"]["total_size"] == 1600
    held: dict[str, list[str]] = {}
    for name, file in index["weight_map"].items():
        held.setdefault(file, []).append(name)
    assert [len(names) for names in held.values()] == [3, 3, 2]


def test_a_disk_error_leaves_the_old_file(tmp_path: Path) -> None:
    write_weights(tmp_path, {"a": torch.zeros(3)})
    before = (tmp_path / "model.safetensors").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be written \(No space left"):
        write_weights(tmp_path, {"a": torch.ones(3)}, on_written=full)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert (tmp_path / "model.safetensors").read_bytes() == before
