"""Pickled weights are converted to the bytes of safetensors or rejected; their code never runs."""

from __future__ import annotations

import collections
import io
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.models import TWO_LAYERS

from trifold.errors import CheckpointError
from trifold.hub import pickle_handler, save_model
from trifold.hub.convert import convert
from trifold.hub.folder import load_model
from trifold.hub.pickles import read_pickles
from trifold.nn import ModelConfig, Transformer
from trifold.sandbox import Sandbox, SandboxError, SandboxStartError

pytestmark = pytest.mark.slow

SMALL = TWO_LAYERS | {"vocab_size": 31, "max_positions": 48}


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.path}",)


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a saved model, with the tied copies of a pickle of the reference."""
    tensors = load_file(folder / "model.safetensors")
    return tensors | {
        f"model.{stack}.embed_tokens.weight": tensors["model.shared.weight"]
        for stack in ("encoder", "decoder")
    }


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """The same model as safetensors, and without weights."""
    safe, old = tmp_path / "safe", tmp_path / "old"
    torch.manual_seed(3)
    save_model(safe, Transformer(ModelConfig.parse(SMALL)))
    old.mkdir()
    for name in ("config.json", "generation_config.json"):
        (old / name).write_bytes((safe / name).read_bytes())
    return safe, old


# --- in the sandbox process -----------------------------------------------------------------------


def test_a_pickle_is_refused_with_the_command_that_converts_it(folders: tuple[Path, Path]) -> None:
    _, old = folders
    torch.save({}, old / "pytorch_model.bin")
    for reads in (load_model, lambda folder: convert(folder, folder.parent / "new")):
        with pytest.raises(
            CheckpointError, match=rf"refused.*: trifold convert {old} NEW --trust-pickle"
        ):
            reads(old)


def test_trusted_pickles_in_shards_with_tied_tensors(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    safe, old = folders
    tensors = tensors_of(safe)
    tied = [name for name in tensors if tensors[name] is tensors["model.shared.weight"]]
    first = {name: tensors[name] for name in tied}
    second = collections.OrderedDict(
        (name, torch.nn.Parameter(t)) for name, t in tensors.items() if name not in tied
    )
    torch.save(first, old / "pytorch_model-00001-of-00002.bin")
    torch.save(
        second, old / "pytorch_model-00002-of-00002.bin", _use_new_zipfile_serialization=False
    )
    shards = {
        name: f"pytorch_model-0000{1 if name in tied else 2}-of-00002.bin" for name in tensors
    }
    index = old / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": shards}), encoding="utf-8")
    convert(old, tmp_path / "new", trust_pickle=True)
    assert (tmp_path / "new" / "model.safetensors").read_bytes() == (
        safe / "model.safetensors"
    ).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old", "safe"]


def test_code_in_a_pickle_is_named_and_not_run(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # is not inherited
    safe, old = folders
    tensors = tensors_of(safe) | {"extra": Bomb(tmp_path / "exploded")}
    torch.save(tensors, old / "pytorch_model.bin")
    with pytest.raises(
        CheckpointError,
        match=r"pytorch_model\.bin: refused, and not run: it names \w+\.system",
    ):
        convert(old, tmp_path / "new", trust_pickle=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old", "safe"]
    # The same object does run code if it is unpickled.
    pickle.loads(pickle.dumps(Bomb(tmp_path / "exploded")))
    assert (tmp_path / "exploded").exists()


def test_the_process_has_limits_and_its_failures_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.zeros(2**16)}, file)
    limits: dict[str, float] = {}
    failure: Exception = SandboxError("it ran for more than 7 s")

    def fail(*arguments: Any, **options: float) -> None:
        limits.update(options)
        raise failure

    monkeypatch.setattr(Sandbox, "request", fail)
    with pytest.raises(
        CheckpointError, match=r"bin: reading was stopped: it ran for more than 7 s; do not trust"
    ):
        read_pickles(tmp_path, tmp_path)
    assert 10 < limits["timeout"] < 100 and file.stat().st_size < limits["memory"] < 2**30
    with pytest.raises(CheckpointError):
        read_pickles(tmp_path, tmp_path, timeout=7)
    assert limits["timeout"] == 7
    failure = SandboxStartError("could not be started (no torch)")
    with pytest.raises(
        CheckpointError, match=r"pytorch_model\.bin: could not be started \(no torch\)$"
    ):
        read_pickles(tmp_path, tmp_path)


# --- the handler, without the process -------------------------------------------------------------


@pytest.fixture
def answer(tmp_path: Path) -> Any:
    """The handler's answer for a pickle with this content."""

    def ask(content: object, **options: Any) -> dict[str, Any]:
        file = tmp_path / "pytorch_model.bin"
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            torch.save(content, file, **options)
        return pickle_handler.answer(
            {"file": str(file), "output": str(tmp_path / "out.safetensors")}
        )

    return ask


def pickled_tensor() -> bytes:
    buffer = io.BytesIO()
    torch.save({"a": torch.ones(9)}, buffer)
    return buffer.getvalue()


REJECTED: dict[str, tuple[object, str]] = {
    "not by name": ([torch.ones(2)], "holds a list, not tensors by name"),
    "a tensor alone": (torch.ones(2), "holds a Tensor, not tensors by name"),
    "a number for a name": ({7: torch.ones(2)}, "holds the name '7', which is not text"),
    "a number": ({"epoch": 3}, "holds 'epoch', a int and not a tensor"),
    "one inside another": ({"state_dict": {"a": torch.ones(2)}}, "holds 'state_dict', a dict and not a tensor"),
    "numbers that are not there": ({"a": torch.ones(1).expand(10**9)}, "claims to be (1000000000,) and has fewer"),
    "sparse": ({"a": torch.eye(3).to_sparse()}, "not a plain tensor"),
    "on no device": ({"a": torch.ones(2, device="meta")}, "not a plain tensor"),
    "escapes for the terminal": ({"\x1b[2Jred": 1}, "holds '\\x1b[2Jred', a int"),
    "empty": (b"", "damaged, truncated or no weights"),
    "text": (b"hello, I am no weights", "no weights|refused"),
    "truncated": (pickled_tensor()[:-40], "damaged, truncated or no weights"),
    "deep": (b"\x80\x02" + b"(" * 10**5, "no weights|refused"),
}  # fmt: skip


@pytest.mark.parametrize("name", REJECTED)
def test_anything_but_tensors_by_name_is_refused(name: str, answer: Any) -> None:
    content, message = REJECTED[name]
    reply = answer(content)
    assert set(reply) == {"error"}
    assert any(word in reply["error"] for word in message.split("|")), reply


HOSTILE: dict[str, tuple[bytes, str]] = {
    "a program": (b"cos\nsystem\n(S'x'\ntR.", "it names os.system, which no weights need"),
    "a function that is evaluated": (b"\x80\x02cbuiltins\neval\n)R.", "it names eval"),
    "a long name": (b"\x80\x02c" + b"a" * 3_000 + b"\nb\n)R.", "it names " + "a" * 60 + ", which"),
    "advice in a name": (b"\x80\x02cos weights_only=False\nx\n.", "it names os, which"),
    "a newer protocol": (b"\x80\x04\x95\x03\0\0\0\0\0\0\0}\x94.", "the pickle instruction 149"),
    "text": (b"(dp0\nVa\np1\nI1\ns.", "instruction"),
    "an extension": (b"\x80\x02\x82\x01.", "instruction 130"),
    "an instance": (b"\x80\x02(ios\nsystem\n.", "instruction 105"),
    "a state": (b"\x80\x02}}b.", "not a pickle of tensors alone"),
    "a reference to nothing": (b"\x80\x02X\x01\0\0\0aQ.", "not a pickle of tensors alone"),
    "an unknown instruction": (b"\x80\x02\xff.", "instruction 255"),
}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_is_refused_in_our_words(name: str, zipped: bool, answer: Any) -> None:
    content, message = HOSTILE[name]
    if zipped:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for part, data in (
                ("data.pkl", content),
                ("version", b"3\n"),
                ("byteorder", b"little"),
            ):
                archive.writestr(f"archive/{part}", data)
        content = buffer.getvalue()
    error = answer(content)["error"]
    assert message in error and error.startswith("refused, and not run: ")
    assert "weights_only" not in error.removeprefix(message) and "torch.load" not in error


@pytest.mark.parametrize("zipped", [True, False])
def test_views_of_one_storage_are_copied_and_equal_ones_tied(
    zipped: bool, answer: Any, tmp_path: Path
) -> None:
    base = torch.arange(12.0).view(3, 4)
    tensors = {
        "a": base,
        "same": base,
        "turned": base.t(),
        "row": base[1],
        "rows": base[1:],
        "none": base[:0],
    }
    assert answer(tensors, _use_new_zipfile_serialization=zipped) == {"tied": {"same": "a"}}
    written = load_file(tmp_path / "out.safetensors")
    assert all(torch.equal(written[name], tensors[name]) for name in tensors if name != "same")


@pytest.mark.parametrize("invalid", [{"tied": {"a": "b"}}, {"tied": 7}, {}, {"tied": {"a": 7}}])
def test_an_invalid_answer_of_the_process_is_an_error(
    invalid: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "pytorch_model.bin")
    pickle_handler.save({"c": torch.ones(2)}, tmp_path / "00000.safetensors")
    monkeypatch.setattr(Sandbox, "request", lambda *arguments, **options: invalid)
    with pytest.raises(
        CheckpointError, match=r"pytorch_model\.bin: .* invalid answer; do not trust this file"
    ):
        read_pickles(tmp_path, tmp_path)
