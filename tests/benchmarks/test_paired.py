"""Pretraining and two translation runs: the same tokenizer, other initial weights, one table."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "benchmarks" / "pretrain" / "paired.py"
SMALL = [
    "train.steps=2",
    "train.warmup=1",
    "train.validate_every=2",
    "train.save_every=2",
    "batch.tokens=512",
]
SIZES = ["model.d_model=16", "model.n_layers=1", "model.n_heads=2", "model.d_ff=16"]


@pytest.mark.slow
def test_one_seed(tmp_path: Path) -> None:
    data = tmp_path / "data" / "multi30k" / "tok"
    data.mkdir(parents=True)
    words, drawn = "ein mann hund läuft sitzt auf dem gras und der bank".split(), random.Random(1)
    for name, rows in (("train", 60), ("val", 4), ("test_2016_flickr", 4)):
        for side in ("en", "de"):
            lines = (" ".join(drawn.choices(words, k=6)) + "\n" for _ in range(rows))
            (data / f"{name}.lc.norm.tok.{side}.gz").write_bytes(
                gzip.compress("".join(lines).encode("utf-8"))
            )
    changes = [*SMALL, *SIZES, "generate.num_beams=1", "generate.early_stopping=false"]
    learning = [
        word for change in [*SMALL, *SIZES, "tokenizer.vocab_size=60"] for word in ("--pretraining", change)
    ]
    done = subprocess.run(
        [sys.executable, BENCH, *changes, *learning, "--seeds", "3", "--out", tmp_path / "runs"],
        env={**os.environ, "TRIFOLD_DATA": str(tmp_path / "data"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stdout.splitlines()[-1].startswith("| 3 | ")
    runs = {run.name: run for run in (tmp_path / "runs").iterdir()}
    assert sorted(runs) == ["alone-3", "denoise", "pretrained-3"]
    first = {
        name: json.loads((run / "metrics.jsonl").read_text("utf-8").splitlines()[0])
        for name, run in runs.items()
    }
    assert first["alone-3"] != first["pretrained-3"], "both runs started from the same weights"
    tokenizers = {(run / "model" / "tokenizer.json").read_bytes() for run in runs.values()}
    assert len(tokenizers) == 1
