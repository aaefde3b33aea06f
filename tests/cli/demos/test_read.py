"""The demo that tells packages apart, with models too small to do it well."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

import trifold.train.loop  # noqa: F401 (it takes load_recipe as it is, before a fixture changes it)
from trifold.cli.demos import read
from trifold.data import embedded
from trifold.recipe import load_recipe

TINY = {
    "model.d_model": 16, "model.n_layers": 1, "model.n_heads": 2, "model.d_ff": 32, "tokenizer.vocab_size": 100,
    "batch.tokens": 512, "train.steps": 4, "train.warmup": 1, "train.validate_every": 2, "train.save_every": 4,
    "train.log_every": 1, "train.device": "cpu",
}  # fmt: skip


def some(columns):
    """Docstrings of three packages, which are easily told apart; some name their package."""
    texts = [
        (f"{word} of the {thing} number {n} {package if n % 4 == 0 else ''}", package)
        for package, word in (("mail", "headers"), ("window", "buttons"), ("net", "sockets"))
        for thing in ("first", "last")
        for n in range(12)
    ]
    rows = [dict(zip(columns, row, strict=False)) for row in texts]
    return {"train": rows[::2], "valid": rows[1::4], "test": rows[3::4]}


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(
        "trifold.recipe.load_recipe", lambda name, more=(): load_recipe(name, TINY | dict(more))
    )
    monkeypatch.setitem(embedded.SOURCES, "docstrings", lambda: some(["text"]))
    monkeypatch.setitem(embedded.SOURCES, "packages", lambda: some(["text", "package"]))
    embedded.load_splits.cache_clear()
    yield
    embedded.load_splits.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_it_pretrains_learns_and_says_what_to_do_next(trifold, tmp_path):
    folder = tmp_path / "demo"
    done = trifold("demo", "read", "--out", str(folder))
    assert done.code == 0, done.err
    for expected in (
        "18 docstrings",
        "always mail",
        read.SCRATCH,
        read.OURS,
        "name their package",
        f"{read.OURS}: ",
    ):
        assert expected in done.out
    assert f"trifold predict {folder} " in done.out
    for run in (folder, folder / read.PRETRAINING, folder / read.ALONE):
        assert (run / "model" / "model.safetensors").is_file()
    used = trifold("predict", str(folder / read.PRETRAINING), "headers of the <mask>", "--task", "fill-mask")
    assert used.code == 0, used.err


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_json_is_one_last_line_for_programs(trifold, tmp_path):
    done = trifold("demo", "read", "--out", str(tmp_path / "demo"), "--json", "--minutes", "5")
    told = json.loads(done.out.splitlines()[-1])
    assert {*told} == {
        "seconds",
        "steps",
        "docstrings",
        "naming_their_package",
        "accuracy",
        "examples",
        "folder",
    }
    assert (told["steps"], told["docstrings"]) == (12, 18)
    assert told["naming_their_package"] == sum(
        row["text"].endswith(row["package"]) for row in embedded.load_splits("packages")["test"]
    )
    assert {*told["accuracy"]} == {"always mail", read.SCRATCH, read.OURS}
    assert {*told["examples"][0]} == {"text", "package", "ours"}
    pytest.importorskip("matplotlib")
    assert (tmp_path / "demo" / "packages.png").read_bytes().startswith(b"\x89PNG")


def test_right_is_a_percentage():
    assert read.right(["a", "b", "a", "c"], ["a", "a", "a", "c"]) == 75


def test_a_share_has_its_standard_error():
    assert "50.0 %  ± 5.0" in read.scored({"one": 50.0}, 100)


def test_who_is_ahead_is_said_either_way_with_the_error_of_pairs():
    wanted = list("a" * 100)
    answers = {"one": list("a" * 60 + "b" * 40), "two": list("b" * 10 + "a" * 60 + "b" * 30), "three": wanted}
    # 10 are told by the one only and 10 by the other only; then 40 by the other only.
    assert read.compared(wanted, answers, "one", "two") == "one: as good as two"
    assert read.compared(wanted, answers, "one", "three") == "one: 40.0 points (± 4.9) behind three"
    assert read.compared(wanted, answers, "three", "one") == "three: 40.0 points (± 4.9) ahead of one"


def test_what_is_printed_can_be_typed(tmp_path):
    said = [
        shlex.split(line)
        for line in read._where(tmp_path / "two words", None)
        if line.startswith("  trifold ")
    ]
    folder = str(tmp_path / "two words")
    assert [words[2] for words in said] == [folder, f"{folder}/{read.PRETRAINING}", folder, folder]
    assert "  trifold eval runs/demo-read" in read._where(Path("runs/demo-read"), None)


def test_the_minutes_are_dealt_out_whole():
    assert sum(read.SHARES.values()) == pytest.approx(1)
