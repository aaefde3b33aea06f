"""Learning by products of bytes, which CPUs with VNNI multiply up to twice as fast as bf16.

    y = x Wᵀ + b    a scale for each row of x and each row of W      (SwitchBack, Wortsman et al. 2023, section 2, with
    dx = g W        a scale for each row of g and each column of W    a scale a row where theirs has one for all of W)
    dW = gᵀ x       a scale for each column of g and of x, in portions of their rows, the portions summed in fp32
    db = Σ g        as ever

Bytes are x / scale to the nearest, with the scale that makes ±127 of the largest; their sums are exact. dW sums over
tokens, whose gradients are of unlike size. There Wortsman et al. go back to bf16; Xi et al. 2024 (Jetfire) give every
block of 32 × 32 a scale, and here every column of a portion has one, so that within a portion gradients below a 254th
of the largest count for nothing. A token's own row is rounded for itself alone: what it gives and what it is given hang
on no other token. Weights, optimiser and the trained model are as without this.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from trifold.fast import kernels
from trifold.fast.int8 import Int8
from trifold.fast.int8_matmul import exact
from trifold.nn import ops
from trifold.nn.layers import Linear
from trifold.nn.stack import Stack

PORTION = 1024  # rows: what is summed of them, four bytes each, still is in the last cache when it is scaled
# Rows of x and numbers of W from which on it pays, there and back (Zen 5): beside bf16 512 rows and 256 × 256 numbers
# take a tenth less time, 2,048 rows and 512 × 512 a third less. Beside fp32 128 rows would be enough.
ROWS, WEIGHTS = 512, 2**16


def bytes_hindrance(device: torch.device) -> str:
    """Why nothing is gained by it here, or nothing."""
    if device.type != "cpu":
        return "which is for CPUs"
    if not (torch.cpu._is_vnni_supported() and exact()):
        return "for want of AVX-512 VNNI"
    return "" if kernels.loops() is not None else "for want of numba"


class Int8TrainedLinear(Linear):
    """A linear layer whose training uses int8 matmul."""

    def forward(self, x: Tensor) -> Tensor:
        """x (…, in) -> (…, out)."""
        return product_by_bytes(x, self.weight, self.bias).to(x.dtype)


def learn_by_bytes(model: nn.Module) -> None:
    """From now on the large linear layers of the model's stacks learn by products of bytes."""
    for stack in model.modules():
        if isinstance(stack, Stack):
            for layer in stack.modules():
                if isinstance(layer, Linear) and layer.weight.shape[0] * layer.weight.shape[1] >= WEIGHTS:
                    layer.__class__ = Int8TrainedLinear


def layers_by_bytes(model: nn.Module) -> int:
    """How many linear layers do so."""
    return sum(isinstance(module, Int8TrainedLinear) for module in model.modules())


def product_by_bytes(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (…, K) · weight (N, K)ᵀ + bias (N,) -> (…, N): in bytes where x has gradients and rows enough, else as ever."""
    rows = x.numel() // x.shape[-1]
    if isinstance(weight, Int8) or rows < ROWS or kernels.compiled(x) is None:
        return ops.linear(x, weight, bias)
    if 1 in weight.shape:  # of a turned matrix with one column torch._int_mm (2.13) takes the wrong numbers
        return ops.linear(x, weight, bias)
    y: Tensor = _ByBytes.apply(x.reshape(rows, -1), weight, bias)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], -1)


class _ByBytes(torch.autograd.Function):
    """What is kept of x for the way back are its bytes by columns, half of what it takes in bf16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        matrix, scales = kernels.rows_to_bytes(kernels.copied(weight))
        added = torch.zeros_like(scales) if bias is None else kernels.copied(bias).float()
        y, by_columns, column_scales = x.new_empty(len(x), len(weight)), *_room(x)
        for rows, by_rows, row_scales in _portions(x, by_columns, column_scales):
            kernels.from_bytes(torch._int_mm(by_rows, matrix.t()), row_scales, scales, added, y[rows])
        ctx.save_for_backward(by_columns, column_scales, weight)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, x_scales, weight = ctx.saved_tensors
        g, (of_x, of_weight, of_bias) = gradients[0].contiguous(), ctx.needs_input_grad
        matrix, scales = kernels.columns_to_bytes(kernels.copied(weight))
        zeros = torch.zeros_like(scales)
        dx = g.new_empty(x.shape) if of_x else None
        dw = torch.zeros(weight.shape) if of_weight else None
        db = torch.zeros(len(weight)) if of_bias else None
        by_columns, g_scales = _room(g)
        for number, (rows, by_rows, row_scales) in enumerate(_portions(g, by_columns, g_scales)):
            if dx is not None:
                kernels.from_bytes(torch._int_mm(by_rows, matrix), row_scales, scales, zeros, dx[rows])
            if dw is not None:
                sums = torch._int_mm(by_columns[rows].t(), x[rows])
                kernels.added_from_bytes(sums, g_scales[number], x_scales[number], dw)
            if db is not None:
                kernels.summed_columns(g[rows], db)
        return dx, None if dw is None else dw.to(g.dtype), None if db is None else db.to(g.dtype)


def _room(x: Tensor) -> tuple[Tensor, Tensor]:
    """For x (R, K) as bytes by columns (R, K), and the scales of each portion (portions, K)."""
    return torch.empty(x.shape, dtype=torch.int8), torch.empty(-(-len(x) // PORTION), x.shape[1])


def _portions(x: Tensor, by_columns: Tensor, column_scales: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Some rows at a time: which they are, their bytes by rows, and the scales of these. What was gone through is in
    by_columns and column_scales.
    """
    for number, scales in enumerate(column_scales):
        rows = slice(number * PORTION, (number + 1) * PORTION)
        by_rows = torch.empty(x[rows].shape, dtype=torch.int8)
        row_scales = torch.empty(len(by_rows))
        kernels.both_to_bytes(x[rows], by_rows, row_scales, by_columns[rows], scales)
        yield rows, by_rows, row_scales
