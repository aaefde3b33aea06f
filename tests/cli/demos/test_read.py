"""The demo that classifies docstrings, with tiny models."""

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
    """Docstrings of three packages that are easy to classify; some name their package."""
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
def test_pretrains_trains_and_prints_the_next_commands(trifold, tmp_path):
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
    for run in (folder, folder / read.PRETRAINING, folder / read.FROM_SCRATCH):
        assert (run / "model" / "model.safetensors").is_file()
    used = trifold("predict", str(folder / read.PRETRAINING), "headers of the <mask>", "--task", "fill-mask")
    assert used.code == 0, used.err


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_json_is_the_last_line(trifold, tmp_path):
    done = trifold("demo", "read", "--out", str(tmp_path / "demo"), "--json", "--minutes", "5")
    report = json.loads(done.out.splitlines()[-1])
    assert {*report} == {
        "seconds",
        "steps",
        "docstrings",
        "naming_their_package",
        "accuracy",
        "examples",
        "folder",
    }
    assert (report["steps"], report["docstrings"]) == (12, 18)
    assert report["naming_their_package"] == sum(
        row["text"].endswith(row["package"]) for row in embedded.load_splits("packages")["test"]
    )
    assert {*report["accuracy"]} == {"always mail", read.SCRATCH, read.OURS}
    assert {*report["examples"][0]} == {"text", "package", "ours"}
    pytest.importorskip("matplotlib")
    assert (tmp_path / "demo" / "packages.png").read_bytes().startswith(b"\x89PNG")


def test_accuracy_is_a_percentage():
    assert read.accuracy(["a", "b", "a", "c"], ["a", "a", "a", "c"]) == 75
    assert read.standard_error(50.0, 100) == 5.0


def test_accuracies_are_compared_with_the_error_of_paired_predictions():
    labels = list("a" * 100)
    found = {"one": list("a" * 60 + "b" * 40), "two": list("b" * 10 + "a" * 60 + "b" * 30), "three": labels}
    # 10 are correct in `one` only and 10 in `two` only; then 40 in `three` only.
    assert read.compare(labels, found, "one", "two") == "one: as accurate as two"
    assert read.compare(labels, found, "one", "three") == "one: 40.0 points (± 4.9) behind three"
    assert read.compare(labels, found, "three", "one") == "three: 40.0 points (± 4.9) ahead of one"


def test_printed_commands_can_be_typed(tmp_path):
    words = [shlex.split(line) for line in read.next_commands(tmp_path / "two words")]
    folder = str(tmp_path / "two words")
    assert [each[2] for each in words] == [folder, f"{folder}/{read.PRETRAINING}", folder, folder]
    assert "trifold eval runs/demo-read" in read.next_commands(Path("runs/demo-read"))


def test_the_shares_of_the_minutes_sum_to_one():
    assert sum(read.SHARES.values()) == pytest.approx(1)
