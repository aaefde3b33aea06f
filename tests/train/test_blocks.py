"""How a stack runs its blocks: straight, or again on the way back. The laws of blocks are in test_parts.py."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from trifold import fast
from trifold.nn import Inputs, Transformer
from trifold.nn.packing import Packing
from trifold.nn.rng import ReplayThreadRng, thread_rng, use_thread_rng
from trifold.train.blocks import recompute_blocks

KINDS = {
    "translator": {"dropout": 0.3},
    "decoder, attention dropped too": {
        "shape": "decoder",
        "dropout": 0.2,
        "attention_dropout": 0.2,
        "activation_dropout": 0.2,
    },
    "offsets that all layers learn": {"positions": "relative", "dropout": 0.2, "norm": "rms"},
    "one block for all layers": {
        "shape": "encoder",
        "dropout": 0.2,
        "n_layers": 3,
        "block_of_layer": (0, 0, 0),
        "heads": ("token",),
    },
    "parallel, turned, in windows": {
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


def inputs_of(rows: int = 3, width: int = 7) -> Inputs:
    lengths = torch.arange(width, width - rows, -1)
    tokens = torch.randint(3, 29, (rows, width))
    return Inputs(tokens, torch.arange(width) < lengths[:, None])


def packed_inputs() -> Inputs:
    packing = Packing.of(torch.tensor([7, 5, 6]))
    return Inputs(torch.randint(3, 29, (1, packing.length)), packing=packing)


def learn(model: Transformer, inputs: Inputs, seed: int = 1) -> tuple[Tensor, list[Tensor | None]]:
    """The hidden states, and the gradients of a sum of them."""
    model.zero_grad()
    with use_thread_rng(torch.Generator().manual_seed(seed)):
        hidden = model(inputs, inputs if model.encoder is not None and model.decoder is not None else None)
        weights = torch.linspace(-1, 1, hidden.shape[-1], dtype=hidden.dtype)
        (hidden * weights).sum().backward()
    return hidden.detach(), [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def same(ours: tuple[Tensor, list[Tensor | None]], theirs: tuple[Tensor, list[Tensor | None]]) -> bool:
    pairs = zip([ours[0], *ours[1]], [theirs[0], *theirs[1]], strict=True)
    return all((a is None and b is None) or torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("operations", ["fast", "plain"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("values", KINDS.values(), ids=KINDS)
def test_recomputing_gives_the_same_bits_dropout_and_all(make_model, values, dtype, operations):
    with fast.disabled() if operations == "plain" else nullcontext():
        model, inputs = make_model(**values).train().to(dtype), inputs_of()
        straight, other = learn(model, inputs), learn(model, inputs, seed=2)
        assert not same(straight, other), "the seed decides what is dropped"
        recompute_blocks(model)
        assert same(learn(model, inputs), straight)


@pytest.mark.parametrize(
    "values", [{"dropout": 0.3}, {"shape": "decoder", "dropout": 0.3, "positions": "relative"}]
)
def test_packed_rows_too(make_model, values):
    model, inputs = make_model(**values).train(), packed_inputs()
    straight = learn(model, inputs)
    recompute_blocks(model)
    assert same(learn(model, inputs), straight)


def test_without_a_generator_of_its_own_the_common_one_is_drawn_from_again(make_model):
    model, inputs = make_model(shape="decoder", dropout=0.3).train(), inputs_of()

    def learnt() -> tuple[list[Tensor | None], Tensor]:
        model.zero_grad()
        torch.manual_seed(4)
        model(inputs).square().sum().backward()
        return [p.grad for p in model.parameters()], torch.rand(3)

    (before, next_before) = learnt()
    recompute_blocks(model)
    after, next_after = learnt()
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True) if a is not None)
    assert torch.equal(next_after, next_before), "what is drawn afterwards is the same as well"


def test_threads_do_not_disturb_each_other(make_model):
    models = [make_model(shape="decoder", dropout=0.3).train() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    inputs = inputs_of()
    alone = [learn(models[0], inputs, seed) for seed in range(6)]
    for model in models:
        recompute_blocks(model)
    with ThreadPoolExecutor(2) as pool:
        halves = [
            pool.submit(lambda h=h: [learn(models[h], inputs, s) for s in range(h, 6, 2)]) for h in (0, 1)
        ]
        together = [half.result() for half in halves]
    assert all(same(together[seed % 2][seed // 2], alone[seed]) for seed in range(6))


def saved_bytes(model: Transformer, inputs: Inputs) -> int:
    """What lies in memory between the way there and the way back, parameters aside: each storage once."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}
    held: list[Tensor] = []  # so that no address is given twice

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
            held.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        model(inputs).sum()
    return sum(kept.values())


def test_only_the_inputs_of_blocks_are_kept(make_model):
    sizes = {}
    for layers in (2, 6):
        inputs = inputs_of(8, 12)
        model = make_model(shape="decoder", n_layers=layers, dropout=0.1, norm_placement="pre").train()
        straight = saved_bytes(model, inputs)
        recompute_blocks(model)
        sizes[layers] = straight, saved_bytes(model, inputs)
    one_input = 8 * 12 * 16 * 4
    more_straight, more_recomputed = (sizes[6][way] - sizes[2][way] for way in (0, 1))
    assert more_recomputed == 4 * one_input
    assert more_straight > 8 * more_recomputed


def test_nothing_that_was_recomputed_waits_for_the_collector(make_model):
    model, alive = make_model(shape="decoder", dropout=0.1).train(), []
    for block in model.decoder.blocks:
        block.register_forward_hook(lambda _block, _inputs, out: alive.append(weakref.ref(out)))
    recompute_blocks(model)
    gc.collect()
    gc.disable()
    try:
        learn(model, inputs_of())
        assert len(alive) >= 2 and all(out() is None for out in alive)
    finally:
        gc.enable()


def test_what_does_not_learn_runs_straight(make_model):
    model, inputs = make_model(shape="decoder"), inputs_of()
    with torch.no_grad():
        before = model(inputs)
        recompute_blocks(model)
        assert torch.equal(model(inputs), before)
        cache = model.new_cache()
        tokens = inputs.tokens[:1]
        parts = [model.decode(Inputs(tokens[:, a:b]), cache=cache) for a, b in ((0, 4), (4, 7))]
        assert torch.allclose(torch.cat(parts, 1), model(Inputs(tokens)), atol=1e-5)


def test_redrawing_draws_what_is_drawn_next_and_puts_back_the_generator():
    with use_thread_rng(torch.Generator().manual_seed(3)):
        torch.rand(5, generator=thread_rng())
        again, before = ReplayThreadRng(), thread_rng()
        first = torch.rand(4, generator=thread_rng())
        after = torch.rand(4, generator=thread_rng())
        for _ in range(2):
            with again:
                assert torch.equal(torch.rand(4, generator=thread_rng()), first)
            assert thread_rng() is before
        with ThreadPoolExecutor(1) as pool:

            def elsewhere() -> Tensor:
                with again:
                    return torch.rand(4, generator=thread_rng())

            assert torch.equal(pool.submit(elsewhere).result(), first)
        assert not torch.equal(first, after)
