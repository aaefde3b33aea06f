"""train.precision: int8 — the run learns by products of bytes where that pays, and says so either way."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from trifold.errors import SettingsError
from trifold.nn.bytes_learning import hindrance, learnt_by_bytes
from trifold.recipe import load_recipe
from trifold.train.device import find_machine
from trifold.train.learner import Learner
from trifold.train.ranks import ALONE

BY_BYTES = {"train.precision": "int8", "train.device": "cpu", "model.d_model": 64, "model.d_ff": 96}
CPU = torch.device("cpu")

paying = pytest.mark.skipif(hindrance(CPU) != "", reason="products of bytes do not pay on this machine")


@paying
def test_the_run_learns_by_bytes_and_its_model_is_one_like_all_others(run, listening, monkeypatch):
    seen = []
    real = Learner.update
    monkeypatch.setattr(
        Learner,
        "update",
        lambda self, *given, **named: seen.append(self.model) or real(self, *given, **named),
    )
    outcome = run(view=listening, **{key.replace(".", "__"): value for key, value in BY_BYTES.items()})
    layers = {type(m).__name__ for m in seen[0].modules() if getattr(m, "multiply", None) is learnt_by_bytes}
    assert layers == {"Linear"}
    assert any(" and int8 arithmetic, float32 master weights" in line for line in listening.lines)
    assert json.loads((outcome.folder / "environment.json").read_text("utf-8"))["precision"].endswith(
        " and int8"
    )
    config = json.loads((outcome.folder / "model" / "config.json").read_text("utf-8"))
    assert "int8" not in json.dumps(config)


@pytest.mark.parametrize(
    "why", ["for which numba is not installed", "for which this processor has no instructions"]
)
def test_where_it_does_not_pay_the_run_is_as_with_auto_and_says_so(monkeypatch, why):
    monkeypatch.setattr(sys.modules["trifold.train.device"], "bytes_hindrance", lambda device: why)
    machines = [
        find_machine(load_recipe("smoke", BY_BYTES | {"train.precision": precision}).train, 4096, ranks=ALONE)
        for precision in ("int8", "auto")
    ]
    assert machines[0]._replace(by_bytes=None) == machines[1]
    assert machines[0].arithmetic == machines[1].arithmetic
    assert f"arithmetic without int8 ({why})" in str(machines[0]) and "int8" not in str(machines[1])


def test_graphs_and_bytes_are_refused_together():
    with pytest.raises(SettingsError, match=r"compile: blocks does not go with precision: int8.*leave one"):
        load_recipe("smoke", BY_BYTES | {"train.compile": "blocks"})
