from __future__ import annotations

import errno
import math
import os
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from tests.train.runs import events_of, lines_of, values_of

from trifold import disk
from trifold.errors import TrifoldError
from trifold.folders import named
from trifold.jsonfiles import read_json
from trifold.objectives.translate import Translate
from trifold.train import checkpoint, recovery
from trifold.train.adam import Adam
from trifold.train.recovery import save_batches
from trifold.train.rejected import RejectedUpdate
from trifold.train.trainer import Trainer

pytestmark = pytest.mark.slow


@pytest.fixture
def set_losses(monkeypatch):
    """Replace the losses of these steps, each once."""

    def set_losses(values):
        real = Trainer._backward

        def backward(self, batch, step, *more):
            loss = real(self, batch, step, *more)
            return values.pop(step) if step in values else loss

        monkeypatch.setattr(Trainer, "_backward", backward)

    return set_losses


# --- non-finite values ----------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["loss", "gradient"])
def test_non_finite_value_stops_the_run_before_the_weights_change(
    run, tmp_path, monkeypatch, value
):
    loss, step, updates = Translate.loss, Adam.step, []

    def poisoned(self, model, batch):
        terms = loss(self, model, batch)
        if model.training and len(updates) == 4:
            term = terms["tokens"]
            if value == "loss":
                total = term.sum * math.nan
                terms["tokens"] = replace(term, sum=total, nll=total.detach())
            else:
                terms["tokens"] = replace(term, sum=(term.sum - term.sum.detach()) * math.inf + 1)
        return terms

    def counted(self, gradient, rate):
        updates.append(bool(gradient.isfinite().all()))
        step(self, gradient, rate)

    monkeypatch.setattr(Translate, "loss", poisoned)
    monkeypatch.setattr(Adam, "step", counted)
    with pytest.raises(
        TrifoldError, match=r"step 5: .*nan.* weights were not changed.*train\.learning_rate"
    ):
        run(train__save_every=2, train__validate_every=2)
    assert updates == [True] * 4
    last = checkpoint.load(checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")[-1])
    assert last.progress["step"] == 4
    assert all(bool(value.isfinite().all()) for value in last.weights.values())
    *_, before, event = lines_of(tmp_path / "run")
    assert (before["step"], event["step"], event["event"], event["what"]) == (
        4,
        5,
        "stopped",
        "non-finite",
    )
    assert (tmp_path / "run" / event["batch"]).is_file()


def test_non_finite_updates_can_be_skipped_and_their_batches_are_saved(run, set_losses):
    set_losses({3: math.nan, 8: math.inf})
    outcome = run(train__on_nonfinite="skip")
    assert (outcome.steps, outcome.stopped_by) == (12, "steps")
    assert events_of(outcome.folder) == [(3, "skipped"), (8, "skipped")]
    event = next(line for line in lines_of(outcome.folder) if "event" in line)
    assert event["what"] == "non-finite" and event["loss"] == "nan"
    saved = load_file(outcome.folder / event["batch"])
    assert saved["0.labels"].dtype is torch.int64 and "0.inputs.tokens" in saved
    assert read_json(named(outcome.folder / "rejected" / "step-00000003.json"))["batches"] == [
        [0, 2]
    ]
    for path in checkpoint.list_checkpoints(outcome.folder / "checkpoints"):
        assert all(bool(value.isfinite().all()) for value in checkpoint.load(path).weights.values())
    assert checkpoint.load(path).progress["rejected"] == 2


def test_skip_limit_stops_the_run(run, set_losses, tmp_path):
    set_losses(dict.fromkeys(range(1, 13), math.nan))
    message = r"step 3: .* train\.skip_limit=2 allows no more than 2 rejected updates"
    with pytest.raises(RejectedUpdate, match=message):
        run(train__on_nonfinite="skip", train__skip_limit=2)
    assert events_of(tmp_path / "run") == [(1, "skipped"), (2, "skipped"), (3, "stopped")]


def test_stopped_run_can_continue_without_the_batch(run, set_losses, tmp_path):
    set_losses({5: math.nan})
    with pytest.raises(RejectedUpdate, match=r"train\.on_nonfinite=skip"):
        run()
    set_losses({5: math.nan})
    assert run(resume="auto", train__on_nonfinite="skip").steps == 12
    assert events_of(tmp_path / "run") == [(5, "skipped")]


def test_rejected_update_is_reported_if_its_batches_cannot_be_saved(
    run, set_losses, monkeypatch, recorder, tmp_path
):
    monkeypatch.setattr(recovery, "save_batches", lambda *_: None)
    set_losses({3: math.nan})
    assert run(view=recorder, train__on_nonfinite="skip").steps == 12
    assert any("could not be written" in line for line in recorder.lines)
    set_losses({2: math.nan})
    with pytest.raises(RejectedUpdate, match="nan"):
        run("other")
    assert [name for _, name in events_of(tmp_path / "other")] == ["stopped"]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()]
)
def test_batches_are_saved_completely_or_not_at_all(tmp_path, monkeypatch, error):
    real, folder = disk.put, tmp_path / "rejected"

    def put_half(file, content):
        real(file, bytes(content)[: len(content) // 2])
        file.flush()
        raise error

    arguments = (
        folder,
        RejectedUpdate("non-finite", 3, math.nan, 1.0),
        [[torch.arange(5)]],
        [[0, 2]],
    )
    with monkeypatch.context() as patch:
        patch.setattr(disk, "put", put_half)
        if isinstance(error, OSError):
            assert save_batches(*arguments) is None
        else:
            with pytest.raises(KeyboardInterrupt):
                save_batches(*arguments)
    assert list(folder.iterdir()) == []
    saved = save_batches(*arguments)
    assert load_file(saved)["0.0"].tolist() == [0, 1, 2, 3, 4]
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000003.json", saved.name]


# --- spikes ---------------------------------------------------------------------------------------

SPIKES = {"train__spike_window": 5, "train__spike_factor": 3.0, "train__steps": 14}


@pytest.mark.parametrize(
    ("changes", "events"),
    [
        ({}, []),
        ({"train__on_spike": "skip"}, [(9, "skipped")]),
        ({"train__on_spike": "rewind", "train__save_every": 100}, [(9, "skipped")]),
    ],
    ids=["accepted by default", "skipped", "skipped if there is no checkpoint"],
)
def test_action_after_a_spike(run, set_losses, changes, events):
    set_losses({9: 1e9})
    assert events_of(run(**changes, **SPIKES).folder) == events


def test_spike_can_rewind_the_run_which_continues_after_the_batch(run, set_losses):
    set_losses({11: 1e9})
    folder = run(train__on_spike="rewind", train__validate_every=100, **SPIKES).folder
    assert events_of(folder) == [(9, "rewound")]
    assert [step for step, _ in values_of(folder, "train/loss")] == list(range(1, 15))
    assert (values_of(folder, "spike_at"), values_of(folder, "what")) == ([(9, 11)], [(9, "spike")])
    progress = checkpoint.load(folder / "checkpoints" / "step-00000009").progress
    assert (progress["epoch"], progress["batch"], progress["rejected"]) == (
        1,
        1,
        1,
    )  # ten batches an epoch
