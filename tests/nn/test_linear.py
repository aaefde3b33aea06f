from __future__ import annotations

import pytest
import torch

from trifold.nn.linear import Linear, fused


@pytest.mark.parametrize("tokens", [1, 63, 64, 200])
@pytest.mark.parametrize("bias", [False, True])
def test_several_in_one_product_are_each_alone(tokens: int, bias: bool) -> None:
    layers = [Linear(6, width, bias=bias) for width in (4, 4, 7)]
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    for parameter in parameters:
        torch.nn.init.normal_(parameter)
    x = torch.randn(tokens, 6, requires_grad=True)
    results = []
    for outputs in (fused(x, layers), tuple(layer(x) for layer in layers)):
        gradients = torch.autograd.grad(sum(y.square().sum() for y in outputs), [x, *parameters])
        results.append([*outputs, *gradients])
    for together, alone in zip(*results, strict=True):
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)
