"""`trifold train --seeds` and `--folds`: ordinary runs, and the mean and the deviation of their scores."""

from __future__ import annotations

import json
import sys
from statistics import mean, stdev

import pytest

from trifold.train import Outcome
from trifold.yaml_dialect import parse

TINY = (
    "model.d_model=16 model.n_heads=2 model.n_layers=1 model.d_ff=16 train.steps=2 train.warmup=1 "
    "train.validate_every=2 train.save_every=2 train.device=cpu train.precision=float32"
).split()


@pytest.fixture
def train(trifold, tmp_path):
    """Train a tiny classifier of 40 rows into `out`."""
    file = tmp_path / "a.csv"
    lines = [f"{word} {number},{'ab'[number % 3 > 0]}" for number in range(20) for word in ("red", "blue")]
    file.write_text("\n".join(["text,label", *lines]) + "\n", encoding="utf-8")

    def train(*options, out="out"):
        return trifold(
            "train", "classify", f"data.train={file}", *TINY, "--out", str(tmp_path / out), *options
        )

    return train


@pytest.mark.slow
def test_runs_with_several_seeds_are_ordinary_runs(train, trifold, tmp_path, monkeypatch):
    test = f"data.test={tmp_path / 'a.csv'}"
    done = train(test, "--seeds", "1,7", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert list(found["runs"]) == ["seed-1", "seed-7"]
    alone = json.loads(train(test, "train.seed=7", "--json", out="alone").out)
    weights = [tmp_path / run / "model" / "model.safetensors" for run in ("out/seed-7", "alone")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    scored = json.loads(trifold("eval", str(tmp_path / "alone"), "--split", "test", "--json").out)["scores"]
    assert found["runs"]["seed-7"] == {
        **{f"valid/{name}": value for name, value in alone["scores"].items()},
        **{f"test/{name}": pytest.approx(value) for name, value in scored.items()},
    }
    values = [run["test/accuracy"] for run in found["runs"].values()]
    assert found["mean"]["test/accuracy"] == pytest.approx(mean(values))
    assert found["deviation"]["test/accuracy"] == pytest.approx(stdev(values))
    listed = trifold("runs", str(tmp_path / "out")).out
    assert f"{values[0]:6.2f} {values[1]:6.2f}" in listed and "accuracy" in listed.splitlines()[2]
    with monkeypatch.context() as patch:  # finished runs do not begin again
        patch.setattr(sys.modules["trifold.train"], "train", pytest.fail)
        assert json.loads(train(test, "--seeds", "1,7", "--json").out) == found


@pytest.mark.slow
def test_folds_hold_out_each_row_once(train, tmp_path):
    done = train("--folds", "2", f"data.valid={tmp_path / 'a.csv'}")
    assert done.code == 0, done.err
    assert "fold-1 fold-2" in done.out and "valid/accuracy" in done.out and "test/" not in done.out
    for fold in (1, 2):
        data = parse((tmp_path / f"out/fold-{fold}/recipe.yaml").read_text("utf-8"), "")["data"]
        assert (data["valid"], data["holdout"]) == (None, f"fold:{fold}/2")


def test_after_a_signal_the_same_command_continues(train, tmp_path, monkeypatch):
    calls = []

    def stopped_in_the_second(recipe, *, out, resume, data_changed):
        calls.append((recipe.train.seed, resume, data_changed))
        reason, code = ("steps", 0) if len(calls) != 2 else ("signal", 143)
        (out / "model").mkdir(parents=True, exist_ok=True)
        (out / "recipe.yaml").write_text(recipe.resolved(), encoding="utf-8")
        return Outcome(out, 2, 1.0, {"accuracy": 10.0 * recipe.train.seed}, reason, code)

    monkeypatch.setattr(sys.modules["trifold.train"], "train", stopped_in_the_second)
    assert train("--seeds", "3").code == 143
    assert [seed for seed, *_ in calls] == [1, 2]
    done = train("--seeds", "3", "--data-changed")
    assert calls[2:] == [(2, "auto", True), (3, "auto", True)]
    assert "20.00 ± 10.00    10.00  20.00  30.00" in done.out


@pytest.mark.parametrize(
    "options", ["--seeds 1", "--seeds x", "--seeds 3,3", "--seeds 3 --folds 2", "--seeds 2,-1"]
)
def test_other_seeds_are_rejected(train, options):
    done = train(*options.split())
    assert (done.code, done.out) == (2, "")
    assert "give a number of seeds (5) or a list (1,2,3)" in done.err
