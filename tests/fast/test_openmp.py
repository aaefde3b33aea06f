"""Contention is detected and ends, changes how threads wait, and changes no result."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from trifold import fast
from trifold.fast import layers, openmp
from trifold.fast.layers import few_row_linear
from trifold.nn import Inputs, Transformer

TASKS = Path("/proc/self/task")
needs_statistics = pytest.mark.skipif(
    not openmp.SCHEDULER_STATISTICS.exists(),
    reason="this system does not report how long threads wait for a core",
)
# A process on one core, next to an endless process on the same core.
DETECT = """
import os, subprocess, sys, time
from trifold.fast.openmp import adapt_to_contention, contended
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
end = time.perf_counter() + 20
try:
    while not contended() and time.perf_counter() < end:
        adapt_to_contention()
finally:
    other.kill()
print(contended())
"""


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch) -> openmp._State:
    """A new state, so that no test depends on the load of the machine."""
    state = openmp._State()
    monkeypatch.setattr(openmp, "_state", state)
    return state


def wait_for(condition: Callable[[], bool]) -> bool:
    end = time.perf_counter() + 10
    while not condition() and time.perf_counter() < end:
        time.sleep(0.01)
    return condition()


@pytest.mark.slow
@needs_statistics
def test_a_process_on_the_same_core_is_detected() -> None:
    command = [sys.executable, "-c", DETECT]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"


def test_pauses_double_while_contention_returns(
    state: openmp._State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openmp, "_oversubscribe", lambda: None)
    now, pauses = 0.0, []
    for _ in range(6):
        openmp._update(0.5, now)
        pauses.append(state.end - now)
        openmp._update(0.5, state.end + 1)
        assert state.contended, "contention that is still measured does not end"
        openmp._update(0.0, state.end - 0.01)
        assert state.contended, "a pause is not shortened"
        now = state.end + 2
        openmp._update(0.0, now)
        assert not state.contended
    assert pauses == [1, 2, 4, 8, 16, 16]
    openmp._update(0.1, now)
    openmp._update(0.5, now)
    assert state.end - now == 1, "after a free sample, pauses are short again"


@needs_statistics
@pytest.mark.parametrize(("stalls", "expected"), [(0, False), (3, False), (30, True)])
def test_frequent_stalls_are_contention(
    state: openmp._State, monkeypatch: pytest.MonkeyPatch, stalls: int, expected: bool
) -> None:
    now = 100.0
    monkeypatch.setattr(openmp.time, "perf_counter", lambda: now)
    monkeypatch.setattr(openmp, "_oversubscribe", lambda: None)
    monkeypatch.setattr(openmp, "_last_sample", threading.local())
    openmp.adapt_to_contention()
    openmp.count_stalls(stalls)
    now += 0.2
    openmp.adapt_to_contention()
    assert openmp.contended() is expected and state.stalls == 0


@needs_statistics
@pytest.mark.skipif(openmp.openmp() is None, reason="PyTorch was built without OpenMP")
def test_contention_keeps_more_threads_than_cores_until_it_ends(state: openmp._State) -> None:
    threads = len(list(TASKS.iterdir()))
    openmp._update(0.5, 0.0)
    assert wait_for(lambda: len(list(TASKS.iterdir())) > threads + len(os.sched_getaffinity(0)))
    openmp._update(0.0, state.end + 1)
    assert wait_for(lambda: len(list(TASKS.iterdir())) <= threads)


def test_every_forward_pass_samples_contention_once(
    make_model: Callable[..., Transformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples: list[None] = []
    monkeypatch.setattr(layers, "adapt_to_contention", lambda: samples.append(None))
    model, inputs = make_model(shape="decoder"), Inputs(torch.ones(2, 3, dtype=torch.long))
    for count, training in ((1, True), (2, False)):
        with torch.set_grad_enabled(training):
            model(inputs)
        assert len(samples) == count
    with fast.disabled():
        model(inputs)
    assert len(samples) == 2


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_contention_changes_no_result(state: openmp._State, threads: int) -> None:
    pytest.importorskip("numba", reason="the interpreter needs numba: `make setup` installs it")
    x, weight, before = torch.randn(3, 1, 200), torch.randn(333, 200), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            free = few_row_linear(x, weight, None)
            state.contended = True
            assert torch.equal(few_row_linear(x, weight, None), free)
    finally:
        torch.set_num_threads(before)
