"""Runs that are stopped: killed, asked to end, asked to save, resumed again and again."""

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
from tests.faults.runs import CONFIGS, TINY, Box, forked, fresh, lines_of, state_of

from trifold import disk
from trifold.objectives.translate import Translate
from trifold.train import checkpoint, loop
from trifold.train.checkpoint import load_newest, step_of
from trifold.train.trainer import Trainer


def killed_runs_resume(box: Box) -> None:
    """SIGKILL at random moments, up to three times; no more than one save interval is ever lost."""
    changes, reference = box.config()
    every = TINY["train.save_every"]
    for _ in range(box.rng.randint(1, 3)):
        code = box.train(changes, after=box.rng.uniform(0, 1.2 * reference.seconds))
        box.expect(code in (0, -signal.SIGKILL), f"killed, but it ended with {code}")
        logged = max([line["step"] for line in lines_of(box.run)[:-1]], default=0)
        found = load_newest(box.run / "checkpoints")
        kept = step_of(found.path) if found is not None else 0
        behind = every if changes.get("train.async_save") else 0
        box.expect(kept >= logged - every - behind, f"at step {logged}, but only step {kept} is saved")
    box.finish(changes, reference)


def chains_are_exact(box: Box) -> None:
    """Five stops, each at another step: between checkpoints, in the midst of an epoch, while validating."""
    changes, reference = box.config(slow=True)
    steps = sorted(box.rng.sample(range(1, TINY["train.steps"]), 5))
    for stop in steps:
        with _signal_after_update(stop):
            code = box.train(changes)
        box.expect(code == 143, f"asked to stop at step {stop}, it ended with {code}")
        last = step_of(checkpoint.list_checkpoints(box.run / "checkpoints")[-1])
        box.expect(last == stop, f"asked to stop at step {stop}, it saved step {last}")
    box.finish(changes, reference)


@contextmanager
def _signal_after_update(step: int) -> Iterator[None]:
    """SIGTERM from within, as soon as update number `step` is made."""
    real = Trainer.update

    def update(self: Trainer, *arguments: object, **named: object) -> object:
        made = real(self, *arguments, **named)  # type: ignore[arg-type]
        if step in arguments:
            signal.raise_signal(signal.SIGTERM)
        return made

    with mock.patch.object(Trainer, "update", update):
        yield


# Phase -> where a signal strikes: an owner, the name of a function of it, and at most which of its calls.
PHASES: dict[str, tuple[object, str, int]] = {
    "start-up": (loop, "find_machine", 1),
    "preparing": (loop, "load_data", 1),
    "building": (loop, "Trainer", 1),
    "training": (Trainer, "update", 12),
    "validation": (Translate, "measure", 2),
    "generation": (Translate, "predict", 2),
    "saving": (checkpoint, "save", 3),
}
# Of two ranks: the phase, and which of them hears it.
TOGETHER = {"training": 1, "validation": 0, "generation": 0, "saving": 0}


def signals_save(box: Box) -> None:
    """SIGTERM and SIGINT at the command line in every phase; the printed line goes on to the same end. Of two ranks one
    hears it, and both leave and go on together.
    """
    turn, place = divmod(box.number, len(PHASES) + len(TOGETHER))
    number = signal.SIGTERM if turn % 2 else signal.SIGINT
    words = [f"{key}={value}" for key, value in TINY.items()]
    command = ["train", "smoke", *words, "--out", str(box.run), "--resume", "auto"]
    if place >= len(PHASES):
        _signal_to_one_of_two(box, list(TOGETHER)[place - len(PHASES)], number, command)
        return
    reference, phase = box.reference(), list(PHASES)[place]
    with _struck_in(box, phase, number):
        code = forked(_command(command, box), log=box.log)
    box.expect(code == 128 + number, f"{number.name} while {phase}: exit code {code}")
    box.all_is_saved(phase)
    line = box.said().splitlines()[-1]
    if "; continue with: trifold " in line:
        command = shlex.split(line.split("; continue with: trifold ")[1])
    else:
        box.expect("same command" in line, f"{phase}: no line that goes on")
    code = forked(_command(command, box), log=box.log)
    box.expect(code == 0, f"{phase}: the line that goes on ended with {code}")
    box.expect(state_of(box.run) == reference.state, f"{phase}: not the same as never stopped")


def _signal_to_one_of_two(box: Box, phase: str, number: signal.Signals, command: list[str]) -> None:
    """The same of a group; that it learns what one process learns is another promise."""
    work = _command(command, box)
    with _struck_in(box, phase, number, rank=TOGETHER[phase]):
        codes = ranked(lambda rank: work(), 2, log=box.log, patience=10.0)
    box.expect(codes == [128 + number] * 2, f"{number.name} to one of two while {phase}: exit codes {codes}")
    box.all_is_saved(phase)
    codes = ranked(lambda rank: work(), 2, log=box.log, patience=10.0)
    box.expect(codes == [0, 0], f"{phase}: two that go on ended with {codes}")
    box.all_is_saved("at the end")


def _struck_in(box: Box, phase: str, number: signal.Signals, rank: int = 0) -> AbstractContextManager[None]:
    owner, name, most = PHASES[phase]
    return struck(owner, name, box.rng.randint(1, most), number, rank)


def _command(words: list[str], box: Box) -> Callable[[], int]:
    def work() -> int:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # those in the background do not hear it
        with (
            box.log.open("a", encoding="utf-8", newline="\n") as said,
            contextlib.redirect_stderr(said),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            return box.command(words)

    return work


@contextmanager
def struck(owner: object, name: str, call: int, number: signal.Signals, rank: int = 0) -> Iterator[None]:
    """The signal comes to a rank when that function is called there for the `call`-th time, and then the function is
    done.
    """
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
    """SIGUSR1 at a random step: a checkpoint of that step, an event line, and the run goes on to the same weights."""
    reference = box.reference()
    step = box.rng.choice([s for s in range(1, TINY["train.steps"]) if s % TINY["train.save_every"]])
    with struck(Trainer, "update", step, signal.SIGUSR1):
        code = box.train({})
    box.expect(code == 0, f"it ended with {code}")
    events = [line for line in lines_of(box.run) if line.get("event") == "saved"]
    box.expect([line["step"] for line in events] == [step], f"asked at step {step}: {events}")
    ours, theirs = state_of(box.run), reference.state
    for name in theirs.keys() - {"metrics", "progress"}:
        box.expect(ours[name] == theirs[name], f"{name} is not the same as without the signal")


def same_seed_same_run(box: Box) -> None:
    """Two processes, one seed, no differing bit; nor of two new ones that agree in nothing but their words: not in the
    order in which Python goes through a set.
    """
    changes, reference = box.config()
    box.finish(changes, reference)
    if changes:
        return
    words = ["train", "smoke", *(f"{key}={value}" for key, value in TINY.items())]
    both = [
        fresh([*words, "--out", str(box.folder / seed)], box.log, PYTHONHASHSEED=seed) for seed in ("1", "2")
    ]
    codes = [process.wait() for process in both]
    box.expect(codes == [0, 0], f"at the command line they ended with {codes}")
    for seed in ("1", "2"):
        ours = state_of(box.folder / seed)
        differing = sorted(
            key for key in {*ours, *reference.state} if ours.get(key) != reference.state.get(key)
        )
        box.expect(not differing, f"with PYTHONHASHSEED={seed} it is another run: {', '.join(differing)}")


def finished_runs_go_on(box: Box) -> None:
    """A finished run continued for more steps is, at a schedule that knows no end, the longer run; and it says so."""
    reference = box.reference()
    shorter = box.rng.randrange(2, 5) * TINY["train.save_every"]
    if shorter == TINY["train.steps"]:
        shorter -= TINY["train.save_every"]
    box.expect(box.train({"train.steps": shorter}) == 0, "the shorter run failed")
    code = box.train({})
    box.expect(
        code == 0 and "does not depend on the number of steps" in box.said(),
        "nothing was said of the schedule",
    )
    ours = state_of(box.run)
    weights = [key for key in reference.state if "weights.safetensors" in key or "optimizer" in key]
    box.expect(all(ours[key] == reference.state[key] for key in weights), "not the weights of the longer run")


def saving_behind_is_honest(box: Box) -> None:
    """Saved from behind: killed, it loses nothing that was said to be durable; failed, the next step says so."""
    changes, reference = CONFIGS["behind"], box.reference("behind")
    if box.number % 2:
        code = box.train(changes, after=box.rng.uniform(0, 1.2 * reference.seconds))
        box.expect(code in (0, -signal.SIGKILL), f"killed, but it ended with {code}")
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
    box.expect(code == 1 and "could not be written" in box.said(), f"a save failed, and it ended with {code}")
    found = load_newest(box.run / "checkpoints")
    box.expect(found is not None and found.rejected == [], "what was saved before is not sound")
    done = max(line["step"] for line in lines_of(box.run))
    last = step_of(found.path) if found else 0
    box.expect(done <= last + 2 * TINY["train.save_every"], f"step {last + 3} failed, told at step {done}")
    box.finish(changes, reference)
