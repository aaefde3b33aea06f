"""Runs that are killed, stopped by signals, saved by signals, and resumed repeatedly."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest import mock

from tests.faults.groups import ranked
from tests.faults.runs import CONFIGS, TINY, Box, forked, lines_of, run_with_hash_seed, state_of

from trifold import disk
from trifold.objectives.translate import Translate
from trifold.train import checkpoint, loop, preparation
from trifold.train.checkpoint import load_newest, step_of
from trifold.train.trainer import Trainer


def killed_runs_resume(box: Box) -> None:
    """SIGKILL at random times, up to three times: at most one save interval is lost."""
    changes, reference = box.config()
    every = TINY["train.save_every"]
    for _ in range(box.rng.randint(1, 3)):
        code = box.train(changes, after=box.rng.uniform(0, 1.2 * reference.seconds))
        box.expect(code in (0, -signal.SIGKILL), f"exit code {code} instead of SIGKILL")
        logged = max([line["step"] for line in lines_of(box.run)[:-1]], default=0)
        found = load_newest(box.run / "checkpoints")
        kept = step_of(found.path) if found is not None else 0
        late = every if changes.get("train.async_save") else 0
        box.expect(
            kept >= logged - every - late, f"at step {logged}, but only step {kept} is saved"
        )
    box.finish(changes, reference)


def chains_are_exact(box: Box) -> None:
    """Stops at different steps: between checkpoints, within an epoch, during validation. The first
    chain of each configuration has two, later ones have five."""
    changes, reference = box.config(slow=True)
    stops = 2 if box.number < len(CONFIGS) else 5
    steps = sorted(box.rng.sample(range(1, TINY["train.steps"]), stops))
    for stop in steps:
        with _signal_after_update(stop):
            code = box.train(changes)
        box.expect(code == 143, f"SIGTERM at step {stop}: exit code {code}")
        last = step_of(checkpoint.list_checkpoints(box.run / "checkpoints")[-1])
        box.expect(last == stop, f"SIGTERM at step {stop}: step {last} is saved")
    box.finish(changes, reference)


@contextmanager
def _signal_after_update(step: int) -> Iterator[None]:
    """Raise SIGTERM after update number `step`."""
    real = Trainer.update

    def update(self: Trainer, *arguments: object, **named: object) -> object:
        made = real(self, *arguments, **named)  # type: ignore[arg-type]
        if step in arguments:
            signal.raise_signal(signal.SIGTERM)
        return made

    with mock.patch.object(Trainer, "update", update):
        yield


# Phase -> when the signal is sent: at one of the first calls (their number is last) of this
# function.
PHASES: dict[str, tuple[object, str, int]] = {
    "start-up": (loop, "find_machine", 1),
    "preparing": (preparation, "load_data", 1),
    "building": (preparation, "Trainer", 1),
    "training": (Trainer, "update", 12),
    "validation": (Translate, "measure", 2),
    "generation": (Translate, "outputs", 2),
    "saving": (checkpoint, "save", 3),
}
# With two ranks: phase -> the rank that gets the signal.
TOGETHER = {"training": 1, "validation": 0, "generation": 0, "saving": 0}


def signals_save(box: Box) -> None:
    """SIGTERM and SIGINT to the command line in every phase: the printed command continues to the
    same result. With two ranks one gets the signal, and both stop and continue."""
    turn, place = divmod(box.number, len(PHASES) + len(TOGETHER))
    number = signal.SIGTERM if turn % 2 else signal.SIGINT
    words = [f"{key}={value}" for key, value in TINY.items()]
    command = ["train", "smoke", *words, "--out", str(box.run), "--resume", "auto"]
    if place >= len(PHASES):
        _signal_to_one_of_two(box, list(TOGETHER)[place - len(PHASES)], number, command)
        return
    reference, phase = box.reference(), list(PHASES)[place]
    with _signal_in_phase(box, phase, number):
        code = forked(_command(command, box), log=box.log)
    box.expect(code == 128 + number, f"{number.name} while {phase}: exit code {code}")
    box.expect_all_saved(phase)
    line = box.output().splitlines()[-1]
    if "; continue with `trifold " in line:
        command = shlex.split(line.split("; continue with `trifold ")[1].rstrip("`"))
    else:
        box.expect("same command" in line, f"{phase}: no command that continues")
    code = forked(_command(command, box), log=box.log)
    box.expect(code == 0, f"{phase}: the printed command ended with {code}")
    box.expect(state_of(box.run) == reference.state, f"{phase}: differs from the uninterrupted run")


def _signal_to_one_of_two(box: Box, phase: str, number: signal.Signals, command: list[str]) -> None:
    """The same with two ranks; that they equal one process is another promise."""
    work = _command(command, box)
    with _signal_in_phase(box, phase, number, rank=TOGETHER[phase]):
        codes = ranked(lambda rank: work(), 2, log=box.log, grace=10.0)
    box.expect(
        codes == [128 + number] * 2,
        f"{number.name} to one of two while {phase}: exit codes {codes}",
    )
    box.expect_all_saved(phase)
    codes = ranked(lambda rank: work(), 2, log=box.log, grace=10.0)
    box.expect(codes == [0, 0], f"{phase}: exit codes of the continued run: {codes}")
    box.expect_all_saved("at the end")


def _signal_in_phase(
    box: Box, phase: str, number: signal.Signals, rank: int = 0
) -> AbstractContextManager[None]:
    owner, name, most = PHASES[phase]
    return signal_at_call(owner, name, box.rng.randint(1, most), number, rank)


def _command(words: list[str], box: Box) -> Callable[[], int]:
    def work() -> int:
        signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # ignored by default in background processes
        with (
            box.log.open("a", encoding="utf-8", newline="\n") as output,
            contextlib.redirect_stderr(output),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            return box.command(words)

    return work


@contextmanager
def signal_at_call(
    owner: object, name: str, call: int, number: signal.Signals, rank: int = 0
) -> Iterator[None]:
    """A rank gets the signal at the `call`-th call of that function, which then runs."""
    real, calls = getattr(owner, name), 0

    def function(*arguments: object, **named: object) -> object:
        nonlocal calls
        calls += 1
        if calls == call and int(os.environ.get("RANK", "0")) == rank:
            os.kill(os.getpid(), number)
        return real(*arguments, **named)

    with mock.patch.object(owner, name, function):
        yield


def sigusr1_saves(box: Box) -> None:
    """SIGUSR1 at a random step: a checkpoint of that step, an event line, and the same final
    weights.
    """
    reference = box.reference()
    step = box.rng.choice(
        [s for s in range(1, TINY["train.steps"]) if s % TINY["train.save_every"]]
    )
    with signal_at_call(Trainer, "update", step, signal.SIGUSR1):
        code = box.train({})
    box.expect(code == 0, f"it ended with {code}")
    events = [line for line in lines_of(box.run) if line.get("event") == "saved"]
    box.expect([line["step"] for line in events] == [step], f"SIGUSR1 at step {step}: {events}")
    ours, theirs = state_of(box.run), reference.state
    for name in theirs.keys() - {"metrics", "progress"}:
        box.expect(ours[name] == theirs[name], f"{name} differs from the run without the signal")


def same_seed_same_run(box: Box) -> None:
    """Two processes with one seed give the same bits, also with different hash seeds, where Python
    iterates over sets in different orders.
    """
    changes, reference = box.config()
    box.finish(changes, reference)
    if changes:
        return
    words = ["train", "smoke", *(f"{key}={value}" for key, value in TINY.items())]
    seeds = ("1", "2") if box.number else ("1",)  # this process has another one
    codes = [
        run_with_hash_seed(seed, [*words, "--out", str(box.folder / seed)], box.log)
        for seed in seeds
    ]
    box.expect(set(codes) == {0}, f"at the command line they ended with {codes}")
    for seed in seeds:
        ours = state_of(box.folder / seed)
        differing = sorted(
            key for key in {*ours, *reference.state} if ours.get(key) != reference.state.get(key)
        )
        box.expect(not differing, f"PYTHONHASHSEED={seed} changes the run: {', '.join(differing)}")


def finished_runs_continue(box: Box) -> None:
    """A finished run continued for more steps equals the longer run if its schedule has no end, and
    reports that.
    """
    reference = box.reference()
    shorter = box.rng.randrange(2, 5) * TINY["train.save_every"]
    if shorter == TINY["train.steps"]:
        shorter -= TINY["train.save_every"]
    box.expect(box.train({"train.steps": shorter}) == 0, "the shorter run failed")
    code = box.train({})
    box.expect(
        code == 0 and "does not depend on the number of steps" in box.output(),
        "the effect on the schedule is not reported",
    )
    ours = state_of(box.run)
    weights = [key for key in reference.state if "weights.safetensors" in key or "optimizer" in key]
    box.expect(
        all(ours[key] == reference.state[key] for key in weights),
        "the weights differ from those of the longer run",
    )


def background_saves_are_durable(box: Box) -> None:
    """Saves in the background: a killed run loses no reported checkpoint; the next step reports a
    failure.
    """
    changes, reference = CONFIGS["async save"], box.reference("async save")
    if box.number % 2:
        code = box.train(changes, after=box.rng.uniform(0, 1.2 * reference.seconds))
        box.expect(code in (0, -signal.SIGKILL), f"exit code {code} instead of SIGKILL")
        if checkpoint.list_checkpoints(box.run / "checkpoints"):
            load_newest(box.run / "checkpoints")
        box.finish(changes, reference)
        return
    real, renames = disk.rename, box.rng.randint(1, 3)

    def rename(old: object, new: object) -> None:
        nonlocal renames
        renames -= "step-" in str(new) and "checkpoints" in str(new)
        if renames < 0:
            raise OSError(28, "No space left on device")
        real(old, new)  # type: ignore[arg-type]

    with mock.patch.object(disk, "rename", rename):
        code = box.train(changes)
    box.expect(
        code == 1 and "could not be written" in box.output(),
        f"exit code {code} after a failed save",
    )
    found = load_newest(box.run / "checkpoints")
    box.expect(found is not None and found.rejected == [], "an earlier checkpoint is damaged")
    done = max(line["step"] for line in lines_of(box.run))
    last = step_of(found.path) if found else 0
    box.expect(
        done <= last + 2 * TINY["train.save_every"],
        f"the failure of step {last + 3} is reported at step {done}",
    )
    box.finish(changes, reference)
