"""Fixtures that train the tiny recipe of runs.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.train.runs import (
    TINY,
    InterruptingView,
    RecordingView,
    assert_equal_runs,
    overrides,
    state_of as _state,
)

from trifold.train import Outcome, train
from trifold.train.monitor import View
from trifold.train.ranks import Ranks


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Outcome]:
    """Train the tiny recipe into a folder of this test; keyword arguments use __ for the dot."""

    def run(folder: str = "run", *, view: View | None = None, resume: Any = None, **changes: Any) -> Outcome:
        return train("smoke", out=tmp_path / folder, resume=resume, view=view, **overrides(**changes))

    return run


@pytest.fixture
def recorder() -> RecordingView:
    return RecordingView()


@pytest.fixture
def assert_resumable(run: Callable[..., Outcome], tmp_path: Path) -> Callable[..., None]:
    """Check that a run that is interrupted after the steps `stops` equals an uninterrupted run."""

    def check(stops: Sequence[int], **changes: Any) -> None:
        run("whole", **changes)
        for stop in stops:
            outcome = run(view=InterruptingView(stop), resume="auto", **changes)
            assert (outcome.steps, outcome.stopped_by) == (stop, "signal")
        assert run(resume="auto", **changes).finished
        assert_equal_runs(tmp_path / "run", tmp_path / "whole")

    return check


# LEGACY
@pytest.fixture(scope="session")
def tiny():
    return dict(TINY)


@pytest.fixture(scope="session")
def interrupting():
    return InterruptingView


@pytest.fixture
def listening():
    return RecordingView()


@pytest.fixture(scope="session")
def state_of():
    return _state


@pytest.fixture
def beside_one_that_cannot():
    class Two(Ranks):
        world = 2

        def sum(self, values):
            return [value + 1 for value in values]

    return Two()
