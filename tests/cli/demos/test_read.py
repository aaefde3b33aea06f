"""The demo that recognizes translations, with tiny models."""

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
    "model.d_model": 16, "model.n_layers": 1, "model.n_heads": 2, "model.d_ff": 32, "tokenizer.vocab_size": 300,
    "batch.tokens": 512, "train.steps": 4, "train.warmup": 1, "train.validate_every": 2, "train.save_every": 4,
    "train.log_every": 1, "train.device": "cpu",
}  # fmt: skip


@pytest.fixture
def small(monkeypatch):
    """Tiny models, and the first sentences of the phrasebook."""
    few = {split: rows[:12] for split, rows in embedded.load_splits("phrasebook").items()}
    monkeypatch.setattr(
        "trifold.recipe.load_recipe", lambda name, more=(): load_recipe(name, TINY | dict(more))
    )
    monkeypatch.setitem(embedded.SOURCES, "phrasebook", lambda: few)
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
        "24 pairs",
        "encoder, from scratch",
        "encoder, pretrained",
        "12 steps in three runs",
    ):
        assert expected in done.out
    assert f"trifold predict {folder} " in done.out
    for run in (folder, folder / read.PRETRAINING, folder / read.FROM_SCRATCH):
        assert (run / "model" / "model.safetensors").is_file()
    for command in read.next_commands(folder)[:3]:
        used = trifold(*shlex.split(command)[1:])
        assert used.code == 0, used.err


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_json_is_the_last_line(trifold, tmp_path):
    done = trifold("demo", "read", "--out", str(tmp_path / "demo"), "--json", "--minutes", "5")
    report = json.loads(done.out.splitlines()[-1])
    assert {*report} == {"seconds", "steps", "pairs", "accuracy", "examples", "folder"}
    assert (report["steps"], report["pairs"]) == (12, 24)
    assert {*report["accuracy"]} == {"encoder, from scratch", "encoder, pretrained"}
    assert {*report["examples"][0]} == {"sentence1", "sentence2", "label", "ours"}


def test_the_standard_error_is_in_percentage_points():
    assert read.standard_error(50.0, 100) == 5.0


def test_printed_commands_can_be_typed(tmp_path):
    words = [shlex.split(line) for line in read.next_commands(tmp_path / "two words")]
    folder = str(tmp_path / "two words")
    assert [each[2] for each in words] == [
        folder,
        f"{folder}/{read.PRETRAINING}",
        f"{folder}/{read.FROM_SCRATCH}",
        folder,
    ]
    assert "trifold show runs/demo-read" in read.next_commands(Path("runs/demo-read"))


def test_the_shares_of_the_minutes_sum_to_one():
    assert sum(read.SHARES.values()) == pytest.approx(1)
