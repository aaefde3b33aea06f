"""The bench's runner of trifold keeps its contract: it trains on prepared ids, and its last line says how fast."""

from __future__ import annotations

import gzip
import json
import math
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
RUNNERS = ROOT / "benchmarks" / "train_translation"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_trifold_s_runner(tmp_path: Path, precision: str) -> None:
    chance = random.Random(1)
    sides = {
        side: [[chance.randrange(4, 60) for _ in range(chance.randrange(2, 9))] for _ in range(40)]
        for side in ("source", "target")
    }
    (tmp_path / "pairs.json").write_text(json.dumps(sides), encoding="utf-8")
    (tmp_path / "meta.json").write_text(json.dumps({"vocab_size": 60}), encoding="utf-8")
    command = [sys.executable, RUNNERS / "trifold_runner.py", "--data", tmp_path, "--precision", precision]
    done = subprocess.run(
        [str(part) for part in command] + ["--seconds", "0", "--warmup", "1", "--threads", "1"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    assert not done.returncode, done.stderr
    line = json.loads(done.stdout.splitlines()[-1])
    tokens = sum(len(row) + 1 for row in sides["target"])
    assert (line["name"], line["precision"], line["steps"]) == ("trifold", precision, 1)
    assert line["target_tokens"] == tokens  # all pairs are one batch
    assert line["target_tokens_per_s"] > 0 and 0 < line["loss_first"] < 6


def test_the_plain_loop_of_the_smallest_decoder(tmp_path: Path) -> None:
    """It learns the text that it is shown: it knows more than how often each letter stands."""
    words = random.Random(1).choices(("to", "be", "or", "not", "that", "is", "the", "question"), k=6000)
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt.gz").write_bytes(gzip.compress(" ".join(words).encode()))
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "train_decoder" / "tiny.py", "--plain", "--steps", "120"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TRIFOLD_DATA": str(tmp_path)},
    )
    line = json.loads(done.stdout.splitlines()[-1])
    assert line["read"] == 121 * 12 * 64
    letters = Counter(" ".join(words))
    alone = -sum(n * math.log(n / letters.total()) for n in letters.values()) / letters.total()
    assert line["nats"] < 0.9 * alone
