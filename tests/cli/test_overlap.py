"""Parts that are computed in threads keep their order, their errors and their counts."""

from __future__ import annotations

import gc
import io
import os
import sys
import threading

import pytest

from trifold.cli import overlap
from trifold.cli.overlap import WAITING, compute_ahead
from trifold.cli.terminal import is_regular_file


def parts(count, error=None):
    yield from range(count)
    if error is not None:
        raise error


def collect(workers, compute, read, **options):
    """The results before an error, the error, and the sum of what was reported."""
    done: list[int] = []
    results = []
    try:
        for part, result in compute_ahead(compute, read, done.append, workers, **options):
            results.append((part, result))
    except OSError as error:
        return results, str(error), sum(done)
    return results, "", sum(done)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_results_keep_the_order_of_the_parts(workers, count):
    later = threading.Event()

    def compute(part, on_done):
        on_done(part)
        if part == 1:
            later.set()
        if part == 0 and workers > 1 and count > 1:
            assert later.wait(5)  # the second part ends before the first
        return -part

    before = sys.getswitchinterval()
    results, error, done = collect(workers, compute, parts(count))
    assert results == [(part, -part) for part in range(count)]
    assert (error, done) == ("", sum(range(count)))
    assert sys.getswitchinterval() == before


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("failing", [0, 1, 5])
@pytest.mark.parametrize("place", ["read", "computed"])
def test_an_error_follows_the_results_before_it(workers, failing, place):
    def compute(part, on_done):
        if place == "computed" and part == failing:
            raise OSError(f"part {part}")
        return part

    read = parts(7) if place == "computed" else parts(failing, OSError(f"part {failing}"))
    results, error, _ = collect(workers, compute, read)
    assert [part for part, _ in results] == [*range(failing)]
    assert error == f"part {failing}"


def test_a_part_alone_is_computed_by_the_caller_unless_parts_came_before_it():
    threads = []

    def compute(part, on_done):
        threads.append(threading.current_thread())

    collect(2, compute, parts(1))
    collect(2, compute, parts(1), is_continued=True)
    main = threading.main_thread()
    assert threads[0] is main and threads[1] is not main


def test_threads_end_when_the_results_are_left():
    earlier = set(threading.enumerate())  # a pool of the process is kept
    started = threading.Event()
    stopped = []

    def compute(part, on_done):
        if part == 0:
            return
        started.set()
        try:
            while True:
                on_done(1)
        except BaseException as error:
            stopped.append(error)
            raise

    results = compute_ahead(compute, parts(9), lambda number: None, 2)
    next(results)
    assert started.wait(5)
    results.close()
    assert 1 <= len(stopped) <= 2
    later = set(threading.enumerate()) - earlier
    assert not [each for each in later if each.name.startswith("worker")]


def test_parts_wait_for_the_workers_and_old_objects_are_not_collected(monkeypatch):
    monkeypatch.setattr(overlap, "gc", gc)
    read = []

    def numbers():
        for number in range(20):
            read.append(number)
            yield number

    results = compute_ahead(lambda part, on_done: part, numbers(), lambda number: None, 2)
    assert next(results) == (0, 0)
    assert len(read) == 2 + WAITING
    assert gc.get_freeze_count() > 1000
    results.close()
    assert gc.get_freeze_count() == 0
    gc.freeze()  # for later tests


@pytest.mark.slow
def test_only_a_file_is_read_ahead(tmp_path):
    reading, writing = os.pipe()
    (tmp_path / "a.txt").write_text("one\n", "utf-8")
    with (
        os.fdopen(reading) as pipe,
        os.fdopen(writing, "w") as end,
        (tmp_path / "a.txt").open() as file,
    ):
        assert is_regular_file(file)
        assert not any(map(is_regular_file, (pipe, end, io.StringIO("one\n"))))
