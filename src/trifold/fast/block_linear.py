"""Weights in blocks times many rows: of prompts, and of batches."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from trifold.fast import compiled_interpreter, is_eager_cpu
from trifold.fast.block_weight import BLOCK, PANEL, BlockWeight, blocks_of
from trifold.fast.instruction import (
    BLOCK_DEQUANTIZE,
    BLOCK_QUANTIZE,
    FEW_ROWS,
    INSTRUCTION,
    ZERO_CODES,
)
from trifold.fast.instruction_sets import has_panels
from trifold.fast.processor import emulates_bf16_products
from trifold.fast.quantized_weight import Weight
from trifold.fast.thread_pool import (
    DTYPES,
    Field,
    block_kind,
    divided,
    execute,
    execute_one,
    is_readable,
    matmul_fields,
    panel_fields,
    part_fields,
    set_fields,
)

DECODED = 2**22  # weights that are decoded at a time: they stay in a cache
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
    if not library_is_faster(rows.dtype, len(rows)):
        return block_linears(x, [weight], [bias], dtype)[0]
    out = _decoded_product(rows, weight, None if bias is None else bias.detach())
    return out.view(*x.shape[:-1], outputs).to(dtype or x.dtype)


def library_is_faster(dtype: torch.dtype, rows: int) -> bool:
    """Whether a library multiplies so many rows of a type faster than the instructions of decoding
    steps. It is exact in fp32, and therefore used if it is not several times as slow.
    """
    if emulates_bf16_products():
        return False
    return dtype is torch.float32 or rows >= MANY_ROWS


def supports_block_linears(x: Tensor, weights: Sequence[Weight]) -> bool:
    """Whether all weights are in blocks, and `block_linear` multiplies them with x (..., K) as in
    decoding steps.
    """
    return all(
        isinstance(weight, BlockWeight) and supports_block_linear(x, weight) for weight in weights
    ) and not library_is_faster(x.dtype, x.numel() // x.shape[-1])


def block_linears(
    x: Tensor,
    weights: Sequence[BlockWeight],
    biases: Sequence[Tensor | None],
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, ...]:
    """`block_linear` with each of several weights, as in decoding steps.

    The rows are quantized once for all weights whose 0 has the same code. Each part of a weight is
    multiplied with all rows while it is in a cache.
    """
    rows = x.detach().reshape(-1, x.shape[-1]).float().contiguous()
    quantized: dict[int, Tensor] = {}
    first: list[dict[str, Field]] = []
    last: list[dict[str, Field]] = []
    outs = []
    for weight, bias in zip(weights, biases, strict=True):
        kind = block_kind(weight)
        zero = ZERO_CODES[kind]
        if zero not in quantized:
            memory = torch.empty(quantized_bytes(*rows.shape), dtype=torch.int8)
            quantized[zero] = memory
            own: dict[str, Field] = {"opcode": BLOCK_QUANTIZE, "dtype": kind}
            first.append({**own, **divided(len(rows)), "x": rows, "out": memory})
        out = torch.empty(len(rows), len(weight))
        added = None if bias is None else bias.detach().float().contiguous()
        sizes = panel_fields(weight) if has_panels() else matmul_fields(weight)
        last.append({**sizes, "x": quantized[zero], "out": out, "bias": added})
        outs.append(out)
    last[0]["waits"] = 1
    _execute_all([*first, *last], len(rows), x.shape[-1])
    return tuple(out.view(*x.shape[:-1], -1).to(dtype or x.dtype) for out in outs)


def _execute_all(instructions: Sequence[dict[str, Field]], rows: int, inputs: int) -> None:
    """Execute instructions for rows of so many inputs."""
    program = np.zeros(len(instructions), INSTRUCTION)
    for number, fields in enumerate(instructions):
        set_fields(program, number, **fields)
    program["rows"] = rows
    program["inputs"] = inputs
    execute(program)


def _decoded_product(rows: Tensor, weight: BlockWeight, bias: Tensor | None) -> Tensor:
    """rows (R, K) · weight (N, K)ᵀ + bias -> (R, N), all in the type of the rows."""
    outputs, inputs = weight.shape
    out = torch.empty(len(rows), outputs, dtype=rows.dtype)
    bias = None if bias is None else bias.to(rows.dtype)
    height = BLOCK * blocks_of(inputs)
    columns = PANEL * min(max(1, DECODED // height // PANEL), -(-outputs // PANEL))
    decoded = torch.empty(height, columns, dtype=rows.dtype)
    sizes: dict[str, Field] = {"opcode": BLOCK_DEQUANTIZE, "outputs": columns}
    sizes["rounds"] = int(rows.dtype is torch.bfloat16)
    for first in range(0, outputs, columns):
        end = min(first + columns, outputs)
        part = part_fields(weight, range(first, end))
        execute_one(**{**part, **sizes}, out=decoded)
        matrix = decoded[:inputs, : end - first]
        if bias is None:
            torch.mm(rows, matrix, out=out[:, first:end])
        else:
            torch.addmm(bias[first:end], rows, matrix, out=out[:, first:end])
    return out


def quantized_bytes(rows: int, inputs: int) -> int:
    """The memory of quantized rows, see `step_blocks`."""
    return rows * blocks_of(inputs) * (2 * BLOCK + 8)
