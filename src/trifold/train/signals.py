"""Ctrl-C and SIGTERM ask for an orderly end: the step is finished, the state saved, the line that continues printed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Asked:
    """Which signal, if any, has asked for the end. The exit code is 128 + its number: 130 or 143."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def exit_code(self) -> int:
        return 0 if self.signal is None else 128 + self.signal

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def orderly_end() -> Iterator[Asked]:
    """While inside, SIGINT and SIGTERM are noted instead of obeyed; a second one ends the process at once."""
    asked = Asked()

    def note(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.signal = number

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: signals are somebody else's
        yield asked
        return
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
