"""The base of weights that are stored in fewer bits than numbers of PyTorch have."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.fast.processor import emulates_bf16_products


class QuantizedWeight(nn.Module):
    """A matrix (N, K) in few bits, which takes the place of a weight. It is not trained.

    `dtype` is the type of the original matrix and of the results.
    """

    requires_grad = False
    dtype: torch.dtype

    @classmethod
    def __torch_function__(
        cls,
        function: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Support F.linear(x, weight, bias) and F.embedding(indices, weight), which plain
        operations call.
        """
        match function, args:
            case F.linear, (x, weight, bias):
                return weight.linear(x, bias)
            case F.embedding, (indices, weight):
                return weight.rows(indices)
        return NotImplemented

    @property
    def shape(self) -> torch.Size:
        """(N, K)."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """Where the memory of the matrix is."""
        raise NotImplementedError

    def dequantize(self) -> Tensor:
        """The matrix (N, K) in `dtype`."""
        raise NotImplementedError

    def rows(self, indices: Tensor) -> Tensor:
        """The rows at indices (...) -> (..., K)."""
        raise NotImplementedError

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x (..., K) · matrixᵀ + bias (N,) -> (..., N)."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.shape[0]

    def extra_repr(self) -> str:
        return f"{self.shape[0]} x {self.shape[1]}"


Weight: TypeAlias = Tensor | QuantizedWeight


def wide(x: Tensor) -> Tensor:
    """x in a type whose range covers its products with integers, which is not float16, and whose
    products are not emulated.
    """
    is_emulated = x.is_cpu and x.dtype is torch.bfloat16 and emulates_bf16_products()
    return x.float() if is_emulated or x.dtype is torch.float16 else x
