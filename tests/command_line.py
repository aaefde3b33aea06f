"""Run the command line in the test process: files, arguments, expected exit code and messages."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from trifold.cli import main

TINY = (
    "model.d_model=16 model.n_heads=2 model.n_layers=1 model.d_ff=32 train.device=cpu train.precision=float32 "
    "model.norm_placement=post train.schedule=inverse-sqrt train.steps=2 train.warmup=1 train.validate_every=2 "
    "train.save_every=2 generate.max_new_tokens=4"
)
SMOKE = f"train smoke {TINY} --out {{here}}/run"


class Case(NamedTuple):
    """Files of the folder, a command, its expected exit code and messages, and its standard input.

    In the command, `{here}` is the folder, `{model}` a trained run, `{bare}` a copy of its model
    folder."""

    files: Mapping[str, bytes]
    command: str
    code: int
    words: tuple[str, ...]
    stdin: bytes = b""


class Result(NamedTuple):
    code: int
    out: str
    err: str


class Pipe(io.TextIOWrapper):
    """Standard input with given bytes; `terminal` is the value of isatty()."""

    terminal = False

    def isatty(self) -> bool:
        return self.terminal


def run_command(*arguments: str, stdin: bytes = b"", terminal: bool = False) -> Result:
    """Run a command."""
    # Byte streams below the text streams, as in a process: commands reconfigure stdout and read
    # bytes from stdin.
    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True) for _ in range(2)
    )
    before, sys.stdin = sys.stdin, Pipe(io.BufferedReader(io.BytesIO(stdin)), encoding="utf-8")
    sys.stdin.terminal = terminal
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(arguments)
    finally:
        sys.stdin = before
    return Result(code, *(stream.buffer.getvalue().decode("utf-8") for stream in (out, err)))


def split_command(command: str, **places: Path) -> list[str]:
    """Split a command like a shell and insert the places."""
    return [word.format(**places) for word in shlex.split(command)]


def write_files(here: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a case."""
    for name, content in files.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(content)


def check(result: Result, code: int, words: tuple[str, ...]) -> None:
    """Check the exit code and the words of the messages; a failure ends with one error line and has
    no traceback.
    """
    assert "Traceback" not in result.err
    assert result.code == code, result.err
    sentences = [line for line in result.err.splitlines() if line.startswith(("error", "warning"))]
    assert not any(re.search(r"\w[,;.]?  +\w", line) for line in sentences), sentences
    assert [word for word in words if word not in result.err] == [], result.err
    if code:
        assert result.err.splitlines()[-1].startswith("error: ")
        assert result.out == ""


def parameters(*tables: dict[str, Case]) -> list[Any]:
    """The cases of some tables as parameters of a test, named by their keys."""
    return [pytest.param(case, id=name) for table in tables for name, case in table.items()]
