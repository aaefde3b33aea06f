"""Laws of a run: a resumed run equals an uninterrupted one, and only the recipe determines the
result.
"""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from tests.train.runs import (
    InterruptingView,
    assert_equal_runs,
    lines_of,
    overrides,
    state_of,
    values_of,
)

import trifold
from trifold.errors import CheckpointError, UsageError
from trifold.fast import matmul
from trifold.folders import named
from trifold.jsonfiles import read_json
from trifold.train import View, checkpoint, train
from trifold.train.trainer import Trainer

pytestmark = pytest.mark.slow

AVERAGED = {
    "train__average": 3,
    "train__keep_last": 3,
    "train__steps": 24,
    "train__save_every": 4,
    "train__validate_every": 8,
}


# --- resumed runs ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A run of 24 steps by precision: several epochs, dropout, the mean of three checkpoints."""
    folders = {}

    def uninterrupted(precision):
        if precision not in folders:
            folders[precision] = tmp_path_factory.mktemp("whole") / precision
            train(
                "smoke", out=folders[precision], **overrides(train__precision=precision, **AVERAGED)
            )
        return folders[precision]

    return uninterrupted


@pytest.mark.parametrize(
    ("stops", "precision"),
    [
        pytest.param([6], "float32", id="between checkpoints"),
        pytest.param([8], "float32", id="while validating"),
        pytest.param([20], "float32", id="in the second epoch"),
        pytest.param([3, 8, 19], "bfloat16", id="three times, in bf16"),
    ],
)
def test_resumed_run_equals_uninterrupted_run(run, uninterrupted, tmp_path, precision, stops):
    changes = AVERAGED | {"train__precision": precision}
    for stop in stops:
        outcome = run(view=InterruptingView(stop), resume="auto", **changes)
        assert (outcome.steps, outcome.stopped_by, outcome.finished) == (stop, "signal", False)
    outcome = run(resume="auto", **changes)
    assert (outcome.steps, outcome.stopped_by, outcome.exit_code) == (24, "steps", 0)
    last = checkpoint.list_checkpoints(outcome.folder / "checkpoints")[-1]
    assert checkpoint.load(last).progress["epoch"] >= 1
    assert_equal_runs(outcome.folder, uninterrupted(precision))


RATES = {"adamw": 0.001, "adafactor": 0.01, "muon": 0.002, "sgd": 0.1}


@pytest.mark.parametrize("optimizer", RATES)
def test_resumed_run_equals_uninterrupted_run_with_other_optimizers(assert_resumable, optimizer):
    assert_resumable(
        (5, 6),
        train__optimizer=optimizer,
        train__learning_rate=RATES[optimizer],
        train__weight_decay=0.01,
        train__ema=0.8,
        train__clip=1.0,
        train__accumulate=2,
        train__schedule="warmup-stable-decay",
        train__decay=0.5,
    )


def test_resumed_run_equals_uninterrupted_run_with_onednn(assert_resumable, tmp_path, monkeypatch):
    monkeypatch.setattr(matmul, "rule", lambda: matmul.MatmulRule(rows=0, width=0, size=0, reuse=0))
    assert_resumable((5,), train__steps=8)
    assert read_json(named(tmp_path / "run" / "environment.json"))["fp32_matmul"] == "onednn"


def test_resumed_run_equals_uninterrupted_run_with_bpe_dropout(assert_resumable, tmp_path):
    tokenizer = {"kind": "bpe", "vocab_size": 60, "dropout": 0.3}
    changes = {f"tokenizer__{key}": value for key, value in tokenizer.items()}
    assert_resumable((2, 9), batch__tokens=1024, **changes)  # in the first epoch and in a later one
    last = checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    assert checkpoint.load(last).progress["epoch"] >= 1


def test_resumed_run_equals_uninterrupted_run_with_scheduled_sampling(assert_resumable):
    sampling = {"share": 0.9, "schedule": "inverse-sigmoid", "first": 3, "k": 2.0}
    assert_resumable((5,), task__scheduled_sampling=sampling)


def test_run_continued_for_more_steps_equals_a_longer_run(run, tmp_path):
    run("short", train__steps=6)
    run("short", resume="auto", train__steps=12)
    run("long", train__steps=12)
    assert_equal_runs(tmp_path / "short", tmp_path / "long")


def test_interrupted_final_validation_is_repeated(run, tmp_path):
    changes = {"train__steps": 7, "train__validate_every": 100}
    run("whole", **changes)
    assert run(view=InterruptingView(7), **changes).scores == {}
    for _ in range(2):
        assert run(resume="auto", **changes).scores.keys() == {"bleu", "chrf", "exact_match"}
        assert_equal_runs(tmp_path / "run", tmp_path / "whole")


def test_crashed_run_repeats_the_steps_since_the_last_checkpoint(
    run, uninterrupted, tmp_path, monkeypatch
):
    real = Trainer.update

    def crash(self, batches, step, *more):
        if step == 11:
            raise ZeroDivisionError
        return real(self, batches, step, *more)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "update", crash)
        with pytest.raises(ZeroDivisionError):
            run(**AVERAGED)
    assert lines_of(tmp_path / "run")[-1]["step"] == 10
    run(resume="auto", **AVERAGED)
    assert_equal_runs(tmp_path / "run", uninterrupted("float32"))


def test_a_model_of_two_widths_trains_and_generates(run, tmp_path):
    sizes = {"model__d_decoder": 24, "model__n_decoder_heads": 4, "model__n_decoder_kv_heads": 2}
    run(**sizes, model__d_decoder_head=6, model__target_vocab_size=1, train__steps=24)
    losses = [loss for _, loss in values_of(tmp_path / "run", "train/loss")]
    assert losses[-1] < 0.6 * losses[0]
    pipe = trifold.load(tmp_path / "run")
    assert (
        pipe.config.target_vocab_size == pipe.config.vocab_size > 1
    )  # a joint tokenizer, two tables
    assert pipe.model.decoder_embeddings.tokens.weight.shape[1] == 24
    assert len(pipe.generate(["twenty three", "forty"], num_beams=2)) == 2


def test_resuming_a_finished_run_changes_nothing(run, tmp_path):
    first = run()
    before = state_of(tmp_path / "run")
    again = run(resume="auto")
    assert state_of(tmp_path / "run") == before
    assert (again.steps, again.scores, again.stopped_by) == (first.steps, first.scores, "steps")


def test_resume_auto_starts_a_new_run_in_an_empty_place(run, finished_run):
    assert_equal_runs(run(resume="auto").folder, finished_run)


def test_resume_continues_a_run_with_its_recipe(run, tmp_path):
    run(view=InterruptingView(2), train__steps=4)
    outcome = trifold.resume(tmp_path / "run", view=View())
    assert (outcome.folder, outcome.steps, outcome.finished) == (tmp_path / "run", 4, True)
    with pytest.raises(UsageError, match=r"none: no such run"):
        trifold.resume(tmp_path / "none")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"recipe": None}, TypeError, "^recipe is a name, a path or a Recipe, not None$"),
        (
            {"resume": "must"},
            UsageError,
            "^resume 'must' is not known; give 'auto', or leave it out$",
        ),
        ({"resume": True}, UsageError, "^resume True is not known; give 'auto'"),
        ({"out": "x\udcff"}, UsageError, "^`out`: character 2 is not valid UTF-8"),
        (
            {"out": "x"},
            UsageError,
            '^x: contains files; .* resume="auto", or choose another `out`$',
        ),
    ],
)
def test_wrong_argument_is_an_error_that_names_it(tmp_path, monkeypatch, arguments, error, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x" / "y").mkdir(parents=True)
    with pytest.raises(error, match=message):
        train(**{"recipe": "smoke"} | arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


# --- damage ---------------------------------------------------------------------------------------


def test_damaged_checkpoint_is_replaced_by_an_earlier_one_with_a_warning(
    run, finished_run, tmp_path, recorder
):
    shutil.copytree(finished_run, tmp_path / "run")
    newest = (
        checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")[-1] / "weights.safetensors"
    )
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    run(resume="auto", view=recorder)
    (warning,) = (line for line in recorder.lines if line.startswith("warning:"))
    assert "step-00000012/weights.safetensors: damaged" in warning
    assert_equal_runs(tmp_path / "run", finished_run)
    sessions = read_json(named(tmp_path / "run" / "environment.json"))["sessions"]
    assert [session["from_step"] for session in sessions] == [0, 9]
    assert "weights.safetensors" in sessions[1]["rejected"][0]


def test_run_without_an_intact_checkpoint_is_an_error(run, tmp_path):
    run(train__save_every=12)
    for path in checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints"):
        (path / "progress.json").write_text("{}", encoding="utf-8")
    message = r"progress\.json: damaged(.|\n)*no intact checkpoint remains"
    with pytest.raises(CheckpointError, match=message):
        run(resume="auto")


def test_damaged_lines_of_metrics_are_written_again(run, finished_run, tmp_path):
    run(view=InterruptingView(7))
    with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
        file.write(b'\0\0\0\n{"step": 8, "trai')
    run(resume="auto")
    assert_equal_runs(tmp_path / "run", finished_run)


# --- determinism ----------------------------------------------------------------------------------


def test_seed_determines_the_result(run, tmp_path):
    for folder, seed in (("one", 5), ("two", 5), ("other", 6)):
        run(folder, train__seed=seed)
    assert_equal_runs(tmp_path / "one", tmp_path / "two")
    one, other = (tmp_path / name / "model" / "model.safetensors" for name in ("one", "other"))
    assert one.read_bytes() != other.read_bytes()


def test_random_state_of_the_caller_does_not_matter(run, tmp_path):
    for folder, seed in (("one", 1), ("two", 2)):
        torch.manual_seed(seed)
        np.random.seed(seed)
        run(folder)
    assert_equal_runs(tmp_path / "one", tmp_path / "two")


# --- position and end -----------------------------------------------------------------------------


def test_accumulation_takes_several_batches_per_step(run, tmp_path):
    run(train__accumulate=3, train__steps=2, train__validate_every=2, train__save_every=1)
    progress = checkpoint.load(tmp_path / "run" / "checkpoints" / "step-00000001").progress
    assert (progress["epoch"], progress["batch"]) == (0, 3)


def test_minutes_end_a_run_which_is_validated(run):
    outcome = run(train__steps=100_000, train__warmup=50_000, train__minutes=0.01)
    assert outcome.stopped_by == "minutes"
    assert 0 < outcome.steps < 100_000
    assert outcome.seconds >= 0.6
    assert outcome.scores
    assert (outcome.folder / "model" / "config.json").is_file()


@pytest.mark.parametrize(("warmup", "warnings"), [(1, 0), (2, 1), (4000, 1)])
def test_warmup_longer_than_the_run_is_reported(run, recorder, warmup, warnings):
    run(view=recorder, train__schedule="constant", train__steps=2, train__warmup=warmup)
    assert sum(line.startswith("warning: warmup ") for line in recorder.lines) == warnings
