"""Fourier mixing against the sums of its paper, in float64."""

from __future__ import annotations

import cmath

import pytest
import torch
from torch import Tensor

from trifold.errors import SettingsError, UsageError
from trifold.look.attention import read_attention
from trifold.nn import Mask, ModelConfig, Transformer
from trifold.nn.variants.fourier import FourierMixing
from trifold.pipeline import Pipeline
from trifold.text import TokenizerSettings, train_tokenizer

LEFT_AND_RIGHT = torch.tensor([[True] * 6, [False] * 2 + [True] * 4, [True] * 3 + [False] * 3])


def by_the_sums(x: Tensor) -> Tensor:
    """Re Σ_n Σ_e x_ne exp(−2πi (t n / N + f e / E)), frequency by frequency."""
    count, width = x.shape
    out = torch.zeros_like(x)
    for t in range(count):
        for f in range(width):
            total = sum(
                float(x[n, e]) * cmath.exp(-2j * cmath.pi * (t * n / count + f * e / width))
                for n in range(count)
                for e in range(width)
            )
            out[t, f] = complex(total).real
    return out


def test_states_are_those_of_the_paper() -> None:
    """Of the real tokens of each row."""
    x = torch.randn(3, 6, 4, dtype=torch.float64)
    got = FourierMixing()(x, mask=Mask(LEFT_AND_RIGHT))
    for row, real in enumerate(LEFT_AND_RIGHT):
        expected = torch.zeros(6, 4, dtype=torch.float64)
        expected[real] = by_the_sums(x[row, real])
        torch.testing.assert_close(got[row], expected, rtol=1e-12, atol=1e-12)


def test_a_model_without_weights_shows_none() -> None:
    sizes = {"d_model": 8, "n_heads": 2, "n_layers": 1, "d_ff": 8, "vocab_size": 40}
    tokenizer = train_tokenizer(["a good film"], TokenizerSettings(kind="char", vocab_size=40))
    model = Transformer(ModelConfig.parse(sizes | {"shape": "encoder", "attention": "fourier"}))
    with pytest.raises(UsageError, match=r"no attention weights to show \(attention: fourier\)"):
        read_attention(Pipeline(model, tokenizer), "a film")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shape": "decoder"}, "fourier needs shape: encoder, not decoder"),
        ({"attention_bias": True}, "attention: fourier excludes attention_bias: true"),
        ({"positions": "rotary"}, "rotates no queries: choose other positions than rotary"),
        ({"positions": "relative"}, "has no offsets of scores: choose other positions"),
        ({"sliding_window": 3}, "attention: fourier excludes sliding_window: 3"),
    ],
)
def test_what_it_excludes(values: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        ModelConfig.parse({"shape": "encoder", "attention": "fourier"} | values)
