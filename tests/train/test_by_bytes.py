"""train.precision: int8 — the run learns by products of bytes where that pays, and says so either way."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from tests.faults.runs import lines_of

from trifold.errors import SettingsError
from trifold.fast.int8_training import int8_training_obstacle
from trifold.recipe import load_recipe
from trifold.train.device import agree_on_options, find_machine
from trifold.train.ranks import SINGLE

WIDE = {"train__device": "cpu", "model__d_model": 256, "model__d_ff": 256, "batch__tokens": 2048}
BY_BYTES = WIDE | {"train__precision": "int8"}
CPU = torch.device("cpu")
DEVICE = sys.modules["trifold.train.device"]

paying = pytest.mark.skipif(
    int8_training_obstacle(CPU) != "", reason="int8 training is not available on this machine"
)


@pytest.fixture
def products(monkeypatch) -> list[torch.Size]:
    """The sizes of all products of bytes that are made."""
    made: list[torch.Size] = []
    real = torch._int_mm
    monkeypatch.setattr(torch, "_int_mm", lambda x, y: made.append((*x.shape, y.shape[1])) or real(x, y))
    return made


@paying
def test_the_run_learns_by_bytes_there_and_back_and_says_so(run, listening, products):
    outcome = run(view=listening, **BY_BYTES, train__steps=2, train__warmup=1)
    layers = 4 + 2 + 8 + 2  # of one block of each side
    for part in (
        "+int8 arithmetic, float32 master weights",
        f"parameters, {layers} layers in int8;",
    ):
        assert any(part in line for line in listening.lines), part
    assert json.loads((outcome.folder / "environment.json").read_text("utf-8"))["precision"].endswith("+int8")
    assert products and len(products) % 3 == 0  # y, dx and dW, of one portion each


@paying
@pytest.mark.parametrize("workers", [1, 2])
def test_it_learns_what_it_learns_without(run, products, workers):
    changes = WIDE | {"train__workers": workers, "model__dropout": 0.0}
    plain = run(**changes, train__precision="auto", folder="plain")
    assert not products
    ours = run(**changes, train__precision="int8", folder="ours")
    assert products
    one, other = (
        [line["train/loss"] for line in lines_of(each.folder) if "train/loss" in line]
        for each in (plain, ours)
    )
    assert one[-1] < one[0] - 0.1, "it learns"
    assert other == pytest.approx(one, rel=0.02) and other != one


@pytest.mark.parametrize("why", ["for want of numba", "for want of AVX-512 VNNI"])
def test_where_it_does_not_pay_the_run_is_as_with_auto_and_says_so(
    run, listening, monkeypatch, products, why
):
    monkeypatch.setattr(DEVICE, "int8_training_obstacle", lambda device: why)
    outcome = run(view=listening, **BY_BYTES, train__steps=2, train__warmup=1)
    assert not products
    assert any(f"arithmetic without int8 ({why})" in line for line in listening.lines)
    assert "int8" not in json.loads((outcome.folder / "environment.json").read_text("utf-8"))["precision"]


def test_ranks_enable_int8_training_together_or_not_at_all(monkeypatch, beside_one_that_cannot):
    monkeypatch.setattr(DEVICE, "int8_training_obstacle", lambda device: "")
    settings = load_recipe("smoke", {"train.precision": "int8", "train.device": "cpu"}).train
    assert agree_on_options(find_machine(settings, 4096, SINGLE)).int8 is True
    alone = agree_on_options(find_machine(settings, 4096, beside_one_that_cannot))
    assert alone.int8 is False and "without int8 (another rank cannot)" in str(alone)


def test_graphs_and_bytes_are_refused_together():
    with pytest.raises(SettingsError, match=r"compile: blocks does not support precision: int8; change one"):
        load_recipe("smoke", {"train.precision": "int8", "train.compile": "blocks"})
