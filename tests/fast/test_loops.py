"""Properties of the compiled loops beyond those in test_plain.py: rounding, random bits, NaN, odd
sizes.
"""

from __future__ import annotations

import math
from importlib import import_module

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from torch import Tensor
from torch.nn import functional as F

from trifold.fast.attention import QUERY_BLOCK, packed_attention
from trifold.fast.cross_entropy import _softmax_in_place
from trifold.fast.layers import dropout, gelu_tanh, layer_norm
from trifold.nn import rng
from trifold.nn.packing import Packing

pytest.importorskip("numba", reason="the compiled loops need numba: `make setup` installs it")

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2}
both = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(dtype).requires_grad_()


def assert_close(ours: Tensor, theirs: Tensor, dtype: torch.dtype) -> None:
    limit = TOLERANCE[dtype] * max(1.0, float(theirs.detach().abs().max()))
    assert float((ours.detach().float() - theirs.detach().float()).abs().max()) <= limit


@pytest.mark.slow
@pytest.mark.parametrize("name", ["round_like", "round_ties_away"])
def test_rounding_to_bf16_equals_that_of_pytorch(name: str) -> None:
    """For every exponent and sign with several mantissas, ties, infinities and NaN among them."""
    from numba import njit

    from trifold.fast import loops

    function = getattr(loops, name)

    @njit(fastmath=loops.FASTMATH)
    def run(x, out):
        for j in range(len(x)):
            out[j] = function(out[j], x[j])

    ties = [0x8000, 0x18000, 0x7F8000]
    mantissas = [
        0,
        1,
        0x7FFF,
        0x8001,
        0xFFFF,
        0x10000,
        0x3A7FFF,
        0x400000,
        0x7F0000,
        0x7FFFFF,
        *ties,
    ]
    exponents = np.arange(512, dtype=np.uint32) << np.uint32(23)
    # The size is not a multiple of a vector, so that the loop has a remainder.
    bits = (exponents[:, None] | np.array(mantissas, np.uint32)).reshape(-1)[:-5]
    x = bits.view(np.float32)
    if name == "round_ties_away":  # differs for ties and for NaN that cannot come from bf16
        x = x[(bits & 0xFFFF != 0x8000) & (~np.isnan(x) | (bits & 0xFFFF == 0))]
    out = np.empty(x.size, np.uint16)
    run(x, out)
    ours, theirs = torch.from_numpy(out).view(torch.bfloat16), torch.from_numpy(x).bfloat16()
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    assert same.all(), x[~same.numpy()]


@both
def test_gelu_is_accurate_over_its_range(dtype: torch.dtype) -> None:
    x = torch.cat((torch.linspace(-30, 30, 4001), torch.zeros(3))).to(dtype).requires_grad_()
    g = torch.randn(len(x)).to(dtype)
    ours = gelu_tanh(x)
    exact_x = x.detach().double().requires_grad_()
    exact = F.gelu(exact_x, approximate="tanh")
    d_ours, d_exact = (
        torch.autograd.grad(ours, x, g)[0],
        torch.autograd.grad(exact, exact_x, g.double())[0],
    )
    limit = 2**-8 if dtype is torch.bfloat16 else 1e-5
    for a, b in ((ours, exact), (d_ours, d_exact)):
        assert (
            float(((a.detach().double() - b.detach()).abs() / (b.detach().abs() + 1e-2)).max())
            <= limit
        )


@both
@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 0.9])
def test_dropout_has_its_rate_and_the_same_mask_in_the_backward_pass(
    dtype: torch.dtype, p: float
) -> None:
    y = torch.ones(40_001, dtype=dtype, requires_grad=True)
    torch.manual_seed(7)
    out = dropout(y, p)
    (gradient,) = torch.autograd.grad(out, y, torch.ones_like(out))
    assert torch.equal(out, gradient)
    assert set(out.detach().float().unique().tolist()) == {
        0.0,
        float(torch.tensor(1 / (1 - p), dtype=dtype)),
    }
    deviation = (p * (1 - p) / len(y)) ** 0.5
    assert abs(float((out == 0).float().mean()) - p) < 5 * deviation
    x = torch.randn(40_001).to(dtype).requires_grad_()
    torch.manual_seed(7)
    scaled = torch.where(out == 0, 0.0, float(np.float32(1 / (1 - p))))
    assert torch.equal(dropout(y, p, x), (x.float() + scaled).to(dtype))


def test_dropout_masks_are_not_correlated() -> None:
    y = torch.ones(200_000, requires_grad=True)
    masks = torch.stack([(dropout(y, 0.5) > 0).float() for _ in range(6)])
    # Between masks, and between an element and its neighbours in one mask.
    shifted = torch.stack([masks[0].roll(k) for k in (1, 2, 3, 16, 64, 128, 512)])
    centered = torch.cat((masks, shifted)) - 0.5
    correlation = (centered @ centered.T / 200_000 * 4).fill_diagonal_(0)
    assert float(correlation.abs().max()) < 5 / 200_000**0.5


def test_dropout_draws_from_the_generator_of_the_thread() -> None:
    y = torch.ones(1000, requires_grad=True)
    masks = []
    for seed in (99, 100):
        torch.manual_seed(seed)
        with rng.use_thread_rng(torch.Generator().manual_seed(3)):
            masks.append(dropout(y, 0.5))
    assert torch.equal(*masks)
    assert rng.thread_rng() is None


@both
@given(
    lengths=st.lists(
        st.tuples(
            st.integers(1, 40) | st.integers(QUERY_BLOCK, 3 * QUERY_BLOCK), st.integers(1, 40)
        ),
        min_size=1,
        max_size=9,
    ),
    is_self=st.booleans(),
    causal=st.booleans(),
    seed=st.integers(0, 1000),
)
@example(
    lengths=[(500, 3), *[(200, 1)] * 16], is_self=True, causal=True, seed=0
)  # 17 rows in a grid of 18
@settings(max_examples=12, deadline=None)
def test_packed_attention_equals_attention_of_each_row(
    dtype: torch.dtype, lengths: list[tuple[int, int]], is_self: bool, causal: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    heads, width = 3, 8
    size = heads * width
    queries = Packing.of(torch.tensor([q for q, _ in lengths]))
    keys = queries if is_self else Packing.of(torch.tensor([k for _, k in lengths]))
    causal = causal and is_self
    q = leaf(queries.length, 3 * size if is_self else size, dtype=dtype)
    kv = None if is_self else leaf(keys.length, 2 * size, dtype=dtype)
    g = torch.randn(queries.length, size).to(dtype)
    leaves = [x for x in (q, kv) if x is not None]
    ours = packed_attention(q, kv, queries, keys, width, causal=causal)
    gradients = torch.autograd.grad(ours, leaves, g)

    exact_leaves = [x.detach().double().requires_grad_() for x in leaves]
    qkv = (
        exact_leaves[0].split(size, 1)
        if is_self
        else (exact_leaves[0], *exact_leaves[1].split(size, 1))
    )
    rows = []
    for row in range(len(lengths)):
        q_part = slice(int(queries.starts[row]), int(queries.starts[row + 1]))
        k_part = slice(int(keys.starts[row]), int(keys.starts[row + 1]))
        q_row, k_row, v_row = (
            x[part].unflatten(1, (heads, width)).transpose(0, 1)
            for x, part in zip(qkv, (q_part, k_part, k_part), strict=True)
        )
        out = F.scaled_dot_product_attention(q_row, k_row, v_row, is_causal=causal)
        rows.append(out.transpose(0, 1).flatten(1))
    exact = torch.cat(rows)
    exact_gradients = torch.autograd.grad(exact, exact_leaves, g[: queries.n_real].double())
    assert_close(ours[: queries.n_real], exact, dtype)
    assert not ours[queries.n_real :].any()
    for a, b in zip(gradients, exact_gradients, strict=True):
        assert_close(a, b, dtype)


@both
def test_softmax_over_the_vocabulary(dtype: torch.dtype) -> None:
    logits = (torch.randn(9, 1031) * 4).to(dtype)
    logits[3, 5] = 200.0  # all others underflow
    targets = torch.tensor([0, 1030, 7, 5, 8, -1, 256, 255, 4])
    exact = logits.double().log_softmax(-1)
    e = logits.t().contiguous()
    unused = torch.empty(0)
    inverse_sum, nll = _softmax_in_place(e, unused, targets, unused, None)
    real = targets >= 0
    assert_close((e.float() * inverse_sum).t()[real], exact.exp()[real], dtype)
    exact_nll = -exact[real].gather(1, targets[real][:, None])[:, 0]
    assert torch.allclose(nll[real].double(), exact_nll, rtol=4e-3, atol=4e-3)
    assert nll[5] == 0 and inverse_sum[5] == 0
    alone = _softmax_in_place(logits[7:8].t().contiguous(), unused, targets[7:8], unused, None)[0]
    assert torch.equal(alone, inverse_sum[7:8]), "a column does not depend on the others"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@both
def test_non_finite_values_propagate(dtype: torch.dtype, bad: float) -> None:
    """A lost NaN would hide that a run has diverged."""
    x = torch.randn(300, 64).to(dtype)
    x[7, 9] = bad
    x.requires_grad_()
    assert not dropout(x, 0.01)[7].isfinite().all()
    assert not gelu_tanh(x)[7].isfinite().all()
    assert layer_norm(x, *(torch.ones(64, dtype=dtype) for _ in "wb"), 1e-5)[7].isnan().any()
    logits, unused = x.detach().t().contiguous(), torch.empty(0)
    targets = torch.zeros(300, dtype=torch.int64)
    inverse_sum, nll = _softmax_in_place(logits, unused, targets, unused, None)
    assert not nll[7].isfinite() or not inverse_sum[7].isfinite()
    packing = Packing.of(torch.full((30,), 8))
    qkv = torch.randn(packing.length, 3 * 16).to(dtype)
    qkv[7, 20] = bad
    qkv.requires_grad_()
    assert not packed_attention(qkv, None, packing, packing, 8, causal=False)[:8].isfinite().all()


@pytest.mark.parametrize("width", [1, 50, 128])
def test_layer_norm_in_bf16_is_rounded_once(width: int) -> None:
    """Also of rows whose mean is far from 0."""
    x = (torch.randn(33, width) * 3 + torch.arange(33)[:, None] * 8).bfloat16().requires_grad_()
    weight, bias = (leaf(width, dtype=torch.bfloat16) for _ in "wb")
    exact = F.layer_norm(x.double(), (width,), weight.double(), bias.double(), 1e-5)
    got = layer_norm(x, weight, bias, 1e-5)
    assert got.dtype is torch.bfloat16
    torch.testing.assert_close(got.double(), exact, rtol=2**-8, atol=1e-4)


def test_layer_norm_keeps_no_reference_to_the_storage_of_its_parameters() -> None:
    """Sharded parameters are gathered and freed again; an array of one would keep its storage."""
    weight, bias = leaf(6), leaf(6)
    layer_norm(leaf(3, 6), weight, bias, 1e-5).sum().backward()
    assert weight.grad is not None
    assert weight.untyped_storage().resizable() and bias.untyped_storage().resizable()


def test_compiled_code_does_not_depend_on_the_process_that_compiled_it() -> None:
    """A compiled function that others call is part of their code. Otherwise the process that
    compiles them would execute another version than those that load them from the cache.
    """
    from numba.core.dispatcher import Dispatcher

    from trifold.fast.machine_code import SOURCES

    modules = [import_module(f"trifold.fast.{name}") for name in SOURCES]
    compiled = {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, Dispatcher)
    }
    inlined = {
        name
        for name, function in compiled.items()
        if function.targetoptions.get("forceinline") or "inline" in function.targetoptions
    }
    called = {name for function in compiled.values() for name in function.py_func.__code__.co_names}
    assert {"_multiply", "attention", "exp"} <= inlined
    assert called & compiled.keys() <= inlined
