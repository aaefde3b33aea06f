"""Files that are written tensor by tensor are those that the library writes, and no second tensor waits in memory."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from safetensors.torch import save_file
from torch import Tensor

from trifold.errors import CheckpointError
from trifold.hub.streamed import NAMES, write_streamed
from trifold.hub.weights import read_weights, write_weights

DTYPES = some.sampled_from(list(NAMES))
SHAPES = some.lists(some.integers(0, 5), max_size=3)
WORDS = some.text(some.characters(exclude_categories=["Cs"]), max_size=8).filter(
    lambda w: w != "__metadata__"
)


@given(some.dictionaries(WORDS, some.tuples(DTYPES, SHAPES), max_size=6), some.randoms())
def test_a_file_is_what_the_library_writes_to_the_byte(
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
    write_streamed(folder / "ours", tensors, shapes, names, heard.append)
    save_file(tensors, folder / "library", metadata={"format": "pt"})
    assert (folder / "ours").read_bytes() == (folder / "library").read_bytes()
    assert heard == [tensors[name].nbytes for name in names]


def test_what_does_not_lie_in_order_is_written_as_if_it_did(tmp_path: Path) -> None:
    tensor = torch.arange(12.0).view(3, 4)
    strange = {"turned": tensor.t(), "stepped": tensor[:, ::2], "repeated": torch.ones(1).expand(5)}
    write_weights(tmp_path, strange)
    back = read_weights(tmp_path)
    assert all(torch.equal(back[name], strange[name]) for name in strange)


class Counting(Mapping[str, Tensor]):
    """Tensors that are made when they are asked for; `most` of them were alive at a time."""

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


def test_shards_are_measured_in_the_precision_that_is_written(tmp_path: Path) -> None:
    tensors = {f"{number}": torch.randn(100).bfloat16() for number in range(8)}  # 200 bytes each
    write_weights(tmp_path, tensors, max_shard_size=600)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text(encoding="utf-8"))
    assert index["metadata"]["total_size"] == 1600
    held: dict[str, list[str]] = {}
    for name, file in index["weight_map"].items():
        held.setdefault(file, []).append(name)
    assert [len(names) for names in held.values()] == [3, 3, 2]


def test_a_disk_that_refuses_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_weights(tmp_path, {"a": torch.zeros(3)})
    before = (tmp_path / "model.safetensors").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be written \(No space left"):
        write_weights(tmp_path, {"a": torch.ones(3)}, on_written=full)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert (tmp_path / "model.safetensors").read_bytes() == before
