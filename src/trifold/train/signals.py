"""Ctrl-C and SIGTERM ask for an orderly end: the step is finished, the state saved, the line that continues printed.

SIGUSR1 asks for a checkpoint, after which the run goes on.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from types import FrameType
from typing import TypeVar

from trifold.train.ranks import ALONE, Ranks, Stopped

T = TypeVar("T")

ENDING = (signal.SIGINT, signal.SIGTERM)
SAVING = (signal.SIGUSR1,) if hasattr(signal, "SIGUSR1") else ()
# A terminal, `timeout`, a service manager and torchrun may each send one request twice: to a process and to its group.
ONE_REQUEST = 1.0  # seconds


class Asked:
    """Which signal, if any, has asked for the end. The exit code is 128 + its number: 130 or 143.

    Of several ranks any may hear it; they act on it when they have met, all at the same step.
    """

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self._ranks = ranks
        self._heard: int | None = None
        self._at = 0.0
        self._agreed: int | None = None
        self._save = self._agreed_save = False
        ranks.heed(lambda: self._heard)

    @property
    def signal(self) -> int | None:
        return self._heard if self._ranks.world == 1 else self._agreed

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
        if self._ranks.world > 1:
            asked, self._agreed_save = self._agreed_save, False
        else:
            asked, self._save = self._save, False
        return asked

    def hear(self, number: int, frame: FrameType | None = None) -> None:
        """What is done at a signal."""
        if number in SAVING:
            self._save = True
        elif self._heard is None:
            self._heard, self._at = number, time.monotonic()
        elif self._ranks.world == 1 and time.monotonic() - self._at > ONE_REQUEST:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    def meet(self, seconds: float) -> float:
        """All ranks learn what signals any of them has heard, and the clock of rank 0, whose seconds they then have."""
        if self._ranks.world > 1:
            here = [*(self._heard == number for number in ENDING), self._save, seconds * self._ranks.speaks]
            self._save = False
            *asking, save, seconds = self._ranks.total(here)
            self._agreed_save = self._agreed_save or save > 0
            for number, asked in zip(ENDING, asking, strict=True):
                if asked and self._agreed is None:
                    self._agreed = number
        return seconds

    def noticed(self) -> bool:
        """Whether any rank, as far as this one can know without meeting it, has heard a signal: for who may be long."""
        if self._ranks.world > 1 and self._agreed is None:
            self._agreed = self._ranks.heard_elsewhere() if self._heard is None else self._heard
        return bool(self)

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
            if self.noticed():
                raise Stopped(self.signal)
        if errors:
            raise errors[0]
        return results[0]

    def stopped(self, stopped: Stopped) -> None:
        """Another rank has left its work for a signal, and so do all."""
        self._agreed = stopped.signal if self._agreed is None else self._agreed


@contextmanager
def orderly_end(ranks: Ranks = ALONE) -> Iterator[Asked]:
    """While inside, SIGINT, SIGTERM and SIGUSR1 are noted instead of obeyed. One that asks for the end a second after
    another ends the process at once; of several ranks none obeys it, since who started them ends those that linger.
    """
    asked = Asked(ranks)
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
