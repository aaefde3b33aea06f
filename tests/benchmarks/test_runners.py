"""The runners train on prepared data, and their last line reports the speed and the loss."""

from __future__ import annotations

import gzip
import json
import math
import random
from collections import Counter
from pathlib import Path

import pytest
from tests.benchmarks.scripts import run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_runner_of_trifold_reports_its_speed(tmp_path: Path, precision: str) -> None:
    rng = random.Random(1)
    sides = {
        side: [[rng.randrange(4, 60) for _ in range(rng.randrange(2, 9))] for _ in range(40)]
        for side in ("source", "target")
    }
    (tmp_path / "pairs.json").write_text(json.dumps(sides), encoding="utf-8")
    (tmp_path / "meta.json").write_text(json.dumps({"vocab_size": 60}), encoding="utf-8")
    options = ["--precision", precision, "--seconds", "0", "--warmup", "1", "--threads", "1"]
    line = json.loads(run("train_translation/trifold_runner.py", "--data", tmp_path, *options)[-1])
    tokens = sum(len(row) + 1 for row in sides["target"])
    assert (line["name"], line["precision"], line["steps"]) == ("trifold", precision, 1)
    assert line["target_tokens"] == tokens  # all pairs are one batch
    assert line["target_tokens_per_s"] > 0 and 0 < line["loss_first"] < 6


def test_the_plain_loop_trains_the_smallest_decoder(tmp_path: Path) -> None:
    """Its loss is lower than the entropy of single letters."""
    words = random.Random(1).choices(
        ("to", "be", "or", "not", "that", "is", "the", "question"), k=6000
    )
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt.gz").write_bytes(
        gzip.compress(" ".join(words).encode())
    )
    lines = run("train_decoder/tiny.py", "--plain", "--steps", 40, TRIFOLD_DATA=str(tmp_path))
    line = json.loads(lines[-1])
    assert line["read"] == 41 * 12 * 64
    letters = Counter(" ".join(words))
    entropy = -sum(n * math.log(n / letters.total()) for n in letters.values()) / letters.total()
    assert line["nats"] < 0.9 * entropy
