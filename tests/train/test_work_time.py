"""Work is timed by the processor time of the process if other programs slow it down."""

from __future__ import annotations

import pytest

from trifold.train import work_time


@pytest.mark.parametrize(
    ("clock", "processor", "threads", "idle", "is_busy"),
    [
        (1.0, 2.0, 2, 1.0, False),  # an idle machine
        (1.0, 1.7, 2, 1.0, False),  # whose threads wait for each other
        (4.0, 2.0, 2, 1.25, True),  # a busy one
        (4.0, 1.0, 1, 1.25, True),
        (1.0, 0.0, 2, 1.0, False),  # a processor clock that is too coarse
    ],
)
def test_the_time_of_other_programs_is_not_counted(
    monkeypatch, clock, processor, threads, idle, is_busy
):
    monkeypatch.setattr(work_time, "perf_counter", iter([10.0, 10.0 + clock]).__next__)
    monkeypatch.setattr(work_time, "process_time", iter([5.0, 5.0 + processor]).__next__)
    found = work_time.time_work(lambda: None, threads)
    assert found == pytest.approx((clock, idle))
    assert found.is_busy == is_busy
