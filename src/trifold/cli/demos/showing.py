"""How a demo shows what came of it: some rows of many, a bar, a picture where there is a library that draws."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import TypeVar

from trifold.cli.streams import note
from trifold.errors import TrifoldError
from trifold.look.figures import Figure

Row = TypeVar("Row")


def spread(rows: Sequence[Row], count: int) -> list[Row]:
    """`count` rows from all over the list, so that they show different constructions."""
    if len(rows) <= count:
        return list(rows)
    return [rows[index * len(rows) // count] for index in range(count)]


def mark(good: bool) -> str:
    """✓ or ✗."""
    return "✓" if good else "✗"


def in_short(text: str, width: int) -> str:
    """In one line, of at most so many columns."""
    return shorten(" ".join(text.split()), width, placeholder=" …")


def save_picture(draw: Callable[[], Figure], path: Path, of: str) -> Path | None:
    """The picture where it was written to, or None after a word on how to get it."""
    from trifold.look import figures

    try:
        return figures.save(draw(), path)
    except TrifoldError as error:
        note(f"no picture of {of}: {error}")
        return None


def argument(text: str) -> str:
    """A text for a shell: in double quotes, unless something in it would mean something there."""
    return shlex.quote(text) if set(text) & set('"$`\\!') else f'"{text}"'


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Hears how many more are done, and shows them: a bar on a terminal, else a line at the end."""
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more

    if not sys.stderr.isatty():
        yield count
        note(f"{what}: {done:,} of {total:,}")
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=total)
        yield lambda more: progress.update(task, advance=more)
