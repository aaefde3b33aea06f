"""A run folder written by version 0.1 (tools/make_run_fixture.py) loads, generates and resumes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import trifold
from trifold.train import train

FIXTURE = Path(__file__).parent / "fixtures" / "run-0.1"


@pytest.fixture
def expected() -> dict[str, Any]:
    return dict(json.loads((FIXTURE / "expected.json").read_text("utf-8")))


def test_loads_and_generates_the_same_text(expected: dict[str, Any]) -> None:
    model = trifold.load(FIXTURE)
    texts = list(expected["generated"])
    assert model.generate(texts, max_new_tokens=6) == list(expected["generated"].values())


def test_resumes_with_the_losses_of_the_uninterrupted_run(tmp_path: Path, expected: dict[str, Any]) -> None:
    run = shutil.copytree(FIXTURE, tmp_path / "run")
    outcome = train(run / "recipe.yaml", out=run, resume="auto")
    assert (outcome.steps, outcome.stopped_by) == (60, "steps")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    found = {(line["step"], key): line[key] for line in lines for key in line}
    for entry in expected["losses"]:
        step = entry.pop("step")
        for key, value in entry.items():
            assert found[step, key] == pytest.approx(value, rel=1e-5), (step, key)
