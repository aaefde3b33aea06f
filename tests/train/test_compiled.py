"""`train.compile=blocks`: the gradient equals that of plain blocks up to rounding; dropout masks differ."""

from __future__ import annotations

import json
import signal
import sys
from functools import partial
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from trifold.batches import split_batch
from trifold.errors import SettingsError
from trifold.recipe import load_recipe
from trifold.train import blocks
from trifold.train.data import load_data
from trifold.train.device import Machine, agree_on_options, compile_obstacle, find_machine
from trifold.train.monitor import View
from trifold.train.ranks import SINGLE
from trifold.train.trainer import Trainer

CPU = torch.device("cpu")
DECODER = {
    "model__shape": "decoder",
    "task__kind": "causal",
    "task__best_by": "loss",
    "data__field": "target",
}
DEVICE = sys.modules["trifold.train.device"]

compiling = pytest.mark.skipif("compile_obstacle(CPU)", reason="needs a C++ compiler")


def gradient(
    tiny: dict[str, Any], tmp_path: Any, *, compiles: bool, batches: int = 2, **changes: Any
) -> torch.Tensor:
    """The accumulated gradient of the first batches of a run."""
    overrides = tiny | {key.replace("__", "."): value for key, value in changes.items()}
    recipe = load_recipe("smoke", overrides)
    prepared = load_data(recipe, tmp_path / "tokenizer", View())
    trainer = Trainer(
        prepared.new_model(),
        prepared.objective,
        recipe.train,
        Machine(CPU, torch.float32, 1, compiles=compiles),
    )
    counters.clear()
    examples = prepared.examples(0)
    totals = dict.fromkeys(
        trainer.objective.counts(prepared.objective.batch(examples, [0], prepared.max_length)), 1.0
    )
    for micro, rows in enumerate(prepared.plan(examples, 0)[:batches]):
        (part,) = split_batch(examples.lengths, rows, 1)
        trainer._backward(prepared.objective.batch(examples, part, prepared.max_length), 1, micro, totals)
        trainer.weights.collect()
    assert bool(counters["stats"]["unique_graphs"]) == compiles, "graphs are compiled exactly where requested"
    return trainer.weights.take_gradient().clone()


@pytest.fixture
def only_traced(monkeypatch):
    """Trace graphs, but neither differentiate nor generate code for them, which takes most of the time."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))


@compiling
@pytest.mark.slow
@pytest.mark.usefixtures("only_traced")
def test_traced_blocks_of_an_encoder_decoder_have_the_gradient_of_plain_blocks(tiny, tmp_path):
    plain, graph = (gradient(tiny, tmp_path, compiles=on, model__dropout=0.0) for on in (False, True))
    assert float((plain - graph).norm() / plain.norm()) < 1e-5


@compiling
@pytest.mark.slow
def test_compiled_blocks_have_the_gradient_of_plain_blocks_and_repeat_their_dropout(tiny, tmp_path):
    still = DECODER | {"model__dropout": 0.0}
    plain, graph = (gradient(tiny, tmp_path, compiles=on, **still) for on in (False, True))
    assert float((plain - graph).norm() / plain.norm()) < 1e-5
    once, again = (gradient(tiny, tmp_path, compiles=True, **DECODER) for _ in range(2))
    recomputed = gradient(tiny, tmp_path, compiles=True, train__recompute="blocks", **DECODER)
    assert torch.equal(once, again)
    assert float((once - plain).norm() / plain.norm()) > 0.01
    assert torch.equal(recomputed, once)


@compiling
@pytest.mark.slow
def test_a_resumed_compiled_run_equals_an_uninterrupted_one(run, interrupting, state_of, tmp_path):
    changes = DECODER | {"train__compile": "blocks"}
    run("straight", **changes)
    run(view=interrupting(5), **changes)
    outcome = run(resume="auto", **changes)
    ours, theirs = state_of(tmp_path / "run"), state_of(tmp_path / "straight")
    assert [key for key in theirs if ours[key] != theirs[key]] == []
    assert json.loads((outcome.folder / "environment.json").read_text("utf-8"))["compiled"] is True


@compiling
@pytest.mark.slow
@pytest.mark.usefixtures("only_traced")
def test_rows_of_other_lengths_need_no_further_graphs(tiny, tmp_path):
    """With attention dropout, and with ALiBi, whose bias depends on the length."""
    changes = DECODER | {"model__attention_dropout": 0.1, "model__positions": "alibi", "batch__tokens": 60}
    gradient(tiny, tmp_path, compiles=True, batches=12, **changes)
    assert counters["stats"]["unique_graphs"] <= 4
    assert not counters["graph_break"]


@compiling
@pytest.mark.slow
@pytest.mark.usefixtures("only_traced")
def test_a_graph_beyond_the_limit_is_an_error(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "MAX_GRAPHS", 1)
    with pytest.raises(Exception, match="recompile_limit"):  # an encoder's blocks, and then a decoder's
        gradient(tiny, tmp_path, compiles=True, model__dropout=0.0)


def test_without_a_compiler_a_run_reports_it_and_trains_uncompiled(run, listening, monkeypatch):
    def missing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no compiler\nand more")

    monkeypatch.setattr(torch, "compile", missing)
    compile_obstacle.cache_clear()
    try:
        outcome = run(view=listening, train__compile="blocks", train__steps=2, train__warmup=1)
    finally:
        compile_obstacle.cache_clear()
    assert outcome.steps == 2
    assert any("blocks not compiled (no compiler), " in line for line in listening.lines)
    assert json.loads((outcome.folder / "environment.json").read_text("utf-8"))["compiled"] is False


def test_all_ranks_compile_or_none(monkeypatch, beside_one_that_cannot):
    monkeypatch.setattr(DEVICE, "compile_obstacle", lambda device: "")
    monkeypatch.setattr(DEVICE, "compiled_loops", object)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)  # of which as many workers would be made
    settings = load_recipe("smoke", {"train.compile": "blocks", "train.device": "cpu"}).train
    machine = find_machine(settings, 100_000, beside_one_that_cannot)
    assert machine.compiles and machine.workers == 1
    alone = agree_on_options(machine)
    assert alone.compiles is False and "another rank cannot" in str(alone)
    assert agree_on_options(find_machine(settings, 100_000, SINGLE)).compiles is True


def test_unsupported_combinations_are_rejected_before_training():
    with pytest.raises(SettingsError, match=r"compile: blocks does not support workers 2.*set workers to 1"):
        load_recipe("smoke", {"train.compile": "blocks", "train.workers": 2})
    looking = {"task.relations.values": 1.0, "train.compile": "blocks"}
    with pytest.raises(SettingsError, match=r"task.relations reads activations inside blocks"):
        load_recipe("shakespeare-distill", looking)


@pytest.mark.parametrize("asked", [False, True])
def test_a_compiler_error_after_a_signal_ends_the_run_as_interrupted(run, monkeypatch, asked):
    """Ctrl-C in a terminal also reaches the compiler's processes."""
    monkeypatch.setattr(DEVICE, "compile_obstacle", lambda device: "")
    monkeypatch.setattr(sys.modules["trifold.train.trainer"], "compile_blocks", lambda model: None)
    real = Trainer.update

    def update(self: Trainer, batches: Any, step: int, *more: Any) -> Any:
        if step == 5:
            if asked:
                signal.raise_signal(signal.SIGTERM)
            raise RuntimeError("CppCompileError")
        return real(self, batches, step, *more)

    monkeypatch.setattr(Trainer, "update", update)
    if not asked:
        with pytest.raises(RuntimeError, match="CppCompileError"):
            run(train__compile="blocks")
        return
    outcome = run(train__compile="blocks")
    assert (outcome.exit_code, outcome.steps) == (143, 4)
