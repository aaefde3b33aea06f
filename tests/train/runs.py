"""Settings of a training run of half a second, views that record or interrupt it, and checks of run
folders.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import torch
from tests.faults.runs import TINY as TINY_RUN, differences, lines_of, state_of

from trifold.train.checkpoint import Checkpoint
from trifold.train.monitor import Snapshot, View

TINY = TINY_RUN | {"task.best_by": "bleu"}
SAVED_OFTEN = {"train.steps": 30, "train.save_every": 5}


def overrides(**changes: Any) -> dict[str, Any]:
    """TINY with changes, whose keys have __ for the dot."""
    return TINY | {key.replace("__", "."): value for key, value in changes.items()}


class RecordingView(View):
    """Records the messages of a run."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


class InterruptingView(RecordingView):
    """Sends a signal to this process after the update `at`."""

    def __init__(self, at: int, number: signal.Signals = signal.SIGTERM) -> None:
        super().__init__()
        self.at, self.number = at, number

    def step(self, snapshot: Snapshot) -> None:
        if snapshot.step == self.at:
            signal.raise_signal(self.number)


def assert_equal_runs(ours: Path, theirs: Path) -> None:
    """Both runs left the same bytes on disk, except for times."""
    assert differences(state_of(ours), state_of(theirs)) == []


def values_of(folder: Path, key: str) -> list[tuple[int, Any]]:
    """The steps and values of one metric."""
    return [(line["step"], line[key]) for line in lines_of(folder) if key in line]


def events_of(folder: Path) -> list[tuple[int, str]]:
    """The steps and names of the events in metrics.jsonl."""
    return values_of(folder, "event")


def random_state(step: int = 7, fill: float | None = None) -> Checkpoint:
    """A training state with random tensors, or with tensors that contain one value."""

    def tensor(*shape: int) -> torch.Tensor:
        return torch.randn(shape) if fill is None else torch.full(shape, fill)

    weights = {"a.weight": tensor(3, 5), "b": tensor(4)}
    return Checkpoint(
        weights, {"exp_avg.b": tensor(4), "step": torch.tensor([float(step)])}, {"step": step}
    )
