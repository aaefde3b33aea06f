"""The signals that the ranks of a run receive.

SIGINT and SIGTERM request an orderly end: finish the step, save, and print the command that
continues the run. SIGUSR1 requests a checkpoint; the run continues.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from types import FrameType
from typing import ParamSpec, TypeVar

from trifold.train.prefetch import prefetch
from trifold.train.ranks import SINGLE, Interrupted, Ranks

P = ParamSpec("P")
T = TypeVar("T")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAVE_SIGNALS = (signal.SIGUSR1,) if hasattr(signal, "SIGUSR1") else ()
# A terminal, `timeout`, a service manager and torchrun may each send one request twice: to a
# process and its group.
REPEAT_INTERVAL = 1.0  # seconds


class StopRequest:
    """Which signal, if any, requested the end of the run. The exit code is 128 + its number: 130 or
    143.

    Any rank may receive it. All ranks act on it at the same step, after `synchronize`.
    """

    def __init__(self, ranks: Ranks = SINGLE) -> None:
        self._ranks = ranks
        self._received: int | None = None
        self._received_at = 0.0
        self._agreed: int | None = None
        self._save = False
        self._agreed_save = False
        ranks.forward_signals(lambda: self._received)

    @property
    def signal(self) -> int | None:
        """The number of the signal, or None."""
        if self._ranks.world == 1:
            return self._received
        return self._agreed

    @property
    def exit_code(self) -> int:
        """The exit code of the process: 0 without a request."""
        if self.signal is None:
            return 0
        return 128 + self.signal

    @property
    def name(self) -> str:
        """Such as SIGTERM; empty without a request."""
        if self.signal is None:
            return ""
        return signal.Signals(self.signal).name

    def __bool__(self) -> bool:
        return self.signal is not None

    def take_save_request(self) -> bool:
        """Whether a checkpoint was requested since the last call, as of `synchronize`."""
        requested = self._agreed_save
        self._agreed_save = False
        return requested

    def handle(self, number: int, frame: FrameType | None = None) -> None:
        """The signal handler."""
        if number in SAVE_SIGNALS:
            self._save = True
        elif self._received is None:
            self._received = number
            self._received_at = time.monotonic()
        elif self._ranks.world == 1 and time.monotonic() - self._received_at > REPEAT_INTERVAL:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(128 + number)

    def synchronize(self, seconds: float) -> float:
        """Exchange received signals between the ranks. Returns the clock of rank 0, from its
        `seconds`.
        """
        stops = [self._received == number for number in STOP_SIGNALS]
        local = [*stops, self._save, seconds * self._ranks.is_first]
        self._save = False
        *all_stops, save, seconds = self._ranks.sum(local)
        self._agreed_save = self._agreed_save or save > 0
        for number, requested in zip(STOP_SIGNALS, all_stops, strict=True):
            if requested and self._agreed is None:
                self._agreed = number
        return seconds

    def raise_if_requested(self) -> None:
        """Raises Interrupted if any rank is known to have received a signal, without waiting for
        the others.
        """
        if self._ranks.world > 1 and self._agreed is None:
            self._agreed = self._received
            if self._agreed is None:
                self._agreed = self._ranks.forwarded_signal()
        if self:
            raise Interrupted(self.signal)

    def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `work` in a thread. Raises Interrupted if a signal arrives; the thread is then
        abandoned.
        """

        def run() -> Iterator[T]:
            yield work(*args, **kwargs)

        with closing(prefetch(run(), self.raise_if_requested)) as results:
            return next(results)

    def adopt(self, interrupted: Interrupted) -> None:
        """Take over the signal that interrupted another rank."""
        if self._agreed is None:
            self._agreed = interrupted.signal


@contextmanager
def handle_signals(ranks: Ranks = SINGLE) -> Iterator[StopRequest]:
    """Record SIGINT, SIGTERM and SIGUSR1 until the block ends.

    A second request to stop, at least a second after the first, ends a single process at once.
    Several ranks ignore it, since their launcher ends processes that do not stop.
    """
    request = StopRequest(ranks)
    with ExitStack() as handlers:
        with suppress(ValueError):  # raised outside the main thread, which owns the signal handlers
            for number in (*STOP_SIGNALS, *SAVE_SIGNALS):
                handlers.callback(signal.signal, number, signal.signal(number, request.handle))
        yield request
