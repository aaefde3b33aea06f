"""A matmul by instructions equals that of PyTorch, for any caller, number of threads and memory
address.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from trifold.fast import instruction, openmp, thread_pool
from trifold.fast.block_weight import BlockWeight
from trifold.fast.int8 import Int8Weight
from trifold.fast.layers import few_row_linear, supports_few_row_linear
from trifold.fast.quantized_weight import Weight
from trifold.fast.step_linear import GAP

pytest.importorskip("numba", reason="the interpreter needs numba: `make setup` installs it")
KINDS = ("fp32", "bf16", "blocks")


@pytest.fixture
def two_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def convert(weight: Tensor, kind: str) -> Weight:
    if kind == "blocks":
        return BlockWeight.quantize(weight, 8)
    return {"fp32": weight, "bf16": weight.bfloat16()}[kind]


def multiply(x: Tensor, weight: Weight) -> Tensor:
    with torch.no_grad():
        return few_row_linear(x, weight, None)


@pytest.mark.parametrize(
    ("rows", "kind", "threads"),
    [
        *((rows, "fp32", 2) for rows in (1, 2, 4, 7, 8)),
        *((5, kind, n) for kind in KINDS for n in (1, 3)),
    ],
)
def test_a_matmul_of_few_rows_equals_that_of_pytorch(rows: int, kind: str, threads: int) -> None:
    x, weight, bias = torch.randn(rows, 1, 200), torch.randn(333, 200), torch.randn(333)
    matrix = convert(weight, kind)
    exact = matrix.dequantize() if isinstance(matrix, BlockWeight) else matrix
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            ours = few_row_linear(x, matrix, bias)
    finally:
        torch.set_num_threads(before)
    theirs = torch.nn.functional.linear(x.double(), exact.double(), bias.double())
    assert ours.dtype is torch.float32
    limits = {"blocks": 4e-3}  # of activations in 16 bits
    assert torch.allclose(ours.double(), theirs, atol=limits.get(kind, 1e-4))


@pytest.mark.parametrize("width", [768, 769, 2304])
def test_a_matmul_of_rows_longer_than_a_segment_equals_that_of_pytorch(width: int) -> None:
    x, weight = torch.randn(1, width), torch.randn(50, width)
    assert torch.allclose(multiply(x, weight), x @ weight.T, atol=1e-3)


@pytest.mark.usefixtures("two_threads")
def test_concurrent_callers_get_their_own_results() -> None:
    weight = torch.randn(400, 300)
    inputs = [torch.randn(1, 300) for _ in range(4)]
    results: list[Tensor | None] = [None] * len(inputs)

    def work(number: int) -> None:
        for _ in range(10):
            results[number] = multiply(inputs[number], weight)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    for x, y in zip(inputs, results, strict=True):
        assert y is not None and torch.allclose(y, x @ weight.T, atol=1e-4)


@pytest.mark.usefixtures("two_threads")
def test_without_openmp_one_thread_gives_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.randn(2, 300), torch.randn(400, 300)
    with_openmp = multiply(x, weight)
    monkeypatch.setattr(thread_pool, "openmp", lambda: None)
    assert torch.equal(multiply(x, weight), with_openmp)


def waited_for_a_core() -> float:
    """The seconds that this thread was ready and did not run."""
    return int(openmp.SCHEDULER_STATISTICS.read_text().split()[1]) / 1e9


@pytest.mark.skipif(not openmp.SCHEDULER_STATISTICS.exists(), reason="reads /proc")
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("operation", ["matmul", "norm"])
def test_a_long_wait_for_a_matmul_counts_as_a_stall(
    monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    counted: list[int] = []
    monkeypatch.setattr(thread_pool, "count_stalls", counted.append)
    monkeypatch.setattr(thread_pool, "contended", lambda: False)  # which leaves one thread
    # One task each, which takes milliseconds; those of matmuls take microseconds otherwise.
    width = 400_000
    weight, x, out = torch.zeros(16, width), torch.zeros(8, width), torch.zeros(8, width)
    fields = thread_pool.matmul_fields(weight) | {"rows": 8}
    if operation == "norm":
        fields = {"opcode": instruction.NORM, "inputs": 8 * width, "weight": weight, "units": 1}
    start, waited = time.perf_counter(), waited_for_a_core()
    for _ in range(20):
        thread_pool.execute_one(**fields, x=x, out=out)
    elapsed = time.perf_counter() - start
    if operation == "norm":
        assert counted == [0] * 20
    else:  # a thread whose own core is used by other processes yields it, and counts less
        assert any(counted) or waited_for_a_core() - waited > openmp.CONTENDED * elapsed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.usefixtures("two_threads")
def test_a_forked_process_does_not_wait_for_the_threads_of_its_parent() -> None:
    x, weight = torch.randn(1, 300), torch.randn(400, 300)
    expected = multiply(x, weight).tolist()  # starts the threads
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=lambda: results.put(multiply(x, weight).tolist()))
    child.start()
    child.join(60)
    assert child.exitcode == 0 and results.get() == expected


def test_workers_share_the_threads_and_report_errors(two_threads: None) -> None:
    def run(item: int) -> tuple[int, int, bool]:
        if item < 0:
            raise ValueError(item)
        is_own = threading.current_thread() is threading.main_thread()
        return item, torch.get_num_threads(), is_own

    found = list(thread_pool.map_on(2, run, range(5)))
    assert found == [(item, 1, False) for item in range(5)]
    with pytest.raises(ValueError, match="-1"):
        list(thread_pool.map_on(2, run, [1, -1, 2]))
    assert list(thread_pool.map_on(1, run, [3])) == [(3, 2, True)]


def test_batches_of_workers_hold_no_more_than_one_batch() -> None:
    for total, size, workers in ((100_000, 4096, 2), (9000, 4096, 8), (3, 1, 4), (500, 4096, 2)):
        share = thread_pool.share_of(total, size, workers)
        assert 1 <= share <= max(1, size // workers)
    assert thread_pool.share_of(5, 4096, 1) == 4096


@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_the_memory_address(kind: str) -> None:
    matrix = convert(torch.randn(64, 200), kind)
    rows, results = torch.randn(5, 200), []
    memory = torch.zeros(20_000)
    for x_at, out_at in ((0, 1_000), (0, 10_000), (3, 1_004), (320, 0), (333, 1_340)):
        x, out = memory[x_at : x_at + 1_000].view(5, 200), memory[out_at : out_at + 320].view(5, 64)
        out.zero_()
        x.copy_(rows)
        thread_pool.execute_one(**thread_pool.matmul_fields(matrix), rows=5, x=x, out=out)
        results.append(out.clone())
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.usefixtures("no_minimum_sizes")
def test_supported_inputs() -> None:
    weight = torch.randn(64, 32)
    with torch.no_grad():
        assert supports_few_row_linear(torch.randn(1, 4, 32), weight, None)
        assert not supports_few_row_linear(torch.randn(instruction.FEW_ROWS + 1, 32), weight, None)
        assert not supports_few_row_linear(torch.randn(1, 32), weight.half(), None)
        assert not supports_few_row_linear(torch.randn(1, 32), torch.randn(32, 64).T, None)
        assert not supports_few_row_linear(torch.randn(0, 32), weight, None)
        assert not supports_few_row_linear(torch.randn(1, 32), Int8Weight.quantize(weight), None)
    assert not supports_few_row_linear(torch.randn(1, 32), weight, None), "gradients are enabled"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it uses malloc of the C library")
def test_a_norm_has_the_same_bits_wherever_its_memory_lies() -> None:
    """Also if the memory that it allocates begins where its input ends. Without a gap, compiled code
    then computes one number at a time.
    """
    width = 16
    size = 4 * width + GAP  # what the instruction allocates; malloc returns what was freed last
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    for _ in range(20):
        x, weight, bias = torch.randn(3, 1, width)
        expected = layer_norm(x, weight, bias)
        # After the holes of the heap, memory comes in one piece.
        places = sorted(libc.malloc(size) for _ in range(4096))
        before, after = next(pair for pair in pairwise(places) if pair[1] - pair[0] < size + 64)
        end = (ctypes.c_char * (4 * width)).from_address(before + GAP)
        near = torch.frombuffer(end, dtype=torch.float32).view(1, width).copy_(x)
        libc.free(after)
        found = layer_norm(near, weight, bias)
        for place in places:
            if place != after:
                libc.free(place)
        assert torch.equal(found, expected)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x (1, K), normalized by an instruction."""
    out = torch.empty_like(x)
    fields = {"x": x, "weight": weight, "bias": bias, "out": out, "epsilon": 1e-5}
    sizes = {"rows": 1, "units": 1, "inputs": x.shape[1]}
    thread_pool.execute_one(opcode=instruction.NORM, norm=instruction.LAYER_NORM, **sizes, **fields)
    return out
