"""Int8 weights: rounding error, and use in place of a parameter; int8 matmul of quantized
activations.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from trifold.fast import compiled_interpreter, instruction, int8
from trifold.fast.int8 import Int8Weight
from trifold.fast.int8_linear import (
    int8_feed_forward,
    int8_linear,
    int8_weight,
    quantize_rows,
    supports_int8_feed_forward,
    supports_int8_linear,
)
from trifold.fast.layers import (
    activation_linear,
    concatenated_linears,
    linear as fast_linear,
    linears,
)
from trifold.fast.processor import has_int8_products
from trifold.fast.smoothing import layers_of_states, smooth
from trifold.fast.thread_pool import execute_one
from trifold.hub.fill import fill_model
from trifold.nn import Inputs, ModelConfig, Transformer, ops
from trifold.nn.layers import FeedForward, Linear

has_interpreter = pytest.mark.skipif(
    compiled_interpreter() is None, reason="needs numba: `make setup` installs it"
)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**31), st.floats(1e-6, 1e6))
def test_the_rounding_error_is_at_most_half_a_step(
    rows: int, width: int, seed: int, size: float
) -> None:
    matrix = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * size
    weight = Int8Weight.quantize(matrix)
    assert weight.values.dtype is torch.int8 and int(weight.values.abs().max()) <= 127
    assert bool(((weight.dequantize() - matrix).abs() <= 0.5001 * weight.scales[:, None]).all())
    again = Int8Weight.quantize(weight.dequantize())
    assert torch.equal(again.values, weight.values), "quantization is idempotent"


def test_rows_of_zeros_remain_zeros() -> None:
    matrix = torch.zeros(3, 4)
    matrix[1] = torch.tensor([0.0, -2.0, 1.0, 0.5])
    dequantized = Int8Weight.quantize(matrix).dequantize()
    assert torch.equal(dequantized[0], torch.zeros(4)) and float(dequantized[1, 1]) == -2.0


def test_quantization_in_chunks_equals_quantization_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matrix = torch.randn(50, 7)
    whole = Int8Weight.quantize(matrix)
    monkeypatch.setattr(int8, "CHUNK", 30)
    assert torch.equal(Int8Weight.quantize(matrix).values, whole.values)


@pytest.mark.parametrize("cached", [2**18, 30, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear_and_rows_equal_those_of_the_dequantized_matrix(
    dtype: torch.dtype, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8, "CACHED", cached)
    weight = Int8Weight.quantize(torch.randn(13, 8).to(dtype))
    x, bias = torch.randn(2, 7, 8).to(dtype), torch.randn(13).to(dtype)
    indices = torch.tensor([[3, 12], [0, 3]])
    assert weight.dequantize().dtype is weight.rows(indices).dtype is dtype
    assert torch.equal(weight.rows(indices), weight.dequantize()[indices])
    exact = x.double() @ (weight.values.double() * weight.scales.double()[:, None]).T
    limit = 1e-5 if dtype is torch.float32 else 3e-2
    assert torch.allclose(
        ops.linear(x, weight).double(), exact, atol=limit * float(exact.abs().max())
    )
    assert ops.linear(x, weight, bias).dtype is dtype


def quantized(layer: Linear) -> Linear:
    """The layer with random int8 weights."""
    torch.nn.init.normal_(layer.bias)
    weight = Int8Weight.quantize(torch.randn(layer.weight.shape))
    del layer.weight
    layer.weight = weight
    return layer


def test_concatenated_int8_layers_equal_separate_layers() -> None:
    layers = [quantized(Linear(8, 5)), quantized(Linear(8, 3))]
    x = torch.randn(70, 8)
    alone = [layer(x) for layer in layers]
    assert all(torch.equal(a, b) for a, b in zip(linears(x, layers), alone, strict=True))
    assert torch.equal(concatenated_linears(x, layers), torch.cat(alone, -1))


def test_gradients_flow_through_an_int8_layer_and_its_activation() -> None:
    layer = quantized(Linear(8, 5))
    x = torch.randn(3, 8, requires_grad=True)
    y = activation_linear(layer, torch.nn.functional.gelu, x)
    exact = torch.nn.functional.gelu(x) @ layer.weight.dequantize().T + layer.bias
    torch.testing.assert_close(y, exact)
    ours, theirs = (torch.autograd.grad(each.square().sum(), x)[0] for each in (y, exact))
    torch.testing.assert_close(ours, theirs)


has_int_mm = pytest.mark.skipif(not has_int8_products(), reason="this CPU has no VNNI")


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def read_rows(x: Tensor, threads: int) -> Tensor:
    """x (R, K) bf16 as int8 matmul reads it on so many threads, in float64."""
    if threads == 1:
        rows = quantize_rows(x)
        return (rows.values.double() - rows.zeros.double()[:, None]) * rows.scales.double()[:, None]
    values, scales = torch.empty(x.shape, dtype=torch.int8), torch.empty(len(x))
    fields = {"dtype": instruction.BFLOAT16, "rows": len(x), "units": len(x), "inputs": x.shape[1]}
    execute_one(opcode=instruction.QUANTIZE, **fields, x=x, out=values, scales=scales)
    return values.double() * scales.double()[:, None]


@has_interpreter
@has_int_mm
@pytest.mark.parametrize("threads", [1, 2], indirect=True)
@pytest.mark.parametrize("biased", [True, False])
def test_int8_matmul_equals_that_of_the_quantized_activations(biased: bool, threads: int) -> None:
    x, bias = torch.randn(33, 1, 64).bfloat16(), torch.randn(96).bfloat16() if biased else None
    x[5] = 0
    x[6] = x[6].abs()
    weight = Int8Weight.quantize(torch.randn(96, 64))
    ours = int8_linear(x, weight, bias)
    read = read_rows(x[:, 0], threads)
    low, high = x[:, 0].double().aminmax(dim=1)
    step = torch.maximum(high, -low) / 127
    if threads == 1:
        step = (high.clamp(min=0) - low.clamp(max=0)) / 253
    assert bool(((read - x[:, 0].double()).abs() <= 0.51 * step[:, None]).all())
    exact = read @ weight.dequantize().double().T
    exact = exact if bias is None else exact + bias.double()
    assert ours.shape == (33, 1, 96) and ours.dtype is torch.bfloat16
    assert torch.allclose(ours[:, 0].double(), exact, rtol=2**-8, atol=2e-3)
    assert torch.equal(ours[7:29], int8_linear(x[7:29], weight, bias)), (
        "a row does not depend on the others"
    )


@has_interpreter
@has_int_mm
@torch.no_grad()
@pytest.mark.usefixtures("no_minimum_sizes")
@pytest.mark.parametrize("threads", [1, 2], indirect=True)
@pytest.mark.parametrize("rows", [1, 3, 70])
def test_factors_of_inputs_are_part_of_the_matrix(rows: int, threads: int) -> None:
    layers = [quantized(Linear(64, 16)) for _ in range(2)]
    factors = torch.rand(64) + 0.1
    for layer in layers:
        layer.weight.factors = factors  # type: ignore[assignment]
    x = torch.randn(rows, 64).bfloat16()
    matrix = torch.cat([layer.weight.dequantize() for layer in layers]).double()
    exact = x.double() @ matrix.T + torch.cat([layer.bias for layer in layers]).double()
    for got in (
        torch.cat(linears(x, layers), -1),
        torch.cat([fast_linear(x, layer.weight, layer.bias) for layer in layers], -1),
        torch.cat([layer.weight.linear(x, layer.bias) for layer in layers], -1),
    ):
        assert float((got.double() - exact).norm() / exact.norm()) < 0.015


@has_int_mm
@torch.no_grad()
@pytest.mark.usefixtures("no_minimum_sizes")
def test_smoothing_reads_large_dimensions_of_states_more_exactly() -> None:
    config = ModelConfig(
        shape="encoder", d_model=64, d_ff=64, n_heads=2, vocab_size=50, n_layers=2, dropout=0.0
    )
    torch.manual_seed(3)
    model = Transformer(config).bfloat16()
    tokens = Inputs(torch.randint(50, (4, 12)))
    for name, parameter in model.named_parameters():
        if name.endswith("after.weight"):
            parameter[5] = 30.0
    exact = deepcopy(model).double()(tokens)
    plain_model = deepcopy(model)
    smooth(model)
    for layer in layers_of_states(plain_model):
        weight = Int8Weight.quantize(layer.weight)
        del layer.weight
        layer.weight = weight  # type: ignore[assignment]
    found = []
    for each in (model, plain_model):
        out = each(tokens).double()
        found.append(float((out - exact).norm() / exact.norm()))
    assert found[0] < 0.6 * found[1], found


@has_interpreter
@has_int_mm
@pytest.mark.usefixtures("no_minimum_sizes")
def test_factors_do_not_depend_on_the_number_of_threads() -> None:
    found = []
    for threads in (1, 2):
        torch.manual_seed(3)
        model = Transformer(ModelConfig(shape="encoder", d_model=64, n_heads=2, vocab_size=50))
        own = [(title, p.detach().clone()) for title, p in model.named_parameters()]
        torch.set_num_threads(threads)
        try:
            fill_model(model, own, torch.bfloat16, "cpu", stored="int8")
            assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(1)
        found.append([int8_weight(layer).factors for layer in layers_of_states(model)])
    assert found[0] and all(map(torch.equal, *found))


@has_int_mm
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_quantized_rows_keep_what_is_not_finite(value: float) -> None:
    x = torch.randn(20, 64).bfloat16()
    x[3, 4] = value
    out = int8_linear(x, Int8Weight.quantize(torch.randn(16, 64)), None)
    assert bool(out[3].isnan().all()) and bool(out[:3].isfinite().all())


@has_int_mm
@torch.no_grad()
@pytest.mark.usefixtures("no_minimum_sizes")
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_a_feed_forward_network_in_int8_has_the_error_of_its_steps(activation: str) -> None:
    config = ModelConfig(d_model=64, d_ff=96, n_heads=2, vocab_size=8, activation=activation)
    layer, x = FeedForward(config), torch.randn(3, 11, 64).bfloat16()
    for each in (layer.in_proj, layer.out_proj):
        each.weight.data.normal_(std=0.2)
        if each.bias is not None:
            each.bias.data.normal_()
    exact = deepcopy(layer).double().transform(x.double())
    for each in (layer.in_proj, layer.out_proj):
        weight = Int8Weight.quantize(each.weight)
        del each.weight
        each.weight = weight  # type: ignore[assignment]
    assert supports_int8_feed_forward(layer, x) == (activation == "gelu")
    got = int8_feed_forward(layer, x) if activation == "gelu" else layer(x)
    assert float((got.double() - exact).norm() / exact.norm()) < 0.02


@has_interpreter
@pytest.mark.usefixtures("no_minimum_sizes")
def test_inputs_supported_by_int8_matmul(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trifold.fast.int8_linear.has_int8_products", lambda: True)
    weight, x = Int8Weight.quantize(torch.randn(96, 64)), torch.randn(33, 1, 64).bfloat16()
    assert not supports_int8_linear(x, weight), "gradients are enabled"
    with torch.no_grad():
        assert supports_int8_linear(x, weight)
        assert not supports_int8_linear(x.float(), weight)
        assert supports_int8_linear(x[:1], weight)
        assert supports_int8_linear(x.view(3, 11, 64), weight)
        monkeypatch.setattr("trifold.fast.int8_linear.has_int8_products", lambda: False)
        assert not supports_int8_linear(x, weight), "torch._int_mm overflows"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_the_input_is_that_of_the_dense_matrix(dtype: torch.dtype) -> None:
    weight = Int8Weight.quantize(torch.randn(9, 7))
    x, g = torch.randn(2, 3, 7, dtype=dtype, requires_grad=True), torch.randn(2, 3, 9, dtype=dtype)
    (ours,) = torch.autograd.grad(weight.linear(x, None), x, g)
    (theirs,) = torch.autograd.grad(x.double() @ weight.dequantize().double().T, x, g.double())
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 if dtype is torch.float32 else 0.1)
