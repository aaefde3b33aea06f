"""The steps of a run that sizes itself fit into its minutes, and a continued run keeps them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.train.runs import RecordingView

from trifold.recipe import load_recipe
from trifold.train import time_limit, train
from trifold.train.data import load_data
from trifold.train.device import find_machine
from trifold.train.ranks import SINGLE
from trifold.train.work_time import WorkTime

ALL = {"steps", "warmup", "validate_every", "save_every"}


@pytest.fixture
def values(tmp_path) -> dict[str, Any]:
    """Settings of a small run whose data would take 100 steps."""
    (tmp_path / "a.txt").write_text("\n".join(f"line {n} of a text" for n in range(200)), "utf-8")
    return {
        "data.train": str(tmp_path / "a.txt"),
        "batch.tokens": 256,
        "model.d_model": 16,
        "model.d_ff": 16,
        "train.samples": 0,
        "train.precision": "float32",
    }


@pytest.mark.parametrize(
    ("changes", "seconds", "expected"),
    [
        ({"train.minutes": 1}, 1.2, {"steps": 38, "warmup": 3, "validate_every": 20, "save_every": 20}),
        ({"train.minutes": 1}, 40.0, {"steps": 2, "warmup": 0, "validate_every": 2, "save_every": 2}),
        ({"train.minutes": 1, "train.warmup": 5}, 1.2, {"steps": 38, "validate_every": 20, "save_every": 20}),
        ({"train.minutes": 1}, 0.1, {}),
        ({"train.minutes": 1, "train.steps": 500}, 1.2, {}),
        ({}, 1.2, {}),
    ],
)  # fmt: skip
def test_steps_that_nobody_has_set_fit_into_the_minutes(
    values, tmp_path, monkeypatch, changes, seconds, expected
):
    monkeypatch.setattr(time_limit, "time_update", lambda *_: seconds)
    recipe = load_recipe("causal", values | changes)
    data = load_data(recipe, tmp_path / "tokenizer", RecordingView())
    machine = find_machine(recipe.train, recipe.batch.tokens, SINGLE)
    fitted = time_limit.fit_steps(data, machine)
    assert fitted.keys() == expected.keys()
    assert fitted == pytest.approx(expected, abs=1)


def test_updates_on_a_busy_machine_are_timed_as_on_an_idle_one(values, tmp_path, monkeypatch):
    times = iter([WorkTime(90.0, 60.0), WorkTime(40.0, 1.5), WorkTime(5.0, 1.2)])
    monkeypatch.setattr(time_limit, "time_work", lambda *_: next(times))
    view = RecordingView()
    recipe = load_recipe("causal", values)
    data = load_data(recipe, tmp_path / "tokenizer", view)
    machine = find_machine(recipe.train, recipe.batch.tokens, SINGLE)
    assert time_limit.time_update(data, machine, 42.0) == 1.2
    assert view.lines[-1] == (
        "the machine is busy: an update took 5 seconds, 1.2 of them for this run; steps are "
        "planned for the idle machine"
    )


@pytest.mark.parametrize(
    ("steps", "start_from", "text"),
    [
        (9, None, "warning: 9 of 100 steps are too few for this data: expect a model that has "
         "learned little; give it about train.minutes=23, or fewer rows and a smaller model"),
        (49, None, "give it about train.minutes=5,"),
        (50, None, ""),
        (49, "runs/a", ""),
        (29, "runs/a", "29 of 100 steps are too few"),
    ],
)  # fmt: skip
def test_too_few_steps_for_the_data_are_announced(values, steps, start_from, text):
    recipe = load_recipe("causal", values | {"train.minutes": 2})
    recipe = recipe.model_copy(update={"start_from": start_from})
    found = time_limit.describe_shortage(recipe, steps)
    assert text in found
    assert bool(text) == bool(found)


def test_a_continued_run_keeps_its_steps(values, tmp_path, monkeypatch):
    monkeypatch.setattr(time_limit, "USED", 1e-9)
    view = RecordingView()
    settings = values | {"train.minutes": 5}
    arguments: dict[str, Any] = {"out": tmp_path / "run", "view": view}
    assert train("causal", **arguments, **settings).steps == 2
    (line,) = [line for line in view.lines if "is enough for" in line]
    assert line == (
        "train.minutes=5 is enough for about 2 of 100 steps: train.steps=2 train.warmup=0 "
        "train.validate_every=2 train.save_every=2"
    )
    recorded = load_recipe(tmp_path / "run").train
    assert (recorded.steps, recorded.warmup, recorded.validate_every) == (2, 0, 2)
    monkeypatch.setattr(time_limit, "USED", 1.0)  # as if the machine were faster now
    before = len(view.lines)
    assert train("causal", resume="auto", **arguments, **settings).steps == 2
    (ended,) = view.lines[before:]  # and nothing about the data and the model
    assert ended.startswith("nothing to do: the run has ended at step 2, by train.steps=2;")
    assert load_recipe(tmp_path / "run").train == recorded


def test_timing_changes_no_run(values, tmp_path, monkeypatch):
    """A run whose steps were fitted equals one that is given these steps."""
    monkeypatch.setattr(time_limit, "USED", 1e-9)
    train("causal", out=tmp_path / "fitted", view=RecordingView(), **values, **{"train.minutes": 5})
    given = {f"train.{key}": 2 for key in ALL - {"warmup"}} | {"train.warmup": 0}
    train("causal", out=tmp_path / "given", view=RecordingView(), **values, **given)
    assert _losses(tmp_path / "fitted") == _losses(tmp_path / "given")


def _losses(folder: Path) -> list[float]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    return [line["valid/loss"] for line in lines if "valid/loss" in line]
