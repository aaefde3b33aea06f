"""Prefetching in a thread."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from trifold.train.prefetch import prefetch


def test_prefetch_keeps_the_order_and_builds_one_batch_ahead():
    built: list[int] = []

    def batches():
        for number in itertools.count():
            built.append(number)
            yield number

    prefetched = prefetch(batches())
    assert list(itertools.islice(prefetched, 5)) == [0, 1, 2, 3, 4]
    prefetched.close()
    assert built in ([*range(5)], [*range(6)])
    assert list(prefetch(iter("abc"))) == ["a", "b", "c"]


@pytest.mark.parametrize("waiting", [True, False])
def test_stopping_does_not_wait_for_a_slow_batch(waiting):
    """As when a signal arrives while the first batch of an epoch is tokenized. Neither does the end
    of the process.
    """
    started, release = threading.Event(), threading.Event()

    def batches():
        yield "first"
        started.set()
        release.wait(30)
        yield "second"

    prefetched, start = prefetch(batches(), started.is_set), time.monotonic()
    assert next(prefetched) == "first"
    assert started.wait(10)
    if waiting:
        assert list(prefetched) == []
    prefetched.close()
    assert time.monotonic() - start < 15
    assert [thread.daemon for thread in threading.enumerate() if thread.name == "prefetch"] == [
        True
    ]
    release.set()


def test_errors_of_the_prefetching_thread_are_raised_by_next():
    def batches():
        yield "first"
        raise ValueError("broken")

    prefetched = prefetch(batches())
    assert next(prefetched) == "first"
    with pytest.raises(ValueError, match="broken"):
        next(prefetched)
