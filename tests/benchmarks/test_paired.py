"""Pretraining and two translation runs: the same tokenizer, other initial weights, one table."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
from tests.benchmarks.scripts import load
from tests.command_line import run_command

SMALL = [
    "train.steps=2",
    "train.warmup=1",
    "train.validate_every=2",
    "train.save_every=2",
    "batch.tokens=512",
]
SIZES = ["model.d_model=16", "model.n_layers=1", "model.n_heads=2", "model.d_ff=16"]


@pytest.mark.slow
def test_a_pair_of_runs_shares_the_tokenizer_but_not_the_initial_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands run in this process, except for one that only starts."""
    data = tmp_path / "data" / "multi30k" / "tok"
    data.mkdir(parents=True)
    words, rng = "ein mann hund läuft sitzt auf dem gras und der bank".split(), random.Random(1)
    for name, rows in (("train", 60), ("val", 4), ("test_2016_flickr", 4)):
        for side in ("en", "de"):
            lines = (" ".join(rng.choices(words, k=6)) + "\n" for _ in range(rows))
            (data / f"{name}.lc.norm.tok.{side}.gz").write_bytes(
                gzip.compress("".join(lines).encode("utf-8"))
            )
    changes = [*SMALL, *SIZES, "generate.num_beams=1", "generate.early_stopping=false"]
    pretraining = [
        word
        for change in [*SMALL, *SIZES, "tokenizer.vocab_size=60"]
        for word in ("--pretraining", change)
    ]
    paired = load("pretrain", "paired")
    assert paired.trifold("--version").startswith("trifold ")

    def trifold(*words: object) -> str:
        done = run_command(*map(str, words))
        assert done.code == 0, done.err
        return done.out

    arguments = [*changes, *pretraining, "--seeds", "3", "--out", str(tmp_path / "runs")]
    monkeypatch.setattr("sys.argv", ["paired.py", *arguments])
    monkeypatch.setenv("TRIFOLD_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(paired, "trifold", trifold)
    paired.main()
    assert capsys.readouterr().out.splitlines()[-1].startswith("| 3 | ")
    runs = {folder.name: folder for folder in (tmp_path / "runs").iterdir()}
    assert sorted(runs) == ["alone-3", "denoise", "pretrained-3"]
    first = {
        name: json.loads((folder / "metrics.jsonl").read_text("utf-8").splitlines()[0])
        for name, folder in runs.items()
    }
    assert first["alone-3"] != first["pretrained-3"], "both runs started from the same weights"
    tokenizers = {(folder / "model" / "tokenizer.json").read_bytes() for folder in runs.values()}
    assert len(tokenizers) == 1
