"""Additive attention against the equation of its paper, in float64."""

from __future__ import annotations

import pytest
import torch
from tests.models import randomize
from torch import Tensor

from trifold.errors import SettingsError
from trifold.nn import Mask, ModelConfig
from trifold.nn.variants import additive
from trifold.nn.variants.additive import AdditiveAttention

KEYS = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])


def layer_of(**values: object) -> AdditiveAttention:
    config = ModelConfig.parse({"d_model": 12, "n_heads": 3, "attention": "additive"} | values)
    return randomize(AdditiveAttention(config), 0.4).double()


def by_the_paper(layer: AdditiveAttention, x: Tensor, memory: Tensor, row: int, i: int) -> Tensor:
    """The state of token i of a row: Σ_j α_ij (V_j), α = softmax_j(vᵀ tanh(W x_i + U x_j)), pair by
    pair and head by head.
    """
    heads = []
    for head in range(3):
        own = slice(4 * head, 4 * head + 4)
        scores = [
            sum(
                layer.score_vectors[head, unit]
                * torch.tanh(
                    layer.q_proj.weight[own][unit] @ x[row, i]
                    + layer.k_proj.weight[own][unit] @ memory[row, j]
                )
                for unit in range(4)
            )
            for j in range(memory.shape[1])
            if KEYS[row, j]
        ]
        weights = torch.softmax(torch.stack(scores), 0)
        values = [layer.v_proj.weight[own] @ memory[row, j] for j in range(len(scores))]
        heads.append(sum(a * v for a, v in zip(weights, values, strict=True)))
    return layer.o_proj.weight @ torch.cat(heads)


@pytest.mark.parametrize("crosses", [False, True])
@pytest.mark.parametrize("at_once", [1, 2**22])
def test_a_state_is_that_of_the_paper(
    crosses: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the queries are computed one by one."""
    monkeypatch.setattr(additive, "PAIR_ELEMENTS", at_once)
    layer, x = layer_of(), torch.randn(2, 5, 12, dtype=torch.float64)
    memory = torch.randn(2, 5, 12, dtype=torch.float64) if crosses else None
    got = layer(x, memory, mask=Mask(KEYS))
    for row, i in ((0, 0), (0, 4), (1, 2)):
        expected = by_the_paper(layer, x, x if memory is None else memory, row, i)
        torch.testing.assert_close(got[row, i], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"positions": "rotary"}, "additive has no products with keys: choose other positions"),
        ({"sliding_window": 3}, "attention: additive excludes sliding_window: 3"),
        ({"attention_scale": 0.5}, "attention: additive excludes attention_scale: 0.5"),
        ({"attention": "aditive"}, r"'lsh'.*'additive'.*, got 'aditive'; a part of your own"),
        ({"attention": "lsh", "d_value": 5}, "attention: lsh excludes d_value: 5"),
    ],
)
def test_what_it_excludes(values: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        ModelConfig.parse({"attention": "additive"} | values)
