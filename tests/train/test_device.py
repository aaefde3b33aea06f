from __future__ import annotations

import gc
import sys

import pytest
import torch

from trifold.errors import UsageError
from trifold.train.device import choose_precision, choose_workers, find_device, reduce_interpreter_pauses

DEVICE = sys.modules["trifold.train.device"]  # `trifold.train` is the function, for those who import it


def test_the_cpu_is_always_there():
    assert find_device("cpu").type == "cpu"
    assert find_device("auto").type in ("cpu", "cuda", "mps")


def test_a_device_that_is_not_here_is_refused_with_what_is(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UsageError, match=r"device 'cuda:3' is not available; available devices: cpu$"):
        find_device("cuda:3")
    assert find_device("auto").type == "cpu"


def test_a_device_that_nobody_knows(monkeypatch):
    with pytest.raises(UsageError, match=r"unknown device 'gpu'; use auto, cpu, cuda"):
        find_device("gpu")


@pytest.mark.parametrize(("found", "chosen"), [("cuda", "cuda"), ("mps", "mps")])
def test_an_accelerator_goes_before_the_cpu(monkeypatch, found, chosen):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: found == "cuda")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: found == "mps")
    assert find_device("auto").type == chosen


@pytest.mark.parametrize(("instructions", "chosen"), [(True, torch.bfloat16), (False, torch.float32)])
def test_bf16_is_taken_where_the_processor_has_instructions_for_it(monkeypatch, instructions, chosen):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: instructions)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert choose_precision("auto", torch.device("cpu")) is chosen


@pytest.mark.parametrize(("wanted", "chosen"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_a_precision_that_is_named_is_taken(wanted, chosen):
    assert choose_precision(wanted, torch.device("cpu")) is chosen


def test_workers_are_as_many_as_threads_where_each_has_enough_to_do(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(DEVICE, "compiled_loops", object)
    cpu = torch.device("cpu")
    assert [choose_workers(None, cpu, tokens) for tokens in (100, 1024, 4096, 100_000)] == [1, 1, 4, 8]
    assert choose_workers(3, cpu, 100) == 3
    monkeypatch.setattr(DEVICE, "compiled_loops", lambda: None)
    assert choose_workers(None, cpu, 4096) == 1


def test_workers_are_for_the_cpu():
    assert choose_workers(None, torch.device("cuda"), 4096) == 1
    with pytest.raises(UsageError, match=r"train.workers=2: workers share batches on a CPU only"):
        choose_workers(2, torch.device("cuda"), 4096)


def test_python_is_as_it_was_after_an_undisturbed_block() -> None:
    before = sys.getswitchinterval()
    with reduce_interpreter_pauses(2):
        assert sys.getswitchinterval() <= 0.0005 and gc.get_freeze_count() > 0
    assert sys.getswitchinterval() == before and gc.get_freeze_count() == 0
    with reduce_interpreter_pauses(1):
        assert sys.getswitchinterval() == before
