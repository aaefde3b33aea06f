"""Mistakes in using a model, and damaged model folders: a clear error, without a traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.command_line import (
    SMOKE,
    TINY,
    Case,
    check,
    parameters,
    run_command,
    split_command,
    write_files,
)

LATIN = "fein\nschön\n".encode("latin-1")
GENERATE = "generate {model}"

USING = {
    "missing model": Case({}, "generate {here}/none hello", 1, ("none", "no such folder")),
    "a file instead of a model": Case(
        {"m": b""}, "generate {here}/m hello", 1, ("m: a file, not the folder of a model",)
    ),
    "an empty folder": Case(
        {"m/x": b""}, "generate {here}/m hello", 1, ("config.json: no such file",)
    ),
    "a run without a model yet": Case(
        {"r/recipe.yaml": b"{}", "r/checkpoints/x": b""},
        "generate {here}/r hello",
        1,
        ("r: the run has no model yet", "trifold resume"),
    ),
    "eval of a run without a model": Case(
        {
            "r/recipe.yaml": b"task: {kind: masked}\ndata: {train: a.txt, valid: b.txt}\nmodel: {preset: bert-base}"
        },
        "eval {here}/r",
        1,
        ("r: the run has no model yet", "trifold resume"),
    ),
    "empty text": Case(
        {}, f"{GENERATE} ''", 1, ("text 1 of 1 has no tokens", "nothing to translate")
    ),
    "text longer than the model's input": Case(
        {}, f"{GENERATE} '{'one ' * 60}'", 1, ("241", "128")
    ),
    "a long line on standard input": Case(
        {},
        f"{GENERATE} -",
        1,
        ("line 2: 241 tokens, and the model reads at most 128", "split the line"),
        stdin=b"one\n" + b"two " * 60 + b"\n",
    ),
    "standard input that is not UTF-8": Case(
        {}, f"{GENERATE} -", 1, ("standard input:2:4: byte 0xf6 is not valid UTF-8",), stdin=LATIN
    ),
    "nothing on standard input": Case(
        {}, f"{GENERATE} -", 1, ("standard input: the file is empty",)
    ),
    "contradictory generation": Case(
        {}, f"{GENERATE} hello --num-beams 4 --do-sample", 2, ("num_beams 4", "do_sample true")
    ),
    "zero beams": Case({}, f"{GENERATE} hello --num-beams 0", 2, ("num_beams", "0")),
    "text instead of a number": Case(
        {}, f"{GENERATE} hello --num-beams many", 2, ("--num-beams", "valid integer", "--help")
    ),
    "output cannot be written": Case(
        {},
        f"{GENERATE} hello --out {{here}}/no/where.txt",
        2,
        ("where.txt: cannot be written (No such file or directory); choose another",),
    ),
    "output that is not UTF-8": Case(
        {}, f"{GENERATE} hello --out {{here}}/o\udcff", 2, ("--out: ", "is not valid UTF-8")
    ),
    "missing device": Case(
        {}, f"{GENERATE} hello --device cuda:77", 2, ("device 'cuda:77' is not available",)
    ),
    "eval on files of different length": Case(
        {"a.en": b"one\ntwo\n", "a.de": b"eins\n"},
        "eval {model} {here}/a.en {here}/a.de",
        1,
        ("a.en has 2 lines", "a.de has 1"),
    ),
    "eval without data": Case(
        {}, "eval {bare}", 2, ("bare: no recipe.yaml next to it", "name the data")
    ),
    "eval with an unknown tokenizer": Case(
        {},
        "eval {model} --tokenize moses",
        2,
        ("--tokenize moses: not a sacreBLEU tokenizer", "13a"),
    ),
    "look at an empty text": Case({}, "look {model} '' --out {here}/a.png", 1, ("no tokens",)),
    "look with an unknown image format": Case(
        {}, "look {model} one --out {here}/a.docx", 2, ("a.docx", ".png")
    ),
    "show a missing model": Case({}, "show {here}/none", 1, ("none", "no such")),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "run"
    assert run_command("train", "smoke", *TINY.split(), "--out", str(folder)).code == 0
    return folder


@pytest.fixture
def bare(model, tmp_path) -> Path:
    """A copy of the model folder, without its run."""
    return Path(shutil.copytree(model / "model", tmp_path / "bare"))


@pytest.mark.slow
@pytest.mark.parametrize("case", parameters(USING))
def test_using_a_model(case, tmp_path, model, bare, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, case.files)
    command = split_command(case.command, here=tmp_path, model=model, bare=bare)
    check(run_command(*command, stdin=case.stdin), case.code, case.words)


# --- damaged model folders ------------------------------------------------------------------------


def edit(bare: Path, name: str, **values: object) -> None:
    content = json.loads((bare / name).read_text("utf-8")) | values
    (bare / name).write_text(json.dumps(content), encoding="utf-8")


DAMAGES: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "no weights": (lambda m: (m / "model.safetensors").unlink(), ("no model.safetensors",)),
    "truncated weights": (
        lambda m: (m / "model.safetensors").write_bytes(
            (m / "model.safetensors").read_bytes()[:999]
        ),
        ("model.safetensors: damaged or truncated", "copy the file again"),
    ),
    "weights of another size": (lambda m: edit(m, "config.json", d_model=32), ("bare",)),
    "pickled weights": (
        lambda m: (m / "model.safetensors").rename(m / "pytorch_model.bin"),
        ("pytorch_model.bin: pickled weights are refused", "can run any code"),
    ),
    "no config": (lambda m: (m / "config.json").unlink(), ("config.json: no such file",)),
    "config that is not JSON": (
        lambda m: (m / "config.json").write_text("{", encoding="utf-8"),
        ("config.json:1:", "not JSON"),
    ),
    "unknown family": (
        lambda m: edit(m, "config.json", model_type="rnn"),
        ("config.json: model_type: 'rnn' is not known",),
    ),
    "no tokenizer": (
        lambda m: (m / "tokenizer.json").unlink(),
        ("the model folder has no tokenizer",),
    ),
    "broken tokenizer": (
        lambda m: (m / "tokenizer.json").write_text("[]", encoding="utf-8"),
        ("tokenizer.json: holds a list, not an object of keys and values",),
    ),
    "contradictory generation": (
        lambda m: edit(m, "generation_config.json", num_beams=4, do_sample=True),
        ("generation_config.json: num_beams 4 and top_k 50 contradict",),
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_model(bare, name):
    damage, words = DAMAGES[name]
    damage(bare)
    result = run_command("generate", str(bare), "hello")
    assert result.code in (1, 2)
    check(result, result.code, words)


def test_an_unknown_key_in_a_native_config(tmp_path):
    out = tmp_path / "run"
    assert run_command(*split_command(f"{SMOKE} model.norm_placement=pre", here=tmp_path)).code == 0
    config = json.loads((out / "model" / "config.json").read_text("utf-8"))
    assert config["model_type"] == "trifold"
    edit(out / "model", "config.json", n_haeds=4)
    result = run_command("generate", str(out), "hello")
    check(result, 1, ("config.json: ", "n_haeds: unknown key", "'n_heads'"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
def test_a_full_disk_for_results(model):
    result = run_command("generate", str(model), "one", "--out", "/dev/full")
    assert (result.code, "Traceback" in result.err) == (1, False)
    assert "No space left" in result.err
