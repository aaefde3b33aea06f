"""The command line, called in this process, and one trained run for all commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.command_line import Result, run_command

from trifold.recipe import recipe_names


@pytest.fixture(autouse=True, scope="session")
def _included_recipes_are_read_once() -> Iterator[None]:
    """`trifold show` asks for their names, for which all of them are parsed."""
    names = recipe_names()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trifold.recipe.recipe_names", lambda: dict(names))
        yield


@pytest.fixture
def trifold() -> Callable[..., Result]:
    """Call the command line: trifold("generate", folder, "-", stdin=b"…")."""
    return run_command


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of the recipe `smoke`."""
    folder = tmp_path_factory.mktemp("runs") / "smoke"
    often = [f"train.{key}=20" for key in ("validate_every", "save_every")]
    done = run_command("train", "smoke", "train.steps=60", *often, "--out", str(folder))
    assert done.code == 0, done.err
    return folder
