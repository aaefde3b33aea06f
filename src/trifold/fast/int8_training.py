"""Int8 training: the linear layers multiply int8 matrices, which CPUs with VNNI do up to twice as
fast as bf16.

    y = x Wᵀ + b    one scale per row of x and per row of W
    dx = g W        one scale per row of g and per column of W
    dW = gᵀ x       one scale per column of g and of x, in chunks of rows; the chunks are summed
                    in fp32
    db = Σ g        in fp32

This is SwitchBack (Wortsman et al. 2023, section 2) with a scale per row of W instead of one for
all of W. dW sums over tokens with gradients of different magnitude. There SwitchBack keeps bf16 and
Jetfire (Xi et al. 2024) has a scale per block of 32 × 32; here each column of a chunk has one, so a
gradient below 1/254 of the largest in its column of the chunk counts as 0. y and dx of a token do
not depend on other tokens. Weights, optimizer state and the trained model are not quantized.
"""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trifold.fast import as_array, compiled_loops, copy_parameter, trains_with_loops
from trifold.fast.int8 import Int8Weight
from trifold.fast.processor import has_int8_products
from trifold.nn import ops
from trifold.nn.gradients import first_order
from trifold.nn.layers import Linear
from trifold.nn.stack import Stack

CHUNK = 1024  # rows whose int32 sums stay in the last-level cache until they are scaled
# Rows of x and elements of W from which it is faster, forward and backward (Zen 5). Compared with
# bf16, 512 rows and 256 × 256 weights take 10 % less time, 2,048 rows and 512 × 512 weights 33 %
# less.
MIN_ROWS = 512
MIN_WEIGHTS = 2**16


def int8_training_obstacle(device: torch.device) -> str:
    """What int8 training lacks on this device; empty if nothing."""
    if device.type != "cpu":
        return "it requires a CPU"
    if not has_int8_products():
        return "it requires AVX-512 VNNI"
    return "" if compiled_loops() is not None else "it requires Numba"


class Int8TrainedLinear(Linear):
    """A linear layer whose training uses int8 matmul."""

    def forward(self, x: Tensor) -> Tensor:
        """x (..., in) -> (..., out)."""
        return int8_training_linear(x, self.weight, self.bias).to(x.dtype)


def enable_int8_training(model: nn.Module) -> None:
    """Make the large linear layers of the model's stacks train with int8 matmul."""
    for stack in model.modules():
        if isinstance(stack, Stack):
            for layer in stack.modules():
                if type(layer) is Linear and layer.weight.shape.numel() >= MIN_WEIGHTS:
                    layer.__class__ = Int8TrainedLinear


def count_int8_layers(model: nn.Module) -> int:
    """The number of linear layers that train with int8 matmul."""
    return sum(isinstance(module, Int8TrainedLinear) for module in model.modules())


def int8_training_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (..., K) · weight (N, K)ᵀ + bias (N,) -> (..., N): with int8 matmul if x has a gradient and
    enough rows.
    """
    rows = x.numel() // x.shape[-1]
    if isinstance(weight, Int8Weight) or rows < MIN_ROWS or not trains_with_loops(x):
        return ops.linear(x, weight, bias)
    if 1 in weight.shape:  # torch._int_mm (2.13) is wrong for a transposed matrix with one column
        return ops.linear(x, weight, bias)
    y: Tensor = _Int8Linear.apply(x.reshape(rows, -1), weight, bias)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], -1)


class _Int8Linear(torch.autograd.Function):
    """Saves x quantized by columns, half the memory of bf16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        w_int8, w_scales = quantize(copy_parameter(weight), by="rows")
        bias = torch.zeros_like(w_scales) if bias is None else copy_parameter(bias).float()
        y = x.new_empty(len(x), len(weight))
        by_columns, column_scales = _column_buffers(x)
        for rows, by_rows, row_scales in _quantized_chunks(x, by_columns, column_scales):
            _dequantize(torch._int_mm(by_rows, w_int8.t()), row_scales, w_scales, bias, y[rows])
        ctx.save_for_backward(by_columns, column_scales, weight)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, x_scales, weight = ctx.saved_tensors
        needs_dx, needs_dw, needs_db = ctx.needs_input_grad
        g = gradients[0].contiguous()
        w_int8, w_scales = quantize(copy_parameter(weight), by="columns")
        no_bias = torch.zeros_like(w_scales)
        dx = g.new_empty(x.shape) if needs_dx else None
        dw = torch.zeros(weight.shape) if needs_dw else None
        db = torch.zeros(len(weight)) if needs_db else None
        by_columns, g_scales = _column_buffers(g)
        for number, (rows, by_rows, row_scales) in enumerate(
            _quantized_chunks(g, by_columns, g_scales)
        ):
            if dx is not None:
                _dequantize(torch._int_mm(by_rows, w_int8), row_scales, w_scales, no_bias, dx[rows])
            if dw is not None:
                sums = torch._int_mm(by_columns[rows].t(), x[rows])
                _dequantize(sums, g_scales[number], x_scales[number], None, dw)
            if db is not None:
                compiled_loops().accumulate_columns(as_array(g[rows]), db.numpy())
        return dx, None if dw is None else dw.to(g.dtype), None if db is None else db.to(g.dtype)


def quantize(x: Tensor, by: Literal["rows", "columns"]) -> tuple[Tensor, Tensor]:
    """x (R, K) ≈ values (R, K) int8 · scales, (R,) of the rows or (K,) of the columns."""
    values = torch.empty(x.shape, dtype=torch.int8)
    scales = torch.empty(x.shape[by == "columns"])
    outputs = (as_array(values), as_array(scales))
    unused = (None, None)
    compiled_loops().quantize_matrix(
        as_array(x), *(outputs + unused if by == "rows" else unused + outputs)
    )
    return values, scales


def _dequantize(
    sums: Tensor, row_scales: Tensor, column_scales: Tensor, bias: Tensor | None, out: Tensor
) -> None:
    """sums (R, N) int32 · row_scales (R,) · column_scales (N,) + bias (N,) -> out (R, N). bias
    None: add to out.
    """
    added = None if bias is None else as_array(bias)
    compiled_loops().dequantize(
        *map(as_array, (sums, row_scales, column_scales)), added, as_array(out)
    )


def _column_buffers(x: Tensor) -> tuple[Tensor, Tensor]:
    """For x (R, K): its copy quantized by columns (R, K), and the scales of each chunk (chunks,
    K).
    """
    return torch.empty(x.shape, dtype=torch.int8), torch.empty(-(-len(x) // CHUNK), x.shape[1])


def _quantized_chunks(
    x: Tensor, by_columns: Tensor, column_scales: Tensor
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """For each chunk of x: the slice of its rows, their copy quantized by rows, and the scales of
    that.

    Also quantizes the chunk by columns, into by_columns and column_scales.
    """
    for number, scales in enumerate(column_scales):
        rows = slice(number * CHUNK, (number + 1) * CHUNK)
        by_rows = torch.empty(x[rows].shape, dtype=torch.int8)
        row_scales = torch.empty(len(by_rows))
        arrays = map(as_array, (x[rows], by_rows, row_scales, by_columns[rows], scales))
        compiled_loops().quantize_matrix(*arrays)
        yield rows, by_rows, row_scales
