"""Parts of an input that are computed in threads while others are read and written."""

from __future__ import annotations

import gc
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

Part = TypeVar("Part")
Result = TypeVar("Result")
OnDone = Callable[[int], None]
Compute = Callable[[Part, OnDone], Result]

# Parts that are read and wait for a worker, so that none waits while the caller writes a part.
WAITING = 2
# A thread that returns from an operator, most of which take less than a millisecond, waits so long
# for a thread that runs Python.
SWITCH_SECONDS = 0.00005


class _Stopped(Exception):
    """Raised in a thread whose result is not needed any more."""


def compute_ahead(
    compute: Compute[Part, Result],
    parts: Iterable[Part],
    on_done: OnDone,
    workers: int,
    *,
    is_continued: bool = False,
) -> Iterator[tuple[Part, Result]]:
    """Each part with its result, in order. on_done: called with the numbers that `compute` reports.

    Several workers share the cores, and at most `WAITING` more parts than workers are in memory.
    Without a second part, and with one worker, the caller computes on all cores. is_continued:
    whether parts came before these; then a single part is computed as if they were here, with the
    same bits.

    An error in reading a part, or in computing it, is raised after the results before it.
    """
    read = _with_error_last(parts)
    first_parts = [*islice(read, 2)]
    has_one = len(first_parts) < 2 and not is_continued
    whole = chain(first_parts, read)
    if workers == 1 or has_one:
        for part in map(_raise_error, whole):
            yield part, compute(part, on_done)
        return
    stop = threading.Event()
    lock = threading.Lock()

    def count(number: int) -> None:
        if stop.is_set():
            raise _Stopped
        with lock:
            on_done(number)

    with _threads(workers, stop) as executor:
        pending = deque[tuple[Any, Any]]()
        for part in whole:
            if isinstance(part, Exception):
                pending.append((part, None))
            else:
                pending.append((part, executor.submit(compute, part, count)))
            if len(pending) >= workers + WAITING:
                yield _result(*pending.popleft())
        while pending:
            yield _result(*pending.popleft())


def _with_error_last(parts: Iterable[Part]) -> Iterator[Part | Exception]:
    """The parts; then the error that ended them, if one did."""
    try:
        yield from parts
    except Exception as error:
        yield error


def _raise_error(part: Any) -> Any:
    if isinstance(part, Exception):
        raise part
    return part


def _result(part: Any, future: Any) -> tuple[Any, Any]:
    return _raise_error(part), future.result()


@contextmanager
def _threads(workers: int, stop: threading.Event) -> Iterator[ThreadPoolExecutor]:
    """Threads that share the cores. At the end they are stopped and awaited.

    Until then the garbage collector does not look at the objects that exist now: it holds the lock
    of the interpreter, for a fifth of a second with those of PyTorch and a model.
    """
    from trifold.fast.thread_pool import executor_sharing_cores

    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    executor = executor_sharing_cores(workers)
    gc.freeze()
    try:
        yield executor
    finally:
        stop.set()
        executor.shutdown(cancel_futures=True)
        gc.unfreeze()
        sys.setswitchinterval(before)
