"""Attention of linear cost: it equals its dense definition, approximates softmax, and obeys the
laws of attention.
"""

from __future__ import annotations

import pytest
import torch
from tests.models import randomize
from torch.nn import functional as F

from trifold.costs import count_parameters, forward_flops
from trifold.errors import SettingsError
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.attention import Attention
from trifold.nn.hooks import capture
from trifold.nn.masks import Mask
from trifold.nn.variants.linear_attention import (
    CHUNK,
    KernelAttention,
    RandomFeatureAttention,
    RunningSums,
    orthogonal_directions,
)
from trifold.nn.variants.low_rank import LowRankAttention

BASE = {
    "shape": "decoder", "vocab_size": 50, "max_positions": 4096, "d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 48,
    "positions": "rotary", "norm_placement": "pre", "scale_embeddings": False, "dropout": 0.0,
}  # fmt: skip
KINDS = {
    "elu": {"attention": "elu", "n_kv_heads": 2},
    "favor": {"attention": "favor", "n_features": 24},
    "elu encoder": {"attention": "elu", "shape": "encoder"},
    "favor encoder": {"attention": "favor", "n_features": 24, "shape": "encoder"},
    "low-rank": {"attention": "low-rank", "rank": 5, "shape": "encoder", "max_positions": 16},
}
every = pytest.mark.parametrize("kind", KINDS)
causal = pytest.mark.parametrize("kind", ["elu", "favor"])
LENGTHS = (9, 5, 7)


def model(kind: str, **more: object) -> Transformer:
    torch.manual_seed(0)
    return randomize(Transformer(ModelConfig.parse(BASE | KINDS[kind] | more)).eval(), 0.3)


def rows() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(50, (1, length), generator=generator) for length in LENGTHS]


@every
def test_sums_equal_the_dense_definition_with_their_gradients(kind, monkeypatch):
    monkeypatch.setattr("trifold.nn.variants.linear_attention.CHUNK", 4)
    monkeypatch.setattr("trifold.nn.variants.linear_attention.SEGMENT", 8)
    net = model(kind).double()
    tokens = torch.randint(
        50, (2, 16 if kind == "low-rank" else 21), generator=torch.Generator().manual_seed(2)
    )
    attend = torch.ones_like(tokens, dtype=torch.bool)
    attend[1, 14:] = False
    found = net(Inputs(tokens, attend))[attend]
    found.square().sum().backward()
    gradients = {name: p.grad for name, p in net.named_parameters()}
    net.zero_grad()
    with capture(net, "pattern"):
        dense = net(Inputs(tokens, attend))[attend]
        torch.testing.assert_close(dense, found)
        dense.square().sum().backward()
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name])


def test_elu_is_the_formula():
    layer = randomize(
        KernelAttention(ModelConfig.parse(BASE | {"attention": "elu", "positions": "none"})), 0.4
    )
    x = torch.randn(1, 6, 32)
    q, k, v = layer.project(x)
    products = ((F.elu(q) + 1) @ (F.elu(k) + 1).mT).tril()
    expected = (products / products.sum(-1, keepdim=True)) @ v
    got = layer(x, mask=Mask(causal=True))
    torch.testing.assert_close(got, layer.o_proj(expected.transpose(1, 2).flatten(2)))
    nothing = layer(x, mask=Mask(torch.zeros(1, 6, dtype=torch.bool)))
    torch.testing.assert_close(nothing, layer.o_proj(torch.zeros(1, 6, 32)))


@pytest.mark.parametrize("is_causal", [False, True])
@torch.no_grad()
def test_random_features_approximate_softmax(is_causal):
    x = 0.3 * torch.randn(1, 40, 32, generator=torch.Generator().manual_seed(1))
    errors, mask = [], Mask(causal=is_causal)
    for features in (16, 512, 16384):
        config = ModelConfig.parse(
            BASE | {"attention": "favor", "n_features": features, "positions": "none"}
        )
        torch.manual_seed(1)
        layer, full = randomize(RandomFeatureAttention(config), 0.15), Attention(config)
        full.load_state_dict(layer.state_dict())
        expected = full(x, mask=mask)
        errors.append(float((layer(x, mask=mask) - expected).norm() / expected.norm()))
    assert errors[0] > 2 * errors[1] > 4 * errors[2] and errors[2] < 0.05


def test_a_cleared_cache_is_an_empty_one():
    sums = RunningSums()
    sums.add(torch.ones(1, 2, 3, 4), 5)
    sums.clear()
    assert (sums.length, sums.state) == (0, None)


def test_directions_are_orthogonal_and_a_function_of_the_seed():
    rows = orthogonal_directions(24, 8, 3)
    products = rows[:8] @ rows[:8].T
    assert (products - products.diag().diag()).abs().max() < 1e-4
    assert torch.equal(rows, orthogonal_directions(24, 8, 3))
    assert not torch.equal(rows, orthogonal_directions(24, 8, 4))
    many = orthogonal_directions(8000, 8, 0)
    assert abs(float(many.square().sum(-1).mean()) - 8) < 0.3


def test_as_many_mixtures_as_tokens_are_full_attention():
    config = ModelConfig.parse(BASE | KINDS["low-rank"] | {"rank": 16, "positions": "none"})
    layer, x = randomize(LowRankAttention(config), 0.3), torch.randn(2, 16, 32)
    full = Attention(config)
    full.load_state_dict({k: v for k, v in layer.state_dict().items() if "mix" not in k})
    with torch.no_grad():
        layer.k_mix.copy_(torch.eye(16))
        layer.v_mix.copy_(torch.eye(16))
    torch.testing.assert_close(layer(x, mask=Mask()), full(x, mask=Mask()))


@every
def test_costs(kind):
    config = model(kind).config
    assert count_parameters(config) == model(kind).count_parameters()
    lengths = [(n, 0) if config.shape == "encoder" else (0, n) for n in (CHUNK, 4000)]
    assert forward_flops(config, *lengths[0]) == forward_flops(config, *lengths[1])


@pytest.mark.parametrize(("values", "message"), [
    ({"attention": "low-rank"}, "needs shape: encoder"),
    ({"attention": "elu", "positions": "alibi"}, "has no offsets of scores"),
    ({"attention": "elu", "sliding_window": 4}, "excludes sliding_window"),
    ({"n_features": 7}, "n_features needs attention: favor"),
])  # fmt: skip
def test_contradictions_are_named(values, message):
    with pytest.raises(SettingsError, match=message):
        ModelConfig.parse(BASE | values)


def test_a_query_without_keys_has_finite_gradients():
    decoder, tokens = model("elu"), torch.randint(50, (1, 6))
    attend = torch.tensor([[False, False, True, True, True, True]])
    decoder(Inputs(tokens, attend))[attend].square().sum().backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in decoder.parameters())
