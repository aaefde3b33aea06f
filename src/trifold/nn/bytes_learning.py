"""Learning by products of bytes, which processors multiply twice as fast as bf16.

    y = x Wᵀ + b    a scale for each row of x and each row of W          (SwitchBack, Wortsman et al. 2023, section 2)
    dx = g W        a scale for each row of g and each column of W
    dW = gᵀ x       a scale for each column of g and of x, in portions of their rows, the portions summed in fp32
    db = Σ g        as ever

Bytes are x / scale to the nearest, with the scale that makes ±127 of the largest; their sums are exact. dW sums over
tokens, whose gradients are of unlike size: there Wortsman et al. go back to bf16, and Xi et al. 2024 (Jetfire) give
blocks scales of their own, as it is done here. A token's own row is rounded for itself alone: what it gives and what it
is given hang on no other token. Weights, optimiser and the trained model are as without this.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trifold.nn import kernels
from trifold.nn.int8 import Int8, Matrix
from trifold.nn.linear import Linear, product
from trifold.nn.stack import Stack

PORTION = 1024  # rows: their sums, of four bytes each, are not far away yet when they are scaled
LEAST = 64  # rows, and width: from here on rounding costs less than it saves


def hindrance(device: torch.device) -> str:
    """Why nothing is gained by it here, or nothing."""
    if device.type != "cpu":
        return "which is for CPUs"
    if not torch.cpu._is_vnni_supported():
        return "for which this processor has no instructions"
    return "" if kernels.loops() is not None else "for which numba is not installed"


def learn_by_bytes(model: nn.Module) -> None:
    """From now on the linear layers of the model's stacks learn by products of bytes."""
    for stack in model.modules():
        if isinstance(stack, Stack):
            for layer in stack.modules():
                if isinstance(layer, Linear):
                    layer.multiply = learnt_by_bytes


def learnt_by_bytes(x: Tensor, weight: Matrix, bias: Tensor | None = None) -> Tensor:
    """x (…, K) · weight (N, K)ᵀ + bias (N,) -> (…, N), in bytes where gradients are wanted, of enough rows."""
    rows = x.numel() // x.shape[-1]
    if isinstance(weight, Int8) or min(rows, *weight.shape) < LEAST or kernels.compiled(x) is None:
        return product(x, weight, bias)
    y: Tensor = _ByBytes.apply(x.reshape(rows, -1), weight, bias)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], -1)


class _ByBytes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        matrix, scales = kernels.rows_to_bytes(weight)
        return _rows_times(x, matrix.t(), scales, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        g, (of_x, of_weight, of_bias) = gradients[0].contiguous(), ctx.needs_input_grad
        return (
            _rows_times(g, *kernels.columns_to_bytes(weight)) if of_x else None,
            _columns_times(g, x) if of_weight else None,
            kernels.summed_columns(g).to(g.dtype) if of_bias else None,
        )


def _rows_times(x: Tensor, matrix: Tensor, scales: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (R, K), rounded row by row, times matrix (K, N) int8 with scales (N,), plus bias (N,) -> (R, N) like x."""
    small, its = kernels.rows_to_bytes(x)
    out = x.new_empty(len(x), matrix.shape[1])
    added = torch.zeros_like(scales) if bias is None else bias.detach().float()
    for start in range(0, len(x), PORTION):
        here = slice(start, start + PORTION)
        kernels.from_bytes(torch._int_mm(small[here], matrix), its[here], scales, added, out[here])
    return out


def _columns_times(g: Tensor, x: Tensor) -> Tensor:
    """g (R, N) transposed times x (R, K), both rounded column by column -> (N, K) like x."""
    total = torch.zeros(g.shape[1], x.shape[1])
    for start in range(0, len(x), PORTION):
        here = slice(start, start + PORTION)
        (left, its), (right, scales) = (kernels.columns_to_bytes(each[here]) for each in (g, x))
        kernels.added_from_bytes(torch._int_mm(left.t(), right), its, scales, total)
    return total.to(x.dtype)
