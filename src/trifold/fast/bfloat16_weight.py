"""Weights in bf16 of computations in another type, such as those of a BF16 file in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trifold.fast.quantized_weight import QuantizedWeight, wide

CHUNK = 2**20  # weights that are converted at a time: their copy stays in a cache


class Bfloat16Weight(QuantizedWeight):
    """A matrix (N, K) of bf16, whose products are computed in the type of the activations.

    values: (N, K) bf16, which may be in the memory of a file. dtype: the type of the results.
    """

    values: Tensor

    def __init__(self, values: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("values", values.contiguous())
        self.dtype = dtype

    def _apply(self, change: Any, recurse: bool = True) -> Bfloat16Weight:
        """Move to a device, or change `dtype`; values keep their type."""
        self.dtype = change(torch.empty(0, dtype=self.dtype, device=self.device)).dtype
        # Changes of the type leave integers as they are.
        self.values = change(self.values.view(torch.int16)).view(torch.bfloat16)
        return self

    @property
    def shape(self) -> torch.Size:
        """(N, K)."""
        return self.values.shape

    @property
    def device(self) -> torch.device:
        """Where the memory of the matrix is."""
        return self.values.device

    def dequantize(self) -> Tensor:
        """The matrix (N, K) in `dtype`."""
        return self.values.to(self.dtype)

    def rows(self, indices: Tensor) -> Tensor:
        """The rows at indices (...) -> (..., K)."""
        return self.values[indices].to(self.dtype)

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x (..., K) · matrixᵀ + bias (N,) -> (..., N)."""
        y: Tensor = _Product.apply(x, self)  # type: ignore[no-untyped-call]
        return y if bias is None else y + bias

    def parts(self) -> tuple[Tensor, ...]:
        """The values of about CHUNK weights each, some rows at a time."""
        rows = max(1, CHUNK // self.shape[1])
        return torch.split(self.values, rows)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()} in 16 bits"


class _Product(torch.autograd.Function):
    """x · matrixᵀ with the gradient of x. Converts some rows at a time and saves none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Bfloat16Weight) -> Tensor:
        ctx.weight = weight
        z = wide(x)
        out = z.new_empty(*x.shape[:-1], len(weight))
        first = 0
        for part in weight.parts():
            out[..., first : first + len(part)] = z @ part.to(z.dtype).T
            first += len(part)
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        weight = ctx.weight
        g = gradients[0]
        z = wide(g)
        d_x = z.new_zeros(*g.shape[:-1], weight.shape[1])
        first = 0
        for part in weight.parts():
            d_x += z[..., first : first + len(part)] @ part.to(z.dtype)
            first += len(part)
        return d_x.to(g.dtype), None
