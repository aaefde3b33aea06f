"""`trifold train --seeds` and `--folds`: ordinary runs, and the mean and the deviation of their
scores.
"""

from __future__ import annotations

import json
import re
import sys
from statistics import mean, stdev

import pytest

from trifold.train import Outcome
from trifold.train.loop import Run
from trifold.yaml_dialect import parse

TINY = (
    "model.d_model=16 model.n_heads=2 model.n_layers=1 model.d_ff=16 train.steps=2 train.warmup=1 "
    "train.validate_every=2 train.save_every=2 train.device=cpu train.precision=float32"
).split()


@pytest.fixture
def train(trifold, tmp_path):
    """Train a tiny classifier of 40 rows into `out`."""
    file = tmp_path / "a.csv"
    lines = [
        f"{word} {number},{'ab'[number % 3 > 0]}"
        for number in range(20)
        for word in ("red", "blue")
    ]
    file.write_text("\n".join(["text,label", *lines]) + "\n", encoding="utf-8")

    def train(*options, out="out"):
        return trifold(
            "train", "classify", f"data.train={file}", *TINY, "--out", str(tmp_path / out), *options
        )

    return train


@pytest.mark.slow
def test_runs_with_several_seeds_are_ordinary_runs(train, trifold, tmp_path, monkeypatch):
    done = train("--seeds", "1,7", "--json")
    assert done.code == 0, done.err
    listed = {facts["run"]: facts for facts in json.loads(done.out)}
    assert listed.keys() == {"seed-1", "seed-7"}
    alone = json.loads(train("train.seed=7", "--json", out="alone").out)
    weights = [tmp_path / run / "model" / "model.safetensors" for run in ("out/seed-7", "alone")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert listed["seed-7"]["value"] == alone["scores"]["accuracy"]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text("utf-8"))
    values = [listed[run]["value"] for run in ("seed-1", "seed-7")]
    assert summary["score"] == "accuracy" and [run["value"] for run in summary["runs"]] == values
    assert (summary["mean"], summary["deviation"]) == pytest.approx((mean(values), stdev(values)))
    spread = f"2 runs: accuracy {mean(values):.2f} ± {stdev(values):.2f}, mean"
    assert spread in trifold("runs", str(tmp_path / "out")).out
    with monkeypatch.context() as patch:  # finished runs do not begin again
        patch.setattr(sys.modules["trifold.train"], "train", pytest.fail)
        assert spread in train("--seeds", "1,7").out


@pytest.mark.slow
def test_folds_hold_out_each_row_once(train, tmp_path):
    done = train("--folds", "2", f"data.valid={tmp_path / 'a.csv'}")
    assert done.code == 0, done.err
    assert "fold-1" in done.out and "2 runs: accuracy" in done.out
    for fold in (1, 2):
        data = parse((tmp_path / f"out/fold-{fold}/recipe.yaml").read_text("utf-8"), "")["data"]
        assert (data["valid"], data["holdout"]) == (None, f"fold:{fold}/2")
    heading, *rows = _read_table(tmp_path / "out" / "doubts.tsv")
    assert heading == ["file", "line", "text", "label", "predicted", "probability"]
    assert sorted(int(line) for _, line, *_ in rows) == [*range(2, 42)]
    cells = [line.split(",") for line in (tmp_path / "a.csv").read_text("utf-8").splitlines()]
    assert all(cells[int(line) - 1] == [text, label] for _, line, text, label, *_ in rows)
    wrong = [float(last) for *_, label, predicted, last in rows if label != predicted]
    right = [float(last) for *_, label, predicted, last in rows if label == predicted]
    assert [float(row[-1]) for row in rows] == sorted(wrong, reverse=True) + sorted(right)


def _read_table(file):
    return [line.split("\t") for line in file.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("content", ['{"mean": 3}', "text"])
def test_a_summary_of_another_program_is_not_replaced(train, tmp_path, content):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "summary.json").write_text(content, encoding="utf-8")
    done = train("--seeds", "2")
    assert done.code == 2
    assert "out/summary.json: is not of trifold, and is not replaced; choose another --out" in (
        " ".join(done.err.split())
    )
    assert (tmp_path / "out" / "summary.json").read_text("utf-8") == content


def test_after_a_signal_the_same_command_continues(train, tmp_path, monkeypatch):
    calls = []

    def stopped_in_the_second(recipe, *, out, resume, data_changed):
        calls.append((recipe.train.seed, resume, data_changed))
        reason, code = ("steps", 0) if len(calls) != 2 else ("signal", 143)
        out.mkdir(parents=True, exist_ok=True)
        (out / "recipe.yaml").write_text(recipe.resolved(), encoding="utf-8")
        session = {"to_step": 2, "stopped_by": reason}
        (out / "environment.json").write_text(json.dumps({"sessions": [session]}), encoding="utf-8")
        (out / "model").mkdir(exist_ok=True)
        (out / "model" / "model.safetensors").touch()
        (out / "checkpoints" / "step-00000002").mkdir(parents=True, exist_ok=True)
        (out / "checkpoints" / "step-00000002" / "manifest.json").touch()
        line = {"step": 2, "valid/loss": 1.0, "valid/accuracy": 10.0 * recipe.train.seed}
        (out / "metrics.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
        return Outcome(out, 2, 1.0, {}, reason, code)

    monkeypatch.setattr(sys.modules["trifold.train"], "train", stopped_in_the_second)
    stopped = train("--seeds", "3")
    assert (stopped.code, stopped.out) == (143, "")
    last = " ".join(stopped.err.split()).rpartition("; ")[2]
    assert re.fullmatch(r".*continue all runs with `trifold train .* --seeds 3`", last)
    assert [seed for seed, *_ in calls] == [1, 2]
    done = train("--seeds", "3", "--data-changed")
    assert calls[2:] == [(2, "auto", True), (3, "auto", True)]
    assert "3 runs: accuracy 20.00 ± 10.00, mean ± standard deviation (n - 1)" in done.out


class Killed(BaseException):
    """The process ends without another line of code."""


@pytest.mark.slow
@pytest.mark.parametrize("killed_at", ["before the validation", "after it"])
def test_a_run_that_was_killed_at_its_last_step_is_continued(
    train, tmp_path, monkeypatch, killed_at
):
    name = "_validate" if killed_at == "before the validation" else "_save"

    def killed(self):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Run, name, killed)
        with pytest.raises(Killed):
            train("--seeds", "2")
    continued, whole = (train("--seeds", "2", "--json", out=out) for out in ("out", "other"))
    assert continued.code == 0, continued.err
    found, expected = (
        {facts["run"]: (facts["state"], facts["value"]) for facts in json.loads(done.out)}
        for done in (continued, whole)
    )
    assert found == expected and {state for state, _ in found.values()} == {"finished"}


@pytest.mark.slow
def test_a_finished_run_counts_with_its_recipe_data_and_files_only(train, tmp_path, monkeypatch):
    """Every case begins with the two finished runs of the one before."""
    summary = tmp_path / "out" / "summary.json"
    assert train("--seeds", "2").code == 0

    def values(done):
        assert done.code == 0, done.err
        return [(facts["run"], facts["state"], facts["step"]) for facts in json.loads(done.out)]

    with monkeypatch.context() as patch:  # killed while more steps began
        patch.setattr(sys.modules["trifold.train.preparation"], "compare_data", killed)
        with pytest.raises(Killed):
            train("--seeds", "2", "train.steps=4")
    assert not summary.exists()
    done = train("--seeds", "2", "train.steps=4", "--json")
    assert sorted(values(done)) == [("seed-1", "finished", 4), ("seed-2", "finished", 4)]

    metrics = tmp_path / "out" / "seed-2" / "metrics.jsonl"
    whole = metrics.read_bytes()
    metrics.write_bytes(whole[:-20])  # in the last validation
    done = train("--seeds", "2", "train.steps=4")
    assert done.code == 1 and "seed-2: has ended, but is stopped" in done.err
    assert not summary.exists()
    metrics.write_bytes(whole)

    file = tmp_path / "a.csv"
    file.write_text(file.read_text("utf-8") + "green 1,a\n", "utf-8")
    done = train("--seeds", "2", "train.steps=4")
    assert done.code == 1 and "a.csv" in done.err and "--data-changed" in done.err
    assert not summary.exists()


def killed(*_, **__):
    raise Killed


@pytest.mark.slow
def test_folds_of_another_number_are_other_runs(train, tmp_path):
    assert train("--folds", "2").code == 0
    done = train("--folds", "3")
    assert done.code != 0 and "data.holdout" in done.err
    assert not (tmp_path / "out" / "summary.json").exists()


@pytest.mark.parametrize("score", ["null", "NaN", "Infinity"])
def test_a_score_that_is_no_number_is_an_error(train, tmp_path, monkeypatch, score):
    def diverged(recipe, *, out, **_):
        (out / "checkpoints" / "step-00000002").mkdir(parents=True)
        (out / "checkpoints" / "step-00000002" / "manifest.json").touch()
        (out / "model").mkdir()
        (out / "model" / "model.safetensors").touch()
        (out / "recipe.yaml").write_text(recipe.resolved(), encoding="utf-8")
        sessions = '{"sessions": [{"to_step": 2, "stopped_by": "steps"}]}'
        (out / "environment.json").write_text(sessions, encoding="utf-8")
        line = f'{{"step": 2, "valid/loss": {score}, "valid/accuracy": {score}}}\n'
        (out / "metrics.jsonl").write_text(line, encoding="utf-8")
        return Outcome(out, 2, 1.0, {}, "steps", 0)

    monkeypatch.setattr(sys.modules["trifold.train"], "train", diverged)
    done = train("--seeds", "2")
    assert done.code == 1 and "seed-1: has no validation with a finite 'accuracy'" in done.err


def test_a_missing_score_is_an_error(train, tmp_path, monkeypatch):
    def without_validation(recipe, *, out, **_):
        out.mkdir(parents=True)
        (out / "recipe.yaml").write_text(recipe.resolved(), encoding="utf-8")
        return Outcome(out, 2, 1.0, {}, "steps", 0)

    monkeypatch.setattr(sys.modules["trifold.train"], "train", without_validation)
    done = train("--seeds", "2")
    assert done.code == 1 and "seed-1: has ended, but is stopped" in done.err
    assert not (tmp_path / "out" / "summary.json").exists()


@pytest.mark.parametrize(
    "options", ["--seeds 1", "--seeds x", "--seeds 3,3", "--seeds 3 --folds 2", "--seeds 2,-1"]
)
def test_other_seeds_are_rejected(train, options):
    done = train(*options.split())
    assert (done.code, done.out) == (2, "")
    assert "give a number of seeds (5) or a list (1,2,3)" in done.err
