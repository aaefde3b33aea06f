"""The convolution beside the first layer: its definition, padding, packed rows, dropout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.models import add_noise
from torch.nn import functional as F

from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.hooks import capture
from trifold.nn.masks import Mask
from trifold.nn.packing import Packing
from trifold.nn.stack import Block
from trifold.nn.variants.convolution import Convolution, ConvolutionBlock
from trifold.nn.walk import LayerInputs

SMALL: dict[str, Any] = {
    "shape": "encoder", "vocab_size": 30, "max_positions": 24, "d_model": 12, "n_heads": 3, "n_layers": 3, "d_ff": 20,
    "heads": ("lm",), "dropout": 0.0,
}  # fmt: skip
PARTS = [
    {"kernel": 3},
    {"kernel": 5, "groups": 4, "activation": "tanh"},
    {"kernel": 1, "activation": "relu"},
]
each_part = pytest.mark.parametrize("part", PARTS, ids=str)
LENGTHS = torch.tensor([9, 1, 6])


def model(part: dict[str, Any], **options: Any) -> Transformer:
    torch.manual_seed(0)
    return add_noise(Transformer(ModelConfig.parse(SMALL | {"convolution": part} | options)), 0.3)


@each_part
@torch.no_grad()
def test_the_block_is_its_formula(part: dict[str, Any]) -> None:
    first, *others = model(part).encoder.blocks
    assert isinstance(first, ConvolutionBlock) and {type(block) for block in others} == {Block}
    weight, bias, part = first.convolution.weight, first.convolution.bias, Convolution(**part)
    x = torch.randn(2, 7, 12)
    real = torch.tensor(
        [[False, False, True, True, True, True, True], [True, True, True, False, True, True, False]]
    )
    reach, per_group, inner = part.kernel // 2, 12 // part.groups, torch.zeros(2, 7, 12)
    for t in range(7):
        for j in range(-reach, reach + 1):
            for group in range(part.groups if 0 <= t + j < 7 else 0):
                own = slice(group * per_group, (group + 1) * per_group)
                near = (x * real[..., None])[:, t + j, own]
                inner[:, t, own] += near @ weight[own, :, j + reach].T
    function = {"gelu": F.gelu, "relu": F.relu, "tanh": torch.tanh}[part.activation]
    inputs = LayerInputs(Mask(real))
    expected = first.norm(Block.forward(first, x, inputs) + function(inner + bias))
    torch.testing.assert_close(first(x, inputs), expected, atol=1e-5, rtol=1e-5)
    broken = x.masked_fill(~real[..., None], float("nan"))
    torch.testing.assert_close(first.convolve(broken, Mask(real)), first.convolve(x, Mask(real)))


@each_part
def test_gradients_of_packed_and_of_padded_rows_are_equal(part: dict[str, Any]) -> None:
    tokens, real = torch.randint(3, 30, (3, 9)), torch.arange(9) < LENGTHS[:, None]
    packing, found = Packing.of(LENGTHS), []
    flat = torch.zeros(1, packing.length, dtype=torch.long)
    flat[0, : packing.n_real] = tokens[real]
    for inputs in (Inputs(tokens, real), Inputs(flat, packing=packing)):
        encoder = model(part)
        hidden = encoder(inputs)
        states = hidden[real] if inputs.packing is not packing else hidden[0, : packing.n_real]
        (states * torch.linspace(-1, 1, states.numel()).view_as(states)).sum().backward()
        gradients = [p.grad for p in encoder.parameters() if p.grad is not None]
        found.append([states.detach(), *gradients])
    assert len(found[0]) > 30
    for padded, packed in zip(*found, strict=True):
        torch.testing.assert_close(padded, packed, atol=1e-4, rtol=1e-4)


def test_dropout_is_before_the_activation() -> None:
    block = model({"activation": "tanh"}, dropout=0.5).train().encoder.blocks[0]
    x = torch.randn(1, 9, 12)
    inner = block.convolution(x.mT).mT
    values = block.convolve(x, Mask())
    kept = values != 0
    assert 20 < kept.sum() < 90
    torch.testing.assert_close(values[kept], torch.tanh(2 * inner)[kept])


def test_the_convolution_is_a_hook_point_of_the_first_layer() -> None:
    encoder = model({})
    with capture(encoder) as captured:
        hidden = encoder(Inputs(torch.randint(30, (2, 5))))
    assert [name for name in captured if "convolved" in name] == ["encoder.blocks.0.convolved"]
    summed = captured["encoder.blocks.0.feed_forward"] + captured["encoder.blocks.0.convolved"]
    norm = encoder.encoder.blocks[0].norm
    torch.testing.assert_close(captured["encoder.states.0"], norm(summed).detach())
    torch.testing.assert_close(captured["encoder.states.2"], hidden.detach())


def test_convolutions_are_initialized_as_matrices() -> None:
    convolution = (
        Transformer(ModelConfig.parse(SMALL | {"convolution": {}})).encoder.blocks[0].convolution
    )
    assert not convolution.bias.any()
    assert 0 < convolution.weight.abs().max() <= (6 / (12 * 3 + 12 * 3)) ** 0.5
