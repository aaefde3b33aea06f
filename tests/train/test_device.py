from __future__ import annotations

import pytest
import torch

from trifold.errors import UsageError
from trifold.train.device import choose_precision, find_device


def test_the_cpu_is_always_there():
    assert find_device("cpu").type == "cpu"
    assert find_device("auto").type in ("cpu", "cuda", "mps")


def test_a_device_that_is_not_here_is_refused_with_what_is(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UsageError, match=r"device 'cuda:3' is not here; devices found: cpu$"):
        find_device("cuda:3")
    assert find_device("auto").type == "cpu"


def test_a_device_that_nobody_knows(monkeypatch):
    with pytest.raises(UsageError, match=r"device 'gpu' is not known; use auto, cpu, cuda"):
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
