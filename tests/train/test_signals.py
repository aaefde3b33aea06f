"""Signals, and the interface of ranks in a single process."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from tests.train.runs import TINY, InterruptingView, events_of, lines_of

from trifold.cli import main
from trifold.errors import DataError
from trifold.train import checkpoint, preparation, signals
from trifold.train.launch import join_ranks
from trifold.train.ranks import SINGLE, Interrupted
from trifold.train.signals import StopRequest

pytestmark = pytest.mark.slow


def test_single_process_joins_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with join_ranks() as joined:
        assert joined is SINGLE and joined.is_first
        assert joined.sum([1, 2.5]) == [1.0, 2.5]
        assert joined.first(str, 1) == joined.in_turn(str, 1) == "1"
        vector = torch.ones(2)
        joined.all_reduce(vector)
        joined.broadcast(vector)
        assert vector.tolist() == [1, 1] and joined.forwarded_signal() is None
    assert not torch.distributed.is_initialized()


# --- in this process ------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_stops_the_run_and_handlers_are_restored(run, number, code):
    before = signal.getsignal(number)
    view = InterruptingView(5, number)
    outcome = run(view=view)
    assert (outcome.exit_code, outcome.stopped_by, outcome.steps) == (code, "signal", 5)
    assert signal.getsignal(number) is before
    assert view.lines[-1] == f"stopped at step 5; continue with `trifold resume {outcome.folder}`"


class TwiceInterruptingView(InterruptingView):
    def step(self, snapshot):
        super().step(snapshot)
        super().step(snapshot)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, None), (signal.SIGTERM, 143)])
def test_second_signal_ends_the_process_at_once(run, monkeypatch, number, code):
    monkeypatch.setattr(signals, "REPEAT_INTERVAL", 0.0)
    with pytest.raises(KeyboardInterrupt if code is None else SystemExit) as ended:
        run(view=TwiceInterruptingView(3, number))
    assert code is None or ended.value.code == code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_that_arrives_twice_within_the_interval_is_one_request(run, number):
    outcome = run(view=TwiceInterruptingView(3, number))
    assert (outcome.exit_code, outcome.steps) == (128 + number, 3)
    assert checkpoint.step_of(checkpoint.list_checkpoints(outcome.folder / "checkpoints")[-1]) == 3


def test_signal_during_preparation_ends_at_once_and_the_run_can_be_continued(
    run, tmp_path, monkeypatch, recorder
):
    real, done = preparation.load_data, threading.Event()

    def slow(*arguments):
        signal.raise_signal(signal.SIGTERM)
        done.wait(20)  # like native code, which does not poll
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(preparation, "load_data", slow)
        start = time.monotonic()
        outcome = run(view=recorder)
        assert time.monotonic() - start < 10
    done.set()
    assert (outcome.exit_code, outcome.stopped_by, outcome.steps) == (143, "signal", 0)
    assert f"continue with `trifold resume {outcome.folder}`" in recorder.lines[-1]
    assert (tmp_path / "run" / "recipe.yaml").is_file()
    assert run(resume="auto").stopped_by == "steps"


def test_call_returns_results_and_raises_errors_of_its_thread():
    def work():
        raise DataError("no")

    with pytest.raises(DataError, match="no"):
        StopRequest().call(work)
    assert StopRequest().call(lambda: 7) == 7
    request = StopRequest()
    request.handle(signal.SIGTERM)
    with pytest.raises(Interrupted):
        request.call(lambda: time.sleep(1))


def test_sigusr1_saves_and_the_run_continues(run, monkeypatch):
    monkeypatch.setattr(checkpoint, "prune", lambda *_, **__: None)
    before = signal.getsignal(signal.SIGUSR1)
    outcome = run(view=InterruptingView(5, signal.SIGUSR1), train__save_every=6)
    assert (outcome.stopped_by, outcome.steps) == ("steps", 12)
    assert events_of(outcome.folder) == [(5, "saved")]
    lines = checkpoint.load(outcome.folder / "checkpoints" / "step-00000005").progress["lines"]
    assert lines_of(outcome.folder)[lines - 1]["event"] == "saved"  # a resumed run keeps the line
    assert signal.getsignal(signal.SIGUSR1) is before


def test_interruption_is_in_the_metrics_until_the_run_continues(run, tmp_path):
    run(view=InterruptingView(5))
    assert lines_of(tmp_path / "run")[-1] == {
        "step": 5,
        "event": "interrupted",
        "signal": "SIGTERM",
    }
    run(resume="auto")
    assert events_of(tmp_path / "run") == []


# --- in another process ---------------------------------------------------------------------------


def wait_for(condition, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the run did not start"
        time.sleep(0.02)


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_interrupted_process_saves_and_prints_the_command_that_continues_it(tmp_path, capfd):
    """tests/faults interrupts forked processes by SIGINT too."""
    endless = dict.fromkeys(("train.steps", "train.validate_every", "train.save_every"), 1_000_000)
    changes = [f"{key}={value}" for key, value in (TINY | endless).items()]
    program = "import sys; from trifold.cli import main; sys.exit(main())"
    folder = tmp_path / "a run"  # the space requires quotes in the printed command
    process = subprocess.Popen(
        [sys.executable, "-c", program, "train", "smoke", *changes, "--out", str(folder)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    wait_for(lambda: lines_of(folder))
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    assert "Traceback" not in errors
    last = " ".join(errors.split()).rpartition("stopped at step ")[2]
    step, line = last.rstrip("`").split("; continue with `")
    step = int(step.replace(",", ""))
    program, *arguments = shlex.split(line)
    assert program == "trifold"
    assert [path.name for path in (folder / "checkpoints").iterdir()] == [f"step-{step:08d}"]

    code = main([*arguments, f"train.steps={step + 3}", "train.samples=0"])
    out, err = capfd.readouterr()
    assert code == 0, err
    assert f"continuing from {folder / 'checkpoints'}" in err
    assert (folder / "checkpoints" / f"step-{step + 3:08d}").is_dir()
    assert str(folder / "model") in out
