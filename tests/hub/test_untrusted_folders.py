"""Other content of untrusted folders: code, pickles, circular rules, links."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from tests.hub.forging import INDEX, SHARD, WATCH, WEIGHTS, field, piece, use

import trifold
from trifold.errors import CheckpointError, TrifoldError

PIECES = (
    piece(b"<unk>", kind=2)
    + b"".join(piece(name, kind=3) for name in (b"<pad>", b"</s>"))
    + piece(b"a")
)


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch exploded",)


@pytest.mark.parametrize("content", ["safetensors", "pickles alone"])
def test_other_files_of_a_folder_are_not_opened(
    content: str, sound: dict[str, Path], watched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code, pickles with names that other programs load, and links."""
    shutil.copytree(sound["one"], watched)
    code = b"open('exploded', 'w')"
    for name in (
        "modeling_evil.py",
        "evil.py",
        "configuration_evil.py",
        "tokenization_evil.py",
        "__init__.py",
        "conftest.py",
        "sitecustomize.py",
        "trifold.py",
        "torch.py",
        "json.py",
        "handler.py",
        "setup.py",
        "custom_generate/generate.py",
    ):
        (watched / name).parent.mkdir(exist_ok=True)
        (watched / name).write_bytes(code)
    for name in (
        "pytorch_model.bin",
        "training_args.bin",
        "optimizer.pt",
        "rng_state.pth",
        "scheduler.pt",
        "vocab.pkl",
        "extra_data.pickle",
        "model.ckpt",
        "tf_model.h5",
        "flax_model.msgpack",
        ".metadata",
        "model.pkl",
    ):
        (watched / name).write_bytes(pickle.dumps(Bomb()))
    (watched / "outside").symlink_to("/etc")
    os.mkfifo(watched / "pipe.json")
    monkeypatch.chdir(watched)
    if content == "pickles alone":
        (watched / WEIGHTS).unlink()
    WATCH.folder = watched
    if content == "pickles alone":
        with pytest.raises(CheckpointError, match="pickled weights are refused"):
            use(watched)
    else:
        assert isinstance(use(watched), str)
    assert not (watched / "exploded").exists()


@pytest.mark.parametrize("unit", [0, 0x800, 0x00000200, 0xFFFFFFFF])
def test_circular_rules_of_a_sentencepiece_model(
    unit: int, sound: dict[str, Path], watched: Path
) -> None:
    """Every node of the trie points to others or to itself; encoding still terminates."""
    shutil.copytree(sound["one"], watched)
    for name in ("tokenizer.json", "special_tokens_map.json"):
        (watched / name).unlink(missing_ok=True)
    trie = struct.pack("<I", unit) * 512
    charsmap = struct.pack("<I", len(trie)) + trie + b"a" * 63 + b"\0"
    file = watched / "spiece.model"
    file.write_bytes(PIECES + field(3, field(2, charsmap)))
    (watched / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "T5Tokenizer"}', encoding="utf-8"
    )
    WATCH.folder, before = watched, time.process_time()
    with contextlib.suppress(TrifoldError):  # the library may reject it too
        pipe = trifold.load(watched)
        assert pipe.tokenizer is not None
        pipe.tokenizer.encode(["the quick fox é ﬁ" * 100])
    assert time.process_time() - before < 3


def test_links_of_the_hub_cache_are_allowed(sound: dict[str, Path], tmp_path: Path) -> None:
    """`snapshots/REVISION/config.json` is a link to `blobs/…`, which is allowed."""
    blobs, revision = (
        tmp_path / "models--a--b" / "blobs",
        tmp_path / "models--a--b" / "snapshots" / "0123abcd",
    )
    blobs.mkdir(parents=True)
    revision.mkdir(parents=True)
    for number, path in enumerate(sorted(sound["one"].iterdir())):
        shutil.copy(path, blobs / str(number))
        (revision / path.name).symlink_to(Path("..") / ".." / "blobs" / str(number))
    assert isinstance(use(revision), str)
    (tmp_path / "secret").write_text("{}", encoding="utf-8")
    (revision / "config.json").unlink()
    (revision / "config.json").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match="leads out of its folder"):
        use(revision)


def test_links_within_a_folder_are_allowed(sound: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(sound["one"], tmp_path / "model")
    (tmp_path / "model" / WEIGHTS).rename(tmp_path / "model" / "of-today.safetensors")
    (tmp_path / "model" / WEIGHTS).symlink_to("of-today.safetensors")
    (tmp_path / "latest").symlink_to(tmp_path / "model")
    assert isinstance(use(tmp_path / "latest"), str)


def test_one_error_lists_all_problems_of_an_index(sound: dict[str, Path], watched: Path) -> None:
    """A tensor in two shards, a tensor in the wrong shard, and a missing shard."""
    shutil.copytree(sound["shards"], watched)
    shutil.copy(watched / SHARD, watched / "model-00002-of-00003.safetensors")
    index = json.loads((watched / INDEX).read_text(encoding="utf-8"))
    index["weight_map"]["evil"] = "model-00007-of-00007.safetensors"
    (watched / INDEX).write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(CheckpointError) as caught:
        trifold.load(watched)
    message = str(caught.value)
    assert f"{INDEX}: the index and its shards disagree" in message
    assert "model-00007-of-00007.safetensors: no such file" in message
    assert f"is in {SHARD} and in model-00002-of-00003.safetensors" in message
    twice = [name for name, shard in index["weight_map"].items() if shard == SHARD]
    assert all(f"{name!r} is in" in message for name in twice)


def test_the_valid_folders_are_valid(sound: dict[str, Path]) -> None:
    assert use(sound["one"]) == use(sound["shards"])
