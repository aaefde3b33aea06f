"""Run tasks in threads that stop when one of them fails or the process ends."""

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

ShouldStop: TypeAlias = Callable[[], bool]


class Stopped(Exception):
    """Raised in a task when another one has failed, the user interrupts, or the process exits."""


def run_in_threads(
    tasks: Sequence[Callable[[ShouldStop], Any]], workers: int
) -> Generator[dict[int, Any], None, None]:
    """Run tasks in threads; yields {number of the task: result}, empty at least once a second while
    none finishes.

    Raises the first error, after the running tasks have stopped. If the calling thread is a daemon
    and the main thread ends, the tasks stop too. (A concurrent.futures executor is joined at exit
    while the main thread still counts as alive, so all queued tasks would run; daemon threads would
    be killed inside native code, which may abort.)
    """
    stop = threading.Event()
    caller = threading.current_thread()
    waiting = deque(enumerate(tasks))
    finished: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()

    def should_stop() -> bool:
        return stop.is_set() or (caller.daemon and not threading.main_thread().is_alive())

    def work() -> None:
        with suppress(IndexError):  # no task is left
            while not should_stop():
                number, task = waiting.popleft()
                try:
                    finished.put((number, task(should_stop), None))
                except BaseException as error:  # raised again in the calling thread
                    finished.put((number, None, error))

    threads = [threading.Thread(target=work, name="tokens", daemon=False) for _ in range(workers)]
    try:
        for thread in threads:
            thread.start()
        remaining = len(tasks)
        while remaining:
            results: dict[int, Any] = {}
            with suppress(Empty):
                number, result, error = finished.get(timeout=1.0)
                if error is not None:
                    raise error
                results[number] = result
            remaining -= len(results)
            yield results
    finally:
        stop.set()
        for thread in threads:
            if thread.ident is not None:  # it was started
                thread.join()
