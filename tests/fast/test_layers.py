"""Linear layers: several in one product, and an activation that is recomputed in the backward pass."""

from __future__ import annotations

import weakref

import pytest
import torch
from tests.models import randomize
from torch.nn import functional as F

from trifold.fast import bfloat16_linear, quantized_weight
from trifold.fast.bfloat16_linear import supports_bias_linear, supports_widened_linear
from trifold.fast.layers import (
    activation_linear,
    gelu,
    linear,
    linears,
    supports_gelu,
)
from trifold.fast.quantized_weight import wide
from trifold.nn import ModelConfig
from trifold.nn.layers import ACTIVATIONS, FeedForward, Linear

CONFIG = ModelConfig(d_model=12, n_heads=3, d_ff=20)


@pytest.mark.parametrize("tokens", [1, 63, 64, 200])
@pytest.mark.parametrize("bias", [False, True])
def test_concatenated_layers_equal_separate_layers(tokens: int, bias: bool) -> None:
    layers = [randomize(Linear(6, width, bias=bias)) for width in (4, 4, 7)]
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    x = torch.randn(tokens, 6, requires_grad=True)
    results = []
    for outputs in (linears(x, layers), tuple(layer(x) for layer in layers)):
        gradients = torch.autograd.grad(sum(y.square().sum() for y in outputs), [x, *parameters])
        results.append([*outputs, *gradients])
    for together, alone in zip(*results, strict=True):
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


DTYPES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.1}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_recomputed_activation_has_the_gradients_of_a_saved_one(
    activation: str, gated: bool, bias: bool, dtype: torch.dtype
) -> None:
    sizes = {"gated": gated, "activation": activation, "feed_forward_bias": bias}
    layer = randomize(FeedForward(CONFIG.model_copy(update=sizes)).to(dtype), 0.5)
    layer.out_proj.weight.requires_grad_(bias)
    x = torch.randn(2, 50, 12, dtype=dtype, requires_grad=True)
    plain = ACTIVATIONS[activation]((layer.gate_proj or layer.in_proj)(x))
    saved = layer.out_proj(plain * layer.in_proj(x) if gated else plain)
    trained = [x, *(p for p in layer.parameters() if p.requires_grad)]
    gradient = torch.randn_like(saved)
    recomputed = activation_linear(
        layer.out_proj, layer.activation, *([layer.gate_proj(x)] if gated else []), layer.in_proj(x)
    )
    got, expected = ([y, *torch.autograd.grad(y, trained, gradient)] for y in (recomputed, saved))
    for ours, theirs in zip(got, expected, strict=True):
        largest = float(theirs.detach().abs().max())
        assert float((ours.detach() - theirs.detach()).abs().max()) <= DTYPES[dtype] * largest


def test_the_recomputed_activation_has_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled loops and the operators of PyTorch differ in the last bits; both passes use the same
    ones.
    """
    pytest.importorskip("numba", reason="the compiled loops need numba: `make setup` installs it")
    layer = randomize(FeedForward(CONFIG.model_copy(update={"activation": "gelu-tanh"})))
    activation, outputs = layer.activation, []

    def watched(x: torch.Tensor) -> torch.Tensor:
        outputs.append(activation(x))
        return outputs[-1]

    monkeypatch.setattr("trifold.fast.layers.RECOMPUTED", {watched})
    monkeypatch.setattr(layer, "activation", watched)
    layer(torch.randn(40, 12)).sum().backward()
    forward, backward = outputs
    assert torch.equal(forward, backward)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_activation_is_freed_after_the_forward_pass(
    activation: str, gated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator that saves its own output must not keep it alive in a graph without a backward
    pass.
    """
    layer, outputs = (
        FeedForward(CONFIG.model_copy(update={"activation": activation, "gated": gated})),
        [],
    )
    activate = layer.activation

    def watched(x: torch.Tensor) -> torch.Tensor:
        y = activate(x)
        outputs.append(weakref.ref(y))
        return y

    monkeypatch.setattr("trifold.fast.layers.RECOMPUTED", {watched})
    y = activation_linear(
        layer.out_proj, watched, *(torch.randn(9, 20, requires_grad=True) for _ in range(1 + gated))
    )
    assert outputs and all(reference() is None for reference in outputs)
    assert y.requires_grad


def test_a_forward_pre_hook_receives_the_input_of_the_layer() -> None:
    layer, received = randomize(FeedForward(CONFIG.model_copy(update={"activation": "gelu"}))), []
    layer.out_proj.register_forward_pre_hook(lambda _, args: received.append(args[0]))
    x = torch.randn(3, 12, requires_grad=True)
    layer(x)
    torch.testing.assert_close(received, [F.gelu(layer.in_proj(x))])


def test_a_second_derivative_is_rejected() -> None:
    layer = FeedForward(CONFIG.model_copy(update={"activation": "gelu"}))
    x = torch.randn(3, 12, requires_grad=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)


@torch.no_grad()
@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="requires a processor on which oneDNN multiplies bf16",
)
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(64, 32, 48), (65, 7, 1), (200, 33, 17)])
def test_a_fused_bias_equals_a_bias_that_is_added(rows: int, inputs: int, outputs: int) -> None:
    wide = torch.randn(2, rows, 2 * inputs).bfloat16()
    weight, bias = torch.randn(outputs, inputs).bfloat16(), torch.randn(outputs).bfloat16()
    for x in (wide[..., :inputs].contiguous(), wide[..., inputs:], wide[..., ::2]):
        assert supports_bias_linear(x, weight, bias) and not supports_bias_linear(x, weight, None)
        assert not supports_bias_linear(x[:, :9], weight, bias), "few rows"
        got = linear(x, weight, bias)
        exact = F.linear(x.double(), weight.double(), bias.double())
        assert got.dtype is torch.bfloat16
        torch.testing.assert_close(got.double(), exact, rtol=2**-8, atol=2**-7)
    with torch.enable_grad():
        assert not supports_bias_linear(wide[..., :inputs], weight, bias)


@torch.no_grad()
def test_emulated_products_of_bf16_are_computed_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bfloat16_linear, "emulates_bf16_products", lambda: True)
    monkeypatch.setattr(bfloat16_linear, "WIDENED", 100)
    x, weight = torch.randn(2, 13, 33).bfloat16(), torch.randn(17, 33).bfloat16()
    assert not supports_widened_linear(x.float(), weight, None)
    with torch.enable_grad():
        assert not supports_widened_linear(x, weight, None)
    for bias in (None, torch.randn(17).bfloat16()):
        added = None if bias is None else bias.float()
        assert supports_widened_linear(x, weight, bias)
        expected = F.linear(x.float(), weight.float(), added).bfloat16()
        torch.testing.assert_close(linear(x, weight, bias), expected, rtol=2**-8, atol=1e-6)


def test_products_with_integers_are_not_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3).bfloat16()
    for emulates, dtype in ((True, torch.float32), (False, torch.bfloat16)):
        monkeypatch.setattr(
            quantized_weight, "emulates_bf16_products", lambda found=emulates: found
        )
        assert wide(x).dtype is dtype
    assert wide(x.half()).dtype is torch.float32 and wide(x.double()).dtype is torch.float64


@torch.no_grad()
def test_gelu_of_every_bf16_number() -> None:
    pytest.importorskip("numba", reason="the loops need numba: `make setup` installs it")
    x = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    assert supports_gelu(F.gelu, x) and not supports_gelu(F.relu, x)
    got = gelu(x).double()
    exact = F.gelu(x.double())
    assert bool(got[x.isnan()].isnan().all())
    finite = x.isfinite()
    torch.testing.assert_close(got[finite], exact[finite], rtol=2**-8, atol=2e-4)
