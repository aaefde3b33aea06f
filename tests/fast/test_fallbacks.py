"""Inputs and layers that a kernel does not support take the plain path, or raise a clear error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.models import add_noise, randomize
from torch import Tensor, nn

from trifold import fast
from trifold.fast import attention, decoding_step, int8_linear, layers, sparse
from trifold.fast.int8 import Int8Weight
from trifold.nn import Inputs, Mask, ModelConfig, Transformer, ops
from trifold.nn.attention import Attention
from trifold.nn.layers import Linear
from trifold.nn.masks import PairTable
from trifold.nn.packing import Packing
from trifold.nn.scan import scan
from trifold.nn.variants.two_streams import Order
from trifold.nn.variants.windows import Window
from trifold.train.blocks import recompute_blocks

Make = Callable[..., Transformer]
pytestmark = pytest.mark.usefixtures("no_minimum_sizes")


def both(compute: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """The results with fast and with plain operations."""
    got = compute()
    with fast.disabled():
        return got, compute()


def assert_same(compute: Callable[[], Tensor]) -> None:
    torch.testing.assert_close(*both(compute), rtol=1e-4, atol=1e-5)


# --- layers that are more than a matrix -----------------------------------------------------------


class Doubled(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def with_hook(kind: str) -> Linear:
    if kind == "subclass":
        return randomize(Doubled(16, 8), 0.3)
    layer = randomize(Linear(16, 8), 0.3)
    if kind == "hook":
        layer.register_forward_hook(lambda module, inputs, y: 2 * y)
    elif kind == "pre-hook":
        layer.register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],))
    else:
        layer.register_full_backward_hook(lambda module, d_x, d_y: (2 * d_x[0],))
    return layer


@pytest.mark.parametrize("kind", ["hook", "pre-hook", "backward hook", "subclass"])
def test_layers_with_hooks_and_other_classes_are_called(kind: str) -> None:
    both_layers = [with_hook(kind), randomize(Linear(16, 8), 0.3)]
    x = torch.randn(2, 64, 16, requires_grad=True)
    for number in (0, 1):
        y = ops.linears(x, both_layers)[number]
        expected = both_layers[number](x)
        torch.testing.assert_close(y, expected)
        gradients = [torch.autograd.grad(each.sum(), x)[0] for each in (y, expected)]
        torch.testing.assert_close(*gradients)


def test_an_activation_with_parameters_learns() -> None:
    layer, activation = randomize(Linear(16, 8), 0.3), nn.PReLU()
    x = torch.randn(2, 5, 16, requires_grad=True)
    ops.activation_linear(layer, activation, x).sum().backward()
    assert activation.weight.grad is not None and activation.weight.grad.abs().sum() > 0


def test_training_under_automatic_casts() -> None:
    layer, x = randomize(Linear(16, 8), 0.3), torch.randn(2, 5, 16, requires_grad=True)
    weight, targets = torch.randn(9, 8, requires_grad=True), torch.randint(9, (10,))

    def compute() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            hidden = ops.activation_linear(layer, nn.functional.gelu, x)
            loss, _ = ops.cross_entropy(hidden.flatten(0, 1), weight, None, targets, 0.1)
        return torch.autograd.grad(loss, x)[0]

    torch.testing.assert_close(*both(compute))


# --- second derivatives ---------------------------------------------------------------------------


def second_of(compute: Callable[[Tensor], Tensor], *shape: int) -> None:
    x = torch.randn(shape, requires_grad=True)
    (first,) = torch.autograd.grad(compute(x).pow(3).sum(), x, create_graph=True)
    torch.autograd.grad(first.square().sum(), x)


def layer_norm(x: Tensor) -> Tensor:
    return ops.layer_norm(x.sin(), torch.rand(8), torch.rand(8), 1e-5)


def window(x: Tensor) -> Tensor:
    q = x.sin().view(1, 1, 64, 8)
    return ops.attend(q, q, q, Mask(rules=(Window(3),)))


def packed(x: Tensor) -> Tensor:
    layer = randomize(Attention(ModelConfig(d_model=8, n_heads=2)), 0.3)
    packing = Packing.of(torch.tensor([40, 24]))
    return layer(x.sin()[None], mask=Mask(packing.attend, packing=packing))


def cross_entropy(x: Tensor) -> Tensor:
    return ops.cross_entropy(x.sin(), torch.randn(9, 8), None, torch.randint(9, (64,)), 0.1)[0]


def sums(x: Tensor) -> Tensor:
    def step(part: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return part.square(), state + part.sum()

    return scan(step, 8, torch.zeros(()), x.sin()[None, None])[0]


@pytest.mark.parametrize(
    "compute", [layer_norm, window, packed, cross_entropy, sums, ops.gelu_tanh]
)
def test_second_derivatives_are_an_error(
    compute: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be those of a constant gradient."""
    pytest.importorskip("numba")
    monkeypatch.setattr(sparse, "BLOCK", 4)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        second_of(compute, 64, 8)


# --- attention ------------------------------------------------------------------------------------

TABLE = torch.rand(1, 1, 1, 5) < 0.7
ODD = {
    "no rows": (0, 5, Mask(), None),
    "one row of padding for all": (
        2,
        5,
        Mask(torch.tensor([[True, False, True, True, True]])),
        None,
    ),
    "a bias for all heads": (2, 5, Mask(), torch.randn(2, 1, 1, 5)),
    "a window of both sides": (2, 5, Mask(rules=(Window(2),)), None),
    "keys after the query": (2, 5, Mask(causal=True, offset=2), None),
    "an order": (2, 5, Mask(rules=(Order(torch.tensor([[2, 0, 1, 4, 3]])),)), None),
    "a table": (2, 5, Mask(rules=(PairTable(TABLE | (torch.arange(5) == 0)),)), None),
    "two windows": (2, 5, Mask(causal=True, offset=4, rules=(Window(4), Window(2))), None),
}


@pytest.mark.parametrize("name", ODD)
def test_one_query_with_an_odd_mask(name: str) -> None:
    rows, keys, mask, bias = ODD[name]
    q = torch.randn(rows, 8, 1, 64)
    k, v = torch.randn(2, rows, 8, keys, 64)

    def compute() -> Tensor:
        with torch.no_grad():
            return ops.attend(q, k, v, mask, bias=bias)

    assert_same(compute)


@torch.no_grad()
def test_one_query_with_values_of_another_type() -> None:
    q, k, v = (torch.randn(2, 8, length, 64) for length in (1, 5, 5))
    assert not attention.supports_attend_one_query(q, k, v.bfloat16(), Mask(), None)


def test_a_table_beside_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "BLOCK", 4)
    q, k, v = torch.randn(3, 2, 2, 64, 8)
    table = PairTable((torch.rand(1, 1, 64, 64) < 0.5) | torch.eye(64, dtype=torch.bool))
    mask = Mask(causal=True, rules=(Window(3), table))
    assert_same(lambda: ops.attend(q, k, v, mask))


def test_packed_rows_fill_a_cache(make_model: Make) -> None:
    model = make_model(shape="decoder", positions="none")
    packing = Packing.of(torch.tensor([5, 5]))
    tokens, step = torch.randint(3, 29, (1, packing.length)), torch.randint(3, 29, (2, 1))

    def compute() -> Tensor:
        cache = model.new_cache()
        model.decode(Inputs(tokens, packing=packing), cache=cache)
        assert cache.length == packing.shape[1]
        with torch.no_grad():
            return model.decode(Inputs(step), cache=cache)

    assert_same(compute)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_sparse_attention_can_be_recomputed(
    make_model: Make, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse, "BLOCK", 4)
    model = make_model(shape=side, sliding_window=3).train()
    inputs, found = Inputs(torch.randint(3, 29, (2, 40))), []
    for _ in range(2):
        model.zero_grad()
        torch.manual_seed(0)
        model(inputs).square().sum().backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        recompute_blocks(model)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


# --- compiled decoding steps ----------------------------------------------------------------------

DECODER = {"shape": "decoder", "norm_placement": "pre", "tie_lm_head": False}


def decoded(
    model: Transformer, change: Callable[[Transformer], Any] | None = None, rows: int = 2
) -> Callable[[], Tensor]:
    """States of three tokens after a prompt of four. change: adds a hook before the last two."""
    tokens = torch.randint(3, 29, (rows, 7), generator=torch.Generator().manual_seed(1))

    def compute() -> Tensor:
        cache, outs = model.new_cache(), []
        with torch.no_grad():
            model.decode(Inputs(tokens[:, :4]), cache=cache)
            for t in (4, 5, 6):
                hook = None if change is None or t == 4 else change(model)
                outs.append(model.decode(Inputs(tokens[:, t : t + 1]), cache=cache))
                if hook is not None:
                    hook.remove()
        return torch.cat(outs, 1)

    return compute


@pytest.mark.parametrize("positions", ["rotary", "none"])
def test_reversible_blocks_decode(make_model: Make, positions: str) -> None:
    assert_same(decoded(make_model(**DECODER, residual="reversible", positions=positions)))


def test_a_block_of_another_class_decodes(make_model: Make) -> None:
    model = make_model(**DECODER)
    kind = type(model.decoder.blocks[0])
    other = type(
        "Other", (kind,), {"forward": lambda self, *inputs: 2 * kind.forward(self, *inputs)}
    )
    model.decoder.blocks[0].__class__ = other
    assert_same(decoded(model))


def test_a_hook_takes_effect_between_two_steps(make_model: Make) -> None:
    model = make_model(**DECODER)

    def hook(model: Transformer) -> Any:
        layer = model.decoder.blocks[0].feed_forward.sublayer
        return layer.register_forward_hook(lambda module, inputs, y: 2 * y)

    assert_same(decoded(model, hook))


def test_a_cache_that_another_model_continues(make_model: Make) -> None:
    first, second = (make_model(**DECODER) for _ in "12")
    second.load_state_dict({n: 2 * x for n, x in first.state_dict().items()})

    def compute() -> Tensor:
        cache, tokens = first.new_cache(), torch.arange(3, 9)[None]
        with torch.no_grad():
            first.decode(Inputs(tokens[:, :4]), cache=cache)
            first.decode(Inputs(tokens[:, 4:5]), cache=cache)
            return second.decode(Inputs(tokens[:, 5:]), cache=cache)

    assert_same(compute)


@torch.no_grad()
def test_active_dropout_in_an_evaluated_stack(make_model: Make) -> None:
    """Equal caches, read without dropout, give other states with it."""
    model, tokens = make_model(**DECODER, dropout=0.5), torch.randint(3, 29, (2, 6))
    caches = [model.new_cache() for _ in "12"]
    for cache in caches:
        model.decode(Inputs(tokens[:, :5]), cache=cache)
    assert model.decoder is not None
    for module in model.decoder.modules():
        if type(module).__name__ == "Dropout":
            module.train()
    first, second = (model.decode(Inputs(tokens[:, 5:]), cache=cache) for cache in caches)
    assert not torch.equal(first, second)


@torch.no_grad()
def test_one_row_of_padding_for_all_rows_of_a_cache(make_model: Make) -> None:
    model = make_model(**DECODER)
    tokens, real = (
        torch.randint(3, 29, (3, 6)),
        torch.tensor([[True, False, True, True, True, True]]),
    )

    def compute() -> Tensor:
        cache = model.new_cache()
        model.decode(Inputs(tokens[:, :5], real[:, :5].expand(3, -1)), cache=cache)
        return model.decode(Inputs(tokens[:, 5:], real), cache=cache)

    assert_same(compute)
    assert decoding_step.MIN_WEIGHTS == 0


# --- weights in int8 ------------------------------------------------------------------------------


def test_the_loss_of_an_int8_head_has_gradients() -> None:
    hidden = torch.randn(10, 16, requires_grad=True)
    weight, targets = Int8Weight.quantize(torch.randn(9, 16)), torch.randint(9, (10,))

    def compute() -> Tensor:
        loss, _ = ops.cross_entropy(hidden, weight, None, targets, 0.1)  # type: ignore[arg-type]
        return torch.autograd.grad(loss, hidden)[0]

    assert_same(compute)


@torch.no_grad()
def test_a_cast_of_the_model_keeps_the_scales_of_int8_weights() -> None:
    layer, x = Linear(64, 32), torch.randn(2, 64)
    weight = Int8Weight.quantize(torch.randn(32, 64) * 0.1)
    del layer.weight
    layer.weight = weight
    expected = x @ weight.dequantize().T
    layer.to(torch.bfloat16)
    assert weight.scales.dtype is torch.float32 and weight.dtype is torch.bfloat16
    got = ops.linear(x.bfloat16(), layer.weight)
    torch.testing.assert_close(got.float(), expected, rtol=0.05, atol=0.05)
    assert layer.to(torch.float32).weight.dtype is torch.float32


@torch.no_grad()
def test_products_of_float16_and_int8_do_not_overflow() -> None:
    weight = Int8Weight.quantize(torch.full((4, 4096), 0.01))
    got = weight.linear(torch.full((1, 4096), 20.0, dtype=torch.float16), None)
    torch.testing.assert_close(got.float(), torch.full((1, 4), 819.2), rtol=1e-2, atol=1.0)


@torch.no_grad()
def test_int8_products_in_a_type_without_an_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8_linear, "has_int8_products", lambda: True)
    weight = Int8Weight.quantize(torch.randn(32, 64))
    x = torch.randn(20, 64).bfloat16()
    assert ops.linear(x, weight, None, torch.float64).dtype is torch.float64  # type: ignore[arg-type]


def test_plain_models_still_use_the_kernels(make_model: Make) -> None:
    """The checks above do not turn everything off."""
    model = add_noise(make_model(**DECODER), 0.1)
    cache = model.new_cache()
    with torch.no_grad():
        for part in torch.arange(3, 9)[None].split(3, 1):
            model.decode(Inputs(part[:, :3]), cache=cache)
        model.decode(Inputs(torch.tensor([[4]])), cache=cache)
    found = decoding_step._translations[cache]
    assert found.decoder is not None
    assert all(map(layers.is_matrix, (Linear(2, 2), Linear(3, 2))))


# --- graphs ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_graphs_contain_no_instruction() -> None:
    layer, q = randomize(Linear(64, 32), 0.3), torch.randn(2, 8, 1, 64)

    def compute(x: Tensor) -> Tensor:
        return ops.attend(q, q, q, Mask()).sum() + ops.linear(x, layer.weight, layer.bias)

    with torch.no_grad():
        graph = torch.compile(compute, backend="eager", fullgraph=True)
        x = torch.randn(2, 64)
        torch.testing.assert_close(graph(x), compute(x), rtol=1e-4, atol=1e-4)


def test_packed_rows_with_a_masked_key() -> None:
    layer = randomize(Attention(ModelConfig(d_model=32, n_heads=4)), 0.3)
    packing = Packing.of(torch.tensor([7, 7]))
    real = torch.ones(packing.shape, dtype=torch.bool)
    real[:, 2] = False
    x = torch.randn(1, packing.length, 32, requires_grad=True)
    assert_same(lambda: layer(x, mask=Mask(real, packing=packing))[:, : packing.n_real])


def test_packed_rows_with_a_memory_that_is_not_packed() -> None:
    layer = randomize(Attention(ModelConfig(d_model=32, n_heads=4), memory_width=32), 0.3)
    packing, memory = Packing.of(torch.tensor([7, 5])), torch.randn(2, 9, 32)
    x = torch.randn(1, packing.length, 32, requires_grad=True)
    assert_same(lambda: layer(x, memory, mask=Mask(packing=packing))[:, : packing.n_real])


@torch.no_grad()
def test_sizes_and_types_that_do_not_fit_are_errors() -> None:
    weight = torch.randn(32, 64)
    for x, bias in (
        (torch.randn(2, 32), None),
        (torch.randn(2, 64).double(), None),
        (torch.randn(2, 64), torch.randn(31)),
    ):
        with pytest.raises(RuntimeError):
            ops.linear(x, weight, bias)
