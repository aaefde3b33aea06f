from __future__ import annotations

import pytest
import torch
from tests.models import randomize

from trifold.nn import Cache, Mask, ModelConfig
from trifold.nn.attention import Attention


def attention(layer: int = 0, **values: object) -> Attention:
    return randomize(
        Attention(ModelConfig.parse({"d_model": 24, "n_heads": 6} | values), layer), 0.4
    )


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_multi_head_attention_concatenates_its_heads(bias: bool) -> None:
    """head_i = Attention(x W_i^Q, x W_i^K, x W_i^V), concatenated, times W^O."""
    layer, x = attention(attention_bias=bias), torch.randn(2, 5, 24)
    heads = []
    for i in range(6):
        part = slice(4 * i, 4 * i + 4)
        q, k, v = (
            x @ proj.weight[part].t() + (0 if proj.bias is None else proj.bias[part])
            for proj in (layer.q_proj, layer.k_proj, layer.v_proj)
        )
        heads.append(torch.softmax(q @ k.transpose(1, 2) / 2, -1) @ v)
    close(layer(x, mask=Mask()), layer.o_proj(torch.cat(heads, -1)))


@pytest.mark.parametrize("shared", [6, 2])
def test_values_may_have_another_width_than_keys(shared: int) -> None:
    """head_i = softmax(q_i K_iᵀ / √d_k) V_i with V_i = x W_i^V of width d_v (Vaswani et al. 2017,
    section 3.2.2), in float64.
    """
    layer = attention(d_value=7, n_kv_heads=shared, attention_bias=True).double()
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    heads = []
    for i in range(6):
        own = i * shared // 6
        q = x @ layer.q_proj.weight[4 * i : 4 * i + 4].T + layer.q_proj.bias[4 * i : 4 * i + 4]
        k = x @ layer.k_proj.weight[4 * own : 4 * own + 4].T
        k = k + layer.k_proj.bias[4 * own : 4 * own + 4]
        v = x @ layer.v_proj.weight[7 * own : 7 * own + 7].T
        v = v + layer.v_proj.bias[7 * own : 7 * own + 7]
        heads.append(torch.softmax(q @ k.mT / 4**0.5, -1) @ v)
    merged = torch.cat(heads, -1)
    expected = merged @ layer.o_proj.weight.T + layer.o_proj.bias
    torch.testing.assert_close(layer(x, mask=Mask()), expected, rtol=1e-12, atol=1e-12)
    assert layer.o_proj.weight.shape == (24, 6 * 7)


def test_grouped_key_heads_equal_repeated_key_heads() -> None:
    grouped, full = attention(n_kv_heads=2), attention()
    full.q_proj, full.o_proj = grouped.q_proj, grouped.o_proj
    with torch.no_grad():
        for name in ("k_proj", "v_proj"):
            weight = (
                getattr(grouped, name).weight.view(2, 4, 24).repeat_interleave(3, 0).view(24, 24)
            )
            getattr(full, name).weight.copy_(weight)
    x, mask = torch.randn(2, 5, 24), Mask(causal=True)
    close(grouped(x, mask=mask), full(x, mask=mask))


def test_beams_with_a_shared_memory_equal_beams_with_a_repeated_memory() -> None:
    layer, memory, x = attention(), torch.randn(2, 5, 24), torch.randn(6, 1, 24)
    keys = torch.tensor([[True] * 5, [True, True, False, False, False]])
    shared = layer(x, memory, mask=Mask(keys), cache=Cache(1).layers[0])
    close(shared, layer(x, memory.repeat_interleave(3, 0), mask=Mask(keys.repeat_interleave(3, 0))))


@pytest.mark.parametrize("layer", [0, 3])
@pytest.mark.parametrize("scale", [None, 1.0, 0.2])
def test_scores_have_the_configured_scale(scale: float | None, layer: int) -> None:
    scaled = attention(layer, attention_scale=scale, attention_scale_by_layer=True)
    plain, x = attention(), torch.randn(2, 5, 24)
    plain.load_state_dict(scaled.state_dict())
    with torch.no_grad():
        # 1/sqrt(4) is 1/2.
        plain.q_proj.weight.mul_((0.5 if scale is None else scale) / (layer + 1) * 2)
    close(scaled(x, mask=Mask()), plain(x, mask=Mask()))


def test_the_output_projection_alone_may_have_a_bias() -> None:
    layer = attention(attention_out_bias=True)
    assert layer.q_proj.bias is None
    assert layer.o_proj.bias is not None
