"""A training that takes half a second, and views that interrupt it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.faults.runs import TINY as TINY_RUN

from trifold.train import Outcome, train
from trifold.train.monitor import Snapshot, View
from trifold.train.ranks import Ranks

TINY = TINY_RUN | {"task.best_by": "bleu"}


class Interrupting(View):
    """Sends a signal to this very process when the update `at` has been logged."""

    def __init__(self, at: int, number: signal.Signals = signal.SIGTERM) -> None:
        self.at, self.number = at, number
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def step(self, shot: Snapshot) -> None:
        if shot.step == self.at:
            signal.raise_signal(self.number)


class Listening(Interrupting):
    """Only listens."""

    def __init__(self) -> None:
        super().__init__(at=-1)


@pytest.fixture(scope="session")
def tiny() -> dict[str, Any]:
    return dict(TINY)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Outcome]:
    """Train the smoke recipe, made tiny, into a folder of this test; keyword arguments use __ for the dot."""

    def run(folder: str = "run", *, view: View | None = None, resume: Any = None, **changes: Any) -> Outcome:
        overrides = TINY | {key.replace("__", "."): value for key, value in changes.items()}
        return train("smoke", out=tmp_path / folder, resume=resume, view=view, **overrides)

    return run


@pytest.fixture(scope="session")
def interrupting() -> type[Interrupting]:
    return Interrupting


@pytest.fixture
def listening() -> Listening:
    return Listening()


@pytest.fixture(scope="session")
def state_of() -> Callable[[Path], dict[str, Any]]:
    """All that a run decides and leaves on disk, but for the times and the time-dependent speeds."""

    def state(folder: Path) -> dict[str, Any]:
        last = max((folder / "checkpoints").iterdir())
        progress = json.loads((last / "progress.json").read_text("utf-8"))
        metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
        for values in (progress, *metrics):
            for key in ("seconds", "train/tokens_per_second"):
                values.pop(key, None)
        files = {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(
                [*last.glob("*.safetensors"), *folder.glob("model/*"), *folder.glob("samples/*")]
            )
        }
        return {"progress": progress, "metrics": metrics, **files}

    return state


@pytest.fixture
def beside_one_that_cannot() -> Ranks:
    """Two ranks, of which this is one; whatever is asked of both, the other has not."""

    class Two(Ranks):
        world = 2

        def sum(self, values: Sequence[float]) -> list[float]:
            return [value + 1 for value in values]

    return Two()
