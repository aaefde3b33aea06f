"""Dynamic convolution against the equation of its paper, in float64."""

from __future__ import annotations

import pytest
import torch
from tests.models import randomize

from trifold.errors import SettingsError
from trifold.nn import Mask, ModelConfig
from trifold.nn.variants.dynamic_convolution import DynamicConvolutionLayer

KEYS = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])


def config(**values: object) -> ModelConfig:
    given = {"d_model": 12, "n_heads": 3, "attention": "dynamic-convolution"}
    return ModelConfig.parse(given | values)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block", [0, 1])
def test_a_state_is_that_of_the_paper(causal: bool, block: int) -> None:
    """DynamicConv(X, i, c) = Σ_j softmax(W X_i)_(h, j) X_(i + j − ⌈(k + 1) / 2⌉, c), j = 1 … k, and
    X = GLU(W x); in a decoder it ends with X_i.
    """
    layer = randomize(DynamicConvolutionLayer(config(), block), 0.4).double()
    k, x = (3, 7)[block], torch.randn(2, 6, 12, dtype=torch.float64)
    got = layer(x, mask=Mask(KEYS, causal=causal))
    for row, length in enumerate((6, 4)):
        inner = [layer.in_proj.weight @ x[row, i] for i in range(length)]
        z = [each[:12] * torch.sigmoid(each[12:]) for each in inner]
        for i in range(length):
            weights = torch.softmax((layer.weight_proj.weight @ z[i]).view(3, k), 1)
            first = i + 1 - k if causal else i + 1 - (k + 1) // 2
            y = torch.zeros(12, dtype=torch.float64)
            for c in range(12):
                for j in range(k):
                    if 0 <= first + j < length:
                        y[c] += weights[c // 4, j] * z[first + j][c]
            expected = layer.o_proj.weight @ y
            torch.testing.assert_close(got[row, i], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"dynamic_convolution": {"kernels": [4]}},
            "kernels: an encoder reads as many tokens on each side: choose an odd number, not 4",
        ),
        ({"positions": "rotary"}, "rotates no queries: choose other positions than rotary"),
        ({"positions": "alibi"}, "has no offsets of scores: choose other positions than alibi"),
        ({"n_kv_heads": 1}, "dynamic-convolution excludes n_kv_heads: 1"),
        ({"n_heads": 5, "d_head": None}, "n_heads 5 does not divide d_model 12"),
        ({"attention": "softmax", "dynamic_convolution": {"kernels": [3]}},
         "dynamic_convolution needs attention: dynamic-convolution, not softmax"),
    ],
)  # fmt: skip
def test_what_it_excludes(values: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        config(**values)
