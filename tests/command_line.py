"""A mistake at the real command line: what is typed, what lies there, and what must be answered."""

from __future__ import annotations

import contextlib
import io
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
    """Files in the folder, a command line, what it must answer, and what it reads.

    In the command `{here}` is that folder, `{model}` a trained run, `{bare}` a copy of its model folder.
    """

    files: Mapping[str, bytes]
    command: str
    code: int
    words: tuple[str, ...]
    stdin: bytes = b""


class Answer(NamedTuple):
    code: int
    out: str
    err: str


class Pipe(io.TextIOWrapper):
    """Standard input with bytes in it; a terminal if we say so."""

    terminal = False

    def isatty(self) -> bool:
        return self.terminal


def ask(*arguments: str, stdin: bytes = b"", terminal: bool = False) -> Answer:
    """Type a command line."""
    # Real byte streams below, as a process has them: the verbs reconfigure the one and read bytes from the other.
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True) for _ in range(2))
    before, sys.stdin = sys.stdin, Pipe(io.BufferedReader(io.BytesIO(stdin)), encoding="utf-8")
    sys.stdin.terminal = terminal
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(arguments)
    finally:
        sys.stdin = before
    return Answer(code, *(stream.buffer.getvalue().decode("utf-8") for stream in (out, err)))


def words_of(command: str, **places: Path) -> list[str]:
    """The command line as a shell cuts it, with the places filled in."""
    return [word.format(**places) for word in shlex.split(command)]


def spread(here: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a case."""
    for name, content in files.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(content)


def check(answer: Answer, code: int, words: tuple[str, ...]) -> None:
    """The answer has that exit code and all the words, in one error at the end; never a traceback."""
    assert "Traceback" not in answer.err
    assert answer.code == code, answer.err
    assert [word for word in words if word not in answer.err] == [], answer.err
    if code:
        assert answer.err.splitlines()[-1].startswith("error: ")
        assert answer.out == ""


def rows(*tables: dict[str, Case]) -> list[Any]:
    """Tables as parameters of a test, named by their keys."""
    return [pytest.param(case, id=name) for table in tables for name, case in table.items()]
