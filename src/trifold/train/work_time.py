"""The time that work takes on a processor that other programs use as well.

The clock counts the seconds in which other programs run. The processor time of this process does
not: divided by its threads, it is what the work takes if they wait for nobody.
"""

from collections.abc import Callable
from time import perf_counter, process_time
from typing import NamedTuple

BUSY = 2.0  # times the seconds on an idle machine
WAITING = 1.25  # seconds by the clock per second of work, because threads wait for each other


class WorkTime(NamedTuple):
    """Seconds of some work: by the clock, and on a machine that no other program uses."""

    clock: float
    idle: float

    @property
    def is_busy(self) -> bool:
        """Whether other programs have taken most of the time."""
        return self.clock > BUSY * self.idle


def time_work(work: Callable[[], object], threads: int) -> WorkTime:
    """The time of a call that computes in this many threads."""
    clock = perf_counter()
    processor = process_time()
    work()
    clock = perf_counter() - clock
    processor = process_time() - processor
    if not processor:  # finer than the clock of the processor
        return WorkTime(clock, clock)
    return WorkTime(clock, min(clock, WAITING * processor / threads))
