"""Weights in blocks times many rows: of prompts, and of batches."""

import numpy as np
import torch
from torch import Tensor

from trifold.fast import compiled_interpreter, is_eager_cpu
from trifold.fast.block_weight import BLOCK, BlockWeight
from trifold.fast.instruction import BLOCK_QUANTIZE, FEW_ROWS, INSTRUCTION
from trifold.fast.thread_pool import (
    divide_into_tasks,
    execute,
    is_readable,
    matmul_fields,
    set_fields,
)


def supports_block_linear(x: Tensor, weight: BlockWeight) -> bool:
    """Whether x (..., K) is bf16, has more than a few rows and no gradient.

    A computation in fp32 multiplies in fp32.
    """
    return (
        x.dtype is torch.bfloat16
        and x.shape[-1] == weight.shape[1]
        and x.numel() > FEW_ROWS * x.shape[-1]
        and not torch.is_grad_enabled()
        and is_eager_cpu(x)
        and is_readable(weight)
        and compiled_interpreter() is not None
    )


def block_linear(x: Tensor, weight: BlockWeight, bias: Tensor | None) -> Tensor:
    """x (..., K) · weight (N, K)ᵀ + bias (N,) -> (..., N) in fp32, of activations in 8 bits."""
    outputs, inputs = weight.shape
    x_float = x.detach().float().contiguous()
    rows = x_float.numel() // inputs
    quantized = torch.empty(quantized_bytes(rows, inputs), dtype=torch.int8)
    out = torch.empty(*x.shape[:-1], outputs)
    bias = None if bias is None else bias.detach().float().contiguous()
    fields = matmul_fields(weight)
    program = np.zeros(2, INSTRUCTION)
    set_fields(
        program,
        0,
        opcode=BLOCK_QUANTIZE,
        dtype=fields["dtype"],
        units=rows,
        rows=rows,
        inputs=inputs,
        x=x_float,
        out=quantized,
    )
    set_fields(program, 1, **fields, waits=1, rows=rows, x=quantized, out=out, bias=bias)
    divide_into_tasks(program)
    execute(program)
    return out


def quantized_bytes(rows: int, inputs: int) -> int:
    """The memory of quantized rows, see `step_blocks`."""
    return rows * (inputs + 8 * (inputs // BLOCK))
