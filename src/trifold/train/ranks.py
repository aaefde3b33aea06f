"""The ranks of a run, one process or several, and the signals that they receive.

SIGINT and SIGTERM request an orderly end: finish the step, save, and print the command that
continues the run. SIGUSR1 requests a checkpoint; the run continues. This module contains what a
single process needs; `distributed.py` has the ranks that `torchrun` starts.
"""

import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import (
    ExitStack,
    closing,
    contextmanager,
    suppress,
)
from queue import SimpleQueue
from threading import Thread
from types import FrameType
from typing import ParamSpec, TypeVar

from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAVE_SIGNALS = (signal.SIGUSR1,) if hasattr(signal, "SIGUSR1") else ()
# A terminal, `timeout`, a service manager and torchrun may each send one request twice: to a
# process and its group.
REPEAT_INTERVAL = 1.0  # seconds


class Interrupted(Exception):
    """A signal requested the end of the run during work that need not be finished."""

    def __init__(self, signal: int | None = None) -> None:
        super().__init__(signal)
        self.signal = signal


class Ranks:
    """A single process; `ProcessGroup` is several. `local_rank` and `local_world` count the ranks
    of this machine.
    """

    rank = local_rank = 0
    world = local_world = 1

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes files and prints."""
        return self.rank == 0

    @property
    def command(self) -> str:
        """The command that starts the same number of processes."""
        return "trifold"

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sums of these numbers over all ranks, in float64."""
        return [float(value) for value in values]

    def gather(self, value: float) -> list[float]:
        """The number of each rank, in their order."""
        return self.sum([value if rank == self.rank else 0 for rank in range(self.world)])

    def all_reduce(self, vector: Tensor) -> None:
        """Replace a tensor by the sum of the tensors of all ranks, in place."""

    def broadcast(self, vector: Tensor) -> None:
        """Replace a tensor by that of rank 0, in place."""

    def first(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `work` on rank 0 and return its result, a JSON value, on all ranks.

        An exception is raised on rank 0; the other ranks raise OtherRankError, or Interrupted if
        rank 0 does.
        """
        return work(*args, **kwargs)

    def in_turn(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `work` on rank 0, then on all others. If one fails, all leave, and only that one
        reports the error.
        """
        return work(*args, **kwargs)

    def forward_signals(self, received: Callable[[], int | None]) -> None:
        """Forward the signal that `received` returns to rank 0 while this rank waits for it."""

    def forwarded_signal(self) -> int | None:
        """A signal that another rank received while waiting for this one."""
        return None


SINGLE = Ranks()


# --- signals --------------------------------------------------------------------------------------


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
        self._save = self._agreed_save = False
        ranks.forward_signals(lambda: self._received)

    @property
    def signal(self) -> int | None:
        """The number of the signal, or None."""
        return self._received if self._ranks.world == 1 else self._agreed

    @property
    def exit_code(self) -> int:
        """The exit code of the process: 0 without a request."""
        return 0 if self.signal is None else 128 + self.signal

    @property
    def name(self) -> str:
        """Such as SIGTERM; empty without a request."""
        return "" if self.signal is None else signal.Signals(self.signal).name

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
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    def synchronize(self, seconds: float) -> float:
        """Exchange received signals between the ranks. Returns the clock of rank 0, from its
        `seconds`.
        """
        stops = [self._received == number for number in STOP_SIGNALS]
        own = [*stops, self._save, seconds * self._ranks.is_first]
        self._save = False
        *all_stops, save, seconds = self._ranks.sum(own)
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
            self._agreed = (
                self._ranks.forwarded_signal() if self._received is None else self._received
            )
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
        self._agreed = interrupted.signal if self._agreed is None else self._agreed


POLL_INTERVAL = 0.1  # seconds between two checks whether an item is still needed


def prefetch(
    items: Iterator[T], stop: Callable[[], object] = lambda: False
) -> Generator[T, None, None]:
    """The same items; a thread builds the next one while one is processed.

    Ends if `stop()` is true, or raises, before an item is ready; the thread is then abandoned.
    Native code cannot be interrupted by a signal handler, so the calling thread waits for the
    signal.
    """
    requests = SimpleQueue[Future[T | None] | None]()

    def build() -> None:
        for future in iter(requests.get, None):
            try:
                future.set_result(next(items, None))
            except BaseException as error:  # raised again in the consumer
                future.set_exception(error)

    thread = Thread(target=build, name="prefetch", daemon=True)
    thread.start()
    requests.put(ready := Future[T | None]())
    try:
        while True:
            while not wait([ready], POLL_INTERVAL).done:
                if stop():
                    return
            if (item := ready.result()) is None:
                return
            requests.put(ready := Future())
            yield item
    finally:
        requests.put(None)
        thread.join(POLL_INTERVAL)


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
