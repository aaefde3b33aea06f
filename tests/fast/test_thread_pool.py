"""Products of few rows by a team of threads are the library's, whoever calls and wherever the numbers lie."""

from __future__ import annotations

import multiprocessing
import os
import threading

import pytest
import torch
from torch import Tensor

from trifold.fast import thread_pool as crew
from trifold.fast.int8 import Int8

pytest.importorskip("numba", reason="the compiled loops need numba: pip install 'trifold[fast]'")


@pytest.mark.usefixtures("small_products_too")
@pytest.mark.parametrize("rows", [1, 2, 4, 7, 8])
@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_thin_product_is_the_librarys(rows: int, kind: str, threads: int) -> None:
    x, weight, bias = torch.randn(rows, 1, 200), torch.randn(333, 200), torch.randn(333)
    matrix = {"fp32": weight, "bf16": weight.bfloat16(), "int8": Int8.of(weight)}[kind]
    wide = matrix.wide() if isinstance(matrix, Int8) else matrix.float()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            assert crew.thin(x, matrix)
            found = crew.thin_product(x, matrix, bias)
    finally:
        torch.set_num_threads(before)
    theirs = torch.nn.functional.linear(x.double(), wide.double(), bias.double())
    assert found.dtype is torch.float32
    assert torch.allclose(found.double(), theirs, atol=1e-4)


@pytest.mark.parametrize("width", [768, 769, 1600, 2304])
def test_rows_that_are_multiplied_in_stretches_are_multiplied_whole(width: int) -> None:
    x, weight = torch.randn(1, width), torch.randn(50, width)
    with torch.no_grad():
        found = crew.thin_product(x, weight, None)
    assert torch.allclose(found, x @ weight.T, atol=1e-3)


def test_several_callers_do_not_disturb_each_other() -> None:
    weight = torch.randn(400, 300)
    inputs = [torch.randn(1, 300) for _ in range(4)]
    found: list[Tensor | None] = [None] * len(inputs)

    def work(number: int) -> None:
        with torch.no_grad():
            for _ in range(20):
                found[number] = crew.thin_product(inputs[number], weight, None)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    torch.set_num_threads(before)
    for x, y in zip(inputs, found, strict=True):
        assert y is not None and torch.allclose(y, x @ weight.T, atol=1e-4)


def product_of(x: Tensor, weight: Tensor) -> Tensor:
    with torch.no_grad():
        return crew.thin_product(x, weight, None)


def test_without_a_team_one_thread_does_all(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.randn(2, 300), torch.randn(400, 300)
    together = product_of(x, weight)
    monkeypatch.setattr(crew, "team", lambda: None)
    assert torch.equal(product_of(x, weight), together)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_process_has_none_of_its_parents_threads_and_waits_for_none() -> None:
    x, weight = torch.randn(1, 300), torch.randn(400, 300)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        wanted = product_of(x, weight).tolist()  # the team is there now
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()
        child = context.Process(target=lambda: answers.put(product_of(x, weight).tolist()))
        child.start()
        child.join(60)
        assert child.exitcode == 0 and answers.get() == wanted
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8"])
def test_the_same_numbers_have_the_same_bits_wherever_they_lie(kind: str) -> None:
    weight = torch.randn(64, 200)
    rows, results = torch.randn(5, 200), []
    matrix = {"fp32": weight, "bf16": weight.bfloat16(), "int8": Int8.of(weight)}[kind]
    room = torch.zeros(20_000)
    for x_at, out_at in ((0, 1_000), (0, 10_000), (3, 1_004), (320, 0), (333, 1_340)):
        x, out = room[x_at : x_at + 1_000].view(5, 200), room[out_at : out_at + 320].view(5, 64)
        out.zero_()
        x.copy_(rows)
        crew.run_line(**crew.matrix_fields(matrix), rows=5, x=x, out=out)
        results.append(out.clone())
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.usefixtures("small_products_too")
def test_few_rows_of_a_large_matrix_and_no_gradients() -> None:
    weight = torch.randn(64, 32)
    with torch.no_grad():
        assert crew.thin(torch.randn(1, 4, 32), weight)
        assert not crew.thin(torch.randn(crew.FEW + 1, 32), weight)
        assert not crew.thin(torch.randn(1, 32), weight.half())
        assert not crew.thin(torch.randn(1, 32), torch.randn(32, 64).T)
        assert not crew.thin(torch.randn(0, 32), weight)
    assert not crew.thin(torch.randn(1, 32), weight)
