"""Fixtures that train the tiny recipe of runs.py."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.train.runs import (
    TINY,
    InterruptingView,
    RecordingView,
    assert_equal_runs,
    overrides,
    random_state,
)

from trifold.train import Outcome, checkpoint, train
from trifold.train.monitor import View


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Outcome]:
    """Train the tiny recipe into a folder of this test; keyword arguments use __ for the dot."""

    def run(
        folder: str = "run", *, view: View | None = None, resume: Any = None, **changes: Any
    ) -> Outcome:
        return train(
            "smoke", out=tmp_path / folder, resume=resume, view=view, **overrides(**changes)
        )

    return run


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny recipe, trained without changes, which tests must not change."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    train("smoke", out=folder, **TINY)
    return folder


@pytest.fixture
def recorder() -> RecordingView:
    return RecordingView()


@pytest.fixture
def assert_resumable(run: Callable[..., Outcome], tmp_path: Path) -> Callable[..., None]:
    """Check that a run interrupted after the steps `stops` equals an uninterrupted run.

    last: changes for the last session only.
    """

    def check(
        stops: Sequence[int], *, last: Mapping[str, Any] | None = None, **changes: Any
    ) -> None:
        run("whole", **changes)
        for stop in stops:
            outcome = run(view=InterruptingView(stop), resume="auto", **changes)
            assert (outcome.steps, outcome.stopped_by) == (stop, "signal")
        assert run(resume="auto", **changes | (last or {})).finished
        assert_equal_runs(tmp_path / "run", tmp_path / "whole")

    return check


@pytest.fixture
def save_checkpoints(tmp_path: Path) -> Callable[..., list[Path]]:
    """Save random states of these steps; returns their paths."""
    return lambda *steps: [checkpoint.save(tmp_path, random_state(step)) for step in steps]


@pytest.fixture
def make_unreadable(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make the system refuse to open a file or to list a folder. (File permissions do not restrict
    root.)
    """
    errors: dict[str, int] = {}

    def guarded(real):
        def function(place, *more, **named):
            if str(place) in errors:
                number = errors[str(place)]
                raise OSError(number, os.strerror(number), str(place))
            return real(place, *more, **named)

        return function

    for name in ("open", "iterdir"):
        monkeypatch.setattr(Path, name, guarded(getattr(Path, name)))
    monkeypatch.setattr(os, "open", guarded(os.open))
    return lambda place, number=errno.EACCES: errors.update({str(place): number})
