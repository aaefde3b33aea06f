"""The command line, called in this process, and one trained run that the verbs work on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.command_line import Answer, ask


@pytest.fixture
def trifold() -> Callable[..., Answer]:
    """Call the command line: trifold("generate", folder, "-", stdin=b"…")."""
    return ask


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of the recipe `smoke`."""
    folder = tmp_path_factory.mktemp("runs") / "smoke"
    done = ask("train", "smoke", "--out", str(folder))
    assert done.code == 0, done.err
    return folder
