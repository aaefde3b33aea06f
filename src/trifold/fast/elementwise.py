"""Dropout, GELU and layer norm in training: one compiled loop each.

They replace the operations of `nn.ops` with the same names, on a CPU in bf16 and fp32. Dropout stores no mask: the
backward pass computes it again from the seed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.fast.compiled import as_array, copy_parameter, loops, trains_with_loops
from trifold.nn.ops import (
    add_dropout as plain_add_dropout,
    dropout as plain_dropout,
    gelu_tanh as plain_gelu_tanh,
    layer_norm as plain_layer_norm,
)
from trifold.nn.rng import thread_rng


def dropout(x: Tensor, p: float) -> Tensor:
    """See `nn.ops.dropout`. The loop draws the same mask; on other devices and in graphs, PyTorch draws its own."""
    if trains_with_loops(x):
        out: Tensor = _Dropout.apply(None, x, *_dropout_arguments(p))  # type: ignore[no-untyped-call]
        return out
    return plain_dropout(x, p) if _is_eager_cpu(x) else F.dropout(x, p)


def add_dropout(x: Tensor, y: Tensor, p: float) -> Tensor:
    """See `nn.ops.add_dropout`; as `dropout`, in one pass with the addition."""
    if trains_with_loops(y):
        out: Tensor = _Dropout.apply(x, y, *_dropout_arguments(p))  # type: ignore[no-untyped-call]
        return out
    return plain_add_dropout(x, y, p) if _is_eager_cpu(y) else x + F.dropout(y, p)


def _is_eager_cpu(x: Tensor) -> bool:
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def _dropout_arguments(p: float) -> tuple[np.uint32, np.uint32, np.float32]:
    """The seed, the threshold of the random bits, and the scale."""
    seed = int(torch.randint(2**32, (), generator=thread_rng()))
    return np.uint32(seed), np.uint32(min(round(p * 2**32), 2**32 - 1)), np.float32(1 / (1 - p))


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor | None, y: Tensor, seed: np.uint32, threshold: np.uint32, scale: np.float32
    ) -> Tensor:
        ctx.arguments, ctx.adds = (seed, threshold, scale), x is not None
        out = torch.empty(y.shape, dtype=y.dtype)
        loops().dropout(None if x is None else _flat(x), _flat(y), *ctx.arguments, _flat(out))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        d_y = torch.empty(gradients[0].shape, dtype=gradients[0].dtype)
        loops().dropout(None, _flat(gradients[0]), *ctx.arguments, _flat(d_y))
        return gradients[0] if ctx.adds else None, d_y, None, None, None


def _flat(x: Tensor) -> Any:
    return as_array(x).reshape(-1)


def gelu_tanh(x: Tensor) -> Tensor:
    """See `nn.ops.gelu_tanh`."""
    if not trains_with_loops(x):
        return plain_gelu_tanh(x)
    out: Tensor = _GeluTanh.apply(x)  # type: ignore[no-untyped-call]
    return out


class _GeluTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        out = torch.empty(x.shape, dtype=x.dtype)
        loops().gelu_tanh(_flat(x), _flat(out))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        d_x = torch.empty(x.shape, dtype=x.dtype)
        loops().gelu_tanh_backward(_flat(gradients[0]), _flat(x), _flat(d_x))
        return d_x


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    """See `nn.ops.layer_norm`. Norms without a bias use the plain operation."""
    if bias is None or not trains_with_loops(x):
        return plain_layer_norm(x, weight, bias, epsilon)
    out: Tensor = _LayerNorm.apply(x.reshape(-1, x.shape[-1]), weight, bias, epsilon)  # type: ignore[no-untyped-call]
    return out.view(x.shape)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        weight, bias = copy_parameter(weight), copy_parameter(bias)
        out = torch.empty(x.shape, dtype=x.dtype)
        mean, inverse_std = np.empty(len(x), np.float32), np.empty(len(x), np.float32)
        loops().layer_norm(*map(as_array, (x, weight, bias)), epsilon, as_array(out), mean, inverse_std)
        ctx.save_for_backward(x, weight)
        ctx.moments = mean, inverse_std
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        d_x, sums = torch.empty(x.shape, dtype=x.dtype), torch.empty(2, x.shape[1])
        arrays = map(as_array, (gradients[0], x, weight))
        loops().layer_norm_backward(*arrays, *ctx.moments, as_array(d_x), *sums.numpy())
        d_weight, d_bias = sums.to(weight.dtype)
        return d_x, d_weight, d_bias, None
