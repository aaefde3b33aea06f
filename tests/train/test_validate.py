from __future__ import annotations

import math
import shutil

import pytest
import torch
from tests.train.runs import InterruptingView, RecordingView, assert_equal_runs, lines_of, values_of

from trifold.hub import load_model
from trifold.objectives.translate import TranslateSettings
from trifold.scores import Score
from trifold.train import checkpoint
from trifold.train.optimizers import STATE_KINDS
from trifold.train.trainer import Trainer
from trifold.train.validate import mean_weights

pytestmark = pytest.mark.slow


@pytest.fixture
def set_scores(monkeypatch):
    """Make successive validations return these BLEU scores."""

    def set_scores(*values: float) -> None:
        scores = iter(values)
        monkeypatch.setattr(
            TranslateSettings, "scores", lambda *_: {"bleu": Score("BLEU", next(scores), "by hand")}
        )

    return set_scores


def best_weights(folder):
    return dict(load_model(folder / "model")[0].named_parameters())


def weights_of(folder, step):
    return checkpoint.load(folder / "checkpoints" / f"step-{step:08d}").weights


def are_equal(ours, theirs):
    return all(torch.equal(ours[name], theirs[name]) for name in theirs)


# --- the best -------------------------------------------------------------------------------------


def test_model_has_the_best_weights_rather_than_the_last(run, set_scores):
    set_scores(10, 30, 20, 29)
    folder = run(train__steps=12, train__validate_every=3).folder
    ours = best_weights(folder)
    assert are_equal(ours, weights_of(folder, 6))
    assert not are_equal(ours, weights_of(folder, 12))


def test_of_equal_scores_the_lower_loss_is_better(run, set_scores):
    set_scores(0, 0, 0, 0)
    outcome = run(train__steps=12, train__validate_every=3, train__patience=2)
    losses = dict(values_of(outcome.folder, "valid/loss"))
    assert len(losses) == 4 and outcome.best_step == min(losses, key=losses.__getitem__) > 3
    assert are_equal(best_weights(outcome.folder), weights_of(outcome.folder, outcome.best_step))


def test_the_outcome_has_the_scores_of_the_model_that_was_kept(run, set_scores):
    set_scores(10, 30, 20)
    outcome = run(train__steps=9, train__validate_every=3)
    assert (outcome.best_step, outcome.scores) == (6, {"bleu": 30})
    set_scores(25, 40)
    outcome = run(resume="auto", train__steps=15, train__validate_every=3)
    assert (outcome.best_step, outcome.scores) == (15, {"bleu": 40})


def test_best_weights_can_be_those_of_the_lowest_loss(run):
    folder = run(task__best_by="loss", train__steps=12, train__validate_every=3).folder
    losses = dict(values_of(folder, "valid/loss"))
    assert len(losses) == 4
    assert are_equal(best_weights(folder), weights_of(folder, min(losses, key=losses.__getitem__)))


def test_best_checkpoint_can_be_kept(run, set_scores):
    set_scores(2, 1, 0, 0)
    outcome = run(
        train__keep_best=True,
        train__keep_last=1,
        train__steps=12,
        train__validate_every=3,
        train__save_every=4,
    )
    paths = checkpoint.list_checkpoints(outcome.folder / "checkpoints")
    assert [checkpoint.step_of(path) for path in paths] == [3, 12]


def test_patience_ends_a_run_that_no_longer_improves(run, set_scores):
    set_scores(10, 30, 20, 28, 29, 40)
    outcome = run(train__validate_every=2, train__steps=100, train__patience=3)
    assert (outcome.stopped_by, outcome.steps) == ("patience", 10)


def test_a_run_stopped_before_its_first_validation_leaves_its_weights(run):
    changes = {"train__steps": 6, "train__validate_every": 3}
    folder = run(view=InterruptingView(2), **changes).folder
    assert are_equal(best_weights(folder), weights_of(folder, 2))
    assert values_of(folder, "valid/loss") == []


def test_a_run_stopped_later_keeps_its_best_weights(run):
    folder = run(
        view=InterruptingView(5), train__steps=6, train__validate_every=3, train__save_every=1
    ).folder
    assert are_equal(best_weights(folder), weights_of(folder, 3))


# --- the mean of checkpoints ----------------------------------------------------------------------


def test_mean_weights_are_the_mean(save_checkpoints):
    paths = save_checkpoints(1, 2, 3)
    mean, rejected = mean_weights(paths)
    assert rejected == []
    weights = [checkpoint.load(path).weights for path in paths]
    for name in ("a.weight", "b"):
        exact = torch.stack([each[name].double() for each in weights]).mean(0)
        assert mean[name].dtype is torch.float32
        assert torch.equal(mean[name], exact.float())


def test_damaged_checkpoint_is_excluded_from_the_mean(save_checkpoints):
    paths = save_checkpoints(1, 2, 3)
    weights = paths[1] / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    mean, rejected = mean_weights(paths)
    assert [str(weights) in line for line in rejected] == [True]
    expected, _ = mean_weights([paths[0], paths[2]])
    assert mean and are_equal(expected, mean)
    assert mean_weights([paths[1]])[0] == {}


def test_average_option_evaluates_the_mean_of_the_last_checkpoints(run, set_scores):
    set_scores(1, 2)
    folder = run(
        train__average=3, train__steps=12, train__validate_every=6, train__save_every=2
    ).folder
    mean, _ = mean_weights([folder / "checkpoints" / f"step-{step:08d}" for step in (8, 10, 12)])
    ours, last = best_weights(folder), weights_of(folder, 12)
    for name, value in mean.items():
        assert torch.allclose(ours[name], value, rtol=1e-6, atol=1e-7)
    assert not all(torch.allclose(ours[name], last[name], rtol=1e-6, atol=1e-7) for name in last)


def test_run_that_averages_survives_a_damaged_checkpoint(run, tmp_path):
    class DamagingView(RecordingView):
        def step(self, snapshot):
            if snapshot.step == 5:
                (
                    tmp_path / "run" / "checkpoints" / "step-00000002" / "weights.safetensors"
                ).write_bytes(b"!")

    view = DamagingView()
    outcome = run(
        view=view, train__average=3, train__steps=6, train__validate_every=6, train__save_every=2
    )
    assert outcome.finished
    (warning,) = (line for line in view.lines if line.startswith("warning"))
    assert "step-00000002" in warning and "excludes it" in warning
    (event,) = (line for line in lines_of(outcome.folder) if "event" in line)
    assert (event["step"], event["event"]) == (6, "averaged without")
    assert "step-00000002" in event["rejected"][0]


# --- the moving average ---------------------------------------------------------------------------


def check_average(run, steps):
    """Compare the average in the checkpoints of these steps with the formula, for decay 0.9;
    returns the last one.
    """
    mean, weight = {}, 0.0
    for step in steps:
        saved = checkpoint.load(run / "checkpoints" / f"step-{step:08d}")
        mean = {
            name: 0.9 * mean.get(name, 0) + value.double() for name, value in saved.weights.items()
        }
        weight = 0.9 * weight + 1
        for name, value in mean.items():
            found = saved.optimizer[f"ema.{name}"].double()
            torch.testing.assert_close(found, value / weight, rtol=1e-4, atol=1e-6)
    return saved


def test_moving_average_is_validated_and_does_not_change_training(run):
    plain = run("plain", train__steps=6)
    averaged = run(
        "averaged", train__steps=6, train__ema=0.9, train__save_every=1, train__keep_last=6
    )
    saved = check_average(averaged.folder, range(1, 7))
    raw, best = weights_of(plain.folder, 6), best_weights(averaged.folder)
    assert are_equal(saved.weights, raw)
    assert all(torch.equal(best[name], saved.optimizer[f"ema.{name}"]) for name in raw)
    assert not are_equal(best, raw)


@pytest.mark.parametrize("optimizer", STATE_KINDS)
def test_skipped_updates_do_not_enter_the_moving_average(run, monkeypatch, tmp_path, optimizer):
    """Neither do the initial weights if the first update is skipped; also in a resumed run."""
    real = Trainer._backward

    def backward(self, batch, step, *more):
        loss = real(self, batch, step, *more)
        return math.nan if step in (1, 4) else loss

    monkeypatch.setattr(Trainer, "_backward", backward)
    changes = {
        "train__optimizer": optimizer, "train__learning_rate": 0.01, "train__ema": 0.9,
        "train__on_nonfinite": "skip", "train__save_every": 1, "train__keep_last": 6,
    }  # fmt: skip
    run(train__steps=6, **changes)
    check_average(tmp_path / "run", (2, 3, 5, 6))
    shutil.copytree(tmp_path / "run", tmp_path / "halfway")
    for step in (5, 6):
        shutil.rmtree(tmp_path / "halfway" / "checkpoints" / f"step-{step:08d}")
    run("halfway", resume="auto", train__steps=6, **changes)
    assert_equal_runs(tmp_path / "halfway", tmp_path / "run")
