"""Learning by products of bytes, which processors multiply twice as fast as bf16.

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

from trifold.nn import kernels
from trifold.nn.int8 import Int8, Matrix
from trifold.nn.linear import Linear, product
from trifold.nn.stack import Stack

PORTION = 1024  # rows: what is summed of them, four bytes each, still is in the last cache when it is scaled
# From so many on it is quicker than bf16, there and back (Zen 5): at 512 × 256 × 256 by a tenth, at 2,048 × 512 × 512
# by six; beside fp32 it is so at a quarter of the rows.
ROWS, WEIGHTS = 512, 2**16


def bytes_hindrance(device: torch.device) -> str:
    """Why nothing is gained by it here, or nothing."""
    if device.type != "cpu":
        return "which is for CPUs"
    if not torch.cpu._is_vnni_supported():
        return "for want of AVX-512 VNNI"
    return "" if kernels.loops() is not None else "for want of numba"


def learn_by_bytes(model: nn.Module) -> None:
    """From now on the large linear layers of the model's stacks learn by products of bytes."""
    for stack in model.modules():
        if isinstance(stack, Stack):
            for layer in stack.modules():
                if isinstance(layer, Linear) and layer.weight.shape[0] * layer.weight.shape[1] >= WEIGHTS:
                    layer.multiply = product_by_bytes


def layers_by_bytes(model: nn.Module) -> int:
    """How many linear layers do so."""
    return sum(isinstance(m, Linear) and m.multiply is product_by_bytes for m in model.modules())


def product_by_bytes(x: Tensor, weight: Matrix, bias: Tensor | None = None) -> Tensor:
    """x (…, K) · weight (N, K)ᵀ + bias (N,) -> (…, N): in bytes where x has gradients and rows enough, else as ever."""
    rows = x.numel() // x.shape[-1]
    if isinstance(weight, Int8) or rows < ROWS or kernels.compiled(x) is None:
        return product(x, weight, bias)
    if 1 in weight.shape:  # torch._int_mm (2.13) takes a matrix of one column turned for one as it is
        return product(x, weight, bias)
    y: Tensor = _ByBytes.apply(x.reshape(rows, -1), weight, bias)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], -1)


class _ByBytes(torch.autograd.Function):
    """What is kept of x for the way back are its bytes by columns, half of what it takes in bf16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        matrix, scales = kernels.rows_to_bytes(kernels.copied(weight))
        added = torch.zeros_like(scales) if bias is None else kernels.copied(bias).float()
        y, kept = x.new_empty(len(x), len(weight)), Portions(x)
        for here, by_rows, its in kept:
            kernels.from_bytes(torch._int_mm(by_rows, matrix.t()), its, scales, added, y[here])
        ctx.save_for_backward(kept.by_columns, kept.scales, weight)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, x_scales, weight = ctx.saved_tensors
        g, (of_x, of_weight, of_bias) = gradients[0].contiguous(), ctx.needs_input_grad
        matrix, scales = kernels.columns_to_bytes(kernels.copied(weight))
        dx, dw, db = g.new_empty(x.shape), torch.zeros(weight.shape), torch.zeros(len(weight))
        none, portions = torch.zeros_like(scales), Portions(g)
        for number, (here, by_rows, its) in enumerate(portions):
            if of_x:
                kernels.from_bytes(torch._int_mm(by_rows, matrix), its, scales, none, dx[here])
            if of_weight:
                sums = torch._int_mm(portions.by_columns[here].t(), x[here])
                kernels.added_from_bytes(sums, portions.scales[number], x_scales[number], dw)
            if of_bias:
                kernels.summed_columns(g[here], db)
        return (
            dx if of_x else None,
            dw.to(g.dtype) if of_weight else None,
            db.to(g.dtype) if of_bias else None,
        )


class Portions:
    """x (R, K) as bytes, some rows at a time: where they are, their bytes by rows (r, K) and the scales (r,) of these.

    What was gone through is in by_columns (R, K), with the scales (portions, K).
    """

    def __init__(self, x: Tensor) -> None:
        self.x, self.by_columns = x, torch.empty(x.shape, dtype=torch.int8)
        self.scales = torch.empty(-(-len(x) // PORTION), x.shape[1])

    def __iter__(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        for number, scales in enumerate(self.scales):
            here = slice(number * PORTION, (number + 1) * PORTION)
            x = self.x[here]
            by_rows, its = torch.empty(x.shape, dtype=torch.int8), torch.empty(len(x))
            kernels.both_to_bytes(x, by_rows, its, self.by_columns[here], scales)
            yield here, by_rows, its
