"""Where words go: results to standard output, everything else to standard error, both in UTF-8."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from trifold.errors import UsageError


def speak_utf8() -> None:
    """Write UTF-8 whatever the locale says, and line feeds whatever the system does."""
    for stream, errors in ((sys.stdout, "strict"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors, newline="\n")


def speaks() -> bool:
    """Whether this process is the one to say what all processes of a run would say: the only one, or rank 0."""
    return os.environ.get("RANK", "0") == "0"


def note(line: str) -> None:
    """One line for the person, not for the program."""
    print(line, file=sys.stderr, flush=True)


def complain(message: str) -> None:
    """`error: …`, for each line of the message."""
    for line in message.splitlines() or ["unknown"]:
        note(f"error: {line}")


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar of bytes on standard error while something is done, which hears of (all, those just done) and goes when it
    ends; None where nobody looks at a terminal.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda total, done: progress.update(task, total=total, advance=done)


def print_json(value: Any) -> None:
    """One line of JSON on standard output."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def clean(text: str, name: str) -> str:
    """The argument as it is. Raises UsageError where its bytes were not UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{name}: character {error.start + 1} is not valid UTF-8; check the terminal's encoding"
        ) from None
    return text


@contextmanager
def writing(path: Path | None) -> Iterator[TextIO]:
    """The file to write results to, standard output where none is named."""
    if path is None:
        yield sys.stdout
        return
    try:
        file = path.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"--out {path}: cannot be written ({error.strerror})") from None
    with file:
        yield file
