"""The base of weights that are stored in fewer bits than numbers of PyTorch have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.fast.processor import emulates_bf16_products


class QuantizedWeight(nn.Module):
    """A matrix (N, K) in few bits, which takes the place of a weight. It is not trained.

    `dtype` is the type of the original matrix and of the results. Subclasses that do not replace
    `linear` have `parts`.
    """

    requires_grad = False
    dtype: torch.dtype
    values: Tensor

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
        return self.values.shape

    @property
    def device(self) -> torch.device:
        """Where the memory of the matrix is."""
        return self.values.device

    def dequantize(self) -> Tensor:
        """The matrix (N, K) in `dtype`."""
        raise NotImplementedError

    def rows(self, indices: Tensor) -> Tensor:
        """The rows at indices (...) -> (..., K)."""
        raise NotImplementedError

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x (..., K) · matrixᵀ + bias (N,) -> (..., N). The values are rounded to the type of x."""
        y: Tensor = _Product.apply(x, self)  # type: ignore[no-untyped-call]
        return y if bias is None else y + bias

    def parts(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """The matrix in a type, some rows at a time."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.shape[0]

    def extra_repr(self) -> str:
        return f"{self.shape[0]} x {self.shape[1]}"


Weight: TypeAlias = Tensor | QuantizedWeight


class _Product(torch.autograd.Function):
    """x · matrixᵀ with the gradient of x. Converts some rows at a time and saves none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: QuantizedWeight) -> Tensor:
        ctx.weight = weight
        z = wide(x)
        return torch.cat([z @ rows.T for rows in weight.parts(z.dtype)], -1).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        g = gradients[0]
        z = wide(g)
        d_x = z.new_zeros(*g.shape[:-1], ctx.weight.shape[1])
        first = 0
        for rows in ctx.weight.parts(z.dtype):
            d_x += z[..., first : first + len(rows)] @ rows
            first += len(rows)
        return d_x.to(g.dtype), None


def wide(x: Tensor) -> Tensor:
    """x in a type whose range covers its products with integers, which is not float16, and whose
    products are not emulated.
    """
    is_emulated = x.is_cpu and x.dtype is torch.bfloat16 and emulates_bf16_products()
    return x.float() if is_emulated or x.dtype is torch.float16 else x
