from __future__ import annotations

import io
import json
import shutil
import sys

import pytest

from trifold.cli.progress import byte_progress
from trifold.text import Tokenizer

pytestmark = pytest.mark.slow


def family(run):
    return json.loads((run / "model" / "config.json").read_text("utf-8"))["model_type"]


def test_convert_precision_and_shard_size(trifold, run, tmp_path):
    new = tmp_path / "new"
    done = trifold("convert", str(run), str(new), "--dtype", "bfloat16", "--shard-size", "200KB")
    assert (done.code, done.err) == (0, "")
    first, *files = done.out.splitlines()
    assert first.startswith(f"{new}: {family(run)}, ") and first.endswith("of bfloat16")
    assert [line.strip() for line in files] == sorted(path.name for path in new.iterdir())
    assert {"tokenizer.json", "generation_config.json", "model.safetensors.index.json"} <= {
        path.name for path in new.iterdir()
    }
    assert trifold("generate", str(new), "one two").code == 0


def test_convert_round_trip(trifold, run, tmp_path):
    native = json.loads(
        trifold("convert", str(run), str(tmp_path / "a"), "--to", "native", "--json").out
    )
    assert (native["was"], native["family"], native["dtype"]) == (family(run), "trifold", "float32")
    assert native["old"] == str(run) and native["new"] == str(tmp_path / "a")
    back = json.loads(trifold("convert", str(tmp_path / "a"), str(tmp_path / "b"), "--json").out)
    assert (back["was"], back["family"]) == ("trifold", family(run))
    message = [
        trifold("generate", str(folder), "one two three").out
        for folder in (run, tmp_path / "a", tmp_path / "b")
    ]
    assert message[0] == message[1] == message[2] != ""
    for name in back["files"]:
        assert (tmp_path / "b" / name).read_bytes() == (run / "model" / name).read_bytes()


WRONG = {
    "an existing folder": (
        ["{run}", "{run}"],
        2,
        "the folder exists and is not empty; name another folder, or add --overwrite to replace",
    ),
    "no model": (["{tmp}/none", "{tmp}/new"], 1, "no such folder"),
    "invalid size": (["{run}", "{tmp}/new", "--shard-size", "big"], 2, "'big' is not a shard size"),
    "weights of a folder": (
        ["{run}", "{tmp}/new", "--weights", "q8_0"],
        2,
        "--weights: only GGUF files have it; name the new file NAME.gguf",
    ),
    "a precision of a GGUF file": (
        ["{run}", "{tmp}/new.gguf", "--dtype", "bfloat16"],
        2,
        "--dtype: a GGUF file has none; leave it out, or give --weights",
    ),
    "unknown weights": (["{run}", "{tmp}/new.gguf", "--weights", "q3"], 2, "q4_k_m"),
    "no form in GGUF files": (
        ["{run}", "{tmp}/new.gguf"],
        1,
        "no architecture of GGUF files has all of its parts",
    ),
    "unknown format": (["{run}", "{tmp}/new", "--to", "onnx"], 2, "hugging-face"),
    "unknown precision": (["{run}", "{tmp}/new", "--dtype", "int3"], 2, "bfloat16"),
    "untrusted pickles": (
        ["{tmp}/old", "{tmp}/new"],
        1,
        "trifold convert {tmp}/old NEW --trust-pickle",
    ),
    "no pickle": (["{tmp}/bare", "{tmp}/new", "--trust-pickle"], 1, "no pytorch_model.bin"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_leave_no_files(name, trifold, run, tmp_path):
    for folder in ("old", "bare"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_bytes(
            (run / "model" / "config.json").read_bytes()
        )
    (tmp_path / "old" / "pytorch_model.bin").write_bytes(b"\x80")
    words, code, message = WRONG[name]
    done = trifold("convert", *(word.format(run=run, tmp=tmp_path) for word in words))
    assert (done.code, done.out) == (code, "")
    assert message.format(tmp=tmp_path) in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bare", "old"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_bar_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", seen := Terminal())
    with byte_progress("converting") as advance:
        for _ in range(4):
            advance(8_000_000, 2_000_000)
    assert "converting" in seen.getvalue() and "8.0/8.0 MB" in seen.getvalue()


def test_tokenizer_is_that_of_another_folder(trifold, run, tmp_path):
    shutil.copytree(run / "model", tmp_path / "bare")
    for file in (tmp_path / "bare").glob("*token*"):
        file.unlink()
    arguments = ("convert", str(tmp_path / "bare"), str(tmp_path / "new"), "--tokenizer")
    done = trifold(*arguments, str(run))
    assert done.code == 0, done.err
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        path.name for path in (run / "model").iterdir()
    }
    larger = Tokenizer.load(run / "model")
    larger.library.add_tokens([f"new {number}" for number in range(100)])
    (tmp_path / "larger").mkdir()
    larger.save(tmp_path / "larger", "tokenizer.json")
    for command in (
        (*arguments[:2], str(tmp_path / "no")),
        ("generate", str(run), "one"),
    ):
        failed = trifold(*command, "--tokenizer", str(tmp_path / "larger"))
        assert (failed.code, failed.out) == (1, "")
        assert f"{larger.vocab_size:,} tokens, but" in failed.err
    assert not (tmp_path / "no").exists()
