"""Int8 matmul in the forward and backward pass, compared with the matmul that it approximates."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.nn import functional as F

from trifold.fast import int8_training
from trifold.fast.int8_training import (
    CHUNK,
    MIN_ROWS,
    Int8TrainedLinear,
    count_int8_layers,
    enable_int8_training,
    int8_training_linear,
    int8_training_obstacle,
)
from trifold.fast.layers import concatenated_linears
from trifold.fast.processor import has_int8_products
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.layers import Linear
from trifold.train.blocks import recompute_blocks

pytest.importorskip("numba", reason="the compiled loops need numba: `make setup` installs it")

needs_exact_int8 = pytest.mark.skipif(
    not has_int8_products(), reason="without VNNI, int8 matmul overflows on this CPU"
)

DTYPES = [torch.float32, torch.bfloat16]


def reference_quantize(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """x ≈ integers in ±127 · scales along `dim`."""
    scales = x.float().abs().amax(dim, keepdim=True) / 127
    return (x.float() / scales.clamp_min(1e-37)).round(), scales.squeeze(dim)


def random_tensors(
    rows: int, inputs: int, outputs: int, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """x, weight, bias, and the gradient of the output."""
    sizes = (rows, inputs), (outputs, inputs), (outputs,), (rows, outputs)
    generator = torch.Generator().manual_seed(rows + inputs + outputs)
    return [torch.randn(size, generator=generator).to(dtype) for size in sizes]


def train_step(
    x: Tensor, weight: Tensor, bias: Tensor | None, g: Tensor, multiply=int8_training_linear
) -> list[Tensor]:
    """y, dx, dW and db."""
    leaves = [each.detach().requires_grad_() for each in (x, weight, bias) if each is not None]
    y = multiply(*leaves, *([None] if bias is None else []))
    return [y.detach(), *torch.autograd.grad(y, leaves, g)]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1])
def test_quantization_rounds_to_the_nearest_integer(dtype, dim):
    x = (torch.randn(70, 90) * torch.logspace(-6, 6, 90)).to(dtype)
    x[3], x[:, 5] = 0, 0
    quantized, scales = int8_training.quantize(x, by="rows" if dim else "columns")
    expected, expected_scales = reference_quantize(x, dim)
    assert torch.allclose(scales, expected_scales)
    difference = (quantized.float() - expected).abs()
    assert difference.max() <= 1 and difference.mean() < 0.01  # a tie may go to either side
    assert (
        quantized.abs().amax(dim).eq(127).sum() == quantized.shape[1 - dim] - 1
    )  # all but the zeros


@pytest.mark.slow
@needs_exact_int8
@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([MIN_ROWS, MIN_ROWS + 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3]),
    st.integers(1, 200),
    st.integers(1, 200),
    st.sampled_from(DTYPES),
)
def test_output_and_gradients_are_close_to_those_of_the_fp32_matmul(rows, inputs, outputs, dtype):
    parts = random_tensors(rows, inputs, outputs, dtype)
    for ours, exact in zip(
        train_step(*parts), train_step(*(p.float() for p in parts), multiply=F.linear), strict=True
    ):
        assert ours.dtype is dtype and ours.shape == exact.shape
        assert (ours - exact).norm() < 0.02 * exact.norm()


@needs_exact_int8
@pytest.mark.parametrize("rows", [MIN_ROWS, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 70])
def test_matmuls_of_int8_values_are_exact(rows):
    """Integers with a 127 in every row and column that has a scale of its own."""
    x, weight, bias, g = (
        each.mul(20).round().clamp(-126, 126) for each in random_tensors(rows, 80, 96)
    )
    for each in (x, weight, g):
        diagonal = torch.arange(max(each.shape))
        each[diagonal % each.shape[0], diagonal % each.shape[1]] = 127
    for start in range(
        0, rows, CHUNK
    ):  # each column of a chunk has one, also in a short last chunk
        for each in (x, g):
            columns = torch.arange(each.shape[1])
            each[start + columns % (min(rows, start + CHUNK) - start), columns] = 127
    exact = train_step(x.double(), weight.double(), bias.double(), g.double(), multiply=F.linear)
    for ours, theirs in zip(train_step(x, weight, bias, g), exact, strict=True):
        assert torch.allclose(ours.double(), theirs, rtol=1e-6)


@needs_exact_int8
def test_a_row_does_not_depend_on_the_others():
    x, weight, bias, g = random_tensors(CHUNK + 100, 64, 64)
    before = train_step(x, weight, bias, g)
    x[70:] *= 1e4
    g[70:] *= 1e4
    after = train_step(x, weight, bias, g)
    for name, one, other in zip(("y", "dx"), before, after, strict=False):
        assert torch.equal(one[:70], other[:70]), name


@needs_exact_int8
def test_large_gradients_in_another_chunk_do_not_round_small_ones_to_0():
    x, weight, bias, g = random_tensors(2 * CHUNK, 64, 64)
    g[:CHUNK] *= 1e-5
    _, _, dw, _ = train_step(x[:CHUNK], weight, bias, g[:CHUNK])
    x[CHUNK:] = 0
    _, _, both, _ = train_step(x, weight, bias, g)
    assert torch.equal(dw, both)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_values_propagate(bad):
    x, weight, bias, g = random_tensors(MIN_ROWS, 64, 64)
    x[3, 4] = bad
    y, dx, dw, _ = train_step(x, weight, bias, g)
    assert y[3].isnan().all() and not y[4].isnan().any() and not dx.isnan().any()
    assert dw[:, 4].isnan().all() and not dw[:, 5].isnan().any()
    x[3, 4], g[7, 8] = 0, bad
    _, dx, dw, db = train_step(x, weight, bias, g)
    assert dx[7].isnan().all() and dw[8].isnan().all() and not db[8].isfinite()


def test_few_rows_and_inference_use_the_plain_matmul():
    parts = random_tensors(MIN_ROWS - 1, 64, 64)
    for ours, theirs in zip(train_step(*parts), train_step(*parts, multiply=F.linear), strict=True):
        assert torch.equal(ours, theirs)
    x, weight, bias, _ = random_tensors(MIN_ROWS, 64, 64)
    assert torch.equal(int8_training_linear(x, weight, bias), F.linear(x, weight, bias))
    with torch.no_grad():
        assert torch.equal(
            int8_training_linear(x.requires_grad_(), weight, bias), F.linear(x, weight, bias)
        )


@needs_exact_int8
def test_strides_and_frozen_tensors_do_not_change_the_results():
    x, weight, bias, g = random_tensors(MIN_ROWS, 96, 64)
    y, dx, dw, db = train_step(x, weight, bias, g)
    strided = [each.t().contiguous().t() for each in (x, weight)]
    for ours, same in zip(
        train_step(*strided, bias, g.t().contiguous().t()), (y, dx, dw, db), strict=True
    ):
        assert torch.equal(ours, same)
    unbiased = train_step(x, weight, None, g)
    assert torch.allclose(unbiased[0] + bias, y, atol=1e-5) and torch.equal(unbiased[1], dx)
    frozen = x.requires_grad_(), weight.detach(), bias.detach()
    (alone,) = torch.autograd.grad(int8_training_linear(*frozen), frozen[0], g)
    assert torch.equal(alone, dx)
    (expanded,) = torch.autograd.grad(
        int8_training_linear(*frozen).sum(), frozen[0]
    )  # a gradient of stride 0
    assert torch.equal(expanded, train_step(x, weight, bias, torch.ones_like(g))[1])


def test_a_second_derivative_is_rejected():
    x, weight, bias, _ = (each.requires_grad_() for each in random_tensors(MIN_ROWS, 64, 64))
    total = int8_training_linear(x, weight, bias).square().sum()
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(total, x, create_graph=True)


def plain_and_int8_models(monkeypatch, **values) -> tuple[Transformer, Transformer]:
    """The same model twice; the second trains all layers of its stacks with int8 matmul."""
    monkeypatch.setattr(int8_training, "MIN_WEIGHTS", 0)
    shared = {
        "vocab_size": 70,
        "d_model": 64,
        "d_ff": 128,
        "n_layers": 2,
        "n_heads": 2,
        "dropout": 0.0,
    }
    torch.manual_seed(1)
    plain, model = (Transformer(ModelConfig.parse(shared | values)) for _ in range(2))
    model.load_state_dict(plain.state_dict())
    enable_int8_training(model)
    return plain, model


def gradient_of(model: Transformer, tokens: Tensor) -> Tensor:
    model.train().zero_grad()
    F.cross_entropy(model.lm_head(model(Inputs(tokens))).flatten(0, 1), tokens.flatten()).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@needs_exact_int8
def test_int8_training_covers_the_layers_of_stacks_only(monkeypatch):
    """Gradients differ from the plain ones by rounding. Inference is bit-identical."""
    plain, model = plain_and_int8_models(monkeypatch, shape="decoder")
    changed = {n for n, m in model.named_modules() if isinstance(m, Int8TrainedLinear)}
    assert len(changed) == count_int8_layers(model) == 2 * 6 and all(
        "blocks" in name for name in changed
    )
    assert count_int8_layers(plain) == 0
    tokens = torch.randint(70, (8, MIN_ROWS // 8))
    with torch.no_grad():
        assert torch.equal(model.eval()(Inputs(tokens)), plain.eval()(Inputs(tokens)))
    one, other = gradient_of(plain, tokens), gradient_of(model, tokens)
    assert 1e-4 < (one - other).norm() / one.norm() < 0.03


@needs_exact_int8
def test_recomputation_gives_the_same_bits(monkeypatch):
    _, model = plain_and_int8_models(monkeypatch, shape="decoder")
    tokens = torch.randint(70, (8, MIN_ROWS // 8))
    once = gradient_of(model, tokens)
    recompute_blocks(model)
    assert torch.equal(gradient_of(model, tokens), once)


def test_small_layers_are_not_changed():
    small, large = (
        Transformer(ModelConfig(vocab_size=9, d_model=d, d_ff=4 * d, n_heads=2)) for d in (64, 256)
    )
    for model in (small, large):
        enable_int8_training(model)
    linear = sum(isinstance(module, Linear) for module in large.modules())
    assert count_int8_layers(small) == 0 and count_int8_layers(large) == linear


def test_the_obstacle_is_named(monkeypatch):
    assert "a CPU" in int8_training_obstacle(torch.device("cuda"))
    monkeypatch.setattr(int8_training, "has_int8_products", lambda: True)
    assert int8_training_obstacle(torch.device("cpu")) == ""
    monkeypatch.setattr(int8_training, "compiled_loops", lambda: None)
    assert "Numba" in int8_training_obstacle(torch.device("cpu"))
    monkeypatch.setattr(int8_training, "has_int8_products", lambda: False)
    assert "VNNI" in int8_training_obstacle(torch.device("cpu"))


def test_concatenated_layers_use_int8_if_one_of_them_does():
    large, small = Linear(256, 256), Linear(256, 16)
    large.__class__ = Int8TrainedLinear
    x = torch.randn(MIN_ROWS, 256, requires_grad=True)
    for layers in ((large, small), (small, large)):
        assert (
            "Int8Linear"
            in type(concatenated_linears(x, layers).grad_fn.next_functions[0][0]).__name__
        )
