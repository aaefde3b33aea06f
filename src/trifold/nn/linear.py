"""The one matrix product: y = x Wᵀ + b, alone or several on the same input in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.nn.bytes_product import bytes_product, many
from trifold.nn.crew import thin, thin_product
from trifold.nn.int8 import Int8, Matrix


def product(
    x: Tensor, weight: Matrix, bias: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """x (…, K) times weight (N, K) transposed, plus bias (N,) -> (…, N), by the means that suits.

    Of the type of x; in float32 where it comes so (one that is rounded cannot be made whole again), or where `dtype`
    asks for it and that costs nothing.
    """
    if thin(x, weight):
        return thin_product(x, weight, bias)
    if isinstance(weight, Int8):
        if many(x, weight):
            return bytes_product(x, weight, bias, dtype)
        y = weight.times(x)
        return y if bias is None else y + bias
    return F.linear(x, weight, bias)


class Linear(nn.Module):
    """weight (out, in), a parameter or of one byte a number; bias (out,) or None. `multiply` is how."""

    weight: Matrix
    multiply: Callable[[Tensor, Matrix, Tensor | None], Tensor] = staticmethod(product)

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """x (…, in) -> (…, out)."""
        return self.multiply(x, self.weight, self.bias).to(x.dtype)

    def extra_repr(self) -> str:
        outputs, inputs = self.weight.shape
        return f"{inputs} -> {outputs}{'' if self.bias is not None else ', no bias'}"


def fused(x: Tensor, layers: Sequence[Linear]) -> tuple[Tensor, ...]:
    """The outputs of several layers on one input, from a single product with their stacked weights.

    Stacking copies the weights, which costs out·in against the product's tokens·out·in: worth it for many
    tokens, not for a few (one decoding step), where the layers are called one by one.
    """
    if x.numel() // x.shape[-1] < 64 or any(isinstance(layer.weight, Int8) for layer in layers):
        return tuple(layer(x) for layer in layers)
    return stacked(x, layers).split([layer.weight.shape[0] for layer in layers], dim=-1)


def stacked(x: Tensor, layers: Sequence[Linear]) -> Tensor:
    """The outputs of several layers on one input, side by side (…, sum of outs), by the `multiply` one was given."""
    weights = [layer.weight for layer in layers if not isinstance(layer.weight, Int8)]
    if len(weights) < len(layers):
        return torch.cat([layer(x) for layer in layers], -1)
    biases = tuple(layer.bias for layer in layers if layer.bias is not None)
    own = [layer.multiply for layer in layers if layer.multiply is not product]
    together = torch.cat(weights), torch.cat(biases) if biases else None
    return own[0](x, *together).to(x.dtype) if own else F.linear(x, *together)
