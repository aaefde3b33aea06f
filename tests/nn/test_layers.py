from __future__ import annotations

from typing import get_args

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn
from torch.nn import functional as F

from trifold.nn import ModelConfig
from trifold.nn.layers import ACTIVATIONS, Dropout, FeedForward, LayerNorm, Residual, RMSNorm

DRAWS = 200_000


@given(st.floats(0.01, 0.9))
def test_dropout_keeps_the_expectation_and_has_the_variance_of_the_theory(p: float) -> None:
    """Mean 1 and variance p / (1 - p), within five standard errors."""
    out = Dropout(p).train()(torch.ones(DRAWS))
    kept = out != 0
    assert torch.allclose(out[kept], torch.tensor(1 / (1 - p)))
    variance = p / (1 - p)
    assert abs(kept.float().mean() - (1 - p)) < 5 * (p * (1 - p) / DRAWS) ** 0.5
    assert abs(out.mean() - 1) < 5 * (variance / DRAWS) ** 0.5
    assert abs(out.var() / variance - 1) < 0.1


def test_neighbours_are_dropped_independently() -> None:
    dropped = (Dropout(0.5).train()(torch.ones(DRAWS)) == 0).float().view(-1, 8)
    correlation = torch.corrcoef(dropped.t()) - torch.eye(8)
    assert correlation.abs().max() < 5 * (8 / DRAWS) ** 0.5
    assert abs(torch.corrcoef(torch.stack([dropped[:-1, 7], dropped[1:, 0]]))[0, 1]) < 5 * (8 / DRAWS) ** 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_seed_decides_what_is_dropped(dtype: torch.dtype) -> None:
    drop, x = Dropout(0.3).train(), torch.randn(3, 5, 7).to(dtype)
    torch.manual_seed(1)
    first = drop(x)
    torch.manual_seed(1)
    assert torch.equal(drop(x), first)
    torch.manual_seed(2)
    assert not torch.equal(drop(x), first)
    assert first.dtype is dtype


def test_dropping_and_adding_in_one_pass_is_dropping_then_adding() -> None:
    drop, x, y = Dropout(0.3).train(), torch.randn(40, 9), torch.randn(40, 9)
    torch.manual_seed(1)
    together = drop.add(x, y)
    torch.manual_seed(1)
    torch.testing.assert_close(together, x + drop(y))


def test_nothing_is_dropped_outside_training_or_at_0() -> None:
    x = torch.randn(10, 10)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0).train()(x), x)


def test_the_gradient_flows_where_the_value_did() -> None:
    x = torch.ones(100, requires_grad=True)
    out = Dropout(0.5).train()(x)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())


CONFIG = ModelConfig(d_model=12, n_heads=3, d_ff=20)


def test_layer_norm_is_its_formula() -> None:
    norm = LayerNorm(CONFIG)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.randn(4, 12) * 3 + 1
    expected = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(norm(x), expected * norm.weight + norm.bias)


@pytest.mark.parametrize("activation", get_args(ModelConfig.model_fields["activation"].annotation))
def test_feed_forward_is_equation_2(activation: str) -> None:
    layer = FeedForward(CONFIG.model_copy(update={"activation": activation}))
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, 3, 12)
    inner = ACTIVATIONS[activation](x @ layer.in_proj.weight.t() + layer.in_proj.bias)
    torch.testing.assert_close(
        layer(x), inner @ layer.out_proj.weight.t() + layer.out_proj.bias, rtol=1e-4, atol=1e-5
    )


def test_relu_and_its_relatives() -> None:
    x = torch.linspace(-4, 4, 33)
    assert torch.equal(ACTIVATIONS["relu"](x), x.clamp_min(0))
    torch.testing.assert_close(ACTIVATIONS["silu"](x), x / (1 + (-x).exp()))
    torch.testing.assert_close(ACTIVATIONS["gelu"](x), x * torch.distributions.Normal(0, 1).cdf(x))
    assert 0 < (ACTIVATIONS["gelu-tanh"](x) - ACTIVATIONS["gelu"](x)).abs().max() < 1e-3


def test_where_the_norms_stand() -> None:
    x = torch.randn(2, 3, 12)
    sublayer = nn.Linear(12, 12)
    wired = {
        placement: Residual(sublayer, CONFIG.model_copy(update={"norm_placement": placement})).eval()
        for placement in ("post", "pre", "sandwich")
    }
    for residual in wired.values():
        for norm in (residual.enter, residual.exit, residual.after):
            for parameter in norm.parameters():
                nn.init.normal_(parameter)

    def norm(layer: LayerNorm, y: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(y, (12,), layer.weight, layer.bias)

    post, pre, sandwich = wired["post"], wired["pre"], wired["sandwich"]
    torch.testing.assert_close(post(x), norm(post.after, x + sublayer(x)))
    torch.testing.assert_close(pre(x), x + sublayer(norm(pre.enter, x)))
    torch.testing.assert_close(sandwich(x), x + norm(sandwich.exit, sublayer(norm(sandwich.enter, x))))


def test_dropout_stands_on_the_branch_alone() -> None:
    residual = Residual(
        nn.Identity(), CONFIG.model_copy(update={"norm_placement": "pre", "dropout": 0.5})
    ).train()
    nn.init.zeros_(residual.enter.weight)
    nn.init.ones_(residual.enter.bias)  # the branch is 1 everywhere
    x = torch.randn(50, 12)
    branch = residual(x) - x
    assert {round(value, 3) for value in branch.flatten().tolist()} == {0.0, 2.0}


def test_rms_norm_is_its_formula_and_a_layer_norm_may_have_no_bias() -> None:
    norm, x = RMSNorm(CONFIG, 7), torch.randn(4, 7) * 3 + 1
    nn.init.normal_(norm.weight)
    torch.testing.assert_close(norm(x), x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight)
    bare = LayerNorm(CONFIG.model_copy(update={"norm_bias": False}), 7)
    assert bare.bias is None
    torch.testing.assert_close(bare(x), F.layer_norm(x, (7,)))


def test_a_gate_multiplies_the_inner_layer() -> None:
    layer = FeedForward(CONFIG.model_copy(update={"gated": True, "activation": "silu"}))
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    for rows in (2, 90):  # one by one, and as one product
        x = torch.randn(rows, 3, 12)
        gate, inner = (x @ p.weight.t() + p.bias for p in (layer.gate_proj, layer.in_proj))
        expected = (F.silu(gate) * inner) @ layer.out_proj.weight.t() + layer.out_proj.bias
        torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)


def test_dropout_inside_the_feed_forward() -> None:
    layer = FeedForward(CONFIG.model_copy(update={"activation_dropout": 0.5}))
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(2, 3, 12)
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    layer.train()
    assert not torch.equal(layer(x), layer(x))


def test_quick_gelu_is_the_reference_librarys() -> None:
    from transformers.activations import ACT2FN

    x = torch.linspace(-6, 6, 99)
    torch.testing.assert_close(ACTIVATIONS["quick-gelu"](x), ACT2FN["quick_gelu"](x))
