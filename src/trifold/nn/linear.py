"""The one matrix product: y = x Wᵀ + b, alone or several on the same input in one call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Linear(nn.Module):
    """weight (out, in), bias (out,) or None."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """x (…, in) -> (…, out)."""
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        outputs, inputs = self.weight.shape
        return f"{inputs} -> {outputs}{'' if self.bias is not None else ', no bias'}"


def fused(x: Tensor, layers: Sequence[Linear]) -> tuple[Tensor, ...]:
    """The outputs of several layers on one input, from a single product with their stacked weights.

    Stacking copies the weights, which costs out·in against the product's tokens·out·in: worth it for many
    tokens, not for a few (one decoding step), where the layers are called one by one.
    """
    if x.numel() // x.shape[-1] < 64:
        return tuple(layer(x) for layer in layers)
    return stacked(x, layers).split([layer.weight.shape[0] for layer in layers], dim=-1)


def stacked(x: Tensor, layers: Sequence[Linear]) -> Tensor:
    """The outputs of several layers on one input, side by side in one tensor (…, sum of outs)."""
    weight = torch.cat(tuple(layer.weight for layer in layers))
    biases = tuple(layer.bias for layer in layers if layer.bias is not None)
    return F.linear(x, weight, torch.cat(biases) if biases else None)
