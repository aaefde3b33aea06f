from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from trifold.errors import CheckpointError
from trifold.hub.weights import read_weights, write_weights

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4)}


def write_shards(folder: Path, weight_map: dict[str, str]) -> None:
    save_file({"a": TENSORS["a"]}, folder / "model-00001-of-00002.safetensors")
    save_file({"b": TENSORS["b"]}, folder / "model-00002-of-00002.safetensors")
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")


def test_one_file(tmp_path: Path) -> None:
    write_weights(tmp_path, TENSORS)
    weights = read_weights(tmp_path)
    assert set(weights) == set(TENSORS)
    assert all(torch.equal(weights[name], TENSORS[name]) for name in TENSORS)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_shards(tmp_path: Path) -> None:
    write_shards(tmp_path, {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"})
    weights = read_weights(tmp_path)
    assert all(torch.equal(weights[name], TENSORS[name]) for name in TENSORS)


@pytest.mark.parametrize(
    "shard",
    ["../model.safetensors", "/etc/passwd", "model.safetensors\n", None],  # more in test_hostile.py
)
def test_an_index_cannot_lead_out_of_its_folder(shard: object, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    save_file({"a": TENSORS["a"]}, tmp_path / "model.safetensors")
    write_shards(inside, {"a": shard})  # type: ignore[dict-item]
    with pytest.raises(CheckpointError, match="not the plain name of a safetensors file"):
        read_weights(inside)


def test_an_index_that_disagrees_with_its_shards(tmp_path: Path) -> None:
    write_shards(tmp_path, {"a": "model-00001-of-00002.safetensors", "c": "model-00002-of-00002.safetensors"})
    with pytest.raises(CheckpointError, match=r"index\.json: the index and its shards disagree") as caught:
        read_weights(tmp_path)
    assert str(caught.value).splitlines()[1:] == [
        "  'b' is in model-00002-of-00002.safetensors, and not in the index",
        "  'c' is listed in model-00002-of-00002.safetensors and is not there",
    ]


def test_a_shard_is_missing(tmp_path: Path) -> None:
    write_shards(tmp_path, {"a": "model-00001-of-00003.safetensors"})
    with pytest.raises(CheckpointError, match=r"00001-of-00003\.safetensors: no such file"):
        read_weights(tmp_path)


@pytest.mark.parametrize("kept", [0, 5, 8, 20, 100, -1])
def test_truncated(kept: int, tmp_path: Path) -> None:
    write_weights(tmp_path, TENSORS)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        read_weights(tmp_path)


def test_a_header_that_names_a_tensor_twice(tmp_path: Path) -> None:
    entry = '"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    header = f"{{{entry},{entry}}}".encode()
    content = len(header).to_bytes(8, "little") + header + bytes(4)
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="'a' occurs twice"):
        read_weights(tmp_path)


def test_pickled_weights_are_refused_unopened(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (tmp_path / "exploded",)  # type: ignore[return-value]

    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(
        CheckpointError, match=r"pytorch_model\.bin: pickled weights are refused.*--trust-pickle"
    ):
        read_weights(tmp_path)
    assert not (tmp_path / "exploded").exists()


def test_no_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        read_weights(tmp_path)


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    write_weights(tmp_path, TENSORS)
    before = (tmp_path / "model.safetensors").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be written"):
            write_weights(tmp_path, {"a": torch.ones(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_tensor_in_two_shards_is_an_error(tmp_path: Path) -> None:
    """It is ambiguous which of the two is meant."""
    write_shards(tmp_path, {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"})
    save_file(TENSORS, tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(CheckpointError, match=r"'a' is in model-00001.* and in model-00002"):
        read_weights(tmp_path)
