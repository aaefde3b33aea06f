"""The threads of PyTorch's operators: runs functions on them, and adapts them to other processes on
the same cores.

Between two operators OpenMP's threads wait in a loop for milliseconds, because waking a thread
takes longer than most operators. A thread that loops on a core which another process needs delays
both processes, and threads that depend on each other wait for whole time slices: two processes that
share two cores then run at a tenth of their speed. While cores are contended, threads therefore
sleep instead of looping, and the compiled decoder uses half of them. This changes no result. The
operating system measures contention; where it does not (outside Linux), nothing is adapted.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeAlias

import torch

StartParallel: TypeAlias = Callable[[int, int | None, int, int], None]

SAMPLE_SECONDS = 0.1  # a few time slices of the scheduler
CONTENDED = 0.2  # share of the time that a thread waits for a core; alone on its cores at most 0.04
STALL_SECONDS = 0.003  # a thread that loses its core gets it back after about a time slice
MAX_PAUSE = 16.0  # seconds until the next test whether the cores are free
SCHEDULER_STATISTICS = Path("/proc/thread-self/schedstat")

_last_sample = threading.local()


class _State:
    """Whether cores are contended.

    In that state the cores may look free, because fewer threads use them. It therefore ends after a
    pause, which doubles as long as the next sample finds contention again.
    """

    contended = False
    stalls = 0  # since the last sample
    end = 0.0
    pause = 1.0
    release: threading.Event | None = None


_state = _State()
_lock = threading.Lock()


@cache
def openmp() -> StartParallel | None:
    """OpenMP's function that runs a C function (its address, its argument, threads, 0) on all
    threads, this one among them, and waits for them; None if PyTorch was built without OpenMP.
    """
    try:
        start = ctypes.CDLL(torch._C.__file__).GOMP_parallel
    except (OSError, AttributeError):
        return None
    start.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    start.restype = None
    return start


def contended() -> bool:
    """Whether other processes used this process's cores when they were sampled last."""
    return _state.contended


def count_stalls(count: int) -> None:
    """Report how often a thread waited for one that had lost its core."""
    if count:
        with _lock:
            _state.stalls += count


def adapt_to_contention() -> None:
    """Sample how long the calling thread waited for a core, and for threads that had lost theirs,
    at most every SAMPLE_SECONDS, and adapt to it.
    """
    now = time.perf_counter()
    if now < getattr(_last_sample, "time", 0.0) + SAMPLE_SECONDS:
        return
    try:
        waited = int(SCHEDULER_STATISTICS.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        _last_sample.time = float("inf")
        return
    elapsed = now - getattr(_last_sample, "time", now)  # 0 at the first sample of a thread
    share = (waited - _last_sample.waited) / elapsed if elapsed else 0.0
    _last_sample.time = now
    _last_sample.waited = waited
    with _lock:
        if elapsed:
            share = max(share, STALL_SECONDS * _state.stalls / elapsed)
            _state.stalls = 0
        _update(share, now)


def _update(share: float, now: float) -> None:
    if not _state.contended and share <= CONTENDED:
        _state.pause = 1.0
    elif not _state.contended:
        _state.contended = True
        _state.end = now + _state.pause
        _state.pause = min(2 * _state.pause, MAX_PAUSE)
        _state.release = _oversubscribe()
    elif now > _state.end and share <= CONTENDED:
        _state.contended = False
        if _state.release:
            _state.release.set()


def _oversubscribe() -> threading.Event | None:
    """Make the threads of OpenMP sleep when they wait, until the returned event is set.

    GNU OpenMP does this while it manages more threads than there are cores. A team of sleeping
    threads, one more than the cores, suffices; each of its threads frees a null pointer.
    """
    start = openmp()
    if start is None:
        return None
    release = threading.Event()
    do_nothing = ctypes.cast(ctypes.pythonapi.PyMem_RawFree, ctypes.c_void_p).value or 0

    def hold() -> None:
        start(do_nothing, None, len(os.sched_getaffinity(0)) + 1, 0)
        release.wait()

    threading.Thread(target=hold, name="oversubscribe", daemon=True).start()
    return release
