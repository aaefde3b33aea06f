"""Adaptive spans against the equations of their paper, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from tests.models import randomize

from trifold.errors import SettingsError
from trifold.nn import Inputs, Mask, ModelConfig, Transformer
from trifold.nn.parts import AttentionPart, part_of
from trifold.nn.variants.adaptive_span import AdaptiveSpanAttention

SIZE, RAMP = 20, 5
P = torch.tensor([0.0, 2.0, 50.0], dtype=torch.float64)  # the last head reads as far as it can
SPANS = [SIZE / (1 + math.exp(4 - p)) for p in P.tolist()]


def config(**values: object) -> ModelConfig:
    given = {"shape": "decoder", "d_model": 12, "n_heads": 3, "n_layers": 2, "vocab_size": 20}
    return ModelConfig.parse(
        given | {"adaptive_span": {"size": SIZE, "ramp": RAMP, "penalty": 0.1}} | values
    )


def layer_of() -> AdaptiveSpanAttention:
    layer = randomize(AdaptiveSpanAttention(config()), 0.4).double()
    with torch.no_grad():
        layer.span.copy_(P)
    return layer


def test_states_are_those_of_the_paper() -> None:
    """Token by token, with 40 tokens, so that spans matter."""
    layer, x = layer_of(), torch.randn(1, 40, 12, dtype=torch.float64)
    got = layer(x, mask=Mask(causal=True))
    for i in (0, 7, 39):
        heads = []
        for head, z in enumerate(SPANS):
            own = slice(4 * head, 4 * head + 4)
            q = layer.q_proj.weight[own] @ x[0, i]
            total, value = 0.0, torch.zeros(4, dtype=torch.float64)
            for r in range(i + 1):
                m = min(max((RAMP + z - (i - r)) / RAMP, 0), 1)
                s = float(q @ (layer.k_proj.weight[own] @ x[0, r])) / 2
                total += m * math.exp(s)
                value += m * math.exp(s) * (layer.v_proj.weight[own] @ x[0, r]).detach()
            heads.append(value / total)
        expected = layer.o_proj.weight @ torch.cat(heads)
        torch.testing.assert_close(got[0, i], expected, rtol=1e-12, atol=1e-12)


def test_the_loss_moves_the_spans() -> None:
    """That the gradient is right is a law (finite differences)."""
    layer, x = layer_of(), torch.randn(1, 40, 12, dtype=torch.float64)
    layer(x, mask=Mask(causal=True)).square().sum().backward()
    assert layer.span.grad is not None and layer.span.grad[:2].abs().min() > 0
    assert 0 < float(layer_of().spans()[0]) < 0.1 * SIZE


def test_the_penalty_is_the_mean_span_of_each_layer() -> None:
    model = Transformer(config())
    part = part_of(AttentionPart, model.config)
    for layer in (each for each in model.modules() if isinstance(each, AdaptiveSpanAttention)):
        with torch.no_grad():
            layer.span.copy_(P)
    with part.penalty(model) as penalty:
        torch.testing.assert_close(float(penalty()), 2 * sum(SPANS) / 3)
    assert part.penalty_weight(model.config) == 0.1
    assert model(Inputs(torch.randint(0, 20, (2, 9)))).shape == (2, 9, 12)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shape": "encoder"}, "adaptive_span needs shape: decoder, not encoder"),
        ({"positions": "alibi"}, "has offsets of its own: choose other positions than alibi"),
        ({"sliding_window": 3}, "adaptive_span excludes sliding_window: 3"),
        ({"attention": "elu"}, "elu excludes adaptive_span|adaptive_span excludes attention: elu"),
    ],
)
def test_what_it_excludes(values: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        config(**values)
