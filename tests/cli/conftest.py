"""The command line, called in this process, and one trained run that the verbs work on."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from trifold.cli import main


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Pipe(io.TextIOWrapper):
    """Standard input with bytes in it; a terminal if we say so."""

    terminal = False

    def isatty(self) -> bool:
        return self.terminal


def call(*arguments: str, stdin: bytes = b"", terminal: bool = False) -> Done:
    # Real byte streams below, as a process has them: the verbs reconfigure the one and read bytes from the other.
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True) for _ in range(2))
    before, sys.stdin = sys.stdin, Pipe(io.BufferedReader(io.BytesIO(stdin)), encoding="utf-8")
    sys.stdin.terminal = terminal
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(arguments)
    finally:
        sys.stdin = before
    return Done(code, *(stream.buffer.getvalue().decode("utf-8") for stream in (out, err)))


@pytest.fixture
def trifold() -> Callable[..., Done]:
    """Call the command line: trifold("generate", folder, "-", stdin=b"…")."""
    return call


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of the recipe `smoke`."""
    folder = tmp_path_factory.mktemp("runs") / "smoke"
    done = call("train", "smoke", "--out", str(folder))
    assert done.code == 0, done.err
    return folder
