from __future__ import annotations

import gc
import signal
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from operator import call
from typing import Any

import pytest
import torch
from tests.train.runs import overrides
from torch import Tensor

from trifold import fast
from trifold.batches import split_batch
from trifold.errors import SettingsError
from trifold.folders import named
from trifold.jsonfiles import read_json
from trifold.nn import Inputs, Transformer
from trifold.nn.packing import Packing
from trifold.nn.rng import ReplayThreadRng, thread_rng, use_thread_rng
from trifold.recipe import load_recipe
from trifold.train import blocks
from trifold.train.blocks import recompute_blocks
from trifold.train.data import load_data
from trifold.train.device import Machine, compile_obstacle
from trifold.train.initial_weights import new_model
from trifold.train.monitor import View
from trifold.train.trainer import Trainer

CPU = torch.device("cpu")
DEVICE = sys.modules["trifold.train.device"]

# --- recomputation --------------------------------------------------------------------------------

MODELS = {
    "encoder-decoder": {"dropout": 0.3},
    "decoder, all dropouts": {
        "shape": "decoder",
        "dropout": 0.2,
        "attention_dropout": 0.2,
        "activation_dropout": 0.2,
    },
    "shared relative positions": {"positions": "relative", "dropout": 0.2, "norm": "rms"},
    "one block for all layers": {
        "shape": "encoder",
        "dropout": 0.2,
        "n_layers": 3,
        "block_of_layer": (0, 0, 0),
        "heads": ("token",),
    },
    "parallel, rotary, windows": {
        "shape": "decoder",
        "positions": "rotary",
        "residual": "parallel",
        "norm_placement": "pre",
        "dropout": 0.2,
        "sliding_window": 3,
        "window_pattern": ("local", "global"),
    },
    "sandwich": {"shape": "decoder", "norm_placement": "sandwich", "dropout": 0.2},
}


def padded_inputs(rows: int = 3, width: int = 7) -> Inputs:
    lengths = torch.arange(width, width - rows, -1)
    tokens = torch.randint(3, 29, (rows, width))
    return Inputs(tokens, torch.arange(width) < lengths[:, None])


def packed_inputs() -> Inputs:
    packing = Packing.of(torch.tensor([7, 5, 6]))
    return Inputs(torch.randint(3, 29, (1, packing.length)), packing=packing)


def run_both_passes(model: Transformer, inputs: Inputs, seed: int = 1) -> list[Tensor | None]:
    """The hidden states, and the gradients of a weighted sum of them."""
    model.zero_grad()
    with use_thread_rng(torch.Generator().manual_seed(seed)):
        hidden = model(
            inputs, inputs if model.encoder is not None and model.decoder is not None else None
        )
        weights = torch.linspace(-1, 1, hidden.shape[-1], dtype=hidden.dtype)
        (hidden * weights).sum().backward()
    return [
        hidden.detach(),
        *(None if p.grad is None else p.grad.clone() for p in model.parameters()),
    ]


def are_equal(ours: list[Tensor | None], theirs: list[Tensor | None]) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return all((a is None and b is None) or torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("operations", ["fast", "plain"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("values", MODELS.values(), ids=MODELS)
def test_recomputation_does_not_change_bits(make_model, values, dtype, operations):
    with fast.disabled() if operations == "plain" else nullcontext():
        model, inputs = make_model(**values).train().to(dtype), padded_inputs()
        plain, other = run_both_passes(model, inputs), run_both_passes(model, inputs, seed=2)
        assert not are_equal(plain, other), "the seed determines dropout"
        recompute_blocks(model)
        assert are_equal(run_both_passes(model, inputs), plain)


@pytest.mark.parametrize(
    "values", [{"dropout": 0.3}, {"shape": "decoder", "dropout": 0.3, "positions": "relative"}]
)
def test_recomputation_of_packed_rows_does_not_change_bits(make_model, values):
    model, inputs = make_model(**values).train(), packed_inputs()
    plain = run_both_passes(model, inputs)
    recompute_blocks(model)
    assert are_equal(run_both_passes(model, inputs), plain)


def test_recomputation_restores_the_global_generator(make_model):
    model, inputs = make_model(shape="decoder", dropout=0.3).train(), padded_inputs()

    def gradients_and_next_numbers() -> list[Tensor | None]:
        model.zero_grad()
        torch.manual_seed(4)
        model(inputs).square().sum().backward()
        return [*(p.grad for p in model.parameters()), torch.rand(3)]

    plain = gradients_and_next_numbers()
    recompute_blocks(model)
    assert are_equal(gradients_and_next_numbers(), plain)


def test_threads_that_recompute_are_independent(make_model):
    models = [make_model(shape="decoder", dropout=0.3).train() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    inputs = padded_inputs()
    alone = [run_both_passes(models[0], inputs, seed) for seed in range(6)]
    for model in models:
        recompute_blocks(model)
    with ThreadPoolExecutor(2) as pool:
        halves = [
            pool.submit(lambda h=h: [run_both_passes(models[h], inputs, s) for s in range(h, 6, 2)])
            for h in (0, 1)
        ]
        together = [half.result() for half in halves]
    assert all(are_equal(together[seed % 2][seed // 2], alone[seed]) for seed in range(6))


def saved_bytes(model: Transformer, inputs: Inputs) -> int:
    """Memory between the passes without parameters; each storage counts once."""
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    sizes: dict[int, int] = {}
    held: list[Tensor] = []  # so that no address is used twice

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in parameters:
            sizes[storage.data_ptr()] = storage.nbytes()
            held.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        model(inputs).sum()
    return sum(sizes.values())


def test_recomputation_saves_only_the_inputs_of_blocks(make_model):
    sizes = {}
    for layers in (2, 6):
        inputs = padded_inputs(8, 12)
        model = make_model(
            shape="decoder", n_layers=layers, dropout=0.1, norm_placement="pre"
        ).train()
        plain = saved_bytes(model, inputs)
        recompute_blocks(model)
        sizes[layers] = plain, saved_bytes(model, inputs)
    one_input = 8 * 12 * 16 * 4
    more_plain, more_recomputed = (sizes[6][way] - sizes[2][way] for way in (0, 1))
    assert more_recomputed == 4 * one_input
    assert more_plain > 8 * more_recomputed


@pytest.mark.slow
def test_recomputed_tensors_are_freed_without_garbage_collection(make_model):
    model, outputs = make_model(shape="decoder", dropout=0.1).train(), []
    for block in model.decoder.blocks:
        block.register_forward_hook(lambda _block, _inputs, out: outputs.append(weakref.ref(out)))
    recompute_blocks(model)
    gc.collect()
    gc.disable()
    try:
        run_both_passes(model, padded_inputs())
        assert len(outputs) >= 2 and all(out() is None for out in outputs)
    finally:
        gc.enable()


def test_recomputation_does_not_affect_inference(make_model):
    model, inputs = make_model(shape="decoder"), padded_inputs()
    with torch.no_grad():
        before = model(inputs)
        recompute_blocks(model)
        assert torch.equal(model(inputs), before)
        cache = model.new_cache()
        tokens = inputs.tokens[:1]
        parts = [model.decode(Inputs(tokens[:, a:b]), cache=cache) for a, b in ((0, 4), (4, 7))]
        assert torch.allclose(torch.cat(parts, 1), model(Inputs(tokens)), atol=1e-5)


def test_replay_repeats_random_numbers_and_restores_the_generator():
    with use_thread_rng(torch.Generator().manual_seed(3)):
        torch.rand(5, generator=thread_rng())
        replay, before = ReplayThreadRng(), thread_rng()
        first = torch.rand(4, generator=thread_rng())
        after = torch.rand(4, generator=thread_rng())

        def replayed() -> Tensor:
            with replay:
                return torch.rand(4, generator=thread_rng())

        for _ in range(2):
            assert torch.equal(replayed(), first)
            assert thread_rng() is before
        with ThreadPoolExecutor(1) as pool:
            assert torch.equal(pool.submit(replayed).result(), first)
        assert not torch.equal(first, after)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "workers"), [("float32", 1), ("bfloat16", 2)])
def test_resumed_run_may_start_to_recompute(assert_resumable, tmp_path, precision, workers):
    settings = {"precision": precision, "workers": workers}
    changes = {f"train__{key}": value for key, value in settings.items()} | {"model__n_layers": 2}
    assert_resumable([5], last={"train__recompute": "blocks"}, model__dropout=0.2, **changes)
    assert load_recipe(tmp_path / "run" / "recipe.yaml").train.recompute == "blocks"


# --- compilation ----------------------------------------------------------------------------------

DECODER = {
    "model__shape": "decoder",
    "task__kind": "causal",
    "task__best_by": "loss",
    "data__field": "target",
}
requires_compiler = pytest.mark.skipif("compile_obstacle(CPU)", reason="needs a C++ compiler")


@pytest.fixture
def new_trainer(tmp_path):
    """A trainer, and the first micro-batches of its run."""
    from torch._dynamo.utils import counters  # slow to import

    def new_trainer(
        *, compiles: bool, batches: int = 2, **changes: Any
    ) -> tuple[Trainer, list[Any]]:
        recipe = load_recipe("smoke", overrides(**changes))
        data = load_data(recipe, tmp_path / "tokenizer", View())
        machine = Machine(CPU, torch.float32, 1, compiles=compiles)
        trainer = Trainer(new_model(data), data.objective, recipe.train, machine)
        counters.clear()
        examples = data.examples(0)
        parts = [
            split_batch(examples.lengths, rows, 1)[0] for rows in data.plan(examples, 0)[:batches]
        ]
        return trainer, [data.objective.batch(examples, part, data.max_length) for part in parts]

    return new_trainer


def gradient_of(trainer: Trainer, micro_batches: list[Any]) -> Tensor:
    """Their accumulated gradient."""
    totals = dict.fromkeys(trainer.objective.counts(micro_batches[0]), 1.0)
    for number, batch in enumerate(micro_batches):
        trainer._backward(batch, 1, number, totals)
        trainer.weights.collect()
    return trainer.weights.take_gradient().clone()


@pytest.fixture
def gradient(new_trainer):
    """The accumulated gradient of the first micro-batches of a run."""
    from torch._dynamo.utils import counters  # slow to import

    def gradient(*, compiles: bool, **changes: Any) -> Tensor:
        found = gradient_of(*new_trainer(compiles=compiles, **changes))
        assert bool(counters["stats"]["unique_graphs"]) == compiles
        return found

    return gradient


def distance(gradient: Tensor, reference: Tensor) -> float:
    return float((gradient - reference).norm() / reference.norm())


@pytest.fixture
def only_traced(monkeypatch):
    """Trace graphs, but neither differentiate nor generate code for them, which takes most of the
    time.
    """
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))


@requires_compiler
@pytest.mark.slow
@pytest.mark.usefixtures("only_traced")
def test_compiled_blocks_have_the_gradient_of_plain_blocks(gradient):
    """In one graph for any length. The laws compare what generated code computes."""
    from torch._dynamo.utils import counters  # slow to import

    plain, compiled = (gradient(compiles=on, **DECODER, model__dropout=0.0) for on in (False, True))
    assert distance(compiled, plain) < 1e-5
    assert not counters["graph_break"] and counters["stats"]["unique_graphs"] == 1


@requires_compiler
@pytest.mark.slow
@pytest.mark.usefixtures("only_traced")
def test_recomputed_compiled_blocks_repeat_their_dropout(new_trainer, gradient):
    """The same graphs, recomputed and then not."""
    from torch._dynamo.utils import counters  # slow to import

    changes = {**DECODER, "batches": 1}
    trainer, batches = new_trainer(compiles=True, train__recompute="blocks", **changes)
    recomputed = gradient_of(trainer, batches)
    assert counters["stats"]["unique_graphs"]
    assert trainer.model.decoder.run_block is blocks.recomputed
    trainer.model.decoder.run_block = call
    first = gradient_of(trainer, batches)
    assert torch.equal(recomputed, first)
    assert distance(first, gradient(compiles=False, **changes, model__dropout=0.0)) > 0.01


@requires_compiler
@pytest.mark.slow
def test_generated_code_repeats_its_dropout_in_recomputed_blocks(make_model):
    """Code for one feed-forward network; that for a whole block takes four times as long to
    compile, and draws its dropout alike."""
    values = {"n_layers": 1, "dropout": 0.0, "activation_dropout": 0.3}
    model, inputs = make_model(shape="decoder", **values).train(), padded_inputs()
    (block,) = model.decoder.blocks
    block.feed_forward.forward = torch.compile(block.feed_forward.forward, dynamic=True)

    def gradients(seed: int) -> list[Tensor | None]:
        model.zero_grad()
        torch.manual_seed(seed)  # of the generator of all threads, from which graphs draw
        model(inputs).square().sum().backward()
        return [p.grad for p in model.parameters()]

    first, other = gradients(1), gradients(2)
    assert not are_equal(other, first), "the seed determines dropout"
    recompute_blocks(model)
    assert are_equal(gradients(1), first)


@requires_compiler
@pytest.mark.slow
@pytest.mark.usefixtures("only_traced")
def test_resumed_compiled_run_equals_an_uninterrupted_one(assert_resumable, tmp_path):
    """As recomputed blocks, generated code draws its dropout from the generator that is restored."""
    assert_resumable([5], train__compile="blocks", **DECODER)
    assert read_json(named(tmp_path / "run" / "environment.json"))["compiled"] is True


@requires_compiler
@pytest.mark.slow
@pytest.mark.usefixtures("only_traced")
def test_rows_of_other_lengths_need_no_further_graphs(gradient):
    """With attention dropout, and with ALiBi, whose bias depends on the length."""
    from torch._dynamo.utils import counters  # slow to import

    changes = DECODER | {
        "model__attention_dropout": 0.1,
        "model__positions": "alibi",
        "batch__tokens": 60,
    }
    gradient(compiles=True, batches=12, **changes)
    assert counters["stats"]["unique_graphs"] <= 4
    assert not counters["graph_break"]


@requires_compiler
@pytest.mark.slow
@pytest.mark.usefixtures("only_traced")
def test_graph_beyond_the_limit_is_an_error(gradient, monkeypatch):
    monkeypatch.setattr(blocks, "MAX_GRAPHS", 1)
    with pytest.raises(
        Exception, match="recompile_limit"
    ):  # the blocks of the decoder need a second graph
        gradient(compiles=True, model__dropout=0.0)


@pytest.mark.slow
def test_run_without_a_compiler_trains_uncompiled_and_reports_it(run, recorder, monkeypatch):
    def missing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no compiler\nand more")

    monkeypatch.setattr(torch, "compile", missing)
    compile_obstacle.cache_clear()
    try:
        outcome = run(view=recorder, train__compile="blocks", train__steps=2, train__warmup=1)
    finally:
        compile_obstacle.cache_clear()
    assert outcome.steps == 2
    assert any("blocks not compiled (no compiler), " in line for line in recorder.lines)
    assert read_json(named(outcome.folder / "environment.json"))["compiled"] is False


def test_combinations_that_cannot_be_compiled_are_rejected_before_training():
    with pytest.raises(
        SettingsError, match=r"compile: blocks does not support workers 2.*set workers: 1"
    ):
        load_recipe("smoke", {"train.compile": "blocks", "train.workers": 2})
    relations = {"task.relations.values": 1.0, "train.compile": "blocks"}
    with pytest.raises(SettingsError, match=r"task.relations reads activations inside blocks"):
        load_recipe("shakespeare-distill", relations)


@pytest.mark.slow
@pytest.mark.parametrize("interrupted", [False, True])
def test_compiler_error_after_a_signal_ends_the_run_as_interrupted(run, monkeypatch, interrupted):
    """Ctrl-C in a terminal also reaches the compiler's processes."""
    monkeypatch.setattr(DEVICE, "compile_obstacle", lambda device: "")
    monkeypatch.setattr(sys.modules["trifold.train.trainer"], "compile_blocks", lambda model: None)
    real = Trainer.update

    def update(self: Trainer, batches: Any, step: int, *more: Any) -> Any:
        if step == 5:
            if interrupted:
                signal.raise_signal(signal.SIGTERM)
            raise RuntimeError("CppCompileError")
        return real(self, batches, step, *more)

    monkeypatch.setattr(Trainer, "update", update)
    if not interrupted:
        with pytest.raises(RuntimeError, match="CppCompileError"):
            run(train__compile="blocks")
        return
    outcome = run(train__compile="blocks")
    assert (outcome.exit_code, outcome.steps) == (143, 4)
