"""Make tests/train/fixtures/run-0.1: an interrupted run, written by trifold 0.1 (commit 909037c).

Run it with that version of trifold:

    git worktree add ../reference 909037c
    PYTHONPATH=../reference/src python tools/make_run_fixture.py

The folder holds the run as SIGTERM left it after step 50 of 60, and expected.json: the losses of
the same run without an interruption, and what the saved model generates.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from trifold.train.view import Silent, Snapshot

import trifold
from trifold.train import train

FIXTURE = Path(__file__).parents[1] / "tests" / "train" / "fixtures" / "run-0.1"
INTERRUPTED_AT = 50
OVERRIDES: dict[str, Any] = {
    "model.d_model": 16,
    "model.n_heads": 2,
    "model.n_layers": 1,
    "model.d_ff": 32,
    "batch.tokens": 256,
    "generate.max_new_tokens": 6,
    "train.steps": 60,
    "train.warmup": 10,
    "train.learning_rate": 0.02,
    "train.accumulate": 2,
    "train.optimizer": "adamw",
    "train.weight_decay": 0.1,
    "train.ema": 0.9,
    "train.clip": 1.0,
    "train.on_nonsense": "skip",
    "train.precision": "float32",
    "train.device": "cpu",
    "train.validate_every": 20,
    "train.save_every": 20,
    "train.keep_last": 1,
    "train.log_every": 5,
}


class Interrupt(Silent):
    """Send SIGTERM to this process after a step."""

    def step(self, shot: Snapshot) -> None:
        if shot.step == INTERRUPTED_AT:
            signal.raise_signal(signal.SIGTERM)


def main() -> int:
    """Write the fixture."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        train("smoke", out=folder, **OVERRIDES)
        lines = [
            json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()
        ]
    keys = ("train/loss", "valid/loss")
    losses = [
        {"step": line["step"], key: line[key]}
        for line in lines
        for key in keys
        if key in line and line["step"] > INTERRUPTED_AT
    ]
    shutil.rmtree(FIXTURE, ignore_errors=True)
    train("smoke", out=FIXTURE, view=Interrupt(), **OVERRIDES)
    shutil.rmtree(FIXTURE / "tensorboard", ignore_errors=True)
    (FIXTURE / ".lock").unlink(missing_ok=True)
    for path in sorted((FIXTURE / "checkpoints").iterdir())[:-1]:
        shutil.rmtree(path)
    environment = FIXTURE / "environment.json"
    facts = json.loads(environment.read_text("utf-8")) | {"platform": "Linux"}
    environment.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    texts = ["twenty three", "one hundred and one"]
    generated = trifold.load(FIXTURE).generate(texts, max_new_tokens=6)
    expected = {"losses": losses, "generated": dict(zip(texts, generated, strict=True))}
    (FIXTURE / "expected.json").write_text(json.dumps(expected, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
