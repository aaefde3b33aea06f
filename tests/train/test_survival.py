"""Bad days, one at a time and at a place that is known; at random places and in real processes: tests/faults."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import threading
import time

import pytest
import torch
from safetensors.torch import load_file

from trifold import disk
from trifold.errors import CheckpointError, DataError
from trifold.train import checkpoint, loop
from trifold.train.ranks import Interrupted, StopRequest
from trifold.train.rejected import save_batches
from trifold.train.trainer import RejectedUpdate, Trainer

pytestmark = pytest.mark.slow


def lines(outcome_or_folder):
    folder = getattr(outcome_or_folder, "folder", outcome_or_folder)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]


def events(folder):
    return [(line["step"], line["event"]) for line in lines(folder) if "event" in line]


# --- signals ----------------------------------------------------------------------------------------------


def test_a_signal_while_preparing_ends_at_once_and_the_line_goes_on(run, tmp_path, monkeypatch, listening):
    real, done = loop.load_data, threading.Event()

    def slow(*arguments):
        signal.raise_signal(signal.SIGTERM)
        done.wait(20)  # as native code, which does not listen
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "load_data", slow)
        start = time.monotonic()
        outcome = run(view=listening)
        assert time.monotonic() - start < 10
    done.set()
    assert (outcome.exit_code, outcome.stopped_by, outcome.steps) == (143, "signal", 0)
    assert "continue with: trifold train " in listening.lines[-1]
    assert (tmp_path / "run" / "recipe.yaml").is_file()
    assert run(resume="auto").stopped_by == "steps"


def test_what_goes_wrong_in_another_thread_is_raised_in_this_one():
    def work():
        raise DataError("no")

    with pytest.raises(DataError, match="no"):
        StopRequest().call(work)
    assert StopRequest().call(lambda: 7) == 7
    request = StopRequest()
    request.handle(signal.SIGTERM)
    with pytest.raises(Interrupted):
        request.call(lambda: time.sleep(1))


def test_sigusr1_saves_and_the_run_goes_on(run, interrupting, monkeypatch):
    monkeypatch.setattr(checkpoint, "prune", lambda *_, **__: None)
    before = signal.getsignal(signal.SIGUSR1)
    outcome = run(view=interrupting(5, signal.SIGUSR1), train__save_every=6)
    assert (outcome.stopped_by, outcome.steps) == ("steps", 12)
    assert events(outcome) == [(5, "saved")]
    known = checkpoint.load(outcome.folder / "checkpoints" / "step-00000005").progress["lines"]
    assert lines(outcome.folder)[known - 1]["event"] == "saved"  # who goes on from there does not cut it off
    assert signal.getsignal(signal.SIGUSR1) is before


def test_an_interruption_is_a_line_of_the_metrics_until_the_run_goes_on(run, interrupting, tmp_path):
    run(view=interrupting(5))
    assert lines(tmp_path / "run")[-1] == {"step": 5, "event": "interrupted", "signal": "SIGTERM"}
    run(resume="auto")
    assert events(tmp_path / "run") == []


# --- damage -----------------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_is_passed_over_with_one_warning_and_noted(run, state_of, tmp_path, listening):
    run("whole")
    run()
    newest = checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")[-1] / "weights.safetensors"
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    run(resume="auto", view=listening)
    (warning,) = (line for line in listening.lines if line.startswith("warning:"))
    assert "step-00000012/weights.safetensors: damaged" in warning
    assert state_of(tmp_path / "run") == state_of(tmp_path / "whole")
    told = json.loads((tmp_path / "run" / "environment.json").read_text("utf-8"))["sessions"]
    assert [sitting["from_step"] for sitting in told] == [0, 9]
    assert "weights.safetensors" in told[1]["rejected"][0]


def test_without_a_sound_checkpoint_nothing_is_begun_anew(run, tmp_path):
    run(train__save_every=12)
    for path in checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints"):
        (path / "progress.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"progress\.json: damaged(.|\n)*no intact checkpoint remains"):
        run(resume="auto")


def test_damaged_lines_of_the_metrics_are_cut_and_written_again(run, state_of, tmp_path, interrupting):
    run("whole")
    run(view=interrupting(7))
    with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
        file.write(b'\0\0\0\n{"step": 8, "trai')
    run(resume="auto")
    assert state_of(tmp_path / "run") == state_of(tmp_path / "whole")


# --- saving from behind -----------------------------------------------------------------------------------


def test_a_save_from_behind_that_fails_is_raised_by_the_next_step(run, state_of, tmp_path, monkeypatch):
    run("whole", train__async_save=True)
    real, failed = disk.rename, threading.Event()

    def full(old, new):
        if new.name == "step-00000006":
            failed.set()
            raise OSError(28, "No space left on device")
        real(old, new)

    update, after = Trainer.update, []

    def watched(self, *arguments):
        if failed.is_set():
            time.sleep(0.2)  # the save has ended by the time this step has
            after.append(arguments[1])
        return update(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "rename", full)
        patch.setattr(Trainer, "update", watched)
        with pytest.raises(CheckpointError, match=r"step-00000006: could not be written .*No space"):
            run(train__async_save=True)
    assert len(after) <= 1
    run(resume="auto", train__async_save=True)
    assert state_of(tmp_path / "run") == state_of(tmp_path / "whole")


# --- numbers ----------------------------------------------------------------------------------------------


@pytest.fixture
def losing(monkeypatch):
    """Let the loss of these steps be another, each once in a process that goes on."""

    def losing(values):
        real = Trainer._backward

        def learn(self, batch, step, *more):
            loss = real(self, batch, step, *more)
            return values.pop(step) if step in values else loss

        monkeypatch.setattr(Trainer, "_backward", learn)

    return losing


def test_nonsense_is_told_although_the_disk_is_full(run, losing, monkeypatch, listening, tmp_path):
    monkeypatch.setattr(loop, "save_batches", lambda *_: None)
    losing({3: math.nan})
    assert run(view=listening, train__on_nonfinite="skip").steps == 12
    assert any("could not be written" in line for line in listening.lines)
    losing({2: math.nan})
    with pytest.raises(RejectedUpdate, match="nan"):
        run("other")
    assert [event[1] for event in events(tmp_path / "other")] == ["stopped"]


def test_nonsense_is_left_out_where_that_is_asked_for_and_the_batch_is_kept(run, losing, tmp_path):
    losing({3: math.nan, 8: math.inf})
    outcome = run(train__on_nonfinite="skip")
    assert (outcome.steps, outcome.stopped_by) == (12, "steps")
    assert events(outcome) == [(3, "skipped"), (8, "skipped")]
    (event, _) = (line for line in lines(outcome) if "event" in line)
    assert event["what"] == "non-finite" and event["loss"] == "nan"
    kept = load_file(outcome.folder / event["batch"])
    assert kept["0.labels"].dtype is torch.int64 and "0.source.tokens" in kept
    about = json.loads((outcome.folder / "rejected" / "step-00000003.json").read_text("utf-8"))
    assert about["batches"] == [[0, 2]]
    for path in checkpoint.list_checkpoints(outcome.folder / "checkpoints"):
        assert all(bool(value.isfinite().all()) for value in checkpoint.load(path).weights.values())
    assert checkpoint.load(path).progress["rejected"] == 2


@pytest.mark.parametrize("kind", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()])
def test_evidence_is_never_there_by_halves(tmp_path, monkeypatch, kind):
    real = disk.put

    def half(file, piece):
        real(file, bytes(piece)[: len(piece) // 2])
        file.flush()
        raise kind

    update = RejectedUpdate("non-finite", 3, math.nan, 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(disk, "put", half)
        if isinstance(kind, OSError):
            assert save_batches(tmp_path / "rejected", update, [[torch.arange(5)]], [[0, 2]]) is None
        else:
            with pytest.raises(type(kind)):
                save_batches(tmp_path / "rejected", update, [[torch.arange(5)]], [[0, 2]])
    assert list((tmp_path / "rejected").iterdir()) == []
    kept = save_batches(tmp_path / "rejected", update, [[torch.arange(5)]], [[0, 2]])
    assert load_file(kept)["0.0"].tolist() == [0, 1, 2, 3, 4]
    assert sorted(path.name for path in kept.parent.iterdir()) == ["step-00000003.json", kept.name]


def test_only_so_many_updates_are_left_out(run, losing, tmp_path):
    losing(dict.fromkeys(range(1, 13), math.nan))
    with pytest.raises(
        RejectedUpdate,
        match=r"step 3: .* train\.skip_limit=2 allows no more than 2 rejected updates",
    ):
        run(train__on_nonfinite="skip", train__skip_limit=2)
    assert events(tmp_path / "run") == [(1, "skipped"), (2, "skipped"), (3, "stopped")]


def test_a_run_that_stopped_at_nonsense_can_go_on_without_it(run, losing, tmp_path):
    losing({5: math.nan})
    with pytest.raises(RejectedUpdate, match=r"train\.on_nonfinite=skip"):
        run()
    losing({5: math.nan})
    assert run(resume="auto", train__on_nonfinite="skip").steps == 12
    assert events(tmp_path / "run") == [(5, "skipped")]


SPIKES = {"train__spike_window": 5, "train__spike_factor": 3.0, "train__steps": 14}


def test_a_spike_is_left_out(run, losing):
    losing({9: 1e9})
    outcome = run(train__on_spike="skip", **SPIKES)
    assert events(outcome) == [(9, "skipped")]


def test_from_a_spike_the_run_goes_back_and_on_behind_the_batch(run, losing, tmp_path):
    losing({11: 1e9})
    outcome = run(train__on_spike="rewind", train__validate_every=100, **SPIKES)
    assert events(outcome) == [(9, "rewound")]
    assert [line["step"] for line in lines(outcome) if "train/loss" in line] == list(range(1, 15))
    (event,) = (line for line in lines(outcome) if "event" in line)
    assert (event["spike_at"], event["what"]) == (11, "spike")
    back = checkpoint.load(outcome.folder / "checkpoints" / "step-00000009").progress
    assert (back["epoch"], back["batch"], back["rejected"]) == (1, 1, 1)  # ten batches an epoch


def test_without_a_checkpoint_to_go_back_to_a_spike_is_left_out(run, losing):
    losing({9: 1e9})
    outcome = run(train__on_spike="rewind", train__save_every=100, **SPIKES)
    assert events(outcome) == [(9, "skipped")]


def test_spikes_are_learnt_from_unless_that_is_asked_for(run, losing):
    losing({9: 1e9})
    assert events(run(**SPIKES)) == []


# --- what changes between sittings ------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "pairs.tsv"
    rows = [f"{word} {number}\t{number}" for word in ("one", "two", "three") for number in range(20)]
    file.write_text("source\ttarget\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return file


def test_data_that_changed_is_refused_by_name_unless_told(run, data, tmp_path, listening):
    named = {"data__train": str(data), "data__valid": str(data), "data__test": None, "train__steps": 6}
    run(**named)
    run(resume="auto", **named)
    data.write_text(data.read_text("utf-8").replace("one 7\t7", "one 7\t8"), encoding="utf-8")
    with pytest.raises(DataError, match=r"pairs\.tsv: the content has changed .*--data-changed"):
        run(resume="auto", **named)
    changes = {key.replace("__", "."): value for key, value in named.items()}
    from tests.train.conftest import TINY

    folder = tmp_path / "run"
    loop.train("smoke", out=folder, resume="auto", data_changed=True, view=listening, **TINY | changes)
    assert run(resume="auto", **named | {"train__steps": 9}).steps == 9
    assert events(folder) == [(6, "data changed")]  # kept, although nothing was learnt in that sitting
    assert run(resume="auto", **named | {"train__steps": 9}).steps == 9  # now it is known


def test_other_threads_and_versions_are_said(run, tmp_path, listening):
    run(train__steps=3)
    file = tmp_path / "run" / "environment.json"
    told = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps(told | {"torch": "1.0", "threads": 64}), encoding="utf-8")
    run(resume="auto", view=listening, train__steps=6)
    (line,) = (line for line in listening.lines if "may differ in the last bits" in line)
    assert f"torch changed from 1.0 to {torch.__version__}" in line
    assert f"threads changed from 64 to {torch.get_num_threads()}" in line


@pytest.mark.parametrize("schedule", ["constant", "inverse-sqrt"])
def test_a_schedule_that_knows_no_end_goes_on_and_it_is_said(run, listening, schedule):
    run(train__steps=3, train__schedule=schedule)
    run(resume="auto", view=listening, train__steps=6, train__schedule=schedule)
    assert any("does not depend on the number of steps" in line for line in listening.lines)
