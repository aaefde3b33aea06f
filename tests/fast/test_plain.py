"""Every fast operation gives the results and gradients of its plain definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.models import randomize
from torch import Tensor

from trifold import fast
from trifold.fast.instruction import PROMPT_QUERIES
from trifold.fast.int8 import Int8Weight
from trifold.nn import Inputs, Mask, ModelConfig, Transformer, ops
from trifold.nn.attention import Attention
from trifold.nn.layers import ACTIVATIONS, FeedForward, Linear
from trifold.nn.losses import linear_cross_entropy
from trifold.nn.packing import UNPACKED, Packing
from trifold.nn.rng import use_thread_rng
from trifold.nn.variants.windows import Window

LIMITS = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
Case = tuple[Callable[[], Any], Sequence[Tensor]]
"""A computation, and the tensors whose gradients are compared."""


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


def parameters(layer: torch.nn.Module) -> list[Tensor]:
    return list(randomize(layer, 0.3).parameters())


def embedding(is_int8: bool) -> Callable[[torch.dtype], Case]:
    def case(dtype: torch.dtype) -> Case:
        weight, indices = leaf(9, 24), torch.randint(9, (2, 5))
        if is_int8:
            int8 = Int8Weight.quantize(weight, dtype)
            return lambda: ops.embedding(indices, int8), ()  # type: ignore[arg-type]
        return lambda: ops.embedding(indices, weight.to(dtype)), (weight,)

    return case


def linear(dtype: torch.dtype) -> Case:
    x, weight, bias = leaf(4, 33, 24), leaf(40, 24), leaf(40)
    return lambda: ops.linear(x.to(dtype), weight.to(dtype), bias.to(dtype)), (x, weight, bias)


def linear_of_few_rows(dtype: torch.dtype) -> Case:
    x, weight, bias = (leaf(*shape).detach().to(dtype) for shape in ((2, 1, 24), (40, 24), (40,)))

    def compute() -> Tensor:
        with torch.no_grad():
            return ops.linear(x, weight, bias)

    return compute, ()


def linears(dtype: torch.dtype) -> Case:
    layers, x = [Linear(24, 16).to(dtype), Linear(24, 40).to(dtype)], leaf(2, 50, 24)
    weights = [weight for layer in layers for weight in parameters(layer)]
    return lambda: ops.linears(x.to(dtype), layers), (x, *weights)


def activation_linear(name: str, gated: bool) -> Callable[[torch.dtype], Case]:
    def case(dtype: torch.dtype) -> Case:
        layer, inner = Linear(24, 16).to(dtype), [leaf(2, 50, 24) for _ in range(1 + gated)]
        activation = ACTIVATIONS[name]
        return lambda: ops.activation_linear(layer, activation, *(x.to(dtype) for x in inner)), (
            *inner,
            *parameters(layer),
        )

    return case


def feed_forward(dtype: torch.dtype) -> Case:
    layer = FeedForward(ModelConfig(d_model=24, n_heads=4, d_ff=40, activation="gelu")).to(dtype)
    x = leaf(2, 50, 24)
    return lambda: ops.feed_forward(layer, x.to(dtype)), (x, *parameters(layer))


def gelu_tanh(dtype: torch.dtype) -> Case:
    x = leaf(7, 300)
    return lambda: ops.gelu_tanh(x.to(dtype) * 3), (x,)


def layer_norm(dtype: torch.dtype) -> Case:
    x, weight, bias = leaf(7, 48), leaf(48), leaf(48)
    return lambda: ops.layer_norm(x.to(dtype), weight.to(dtype), bias.to(dtype), 1e-5), (
        x,
        weight,
        bias,
    )


def dropout(dtype: torch.dtype) -> Case:
    x = leaf(70, 48)
    return lambda: ops.dropout(x.to(dtype), 0.3), (x,)


def add_dropout(dtype: torch.dtype) -> Case:
    x, y = leaf(70, 48), leaf(70, 48)
    return lambda: ops.dropout(y.to(dtype), 0.3, x.to(dtype)), (x, y)


def attend(
    queries: int, groups: int = 1, beams: int = 1, **options: Any
) -> Callable[[torch.dtype], Case]:
    def case(dtype: torch.dtype) -> Case:
        q, keys = leaf(2 * beams, 4, queries, 8), 200 if queries > 100 else 9
        k, v = leaf(2, 4 // groups, keys, 8), leaf(2, 4 // groups, keys, 8)
        real = torch.rand(2, keys) < 0.7
        real[1] = False  # the second row may attend to nothing
        return lambda: ops.attend(*(x.to(dtype) for x in (q, k, v)), Mask(real), **options), (
            q,
            k,
            v,
        )

    return case


def one_query(
    rows: int = 6, groups: int = 1, window: int | None = None, evicted: int = 0
) -> Callable[[torch.dtype], Case]:
    """One query for each of 6 rows; `rows` of keys and values lie in a cache with room for more."""

    def case(dtype: torch.dtype) -> Case:
        q, keys = torch.randn(6, 4, 1, 8).to(dtype), 9
        k, v = (
            torch.randn(rows, 12, 4 // groups, 8).to(dtype).transpose(1, 2)[:, :, :keys]
            for _ in "kv"
        )
        real = None if window else torch.rand(rows, keys) < 0.7
        rules = () if window is None else (Window(window),)
        mask = Mask(real, causal=rows == 6, offset=keys - 1 + evicted, rules=rules)
        bias = torch.randn(1, 4, 1, keys + evicted)

        def compute() -> Tensor:
            with torch.no_grad():
                return ops.attend(q, k, v, mask, bias=bias, soft_cap=3.0)

        return compute, ()

    return case


def prompt(queries: int, *, groups: int = 1, past: int = 0) -> Callable[[torch.dtype], Case]:
    """Queries of 2 rows after `past` tokens of a cache with room for more."""

    def case(dtype: torch.dtype) -> Case:
        q, keys = torch.randn(2, 4, queries, 32).to(dtype), past + queries
        k, v = (torch.randn(2, 4 // groups, keys + 5, 32).to(dtype)[:, :, :keys] for _ in "kv")

        def compute() -> Tensor:
            with torch.no_grad():
                return ops.attend(q, k, v, Mask(causal=True, offset=past))

        return compute, ()

    return case


def packed_attention(crosses: bool) -> Callable[[torch.dtype], Case]:
    def case(dtype: torch.dtype) -> Case:
        layer = Attention(
            ModelConfig(d_model=32, n_heads=4), memory_width=32 if crosses else None
        ).to(dtype)
        weights = parameters(layer)
        queries, keys = Packing.of(torch.tensor([7, 4, 9])), Packing.of(torch.tensor([3, 8, 5]))
        x, memory = leaf(1, queries.length, 32), leaf(1, keys.length, 32)

        def compute() -> Tensor:
            mask = Mask(
                keys.attend if crosses else queries.attend,
                causal=not crosses,
                packing=queries,
                key_packing=keys if crosses else UNPACKED,
            )
            return layer(x.to(dtype), memory.to(dtype) if crosses else None, mask=mask)[
                :, : queries.n_real
            ]

        return compute, (x, *([memory] if crosses else []), *weights)

    return case


def cross_entropy(smoothing: float, *, trains: bool = True) -> Callable[[torch.dtype], Case]:
    def case(dtype: torch.dtype) -> Case:
        hidden, weight, bias = leaf(700, 16), leaf(90, 16), leaf(90)
        targets = torch.randint(-1, 90, (700,))

        def compute() -> tuple[Tensor, Tensor]:
            inputs = [
                x.to(dtype) if trains else x.detach().to(dtype) for x in (hidden, weight, bias)
            ]
            return ops.cross_entropy(*inputs, targets, smoothing)

        return compute, (hidden, weight, bias) if trains else ()

    return case


def step(dtype: torch.dtype) -> Case:
    config = ModelConfig(vocab_size=50, d_model=32, n_heads=4, d_ff=64, n_layers=2, shape="decoder")
    model = Transformer(config).eval().to(dtype)
    tokens = torch.randint(3, 50, (3, 8))

    def compute() -> Tensor:
        with torch.no_grad():
            cache = model.new_cache()
            model.decode(Inputs(tokens[:, :6]), cache=cache)
            return torch.cat(
                [model.decode(Inputs(tokens[:, t : t + 1]), cache=cache) for t in (6, 7)], 1
            )

    return compute, ()


def logits(dtype: torch.dtype) -> Case:
    config = ModelConfig(vocab_size=50, d_model=32, n_heads=4, d_ff=64, n_layers=2, shape="decoder")
    model = Transformer(config).eval().to(dtype)
    tokens = torch.randint(3, 50, (3, 9))

    def compute() -> list[Tensor]:
        with torch.no_grad():
            cache = model.new_cache()
            model.decode(Inputs(tokens[:, :6]), cache=cache)
            return [
                ops.next_logits(model, model.lm_head, tokens[:, t], None, None, cache)
                for t in (6, 7, 8)
            ]

    return compute, ()


def layers(dtype: torch.dtype) -> Case:
    sizes = {"vocab_size": 50, "d_model": 32, "n_heads": 2, "d_ff": 64, "n_layers": 2}
    config = ModelConfig(**sizes, shape="encoder", norm_placement="post", attention_bias=True)
    model = randomize(Transformer(config).eval(), 0.3).to(dtype)
    packing = Packing.of(torch.tensor([9, 30, 1] * 30))
    tokens = packing.fill(torch.randint(3, 50, (packing.n_real,)), 0)

    def compute() -> Tensor:
        with torch.no_grad():
            return model.encode(Inputs(tokens, packing=packing)).hidden[:, : packing.n_real]

    return compute, ()


def head_output(dtype: torch.dtype) -> Case:
    sizes = {"vocab_size": 50, "d_model": 32, "n_heads": 2, "d_ff": 64, "n_layers": 2}
    heads = {"heads": ("pooler", "sequence"), "classifier_input": "pooler", "n_labels": 3}
    config = ModelConfig(**sizes, **heads, shape="encoder", positions="learned", dropout=0.0)
    model = randomize(Transformer(config), 0.3).to(dtype)
    packing = Packing.of(torch.tensor([9, 14, 1]))
    tokens = packing.fill(torch.randint(3, 50, (packing.n_real,)), 0)
    inputs = Inputs(tokens, packing=packing)
    return lambda: ops.head_output(model, inputs, "sequence"), list(model.parameters())


CASES: dict[str, Callable[[torch.dtype], Case]] = {
    "embedding": embedding(False),
    "embedding int8": embedding(True),
    "linear": linear,
    "linear of few rows": linear_of_few_rows,
    "linears": linears,
    **{
        f"activation_linear {name}": activation_linear(name, False)
        for name in ("relu", "gelu", "gelu-tanh")
    },
    "activation_linear silu gated": activation_linear("silu", True),
    "feed_forward": feed_forward,
    "gelu_tanh": gelu_tanh,
    "layer_norm": layer_norm,
    "dropout": dropout,
    "dropout added": add_dropout,
    "attend short": attend(5),
    "attend fused": attend(200),
    "attend soft cap": attend(5, soft_cap=2.0),
    "attend shared heads": attend(5, groups=2),
    "attend shared rows": attend(1, beams=3),
    "attend one query": one_query(),
    "attend one query of shared rows": one_query(rows=2),
    "attend one query of shared heads": one_query(groups=2),
    "attend one query in a window": one_query(window=4),
    "attend one query after eviction": one_query(window=4, evicted=2),
    "attend a prompt": prompt(16),
    "attend a prompt in parts": prompt(2 * PROMPT_QUERIES + 3),
    "attend a prompt after a cache": prompt(21, past=38),
    "attend a prompt of shared heads": prompt(33, groups=2),
    "attention packed": packed_attention(False),
    "attention packed across": packed_attention(True),
    "cross_entropy": cross_entropy(0.0),
    "cross_entropy smoothed": cross_entropy(0.1),
    "cross_entropy without gradients": cross_entropy(0.1, trains=False),
    "layers": layers,
    "decoding_step": step,
    "next_logits": logits,
    "head_output": head_output,
}


def results(compute: Callable[[], Any], leaves: Sequence[Tensor]) -> list[Tensor]:
    """Outputs, then the gradients of a weighted sum of the outputs that have any."""
    with use_thread_rng(torch.Generator().manual_seed(5)):
        out = compute()
    outputs = [out] if isinstance(out, Tensor) else list(out)
    total = sum(
        (y.float() * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum() if y.dim() else y
        for y in outputs
        if y.requires_grad
    )
    return [*(y.detach() for y in outputs), *(torch.autograd.grad(total, leaves) if leaves else ())]


@pytest.mark.usefixtures("no_minimum_sizes")
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_fast_operations_equal_plain_operations(
    case: Callable[[torch.dtype], Case], dtype: torch.dtype
) -> None:
    compute, leaves = case(dtype)
    got = results(compute, leaves)
    with fast.disabled():
        expected = results(compute, leaves)
    for x, y in zip(got, expected, strict=True):
        assert x.dtype is y.dtype and x.shape == y.shape
        limit = LIMITS[dtype] * max(1.0, float(y.float().abs().max()))
        assert float((x.float() - y.float()).abs().max()) <= limit


@pytest.mark.parametrize(
    ("case", "node"), [(dropout, "_DropoutBackward"), (gelu_tanh, "_GeluTanhBackward")]
)
def test_training_on_a_cpu_uses_the_compiled_loops(
    case: Callable[[torch.dtype], Case], node: str
) -> None:
    pytest.importorskip("numba")
    assert case(torch.float32)[0]().grad_fn.name() == node


def test_every_operation_has_a_case() -> None:
    assert {name.split()[0] for name in CASES} == set(ops.PLAIN)


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_plain_and_fast_dropout_have_the_same_mask(dtype: torch.dtype) -> None:
    compute, leaves = dropout(dtype)
    got = results(compute, leaves)
    with fast.disabled():
        expected = results(compute, leaves)
    assert all(torch.equal(x, y) for x, y in zip(got, expected, strict=True))


def test_enable_disable_and_enabled() -> None:
    assert fast.enabled()
    with fast.disabled():
        assert not fast.enabled() and ops.linear is ops.PLAIN["linear"]
        fast.enable()
        assert not fast.enabled(), "enable() has no effect within disabled()"
        with fast.disabled():
            pass
        assert not fast.enabled()
    assert fast.enabled()


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_a_model_trains_the_same_with_fast_operations_without_numba_and_with_plain_ones(
    placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ModelConfig.parse(
        {"vocab_size": 300, "d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 64, "dropout": 0.0}
        | {"norm_placement": placement, "activation": "gelu-tanh"}
    )
    model = Transformer(config).train()
    source, target = (Packing.of(torch.randint(1, 25, (17,))) for _ in "st")
    inputs, outputs = (torch.randint(3, 300, (1, packing.length)) for packing in (source, target))
    labels = torch.randint(3, 300, (target.length,))
    labels[target.n_real :] = -1

    def compute() -> list[Tensor]:
        hidden = model(Inputs(inputs, packing=source), Inputs(outputs, packing=target))[0]
        loss = linear_cross_entropy(hidden, model.lm_head.weight, None, labels, 0.1).loss
        return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]

    with fast.disabled():
        plain = compute()
    got = compute()
    monkeypatch.setattr(fast, "compiled_loops", lambda: None)
    for name, results in (("fast", got), ("without numba", compute())):
        assert torch.allclose(results[0], plain[0], rtol=1e-6), name
        for a, b in zip(results[1:], plain[1:], strict=True):
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-4 * float(b.abs().max())), name
