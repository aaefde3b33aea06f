"""Ctrl-C and SIGTERM ask for an orderly end: the step is finished, the state saved, the line that continues printed.

SIGUSR1 asks for a checkpoint, after which the run goes on.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

ENDING = (signal.SIGINT, signal.SIGTERM)
SAVING = (signal.SIGUSR1,) if hasattr(signal, "SIGUSR1") else ()


class Stopped(Exception):
    """A signal has asked for the end while something was done that need not be finished."""


class Asked:
    """Which signal, if any, has asked for the end. The exit code is 128 + its number: 130 or 143."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._save = False

    @property
    def exit_code(self) -> int:
        return 0 if self.signal is None else 128 + self.signal

    @property
    def name(self) -> str:
        return "" if self.signal is None else signal.Signals(self.signal).name

    def __bool__(self) -> bool:
        return self.signal is not None

    def to_save(self) -> bool:
        """Whether a checkpoint has been asked for since the last time this was."""
        asked, self._save = self._save, False
        return asked

    def hear(self, number: int, frame: FrameType | None = None) -> None:
        """What is done at a signal."""
        if number in SAVING:
            self._save = True
        elif self:
            raise KeyboardInterrupt
        else:
            self.signal = number

    def unless_asked(self, work: Callable[[], T]) -> T:
        """The result of `work`, which is left behind, still at it, when a signal asks for the end: raises Stopped.

        Native code does not listen to signals, so it is done by a thread of its own, and this one listens.
        """
        done, results, errors = Event(), list[T](), list[BaseException]()

        def do() -> None:
            try:
                results.append(work())
            except BaseException as error:  # raised again where somebody waits for it
                errors.append(error)
            finally:
                done.set()

        Thread(target=do, name="preparing", daemon=True).start()
        while not done.wait(0.1):
            if self:
                raise Stopped
        if errors:
            raise errors[0]
        return results[0]


@contextmanager
def orderly_end() -> Iterator[Asked]:
    """While inside, SIGINT, SIGTERM and SIGUSR1 are noted instead of obeyed; a second one that asks for the end ends
    the process at once.
    """
    asked = Asked()
    try:
        before = {number: signal.signal(number, asked.hear) for number in (*ENDING, *SAVING)}
    except ValueError:  # not the main thread: signals are somebody else's
        yield asked
        return
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
