"""Matrices of one byte a weight: a quarter of the memory of fp32, and of what a decoding step has to read."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PORTION = 2**22  # weights rounded at a time, so that their fp32 copy stays small


class Int8(nn.Module):
    """A matrix (N, K) ≈ values · scale of the row: values (N, K) int8 in ±127, scales (N,) float32.

    `dtype` is that of the matrix it was, and of what is read out of it. It does not learn.
    """

    values: Tensor
    scales: Tensor
    requires_grad = False

    def __init__(self, values: Tensor, scales: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("values", values)
        self.register_buffer("scales", scales)
        self.dtype = dtype

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Makes F.linear(x, matrix, bias) and F.embedding(numbers, matrix) work, so that modules need no check."""
        if function is F.linear:
            x, matrix, bias = args
            y = matrix.times(x)
            return y if bias is None else y + bias
        if function is F.embedding:
            numbers, matrix = args
            return matrix.rows(numbers)
        return NotImplemented

    @classmethod
    @torch.no_grad()
    def of(cls, matrix: Tensor, dtype: torch.dtype | None = None, into: Tensor | None = None) -> Int8:
        """The nearest such matrix: the largest weight of each row becomes ±127; its values lie in `into`, if given."""
        values = torch.empty(matrix.shape, dtype=torch.int8, device=matrix.device) if into is None else into
        scales = torch.empty(matrix.shape[0], device=matrix.device)
        for start in range(0, len(matrix), rows := max(1, PORTION // matrix.shape[1])):
            here = slice(start, start + rows)
            portion = matrix[here].float()
            largest = portion.abs().amax(1)
            scales[here] = largest / 127
            inverse = torch.where(largest > 0, 127 / largest, 0.0)
            values[here] = (portion * inverse[:, None]).round_().to(torch.int8)
        return cls(values, scales, dtype or matrix.dtype)

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    def __len__(self) -> int:
        return len(self.values)

    def wide(self) -> Tensor:
        """The matrix (N, K) in full."""
        return (self.values * self.scales[:, None]).to(self.dtype)

    def rows(self, numbers: Tensor) -> Tensor:
        """(…,) row numbers -> (…, K)."""
        return (self.values[numbers] * self.scales[numbers][..., None]).to(self.dtype)

    def times(self, x: Tensor) -> Tensor:
        """x (…, K) -> x · matrixᵀ (…, N). Bytes are exact in every type; the scales come after the sum."""
        return (torch.matmul(x, self.values.to(x.dtype).T) * self.scales).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.shape[0]} x {self.shape[1]}"


Matrix: TypeAlias = Tensor | Int8
