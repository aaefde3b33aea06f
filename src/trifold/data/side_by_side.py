"""Work that threads do side by side, and leave when nobody waits for it any more."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias


class Stopped(Exception):
    """Another part has failed, somebody pressed Ctrl-C, or the process is about to end."""


Stopping: TypeAlias = Callable[[], bool]


def side_by_side(
    work: Sequence[Callable[[Stopping], Any]], workers: int, told: Callable[[dict[int, Any]], None]
) -> list[Any]:
    """The results of some work that threads do, an early end of which is asked for by `Stopping`; the first error, if
    any. `told` hears now and then of the results so far.

    Whoever waits here in a thread that nobody waits for (a daemon) is left behind when the process ends. Then the
    threads end too, after what they have in hand: those of an executor would first do all that is in its queue, and
    daemons would be cut off inside native code, which may abort.
    """
    over, caller = threading.Event(), threading.current_thread()
    waiting = deque(enumerate(work))
    finished: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()
    results: dict[int, Any] = {}

    def stopping() -> bool:
        return over.is_set() or (caller.daemon and not threading.main_thread().is_alive())

    def labour() -> None:
        while waiting and not stopping():
            try:
                number, one = waiting.popleft()
            except IndexError:  # another has taken the last
                return
            try:
                finished.put((number, one(stopping), None))
            except BaseException as error:  # raised again by who waits
                finished.put((number, None, error))

    threads = [threading.Thread(target=labour, name="side by side", daemon=False) for _ in range(workers)]
    try:
        for thread in threads:
            thread.start()
        while len(results) < len(work):
            try:
                number, result, error = finished.get(timeout=1.0)
            except Empty:
                pass
            else:
                if error is not None:
                    raise error
                results[number] = result
            told(results)
    finally:
        over.set()
        for thread in threads:
            if thread.ident is not None:  # else it was not even begun
                thread.join()
    return [results[number] for number in range(len(work))]
