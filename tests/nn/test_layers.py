from __future__ import annotations

from typing import get_args

import pytest
import torch
from hypothesis import given, strategies as st
from tests.laws.configs import config_of
from tests.models import randomize
from torch import nn
from torch.nn import functional as F

from trifold.nn import ModelConfig, Transformer
from trifold.nn.formulas import evaluate
from trifold.nn.layers import ACTIVATIONS, Dropout, FeedForward, Residual
from trifold.nn.norms import LayerNorm, RMSNorm, new_norm

DRAWS = 200_000


@pytest.mark.slow
@given(st.floats(0.01, 0.9))
def test_dropout_has_mean_1_and_its_theoretical_variance(p: float) -> None:
    """Variance p / (1 - p), within five standard errors. The gradient has the same mask."""
    x = torch.ones(DRAWS, requires_grad=True)
    out = Dropout(p).train()(x)
    assert torch.equal(torch.autograd.grad(out.sum(), x)[0], out)
    kept = out != 0
    assert torch.allclose(out[kept], torch.tensor(1 / (1 - p)))
    variance = p / (1 - p)
    assert abs(kept.float().mean() - (1 - p)) < 5 * (p * (1 - p) / DRAWS) ** 0.5
    assert abs(out.mean() - 1) < 5 * (variance / DRAWS) ** 0.5
    assert abs(out.var() / variance - 1) < 0.1


def test_neighbors_are_dropped_independently() -> None:
    dropped = (Dropout(0.5).train()(torch.ones(DRAWS)) == 0).float().view(-1, 8)
    correlation = torch.corrcoef(dropped.t()) - torch.eye(8)
    assert correlation.abs().max() < 5 * (8 / DRAWS) ** 0.5
    assert (
        abs(torch.corrcoef(torch.stack([dropped[:-1, 7], dropped[1:, 0]]))[0, 1])
        < 5 * (8 / DRAWS) ** 0.5
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_seed_determines_the_dropout_mask(dtype: torch.dtype) -> None:
    drop, x = Dropout(0.3).train(), torch.randn(3, 5, 7).to(dtype)
    torch.manual_seed(1)
    first = drop(x)
    torch.manual_seed(1)
    assert torch.equal(drop(x), first)
    torch.manual_seed(2)
    assert not torch.equal(drop(x), first)
    assert first.dtype is dtype


def test_fused_add_equals_dropout_then_addition() -> None:
    drop, x, y = Dropout(0.3).train(), torch.randn(40, 9), torch.randn(40, 9)
    torch.manual_seed(1)
    together = drop.add(x, y)
    torch.manual_seed(1)
    torch.testing.assert_close(together, x + drop(y))


def test_dropout_is_the_identity_in_evaluation_and_at_rate_0() -> None:
    x = torch.randn(10, 10)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0).train()(x), x)


CONFIG = ModelConfig(d_model=12, n_heads=3, d_ff=20)


def test_layer_norm_follows_its_formula() -> None:
    norm = randomize(LayerNorm(CONFIG))
    x = torch.randn(4, 12) * 3 + 1
    expected = (x - x.mean(-1, keepdim=True)) / (
        x.var(-1, correction=0, keepdim=True) + 1e-5
    ).sqrt()
    torch.testing.assert_close(norm(x), expected * norm.weight + norm.bias)


@pytest.mark.parametrize("norm", get_args(ModelConfig.model_fields["norm"].annotation))
@pytest.mark.parametrize("weight", get_args(ModelConfig.model_fields["norm_weight"].annotation))
@pytest.mark.parametrize("bias", [False, True])
def test_a_norm_describes_itself(norm: str, weight: str, bias: bool) -> None:
    """Its formula counts its parameters, and a new one only normalizes."""
    config = CONFIG.model_copy(update={"norm": norm, "norm_weight": weight, "norm_bias": bias})
    layer = randomize(new_norm(config))
    formula = layer.parameters_of(config, "E")
    assert evaluate(config, formula, {}) == sum(p.numel() for p in layer.parameters())
    text, statistics = layer.equation(torch.randn(12))
    assert ("weight" in text, "bias" in text) == (
        layer.weight is not None,
        getattr(layer, "bias", None) is not None,
    )
    assert statistics
    layer.reset()
    out = layer(torch.randn(4, 12))
    torch.testing.assert_close(out.square().mean(-1), torch.ones(4), atol=1e-4, rtol=0)


def test_factors_of_a_new_stem_are_1_beside_norms_whose_factor_is_1_plus_weight() -> None:
    model = Transformer(config_of("encoder: patches, learned positions"))
    assert model.config.norm_weight == "plus-one"
    weights = dict(model.named_parameters())
    assert torch.equal(weights["encoder_embeddings.stem.1.weight"], torch.ones(4))
    assert not weights["encoder.blocks.0.self_attention.enter.weight"].any()


def test_activations_follow_their_formulas() -> None:
    x = torch.linspace(-4, 4, 33)
    assert torch.equal(ACTIVATIONS["relu"](x), x.clamp_min(0))
    torch.testing.assert_close(ACTIVATIONS["silu"](x), x / (1 + (-x).exp()))
    torch.testing.assert_close(ACTIVATIONS["gelu"](x), x * torch.distributions.Normal(0, 1).cdf(x))
    assert 0 < (ACTIVATIONS["gelu-tanh"](x) - ACTIVATIONS["gelu"](x)).abs().max() < 1e-3
    torch.testing.assert_close(ACTIVATIONS["quick-gelu"](x), x * torch.sigmoid(1.702 * x))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", get_args(ModelConfig.model_fields["activation"].annotation))
def test_feed_forward_follows_equation_2(activation: str, gated: bool) -> None:
    values = {"activation": activation, "gated": gated, "activation_dropout": 0.5}
    layer = randomize(FeedForward(CONFIG.model_copy(update=values)), 0.5).eval()
    for rows in (2, 90):  # small inputs use one matmul per layer, large ones a single one
        x = torch.randn(rows, 3, 12)
        inner = x @ layer.in_proj.weight.t() + layer.in_proj.bias
        gate = x @ layer.gate_proj.weight.t() + layer.gate_proj.bias if gated else inner
        inner = ACTIVATIONS[activation](gate) * (inner if gated else 1)
        expected = inner @ layer.out_proj.weight.t() + layer.out_proj.bias
        torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)
    layer.train()
    torch.manual_seed(1)
    got = layer(x)
    torch.manual_seed(1)
    torch.testing.assert_close(got, layer.out_proj(layer.drop(inner)), rtol=1e-4, atol=1e-4)
    assert not torch.equal(got, layer(x))


def test_norm_placements() -> None:
    x = torch.randn(2, 3, 12)
    sublayer = nn.Linear(12, 12)
    wired = {
        placement: Residual(
            sublayer, CONFIG.model_copy(update={"norm_placement": placement})
        ).eval()
        for placement in ("post", "pre", "sandwich")
    }
    for residual in wired.values():
        for norm in (residual.enter, residual.exit, residual.after):
            randomize(norm)

    def norm(layer: LayerNorm, y: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(y, (12,), layer.weight, layer.bias)

    post, pre, sandwich = wired["post"], wired["pre"], wired["sandwich"]
    torch.testing.assert_close(post(x), norm(post.after, x + sublayer(x)))
    torch.testing.assert_close(pre(x), x + sublayer(norm(pre.enter, x)))
    torch.testing.assert_close(
        sandwich(x), x + norm(sandwich.exit, sublayer(norm(sandwich.enter, x)))
    )


def test_residual_dropout_applies_to_the_branch_only() -> None:
    residual = Residual(
        nn.Identity(), CONFIG.model_copy(update={"norm_placement": "pre", "dropout": 0.5})
    ).train()
    nn.init.zeros_(residual.enter.weight)
    nn.init.ones_(residual.enter.bias)  # the branch is 1 everywhere
    x = torch.randn(50, 12)
    branch = residual(x) - x
    assert {round(value, 3) for value in branch.flatten().tolist()} == {0.0, 2.0}


def test_rms_norm_follows_its_formula_and_layer_norm_may_lack_a_bias() -> None:
    norm, x = randomize(RMSNorm(CONFIG, 7)), torch.randn(4, 7) * 3 + 1
    torch.testing.assert_close(
        norm(x), x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight
    )
    bare = LayerNorm(CONFIG.model_copy(update={"norm_bias": False}), 7)
    assert bare.bias is None
    torch.testing.assert_close(bare(x), F.layer_norm(x, (7,)))
