"""Attention by each kernel, and the choice of the kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from trifold import fast
from trifold.fast import attention
from trifold.fast.instruction_sets import products_of_keys
from trifold.nn import Inputs, Mask, Transformer, capture, ops
from trifold.nn.packing import Packing
from trifold.nn.variants.two_streams import Order, query_states


def fused(*tensors: Any, bias: Tensor | None = None, soft_cap: None = None) -> Tensor:
    return attention.fused_attention(*tensors, bias)


KERNELS = {"plain": ops.PLAIN["attend"], "fused": fused, "chosen": attention.attend}


@dataclass
class Case:
    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    soft_cap: float | None
    mask: Mask

    def reference(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, soft_cap: float | None
    ) -> Tensor:
        """Equation 1, one query at a time; a query without a key gives 0."""
        rows, heads, queries, width = q.shape
        out = 0 * q.sum() + v.new_zeros(rows, heads, queries, width)
        bias = None if bias is None else bias.expand(rows, heads, queries, -1)
        allowed = self.allowed()
        for b, h, t in torch.cartesian_prod(
            *(torch.arange(size) for size in out.shape[:3])
        ).tolist():
            keys = allowed[b, t].nonzero().flatten()
            if len(keys):
                scores = k[b, h, keys] @ q[b, h, t] / math.sqrt(width)
                scores = scores if soft_cap is None else soft_cap * torch.tanh(scores / soft_cap)
                scores = scores if bias is None else scores + bias[b, h, t, keys]
                out[b, h, t] = torch.softmax(scores, dim=0) @ v[b, h, keys]
        return out

    def allowed(self) -> Tensor:
        keys = self.k.shape[2]
        allowed = torch.ones(self.q.shape[0], self.q.shape[2], keys, dtype=torch.bool)
        if self.mask.keys is not None:
            allowed &= self.mask.keys[:, None, :]
        if self.mask.causal:
            allowed &= (
                torch.arange(keys) <= torch.arange(self.q.shape[2])[:, None] + self.mask.offset
            )
        return allowed


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rows, heads, queries = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    width = draw(st.sampled_from([1, 3, 8]))
    causal = draw(st.booleans())
    offset = draw(st.integers(0, 3)) if causal else 0
    keys = queries + offset if causal else draw(st.integers(1, 6))
    real = draw(st.none() | st.lists(st.booleans(), min_size=rows * keys, max_size=rows * keys))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    q, k, v = (random(rows, heads, length, width) * 2 for length in (queries, keys, keys))
    size = draw(st.none() | st.tuples(st.sampled_from([1, rows]), st.sampled_from([1, queries])))
    bias = None if size is None else random(size[0], heads, size[1], keys)
    real = None if real is None else torch.tensor(real).view(rows, keys)
    soft_cap = draw(st.sampled_from([None, 0.7]))
    return Case(q, k, v, bias, soft_cap, Mask(real, causal=causal, offset=offset))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kernel", KERNELS)
@given(cases())
def test_attend_equals_equation_1_with_its_gradients(kernel: str, case: Case) -> None:
    plain = kernel in (
        "plain",
        "chosen",
    )  # the others cover neither soft caps nor gradients of the bias
    soft_cap = case.soft_cap if plain else None
    results = []
    for dtype in (torch.float64, torch.float32):
        q, k, v, bias = (
            None if x is None else x.to(dtype) for x in (case.q, case.k, case.v, case.bias)
        )
        leaves = [x.requires_grad_() for x in (q, k, v, bias if plain else None) if x is not None]
        if dtype is torch.float64:
            out = case.reference(q, k, v, bias, soft_cap)
        else:
            out = KERNELS[kernel](q, k, v, case.mask, bias=bias, soft_cap=soft_cap)
        loss = (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum()
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        results.append([x.double() for x in (out.detach(), *gradients)])
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("causal", [False, True])
def test_a_fully_masked_row_gives_0_and_finite_gradients(kernel: str, causal: bool) -> None:
    q, k, v = (torch.randn(2, 2, 3, 4, requires_grad=True) for _ in range(3))
    keys = torch.tensor([[True, True, False], [False, False, False]])
    out = KERNELS[kernel](q, k, v, Mask(keys, causal=causal))
    assert not out[1].any()
    assert out[0].all()
    for gradient in torch.autograd.grad(out.sum(), (q, k, v)):
        assert torch.isfinite(gradient).all()
        assert not gradient[1].any()


@torch.no_grad()
def test_a_captured_model_uses_the_plain_kernel_and_gives_the_same_result(
    make_model: Callable[..., Transformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(shape="decoder", max_positions=200)
    inputs = Inputs(torch.randint(3, 17, (1, 200)))
    calls: list[int] = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def counted(*tensors: Any, **named: Any) -> torch.Tensor:
        calls.append(1)
        return kernel(*tensors, **named)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    expected = model(inputs)
    assert len(calls) == 2  # a long text uses the fused kernel in both layers
    with capture(model) as captured:
        got = model(inputs)
    assert len(calls) == 2
    assert len(captured) >= 2
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    model(inputs)
    assert len(calls) == 4  # again when nothing is captured


# --- variants at the sizes from which kernels run -------------------------------------------------

TWO_STREAMS = {
    "shape": "encoder",
    "positions": "relative-sinusoidal",
    "query_stream": True,
    "heads": ["lm"],
    "d_model": 512,
    "n_heads": 8,
    "d_ff": 512,
    "dropout": 0.0,
}


@torch.no_grad()
def test_a_query_stream_with_one_target_does_not_see_it(
    make_model: Callable[..., Transformer],
) -> None:
    model, tokens = make_model(**TWO_STREAMS), torch.randint(3, 29, (2, 7))
    order, target = torch.randperm(7).expand(2, -1), torch.tensor([[2], [2]])
    got = query_states(model, Inputs(tokens, order=order), target)
    with fast.disabled():
        torch.testing.assert_close(
            got, query_states(model, Inputs(tokens, order=order), target), rtol=1e-4, atol=1e-4
        )
    tokens[:, 2] += 1
    assert torch.equal(got, query_states(model, Inputs(tokens, order=order), target))


def test_packed_rows_keep_their_order(make_model: Callable[..., Transformer]) -> None:
    layer = make_model(shape="encoder", positions="none").encoder.blocks[0].self_attention.sublayer
    packing = Packing.of(torch.tensor([6, 4]))
    x = torch.randn(1, packing.length, 16, requires_grad=True)
    order = torch.stack([torch.randperm(packing.shape[1]) for _ in range(2)])
    mask = Mask(packing.attend, packing=packing, rules=(Order(order),))
    got = layer(x, mask=mask)[:, : packing.n_real]
    with fast.disabled():
        expected = layer(x, mask=mask)[:, : packing.n_real]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_attention_of_prompts_is_compiled_where_the_processor_has_instructions(
    dtype: torch.dtype,
) -> None:
    precision = str(dtype).removeprefix("torch.")
    has_products = products_of_keys(precision) is not None
    expected = fast.compiled_interpreter() is not None and has_products
    q, k, v = torch.randn(3, 2, 4, 16, 32).to(dtype)
    mask = Mask(causal=True)
    assert attention.supports_prompt_attention(q, k, v, mask, None) == expected
    assert not attention.supports_prompt_attention(q[:, :, :15], k, v, mask, None), "few queries"
    assert not attention.supports_prompt_attention(q[..., :8], k[..., :8], v[..., :8], mask, None)
    assert not attention.supports_prompt_attention(
        q, k, v, Mask(torch.ones(2, 16) > 0, causal=True), None
    )
    assert not attention.supports_prompt_attention(q, k, v, mask, torch.zeros(1, 4, 16, 16))
    assert not attention.supports_prompt_attention(q, k, v, Mask(), None)
    assert not attention.supports_prompt_attention(q, k[:1], v[:1], mask, None)
    with torch.enable_grad():
        assert not attention.supports_prompt_attention(q, k, v, mask, None)


@torch.no_grad()
def test_attention_of_prompts_in_bf16_has_the_rounding_errors_of_pytorch() -> None:
    q, k, v = torch.randn(3, 1, 2, 300, 64).bfloat16()
    mask = Mask(causal=True)
    exact = ops.PLAIN["attend"](q.double(), k.double(), v.double(), mask)
    found, usual = (
        float((each.double() - exact).norm())
        for each in (
            attention.attend(q, k, v, mask),
            attention.fused_attention(q, k, v, mask, None),
        )
    )
    assert found <= 1.5 * usual
