"""The laws of a run: going on is as never having stopped, and nothing but the recipe decides what is learnt."""

from __future__ import annotations

import json
import math
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from trifold.errors import SettingsError, TrifoldError, UsageError
from trifold.hub import load_model
from trifold.objectives.translate import Translate, TranslateSettings
from trifold.recipe import load_recipe
from trifold.scores import Score
from trifold.train import checkpoint, ranks, train
from trifold.train.data import load_data
from trifold.train.device import Machine
from trifold.train.monitor import View
from trifold.train.optimizers import Adam
from trifold.train.trainer import Trainer
from trifold.train.validate import mean_weights

pytestmark = pytest.mark.slow

AVERAGED = {"train__average": 3, "train__keep_last": 3, "train__steps": 24, "train__save_every": 4}


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]


# --- going on ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, tiny, state_of):
    """What a run of 24 steps leaves, by precision; more than one epoch, dropout on, three checkpoints averaged."""
    known = {}

    def state(precision):
        if precision not in known:
            folder = tmp_path_factory.mktemp("whole") / precision
            changes = {key.replace("__", "."): value for key, value in AVERAGED.items()}
            train(
                "smoke",
                out=folder,
                **tiny | changes | {"train.validate_every": 8, "train.precision": precision},
            )
            known[precision] = state_of(folder)
        return known[precision]

    return state


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "stops",
    [
        pytest.param([6], id="between checkpoints"),
        pytest.param([8], id="while validating"),
        pytest.param([20], id="in the second epoch"),
        pytest.param([3, 8, 19], id="three times"),
    ],
)
def test_a_resumed_run_is_bit_equal_to_one_that_never_stopped(
    run, interrupting, uninterrupted, state_of, tmp_path, precision, stops
):
    changes = AVERAGED | {"train__validate_every": 8, "train__precision": precision}
    for stop in stops:
        outcome = run(view=interrupting(stop), resume="auto", **changes)
        assert (outcome.steps, outcome.stopped_by, outcome.finished) == (stop, "signal", False)
    outcome = run(resume="auto", **changes)
    assert (outcome.steps, outcome.stopped_by, outcome.exit_code) == (24, "steps", 0)
    ours, theirs = state_of(tmp_path / "run"), uninterrupted(precision)
    assert ours["progress"]["epoch"] >= 1
    assert ours.keys() == theirs.keys()
    assert [key for key in theirs if ours[key] != theirs[key]] == []


def test_a_last_validation_that_was_cut_off_is_made_up_for(run, interrupting, state_of, tmp_path):
    changes = {"train__steps": 7, "train__validate_every": 100}
    run("whole", **changes)
    assert run(view=interrupting(7), **changes).scores == {}
    for _ in range(2):
        assert run(resume="auto", **changes).scores.keys() == {"bleu", "chrf", "exact_match"}
        assert state_of(tmp_path / "run") == state_of(tmp_path / "whole")


def test_after_a_crash_the_steps_since_the_last_checkpoint_are_done_again(
    run, uninterrupted, state_of, tmp_path, monkeypatch
):
    changes = AVERAGED | {"train__validate_every": 8}
    update, calls = Trainer.update, []

    def dying(self, batches, step, *more):
        calls.append(step)
        if step == 11:
            raise ZeroDivisionError
        return update(self, batches, step)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "update", dying)
        with pytest.raises(ZeroDivisionError):
            run(**changes)
    assert metrics(tmp_path / "run")[-1]["step"] == 10
    run(resume="auto", **changes)
    assert state_of(tmp_path / "run") == uninterrupted("float32")


def test_merges_that_drop_out_are_drawn_again_the_same(run, interrupting, state_of, tmp_path):
    changes = {
        "tokenizer__kind": "bpe",
        "tokenizer__vocab_size": 60,
        "tokenizer__dropout": 0.3,
        "batch__tokens": 1024,
    }
    for stop in (2, 9):  # in the first epoch and in a later one
        run(view=interrupting(stop), resume="auto", **changes)
    run(resume="auto", **changes)
    run("whole", **changes)
    ours, theirs = state_of(tmp_path / "run"), state_of(tmp_path / "whole")
    assert theirs["progress"]["epoch"] >= 1
    assert [key for key in theirs if ours[key] != theirs[key]] == []


def test_more_steps_are_the_same_run_gone_on(run, state_of, tmp_path):
    run("short", train__steps=6)
    run("short", resume="auto", train__steps=12)
    run("long", train__steps=12)
    assert state_of(tmp_path / "short") == state_of(tmp_path / "long")


def test_a_finished_run_is_finished(run, state_of, tmp_path):
    first = run()
    before = state_of(tmp_path / "run")
    again = run(resume="auto")
    assert state_of(tmp_path / "run") == before
    assert (again.steps, again.scores, again.stopped_by) == (first.steps, first.scores, "steps")


def test_resume_auto_begins_where_there_is_nothing(run, state_of, tmp_path):
    run("one", resume="auto")
    run("two")
    assert state_of(tmp_path / "one") == state_of(tmp_path / "two")


def test_the_seed_decides_all(run, state_of, tmp_path):
    for folder, seed in (("one", 5), ("two", 5), ("other", 6)):
        run(folder, train__seed=seed)
    one, two, other = (state_of(tmp_path / folder) for folder in ("one", "two", "other"))
    assert one == two
    assert one["model/model.safetensors"] != other["model/model.safetensors"]


def test_the_random_numbers_of_the_caller_do_not_matter(run, state_of, tmp_path):
    for folder, seed in (("one", 1), ("two", 2)):
        torch.manual_seed(seed)
        np.random.seed(seed)
        run(folder)
    assert state_of(tmp_path / "one") == state_of(tmp_path / "two")


# --- one update -------------------------------------------------------------------------------------------


class Recorder:
    """Stands where the optimiser does and only remembers."""

    def step(self, gradient: torch.Tensor, rate: float) -> None:
        self.gradient, self.rate = gradient.clone(), rate


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, tiny):
    recipe = load_recipe("smoke", tiny | {"model.dropout": 0.0})
    return load_data(recipe, tmp_path_factory.mktemp("tokenizer"), View())


def gradient_of(prepared, *batches: np.ndarray, workers=1, **changes) -> torch.Tensor:
    settings = prepared.recipe.train.model_copy(update=changes)
    device = torch.device("cpu")
    trainer = Trainer(
        prepared.new_model(),
        prepared.objective,
        settings,
        Machine(device, torch.float32, workers),
    )
    trainer.optimizer = Recorder()
    trainer.update([prepared.objective.batch(prepared.train, rows) for rows in batches], 1)
    trainer.close()
    return trainer.optimizer.gradient


def test_accumulated_batches_give_the_gradient_of_one_big_batch(prepared):
    rows = np.arange(60, 75)
    whole = gradient_of(prepared, rows)
    for cut in (1, 4, 14):  # ragged: the parts differ in rows, tokens and padding
        parts = gradient_of(prepared, rows[:cut], rows[cut:])
        assert torch.allclose(parts, whole, rtol=1e-4, atol=1e-7)
    assert not torch.allclose(gradient_of(prepared, rows[:14]), whole, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_side_by_side_give_the_gradient_of_one(prepared, workers):
    cuts = np.arange(60, 75), np.arange(20, 22), np.arange(22, 40), np.arange(80, 81), np.arange(90, 99)
    alone = gradient_of(prepared, *cuts)
    together = gradient_of(prepared, *cuts, workers=workers)
    assert torch.allclose(together, alone, rtol=1e-5, atol=1e-8)
    assert torch.equal(together, gradient_of(prepared, *cuts, workers=workers))  # whoever is done first


def test_what_a_worker_cannot_do_is_said_by_the_run(prepared):
    with pytest.raises(IndexError):
        gradient_of(prepared, np.arange(4), np.array([10**6]), workers=2)


def test_a_resumed_run_with_workers_is_bit_equal_too(run, interrupting, state_of, tmp_path):
    changes = {"train__workers": 2, "train__precision": "bfloat16"}
    run(folder="whole", **changes)
    run(view=interrupting(5), resume="auto", **changes)
    run(resume="auto", **changes)
    ours, theirs = state_of(tmp_path / "run"), state_of(tmp_path / "whole")
    assert [key for key in theirs if ours[key] != theirs[key]] == []


def test_the_gradient_is_that_of_the_mean_over_tokens(prepared):
    rows = np.arange(20, 30)
    batch = prepared.objective.batch(prepared.train, rows)
    model = prepared.new_model().train()
    loss = prepared.objective.loss(model, batch)["tokens"]
    (loss.sum / loss.count).backward()
    by_hand = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert torch.allclose(gradient_of(prepared, rows), by_hand, rtol=1e-5, atol=1e-8)


def test_clipping_shortens_and_keeps_the_direction(prepared):
    rows = np.arange(20, 30)
    free = gradient_of(prepared, rows)
    norm = float(free.norm())
    short = gradient_of(prepared, rows, clip=norm / 4)
    assert torch.allclose(short, free / 4, rtol=1e-5)
    assert torch.equal(gradient_of(prepared, rows, clip=norm * 2), free)


def test_accumulating_takes_as_many_batches_from_the_plan(run, tmp_path):
    run(train__accumulate=3, train__steps=2, train__validate_every=2, train__save_every=1)
    first = checkpoint.load(tmp_path / "run" / "checkpoints" / "step-00000001").progress
    assert (first["epoch"], first["batch"]) == (0, 3)


# --- when it ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_what_is_not_a_number_stops_before_the_weights_are_touched(run, tmp_path, monkeypatch, what):
    loss, updates = Translate.loss, []

    def poisoned(self, model, batch):
        terms = loss(self, model, batch)
        if model.training and len(updates) == 4:
            term = terms["tokens"]
            bad = {"loss": term.sum * math.nan, "gradient": (term.sum - term.sum.detach()) * math.inf + 1}[
                what
            ]
            terms["tokens"] = replace(term, sum=bad, nll=bad.detach() if what == "loss" else term.nll)
        return terms

    step = Adam.step

    def counted(self, gradient, rate):
        updates.append(bool(gradient.isfinite().all()))
        step(self, gradient, rate)

    monkeypatch.setattr(Translate, "loss", poisoned)
    monkeypatch.setattr(Adam, "step", counted)
    with pytest.raises(TrifoldError, match=r"step 5: .*nan.* weights were not changed.*train\.learning_rate"):
        run(train__save_every=2, train__validate_every=2)
    assert updates == [True] * 4
    last = checkpoint.load(checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")[-1])
    assert last.progress["step"] == 4
    assert all(bool(value.isfinite().all()) for value in last.weights.values())
    *_, before, told = metrics(tmp_path / "run")
    assert (before["step"], told["step"], told["event"], told["what"]) == (4, 5, "stopped", "non-finite")
    assert (tmp_path / "run" / told["batch"]).is_file()


def test_minutes_end_a_run_whatever_the_steps(run):
    outcome = run(train__steps=100_000, train__warmup=50_000, train__minutes=0.01)
    assert outcome.stopped_by == "minutes"
    assert 0 < outcome.steps < 100_000
    assert outcome.seconds >= 0.6
    assert outcome.scores, "what was learnt is validated"
    assert (outcome.folder / "model" / "config.json").is_file()


@pytest.fixture
def scored(monkeypatch):
    """Let the validations give these BLEU scores, one after the other."""

    def scored(*values: float) -> None:
        left = list(values)
        monkeypatch.setattr(
            TranslateSettings, "scores", lambda *_: {"bleu": Score("BLEU", left.pop(0), "by hand")}
        )

    return scored


def test_patience_ends_a_run_that_no_longer_improves(run, scored):
    scored(10, 30, 20, 30, 29, 40)
    outcome = run(train__validate_every=2, train__steps=100, train__patience=3)
    assert (outcome.stopped_by, outcome.steps) == ("patience", 10)


def test_the_best_weights_are_kept_and_not_the_last(run, scored):
    scored(10, 30, 20, 30)
    outcome = run(train__steps=12, train__validate_every=3)
    kept, _ = load_model(outcome.folder / "model")
    best = checkpoint.load(outcome.folder / "checkpoints" / "step-00000006").weights
    last = checkpoint.load(outcome.folder / "checkpoints" / "step-00000012").weights
    ours = dict(kept.named_parameters())
    assert all(torch.equal(ours[name], best[name]) for name in best)
    assert not all(torch.equal(ours[name], last[name]) for name in best)


def test_the_best_may_be_the_least_loss(run):
    outcome = run(task__best_by="loss", train__steps=12, train__validate_every=3)
    losses = {line["step"]: line["valid/loss"] for line in metrics(outcome.folder) if "valid/loss" in line}
    best = min(losses, key=losses.__getitem__)
    kept = dict(load_model(outcome.folder / "model")[0].named_parameters())
    weights = checkpoint.load(outcome.folder / "checkpoints" / f"step-{best:08d}").weights
    assert len(losses) == 4
    assert all(torch.equal(kept[name], weights[name]) for name in weights)


def test_averaging_keeps_the_mean_of_the_last_checkpoints(run, scored):
    scored(1, 2)
    outcome = run(train__average=3, train__steps=12, train__validate_every=6, train__save_every=2)
    kept = dict(load_model(outcome.folder / "model")[0].named_parameters())
    folder = outcome.folder / "checkpoints"
    mean, _ = mean_weights([folder / f"step-{step:08d}" for step in (8, 10, 12)])
    for name, value in mean.items():
        assert torch.allclose(kept[name], value, rtol=1e-6, atol=1e-7)
    last = checkpoint.load(folder / "step-00000012").weights
    assert not all(torch.allclose(kept[name], last[name], rtol=1e-6, atol=1e-7) for name in last)


def test_a_damaged_checkpoint_does_not_end_a_run_that_averages(run, interrupting, tmp_path):
    class Damaging(interrupting):
        def step(self, shot):
            if shot.step == 5:
                (tmp_path / "run" / "checkpoints" / "step-00000002" / "weights.safetensors").write_bytes(b"!")

    view = Damaging(-1)
    outcome = run(view=view, train__average=3, train__steps=6, train__validate_every=6, train__save_every=2)
    assert outcome.finished
    (warning,) = (line for line in view.lines if line.startswith("warning"))
    assert "step-00000002" in warning and "excludes it" in warning
    (event,) = (line for line in metrics(outcome.folder) if "event" in line)
    assert (event["step"], event["event"]) == (6, "averaged without") and "step-00000002" in event[
        "rejected"
    ][0]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_with_its_code_and_the_handlers_are_put_back(run, interrupting, number, code):
    before = signal.getsignal(number)
    view = interrupting(5, number)
    outcome = run(view=view)
    assert (outcome.exit_code, outcome.stopped_by, outcome.steps) == (code, "signal", 5)
    assert signal.getsignal(number) is before
    assert view.lines[-1].startswith("stopped at step 5; continue with: trifold train ")
    assert view.lines[-1].endswith("--resume auto")


@pytest.fixture
def twice(interrupting):
    class Twice(interrupting):
        def step(self, shot):
            super().step(shot)
            super().step(shot)

    return Twice


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, None), (signal.SIGTERM, 143)])
def test_a_second_signal_does_not_wait(run, twice, monkeypatch, number, code):
    monkeypatch.setattr(ranks, "REPEAT_INTERVAL", 0.0)
    with pytest.raises(KeyboardInterrupt if code is None else SystemExit) as ended:
        run(view=twice(3, number))
    assert code is None or ended.value.code == code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_request_that_arrives_twice_saves(run, twice, number):
    outcome = run(view=twice(3, number))
    assert (outcome.exit_code, outcome.steps) == (128 + number, 3)
    assert checkpoint.step_of(checkpoint.list_checkpoints(outcome.folder / "checkpoints")[-1]) == 3


def test_the_best_checkpoint_is_kept_whenever_it_was_found(run, scored):
    scored(2, 1, 0, 0)
    outcome = run(
        train__keep_best=True,
        train__keep_last=1,
        train__steps=12,
        train__validate_every=3,
        train__save_every=4,
    )
    kept = [checkpoint.step_of(path) for path in checkpoint.list_checkpoints(outcome.folder / "checkpoints")]
    assert kept == [3, 12]


# --- what is refused --------------------------------------------------------------------------------------


def test_resuming_with_another_recipe_is_refused_and_the_keys_are_named(run):
    run(train__steps=3, train__validate_every=3)
    with pytest.raises(SettingsError) as caught:
        run(resume="auto", train__steps=3, train__validate_every=3, model__d_ff=48, train__beta2=0.9)
    assert "model.d_ff" in str(caught.value) and "train.beta2" in str(caught.value)
    assert "recipe.yaml" in str(caught.value) and "--out" in str(caught.value)
    assert "d_model" not in str(caught.value)


def test_how_long_and_how_loudly_may_change(run, tmp_path):
    run(train__steps=3, train__validate_every=3)
    free = {"train__minutes": 9.0, "train__log_every": 2, "train__samples": 1, "generate__num_beams": 2}
    assert run(resume="auto", train__steps=6, train__validate_every=3, **free).steps == 6
    # … and the run folder says what went on.
    assert load_recipe(tmp_path / "run" / "recipe.yaml").generate.num_beams == 2


def test_a_folder_with_files_is_refused(run, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("precious", encoding="utf-8")
    with pytest.raises(UsageError, match=r"contains files; .*--resume auto"):
        run()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]


def test_an_empty_folder_is_taken(run, tmp_path):
    (tmp_path / "run").mkdir()
    assert run(train__steps=3, train__warmup=2).steps == 3


def test_checkpoints_without_a_recipe_are_refused(run, tmp_path):
    run(train__steps=3)
    (tmp_path / "run" / "recipe.yaml").unlink()
    with pytest.raises(UsageError, match=r"checkpoints but no recipe\.yaml"):
        run(resume="auto")


def test_more_steps_stretch_a_schedule_that_ends_and_it_is_said(run, listening):
    run(train__schedule="linear", train__warmup=1, train__steps=4)
    run(resume="auto", view=listening, train__schedule="linear", train__warmup=1, train__steps=6)
    assert any(
        "train.steps changed from 4 to 6: the linear schedule now ends later" in line
        for line in listening.lines
    )


def test_more_steps_before_a_decay_has_begun_are_as_if_planned(
    run, interrupting, listening, state_of, tmp_path
):
    changes = {"train__schedule": "warmup-stable-decay", "train__warmup": 1, "train__decay": 3}
    run(view=interrupting(5), train__steps=9, **changes)
    run(resume="auto", view=listening, train__steps=12, **changes)
    run("long", train__steps=12, **changes)
    assert any(
        "changed from 9 to 12: the warmup-stable-decay schedule decays" in line for line in listening.lines
    )
    ours, theirs = state_of(tmp_path / "run"), state_of(tmp_path / "long")
    assert [key for key in theirs if ours[key] != theirs[key]] == []


@pytest.mark.parametrize(("warmup", "said"), [(1, 0), (2, 1), (4000, 1)])
def test_a_rate_that_only_rises_is_told(run, listening, warmup, said):
    run(view=listening, train__schedule="constant", train__steps=2, train__warmup=warmup)
    assert sum(line.startswith("warning: warmup ") for line in listening.lines) == said
