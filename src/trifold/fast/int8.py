"""Weights in int8 with a scale for each row, as int8 matmuls of many rows read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trifold.fast.quantized_weight import QuantizedWeight, wide

CHUNK = 2**22  # weights quantized at a time, to bound the memory of their fp32 copy
CACHED = 2**18  # weights converted at a time on a CPU: their copy stays in a cache


class Int8Weight(QuantizedWeight):
    """A matrix (N, K) ≈ values · scale of the row: values (N, K) int8 in ±127, scales (N,) fp32. It
    is not trained.

    `dtype` is the type of the original matrix and of the results. With factors (K,) fp32, which
    are those of the inputs, the matrix is that times the factor of each column.
    """

    scales: Tensor
    factors: Tensor | None

    def __init__(
        self,
        values: Tensor,
        scales: Tensor,
        dtype: torch.dtype,
        factors: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("values", values)
        self.register_buffer("scales", scales)
        self.register_buffer("factors", factors)
        self.dtype = dtype
        self._sums: Tensor | None = None

    @classmethod
    @torch.no_grad()
    def quantize(cls, matrix: Tensor, dtype: torch.dtype | None = None) -> Int8Weight:
        """Round to nearest; the largest magnitude of each row becomes 127."""
        values = torch.empty(matrix.shape, dtype=torch.int8, device=matrix.device)
        scales = torch.empty(matrix.shape[0], device=matrix.device)
        rows = max(1, CHUNK // matrix.shape[1])
        for start in range(0, len(matrix), rows):
            part = slice(start, start + rows)
            chunk = matrix[part].float()
            largest = chunk.abs().amax(1)
            scales[part] = largest / 127
            inverse = torch.where(largest > 0, 127 / largest, 0.0)
            values[part] = (chunk * inverse[:, None]).round_().to(torch.int8)
        return cls(values, scales, dtype or matrix.dtype)

    def _apply(self, change: Any, recurse: bool = True) -> Int8Weight:
        """Move to a device, or change `dtype`; values and scales keep their types."""
        self.dtype = change(torch.empty(0, dtype=self.dtype, device=self.scales.device)).dtype
        self.values = change(self.values)
        self._sums = None
        scales = change(self.scales)
        if scales.dtype is not torch.float32:
            scales = self.scales.to(scales.device)
        self.scales = scales
        if self.factors is not None:
            self.factors = self.factors.to(scales.device)
        return self

    @property
    def sums(self) -> Tensor:
        """(N,) fp32: the sum of the values of each row, computed once."""
        if self._sums is None:
            self._sums = self.values.sum(1, dtype=torch.float32)
        return self._sums

    @classmethod
    def stacked(cls, weights: Sequence[Int8Weight]) -> Int8Weight:
        """The rows of several matrices with the same inputs, and the same factors of them."""
        stacked = cls(
            torch.cat([weight.values for weight in weights]),
            torch.cat([weight.scales for weight in weights]),
            weights[0].dtype,
            weights[0].factors,
        )
        stacked._sums = torch.cat([weight.sums for weight in weights])
        return stacked

    def dequantize(self) -> Tensor:
        """The matrix (N, K) in `dtype`."""
        return self.scaled(self.values * self.scales[:, None]).to(self.dtype)

    def rows(self, indices: Tensor) -> Tensor:
        """The rows at indices (...) -> (..., K)."""
        return self.scaled(self.values[indices] * self.scales[indices][..., None]).to(self.dtype)

    def scaled(self, x: Tensor) -> Tensor:
        """x (..., K) times the factors, if there are any."""
        return x if self.factors is None else (x * self.factors).to(x.dtype)

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x (..., K) · matrixᵀ + bias (N,) -> (..., N). int8 values are exact in every type; the
        scales multiply the sums.
        """
        y: Tensor = _Product.apply(self.scaled(x), self.values, self.scales)  # type: ignore[no-untyped-call]
        return y if bias is None else y + bias


class _Product(torch.autograd.Function):
    """x · matrixᵀ with the gradient of x. Saves the int8 values, not their copy in the type of
    x.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, scales: Tensor) -> Tensor:
        ctx.save_for_backward(values, scales)
        z = wide(x)
        rows = len(values)
        if values.device.type == "cpu":
            rows = max(1, CACHED // values.shape[1])
        parts = [torch.matmul(z, part.to(z.dtype).T) for part in values.split(rows)]
        return (torch.cat(parts, -1) * scales).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        values, scales = ctx.saved_tensors
        g = gradients[0]
        z = wide(g)
        d_x = torch.matmul((z * scales).to(z.dtype), values.to(z.dtype))
        return d_x.to(g.dtype), None, None
