from __future__ import annotations

import itertools
import threading
import time

import pytest

from trifold.train.data import prefetch


def test_batches_come_in_their_order_each_once_and_one_is_made_ahead():
    made: list[int] = []

    def batches():
        for number in itertools.count():
            made.append(number)
            yield number

    coming = prefetch(batches())
    assert list(itertools.islice(coming, 5)) == [0, 1, 2, 3, 4]
    coming.close()
    assert made in ([*range(5)], [*range(6)])


@pytest.mark.parametrize("when", ["while it is waited for", "before it is asked for"])
def test_a_batch_that_takes_long_is_not_waited_for_when_nobody_wants_it_any_more(when):
    """As where an epoch begins with tokenising, and a signal comes; not at the end of the process either."""
    begun, release = threading.Event(), threading.Event()

    def batches():
        yield "first"
        begun.set()
        release.wait(30)
        yield "second"

    coming, start = prefetch(batches(), begun.is_set), time.monotonic()
    assert next(coming) == "first"
    assert begun.wait(10)
    assert when != "while it is waited for" or list(coming) == []
    coming.close()
    assert time.monotonic() - start < 15
    assert [thread.daemon for thread in threading.enumerate() if thread.name == "batches"] == [True]
    release.set()


def test_batches_may_come_to_an_end():
    assert list(prefetch(iter("abc"))) == ["a", "b", "c"]


def test_what_goes_wrong_with_a_batch_is_raised_where_it_is_asked_for():
    def batches():
        yield "first"
        raise ValueError("broken")

    coming = prefetch(batches())
    assert next(coming) == "first"
    with pytest.raises(ValueError, match="broken"):
        next(coming)
