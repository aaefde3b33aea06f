"""Weights in 16 bits of computations in another type, such as those of an F16 file in float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from trifold.fast.quantized_weight import QuantizedWeight

STORED = (torch.bfloat16, torch.float16)
CHUNK = 2**20  # weights that are converted at a time: their copy stays in a cache


class HalfWeight(QuantizedWeight):
    """A matrix (N, K) of bf16 or fp16, whose products are computed in the type of the activations.

    values: (N, K) in one of the types STORED, which may be in the memory of a file. dtype: the type
    of the results.
    """

    def __init__(self, values: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("values", values.contiguous())
        self.dtype = dtype

    def _apply(self, change: Any, recurse: bool = True) -> HalfWeight:
        """Move to a device, or change `dtype`; values keep their type."""
        self.dtype = change(torch.empty(0, dtype=self.dtype, device=self.device)).dtype
        # Changes of the type leave integers as they are.
        self.values = change(self.values.view(torch.int16)).view(self.values.dtype)
        return self

    def dequantize(self) -> Tensor:
        """The matrix (N, K) in `dtype`."""
        return self.values.to(self.dtype)

    def rows(self, indices: Tensor) -> Tensor:
        """The rows at indices (...) -> (..., K)."""
        return self.values[indices].to(self.dtype)

    def parts(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """The matrix in a type, about CHUNK weights at a time."""
        rows = max(1, CHUNK // self.shape[1])
        return (part.to(dtype) for part in self.values.split(rows))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()} in 16 bits"
