"""Progress of long commands on standard error: bars on a terminal, lines in a file."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trifold.cli.terminal import print_note

INTERVAL = 5.0  # seconds between lines
WATCH = 0.5  # seconds between looks at the clock during work that does not report
MINUTE = 60.0  # between those of a command that has taken a minute


class Pace:
    """When to print the next line of progress: every few seconds, and once a minute as soon as a
    minute has passed.
    """

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._next = self._start + INTERVAL

    @property
    def seconds(self) -> float:
        """Those since the beginning."""
        return time.monotonic() - self._start

    def is_due(self) -> bool:
        """Whether a line is to be printed now; then the next one is due later."""
        now = time.monotonic()
        if now < self._next:
            return False
        interval = INTERVAL
        if now - self._start >= MINUTE:
            interval = MINUTE
        self._next = now + interval
        return True


class TextProgress:
    """Prints the number of finished texts at a `Pace`."""

    def __init__(self) -> None:
        self.done = 0
        self._pace = Pace()

    def __call__(self, finished: int) -> None:
        self.done += finished
        if self._pace.is_due():
            rate = self.done / self._pace.seconds
            print_note(f"{self.done:,} texts done, {rate:,.1f} per second")


def time_progress(title: str) -> Callable[[], None]:
    """A function to be called often, which prints the time so far at a `Pace`."""
    pace = Pace()

    def poll() -> None:
        if pace.is_due():
            print_note(f"{title}, {pace.seconds:.0f} seconds so far")

    return poll


@contextmanager
def waiting_progress(title: str) -> Iterator[None]:
    """Prints the time so far at a `Pace` during work that does not report how far it is."""
    poll = time_progress(title)
    has_ended = threading.Event()

    def watch() -> None:
        while not has_ended.wait(WATCH):
            poll()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


@contextmanager
def byte_progress(title: str) -> Iterator[Callable[[int | None, int], None]]:
    """A progress bar of bytes, updated with (total if known, newly done); without a terminal, lines
    at a `Pace`.
    """
    if not sys.stderr.isatty():
        yield _byte_lines(title)
        return
    from rich import progress as bar
    from rich.console import Console

    numbers = (bar.DownloadColumn(), bar.TransferSpeedColumn(), bar.TimeRemainingColumn())
    columns = (bar.TextColumn(title), bar.BarColumn(), *numbers)
    with bar.Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda total, done: progress.update(task, total=total, advance=done)


def _byte_lines(title: str) -> Callable[[int | None, int], None]:
    from rich.filesize import decimal

    pace = Pace()
    size = 0

    def advance(total: int | None, done: int) -> None:
        nonlocal size
        size += done
        if pace.is_due():
            end = "" if total is None else f" of {decimal(total)}"
            print_note(f"{title}: {decimal(size)}{end}")

    return advance


@contextmanager
def count_progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar with rate and time left, updated with the number newly done; without a terminal, lines
    at a `Pace`, and one at the end.
    """
    if not sys.stderr.isatty():
        pace = Pace()
        count = 0
        lock = threading.Lock()

        def advance(more: int) -> None:
            nonlocal count
            with lock:
                count += more
            if count < total and pace.is_due():
                print_note(f"{title}: {count:,} of {total:,}")

        yield advance
        print_note(f"{title}: {count:,} of {total:,}")
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:,.0f}/s"),
    )
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=total, rate=0.0)
        yield lambda more: progress.update(task, advance=more, rate=progress.tasks[0].speed or 0.0)
