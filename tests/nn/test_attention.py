from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from trifold.fast.attention import Kernel, attend
from trifold.nn import Cache, Mask, ModelConfig
from trifold.nn.attention import Attention


def by_the_book(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    """Equation 1, one query at a time, in float64; a query without a key gives 0."""
    rows, heads, queries, width = q.shape
    out = 0 * q.sum() + v.new_zeros(rows, heads, queries, v.shape[-1])
    for b in range(rows):
        for h in range(heads):
            for t in range(queries):
                seen = allowed[b, t].nonzero().flatten()
                if len(seen):
                    weights = torch.softmax(k[b, h, seen] @ q[b, h, t] / math.sqrt(width), dim=0)
                    out[b, h, t] = weights @ v[b, h, seen]
    return out


@dataclass
class Case:
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask

    @property
    def allowed(self) -> Tensor:
        rows, _, queries, _ = self.q.shape
        keys = self.k.shape[2]
        allowed = torch.ones(rows, queries, keys, dtype=torch.bool)
        if self.mask.keys is not None:
            allowed &= self.mask.keys[:, None, :]
        if self.mask.causal:
            allowed &= torch.arange(keys) <= torch.arange(queries)[:, None] + self.mask.offset
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
    q, k, v = (
        torch.randn(rows, heads, length, width, generator=generator, dtype=torch.float64) * 2
        for length in (queries, keys, keys)
    )
    real = None if real is None else torch.tensor(real).view(rows, keys)
    return Case(q, k, v, Mask(real, causal=causal, offset=offset))


@pytest.mark.parametrize("kernel", get_args(Kernel))
@given(cases())
def test_attend_is_equation_1_with_its_gradients(kernel: Kernel, case: Case) -> None:
    results = []
    for inputs, compute in (
        ([case.q, case.k, case.v], lambda q, k, v: by_the_book(q, k, v, case.allowed)),
        (
            [x.float() for x in (case.q, case.k, case.v)],
            lambda q, k, v: attend(q, k, v, case.mask, kernel=kernel),
        ),
    ):
        leaves = [x.clone().requires_grad_() for x in inputs]
        out = compute(*leaves)
        (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
        gradients = [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves]
        results.append([x.double() for x in (out.detach(), *gradients)])
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", get_args(Kernel))
@pytest.mark.parametrize("causal", [False, True])
def test_a_row_that_may_attend_to_nothing_gives_0_and_finite_gradients(kernel: Kernel, causal: bool) -> None:
    q, k, v = (torch.randn(2, 2, 3, 4, requires_grad=True) for _ in range(3))
    keys = torch.tensor([[True, True, False], [False, False, False]])
    out = attend(q, k, v, Mask(keys, causal=causal), kernel=kernel)
    assert not out[1].any()
    assert out[0].all()
    out.sum().backward()
    for x in (q, k, v):
        assert x.grad is not None
        assert torch.isfinite(x.grad).all()
        assert not x.grad[1].any()


def test_dragons_breathe_fire() -> None:
    """One-hot words and no projections: each looks at itself with e^(1/√3), at the others with e^0."""
    words = torch.eye(3)[None, None]
    for kernel in get_args(Kernel):
        weights = attend(words, words, words, Mask(), kernel=kernel)[0, 0]
        torch.testing.assert_close(weights[1], torch.tensor([0.2645, 0.4711, 0.2645]), rtol=0, atol=5e-5)
        torch.testing.assert_close(weights.sum(-1), torch.ones(3))


def test_uniform_scores_are_an_average() -> None:
    v = torch.randn(1, 1, 5, 4)
    out = attend(torch.zeros(1, 1, 2, 4), torch.randn(1, 1, 5, 4), v, Mask())
    torch.testing.assert_close(out[0, 0], v[0, 0].mean(0).expand(2, 4))


@given(cases())
def test_the_order_of_keys_does_not_matter_without_positions(case: Case) -> None:
    if case.mask.causal:
        return
    order = torch.randperm(case.k.shape[2])
    keys = None if case.mask.keys is None else case.mask.keys[:, order]
    shuffled = attend(case.q, case.k[:, :, order], case.v[:, :, order], Mask(keys))
    torch.testing.assert_close(shuffled, attend(case.q, case.k, case.v, case.mask))


CONFIG = {"d_model": 24, "n_heads": 6}


def randomised(module: torch.nn.Module) -> None:
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.4)


@pytest.mark.parametrize("bias", [False, True])
def test_multi_head_is_each_head_alone_then_joined(bias: bool) -> None:
    """head_i = Attention(x W_i^Q, x W_i^K, x W_i^V), concatenated, times W^O."""
    attention = Attention(ModelConfig(**CONFIG, attention_bias=bias))
    randomised(attention)
    x = torch.randn(2, 5, 24)
    heads = []
    for i in range(6):
        part = slice(4 * i, 4 * i + 4)
        q, k, v = (
            x @ layer.weight[part].t() + (0 if layer.bias is None else layer.bias[part])
            for layer in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        heads.append(torch.softmax(q @ k.transpose(1, 2) / 2, -1) @ v)
    torch.testing.assert_close(
        attention(x, mask=Mask()), attention.o_proj(torch.cat(heads, -1)), rtol=1e-4, atol=1e-5
    )


def test_shared_key_heads_are_full_ones_repeated() -> None:
    few = Attention(ModelConfig(**CONFIG, n_kv_heads=2))
    full = Attention(ModelConfig(**CONFIG))
    randomised(few)
    full.q_proj, full.o_proj = few.q_proj, few.o_proj
    with torch.no_grad():
        for name in ("k_proj", "v_proj"):
            weight = getattr(few, name).weight.view(2, 4, 24).repeat_interleave(3, 0).view(24, 24)
            getattr(full, name).weight.copy_(weight)
    x = torch.randn(2, 5, 24)
    mask = Mask(causal=True)
    torch.testing.assert_close(few(x, mask=mask), full(x, mask=mask), rtol=1e-4, atol=1e-5)


def test_beams_that_share_a_memory_are_beams_that_repeat_it() -> None:
    attention = Attention(ModelConfig(**CONFIG))
    randomised(attention)
    memory, x = torch.randn(2, 5, 24), torch.randn(6, 1, 24)
    keys = torch.tensor([[True] * 5, [True, True, False, False, False]])
    shared = attention(x, memory, mask=Mask(keys), cache=Cache(1).layers[0])
    repeated = attention(x, memory.repeat_interleave(3, 0), mask=Mask(keys.repeat_interleave(3, 0)))
    torch.testing.assert_close(shared, repeated)


@pytest.mark.parametrize("kernel", get_args(Kernel))
@given(cases(), st.booleans())
def test_a_bias_is_added_to_the_scores(kernel: Kernel, case: Case, per_row: bool) -> None:
    rows, heads, _, width = case.q.shape
    bias = torch.randn(rows if per_row else 1, heads, 1, case.k.shape[2])
    out = attend(*(x.float() for x in (case.q, case.k, case.v)), case.mask, bias=bias, kernel=kernel)
    scores = case.q @ case.k.transpose(-1, -2) / math.sqrt(width) + bias.double()
    scores = scores.masked_fill(~case.allowed[:, None], float("-inf"))
    expected = torch.softmax(scores, -1).nan_to_num(0.0) @ case.v
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)


@given(cases())
def test_a_soft_cap_bends_the_scores_before_the_mask(case: Case) -> None:
    out = attend(case.q, case.k, case.v, case.mask, soft_cap=0.7)
    scores = 0.7 * torch.tanh(case.q @ case.k.transpose(-1, -2) / math.sqrt(case.q.shape[-1]) / 0.7)
    scores = scores.masked_fill(~case.allowed[:, None], float("-inf"))
    torch.testing.assert_close(out, torch.softmax(scores, -1).nan_to_num(0.0) @ case.v)


def test_a_learned_bias_gets_its_gradient() -> None:
    q, k, v = (torch.randn(2, 3, 4, 5) for _ in range(3))
    bias = torch.randn(1, 3, 4, 4, requires_grad=True)
    out = attend(q, k, v, Mask(causal=True), bias=bias)
    scores = (q @ k.transpose(-1, -2) / math.sqrt(5) + bias).masked_fill(
        ~torch.ones(4, 4).tril().bool(), float("-inf")
    )
    loss = torch.randn_like(out)
    (got,) = torch.autograd.grad((out * loss).sum(), bias)
    (expected,) = torch.autograd.grad(((scores.softmax(-1) @ v) * loss).sum(), bias)
    torch.testing.assert_close(got, expected)
    with torch.no_grad():
        torch.testing.assert_close(attend(q, k, v, Mask(causal=True), bias=bias), out)


@pytest.mark.parametrize("layer", [0, 3])
@pytest.mark.parametrize("scale", [None, 1.0, 0.2])
def test_scores_are_scaled_as_asked(scale: float | None, layer: int) -> None:
    config = ModelConfig(**CONFIG, attention_scale=scale, attention_scale_by_layer=True)
    asked, plain = Attention(config, layer), Attention(ModelConfig(**CONFIG))
    randomised(asked)
    plain.load_state_dict(asked.state_dict())
    with torch.no_grad():
        plain.q_proj.weight.mul_((0.5 if scale is None else scale) / (layer + 1) * 2)  # 1/sqrt(4) is 1/2
    x = torch.randn(2, 5, 24)
    torch.testing.assert_close(asked(x, mask=Mask()), plain(x, mask=Mask()), rtol=1e-4, atol=1e-5)


def test_the_output_may_have_a_bias_of_its_own() -> None:
    attention = Attention(ModelConfig(**CONFIG, attention_out_bias=True))
    assert attention.q_proj.bias is None
    assert attention.o_proj.bias is not None
