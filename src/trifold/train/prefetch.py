"""Prefetching: a thread builds the next item while the current one is processed."""

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, wait
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

T = TypeVar("T")

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
    ready = Future[T | None]()
    requests.put(ready)
    try:
        while True:
            while not wait([ready], POLL_INTERVAL).done:
                if stop():
                    return
            item = ready.result()
            if item is None:
                return
            ready = Future()
            requests.put(ready)
            yield item
    finally:
        requests.put(None)
        thread.join(POLL_INTERVAL)
