"""Weights in blocks times many rows: of prompts, and of batches."""

import numpy as np
import torch
from torch import Tensor

from trifold.fast import compiled_interpreter, is_eager_cpu
from trifold.fast.block_weight import BLOCK, PANEL, BlockWeight, blocks_of
from trifold.fast.instruction import BLOCK_DEQUANTIZE, BLOCK_QUANTIZE, FEW_ROWS, INSTRUCTION
from trifold.fast.processor import emulates_bf16_products
from trifold.fast.thread_pool import (
    DTYPES,
    Field,
    divide_into_tasks,
    execute,
    execute_one,
    is_readable,
    matmul_fields,
    set_fields,
)

COLUMNS = 512  # outputs that are decoded at a time: they stay in a cache
MANY_ROWS = 48  # from which decoding a weight takes less time than reading it for every few rows


def supports_block_linear(x: Tensor, weight: BlockWeight) -> bool:
    """Whether x (..., K) is bf16 or fp32, has more than a few rows and no gradient."""
    return (
        x.dtype in DTYPES
        and x.shape[-1] == weight.shape[1]
        and x.numel() > FEW_ROWS * x.shape[-1]
        and not torch.is_grad_enabled()
        and is_eager_cpu(x)
        and is_readable(weight)
        and compiled_interpreter() is not None
    )


def block_linear(
    x: Tensor, weight: BlockWeight, bias: Tensor | None, dtype: torch.dtype | None = None
) -> Tensor:
    """x (..., K) · weight (N, K)ᵀ + bias (N,) -> (..., N) of `dtype`, by default that of x.

    They are multiplied by a library, with some outputs at a time decoded to the type of x, or as in
    decoding steps.
    """
    outputs, inputs = weight.shape
    rows = x.detach().reshape(-1, inputs)
    multiply = _decoded_product if library_is_faster(rows) else _step_products
    out = multiply(rows, weight, None if bias is None else bias.detach())
    return out.view(*x.shape[:-1], outputs).to(dtype or x.dtype)


def library_is_faster(rows: Tensor) -> bool:
    """Whether a library multiplies rows (R, K) faster than the instructions of decoding steps. It
    is exact in fp32, and therefore used if it is not several times as slow.
    """
    if emulates_bf16_products():
        return False
    return rows.dtype is torch.float32 or len(rows) >= MANY_ROWS


def _step_products(rows: Tensor, weight: BlockWeight, bias: Tensor | None) -> Tensor:
    """rows (R, K) · weight (N, K)ᵀ + bias -> (R, N) in fp32. The rows are quantized once; each
    part of the weight is multiplied with all of them while it is in a cache.
    """
    count, inputs = rows.shape
    out = torch.empty(count, len(weight))
    fields = matmul_fields(weight)
    x = rows.float()
    quantized = torch.empty(quantized_bytes(count, inputs), dtype=torch.int8)
    program = np.zeros(2, INSTRUCTION)
    kind = fields["dtype"]
    set_fields(program, 0, opcode=BLOCK_QUANTIZE, dtype=kind, units=count, x=x, out=quantized)
    set_fields(program, 1, **fields, x=quantized, out=out, waits=1)
    if bias is not None:
        bias = bias.float().contiguous()
        set_fields(program, 1, bias=bias)
    program["rows"] = count
    program["inputs"] = inputs
    divide_into_tasks(program)
    execute(program)
    return out


def _decoded_product(rows: Tensor, weight: BlockWeight, bias: Tensor | None) -> Tensor:
    """rows (R, K) · weight (N, K)ᵀ + bias -> (R, N), all in the type of the rows."""
    outputs, inputs = weight.shape
    out = torch.empty(len(rows), outputs, dtype=rows.dtype)
    bias = None if bias is None else bias.to(rows.dtype)
    kind = matmul_fields(weight)["dtype"]
    columns = min(COLUMNS, PANEL * len(weight.values))
    decoded = torch.empty(BLOCK * blocks_of(inputs), columns, dtype=rows.dtype)
    sizes: dict[str, Field] = {"opcode": BLOCK_DEQUANTIZE, "dtype": kind, "inputs": inputs}
    sizes["outputs"] = columns
    sizes["rounds"] = int(rows.dtype is torch.bfloat16)
    for first in range(0, outputs, COLUMNS):
        panels = slice(first // PANEL, (first + COLUMNS) // PANEL)
        values = weight.values[panels]
        part: dict[str, Field] = {
            "units": len(values),
            "weight": values,
            "scales": weight.scales[panels],
        }
        execute_one(**sizes, **part, out=decoded)
        end = min(first + COLUMNS, outputs)
        matrix = decoded[:inputs, : end - first]
        if bias is None:
            out[:, first:end] = rows @ matrix
        else:
            out[:, first:end] = torch.addmm(bias[first:end], rows, matrix)
    return out


def quantized_bytes(rows: int, inputs: int) -> int:
    """The memory of quantized rows, see `step_blocks`."""
    return rows * blocks_of(inputs) * (2 * BLOCK + 8)
