"""train.compile makes graphs of the blocks, and changes nothing that is learnt but the last bits."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import pytest
import torch

from trifold.batches import shares
from trifold.errors import UsageError
from trifold.recipe import load_recipe
from trifold.train.device import can_compile, find_machine
from trifold.train.learner import Learner
from trifold.train.ranks import ALONE
from trifold.train.setup import prepare
from trifold.train.view import Silent

CPU = torch.device("cpu")
DEVICE = sys.modules["trifold.train.device"]

compiling = pytest.mark.skipif(
    "not can_compile(CPU)", reason="nothing here compiles graphs (a C++ compiler does)"
)


def gradient(tiny: dict[str, Any], tmp_path: Any, *, compiles: bool, **changes: Any) -> torch.Tensor:
    """What the first two batches of a run would move the weights by."""
    overrides = tiny | {key.replace("__", "."): value for key, value in changes.items()}
    recipe = load_recipe("smoke", overrides)
    prepared = prepare(recipe, tmp_path / "tokenizer", Silent())
    learner = Learner(
        prepared.new_model(),
        prepared.task,
        recipe.train,
        seed=1,
        device=CPU,
        dtype=torch.float32,
        compiles=compiles,
    )
    examples = prepared.examples(0)
    totals = dict.fromkeys(learner.task.counts(prepared.task.batch(examples, [0], prepared.width)), 1.0)
    for micro, rows in enumerate(prepared.plan(examples, 0)[:2]):
        (part,) = shares(examples.lengths, rows, 1)
        learner._learn(prepared.task.batch(examples, part, prepared.width), 1, micro, totals)
        learner.weights.collect()
    return learner.weights.take_gradient().clone()


@compiling
@pytest.mark.slow
def test_graphs_learn_what_blocks_learn(tiny, tmp_path):
    plain, graph = (gradient(tiny, tmp_path, compiles=on, model__dropout=0.0) for on in (False, True))
    assert float((plain - graph).norm() / plain.norm()) < 1e-5


@compiling
@pytest.mark.slow
def test_graphs_drop_out_and_draw_the_same_again_when_they_recompute(tiny, tmp_path):
    changes = {
        "model__dropout": 0.2,
        "model__shape": "decoder",
        "task__kind": "causal",
        "data__field": "target",
    }
    changes |= {"task__best_by": "loss"}
    still = gradient(tiny, tmp_path, compiles=True, **(changes | {"model__dropout": 0.0}))
    once, again = (gradient(tiny, tmp_path, compiles=True, **changes) for _ in range(2))
    recomputed = gradient(tiny, tmp_path, compiles=True, train__recompute="blocks", **changes)
    assert torch.equal(once, again)
    assert float((once - still).norm() / still.norm()) > 0.01
    assert float((recomputed - once).norm() / once.norm()) < 1e-6


@compiling
@pytest.mark.slow
def test_a_compiled_run_that_is_resumed_is_the_one_that_never_stopped(run, interrupting, state_of, tmp_path):
    changes = {"train__compile": "blocks", "model__dropout": 0.0}
    run("straight", **changes)
    run(view=interrupting(5), **changes)
    outcome = run(resume="auto", **changes)
    ours, theirs = state_of(tmp_path / "run"), state_of(tmp_path / "straight")
    assert [key for key in theirs if ours[key] != theirs[key]] == []
    assert json.loads((outcome.folder / "environment.json").read_text("utf-8"))["compiled"] is True


def test_where_nothing_compiles_a_run_says_so_and_learns_without(run, monkeypatch):
    def missing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no compiler")

    class Hearing(Silent):
        lines: list[str] = []  # noqa: RUF012

        def say(self, line: str) -> None:
            self.lines.append(line)

    monkeypatch.setattr(torch, "compile", missing)
    can_compile.cache_clear()
    try:
        outcome = run(view=Hearing(), train__compile="blocks", train__steps=2, train__warmup=1)
    finally:
        can_compile.cache_clear()
    assert outcome.steps == 2 and math.isfinite(outcome.seconds)
    assert any("blocks not compiled (there is no C++ compiler here" in line for line in Hearing.lines)
    assert json.loads((outcome.folder / "environment.json").read_text("utf-8"))["compiled"] is False


def test_workers_would_draw_from_one_another(monkeypatch):
    monkeypatch.setattr(DEVICE, "can_compile", lambda device: True)
    settings = load_recipe("smoke", {"train.compile": "blocks", "train.device": "cpu"}).train
    assert find_machine(settings, 100_000, ALONE).workers == 1
    with pytest.raises(
        UsageError, match=r"train.compile: blocks does not go with train.workers=2.*train.workers=1"
    ):
        find_machine(settings.model_copy(update={"workers": 2}), 100_000, ALONE)
