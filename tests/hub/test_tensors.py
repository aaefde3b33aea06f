"""Lazy tensors and safetensors files: the bytes of the library, and one tensor in memory at a time."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st
from safetensors.torch import save_file
from torch import Tensor

from trifold.hub.tensors import (
    TYPE_NAMES,
    TransformedTensors,
    lazy_tensors,
    renamed_tensors,
    write_tensors,
)
from trifold.hub.weights import read_weights, write_weights

DTYPES = st.sampled_from(list(TYPE_NAMES))
SHAPES = st.lists(st.integers(0, 5), max_size=3)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(
    lambda w: w != "__metadata__"
)


def test_groups_are_computed_on_demand_and_once_for_neighbors() -> None:
    created: list[str] = []

    def pair() -> list[torch.Tensor]:
        created.append("pair")
        return [torch.tensor(1), torch.tensor(2)]

    tensors = lazy_tensors({("a", "b"): pair, ("c",): lambda: [torch.tensor(3)]})
    assert list(tensors) == ["a", "b", "c"] and len(tensors) == 3 and not created
    assert {name: int(tensor) for name, tensor in tensors.items()} == {"a": 1, "b": 2, "c": 3}
    assert created == ["pair"]
    assert int(tensors["a"]) == 1 and created == ["pair", "pair"]


def test_looking_for_a_name_makes_no_tensor() -> None:
    made = []

    def make() -> list[Tensor]:
        made.append(1)
        return [torch.ones(2)]

    tensors = lazy_tensors({("a",): make})
    assert "a" in tensors and "b" not in tensors
    assert not made


def test_renamed_tensors_can_be_transformed() -> None:
    tensors = {"a": torch.tensor(1), "b": torch.tensor(2)}
    renamed = renamed_tensors({"x": (tensors, "b"), "y": (tensors, "b")})
    changed = TransformedTensors(renamed, lambda name, tensor: tensor * (2 if name == "x" else 3))
    assert {name: int(tensor) for name, tensor in changed.items()} == {"x": 4, "y": 6}
    assert len(changed) == len(renamed) == 2


@given(st.dictionaries(NAMES, st.tuples(DTYPES, SHAPES), max_size=6), st.randoms())
def test_a_file_has_the_bytes_of_safetensors_and_is_read_again(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: dict[str, tuple[torch.dtype, list[int]]],
    random: object,
) -> None:
    folder = tmp_path_factory.mktemp("files")
    tensors = {
        name: (torch.randn(shape) * 100)
        .to(dtype if dtype is not torch.bool else torch.int32)
        .to(dtype)
        for name, (dtype, shape) in sizes.items()
    }
    shapes = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
    names = list(tensors)
    random.shuffle(names)  # type: ignore[attr-defined]
    written: list[int] = []
    write_tensors(folder / "model.safetensors", tensors, shapes, names, written.append)
    save_file(tensors, folder / "library", metadata={"format": "pt"})
    assert (folder / "model.safetensors").read_bytes() == (folder / "library").read_bytes()
    assert written == [tensors[name].nbytes for name in names]
    back = read_weights(folder)
    assert back.keys() == tensors.keys()
    assert all(
        torch.equal(back[name], t) and back[name].dtype is t.dtype for name, t in tensors.items()
    )


def test_strided_and_unaligned_tensors_are_written_and_read(tmp_path: Path) -> None:
    tensor = torch.arange(12.0).view(3, 4)
    tensors = {"turned": tensor.t(), "stepped": tensor[:, ::2], "repeated": torch.ones(1).expand(5)}
    write_weights(tmp_path, tensors)
    back = read_weights(tmp_path)
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)
    content = (tmp_path / "model.safetensors").read_bytes()  # as old files are
    size = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + size] + b" "
    (tmp_path / "model.safetensors").write_bytes(
        (size + 1).to_bytes(8, "little") + header + content[8 + size :]
    )
    back = read_weights(tmp_path)
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


class CountingTensors(Mapping[str, Tensor]):
    """Tensors created on demand; `max_alive` is the largest number of them alive at a time."""

    def __init__(self, count: int) -> None:
        self.count, self.max_alive = count, 0
        self._alive: weakref.WeakSet[Tensor] = weakref.WeakSet()

    def __getitem__(self, name: str) -> Tensor:
        created = torch.full((100,), float(name))
        self._alive.add(created)
        self.max_alive = max(self.max_alive, len(self._alive))
        return created

    def __iter__(self) -> Iterator[str]:
        return map(str, range(self.count))

    def __len__(self) -> int:
        return self.count


@pytest.mark.parametrize("largest", ["1GB", "1KB"])
def test_one_tensor_is_in_memory_at_a_time(largest: str, tmp_path: Path) -> None:
    tensors = CountingTensors(9)
    shapes = {name: torch.empty(100, device="meta") for name in tensors}
    write_weights(tmp_path, tensors, shapes=shapes, max_shard_size=largest)
    assert tensors.max_alive == 1
    back = read_weights(tmp_path)
    assert {name: float(back[name].mean()) for name in back} == {str(n): float(n) for n in range(9)}


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="a file of Linux")
def test_a_file_is_mapped_once_and_released_tensors_leave_memory(tmp_path: Path) -> None:
    write_weights(tmp_path, {name: torch.full((10**6,), float(n)) for n, name in enumerate("abc")})
    weights = read_weights(tmp_path)

    def resident() -> list[int]:
        """Kilobytes in memory of each mapping of the file."""
        parts = Path("/proc/self/smaps").read_text("utf-8").split(str(tmp_path))[1:]
        return [int(part.partition("Rss:")[2].split()[0]) for part in parts]

    total = sum(float(weights[name].sum()) for name in "abc")
    weight = weights["b"]
    assert (total, float(weight[0])) == (3 * 10**6, 1)
    assert len(resident()) == 1 and resident()[0] < 1000
    assert float(weight.sum()) == 10**6 and resident()[0] > 3000
