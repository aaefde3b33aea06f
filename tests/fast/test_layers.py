"""Linear layers: several in one product, and an activation that is recomputed in the backward pass."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trifold.fast.layers import activation_linear, linears
from trifold.nn import ModelConfig
from trifold.nn.layers import ACTIVATIONS, FeedForward, Linear

CONFIG = ModelConfig(d_model=12, n_heads=3, d_ff=20)


@pytest.mark.parametrize("tokens", [1, 63, 64, 200])
@pytest.mark.parametrize("bias", [False, True])
def test_several_in_one_product_are_each_alone(tokens: int, bias: bool) -> None:
    layers = [Linear(6, width, bias=bias) for width in (4, 4, 7)]
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    for parameter in parameters:
        torch.nn.init.normal_(parameter)
    x = torch.randn(tokens, 6, requires_grad=True)
    results = []
    for outputs in (linears(x, layers), tuple(layer(x) for layer in layers)):
        gradients = torch.autograd.grad(sum(y.square().sum() for y in outputs), [x, *parameters])
        results.append([*outputs, *gradients])
    for together, alone in zip(*results, strict=True):
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


TYPES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.1}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_what_is_made_again_on_the_way_back_has_the_gradients_of_what_is_kept(
    activation: str, gated: bool, bias: bool, dtype: torch.dtype
) -> None:
    sizes = {"gated": gated, "activation": activation, "feed_forward_bias": bias}
    layer = FeedForward(CONFIG.model_copy(update=sizes)).to(dtype)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    layer.out_proj.weight.requires_grad_(bias)
    x = torch.randn(2, 50, 12, dtype=dtype, requires_grad=True)
    plain = ACTIVATIONS[activation]((layer.gate_proj or layer.in_proj)(x))
    kept = layer.out_proj(plain * layer.in_proj(x) if gated else plain)
    learn = [x, *(p for p in layer.parameters() if p.requires_grad)]
    above = torch.randn_like(kept)
    again = activation_linear(
        layer.out_proj, layer.activation, *([layer.gate_proj(x)] if gated else []), layer.in_proj(x)
    )
    found, wanted = ([y, *torch.autograd.grad(y, learn, above)] for y in (again, kept))
    for ours, theirs in zip(found, wanted, strict=True):
        largest = float(theirs.detach().abs().max())
        assert float((ours.detach() - theirs.detach()).abs().max()) <= TYPES[dtype] * largest


def test_it_is_made_of_the_same_bits_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled loops and the library's operators differ in the last bits: not so there and back."""
    pytest.importorskip("numba", reason="the compiled loops need numba: pip install 'trifold[fast]'")
    layer, made = FeedForward(CONFIG.model_copy(update={"activation": "gelu-tanh"})), []
    for parameter in layer.parameters():  # allocated, but not initialized
        nn.init.normal_(parameter)
    activation = layer.activation
    monkeypatch.setattr(layer, "activation", lambda x: made.append(activation(x)) or made[-1])
    layer(torch.randn(40, 12)).sum().backward()
    there, back = made
    assert torch.equal(there, back)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nothing_is_left_of_what_was_made_on_the_way_there(activation: str, gated: bool) -> None:
    """An operator that keeps what it gives, in a graph that nobody goes back through, must not keep itself alive."""
    layer, made = FeedForward(CONFIG.model_copy(update={"activation": activation, "gated": gated})), []
    activate = layer.activation

    def watched(x: torch.Tensor) -> torch.Tensor:
        made.append(weakref.ref(y := activate(x)))
        return y

    y = activation_linear(
        layer.out_proj, watched, *(torch.randn(9, 20, requires_grad=True) for _ in range(1 + gated))
    )
    assert made and all(reference() is None for reference in made)
    assert y.requires_grad


def test_who_waits_for_the_input_of_a_layer_sees_it() -> None:
    layer, seen = FeedForward(CONFIG.model_copy(update={"activation": "gelu"})), []
    for parameter in layer.parameters():  # allocated, but not initialized
        nn.init.normal_(parameter)
    layer.out_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    x = torch.randn(3, 12, requires_grad=True)
    layer(x)
    torch.testing.assert_close(seen, [F.gelu(layer.in_proj(x))])


def test_who_asks_a_feed_forward_for_a_second_derivative_is_told() -> None:
    layer = FeedForward(CONFIG.model_copy(update={"activation": "gelu"}))
    x = torch.randn(3, 12, requires_grad=True)
    (dx,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()
