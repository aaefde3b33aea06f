"""Matmuls with weights in blocks (`BlockWeight`), of a decoding step and of many rows.

Activations are quantized to 16 bits with a scale for each 32 of a row. llama.cpp takes 8 bits, an
error larger than that of 8 bits of weights. A step for one row waits for the memory anyway. A few
rows are quantized by each thread that multiplies them, many by an instruction before the matmul.
Quantized rows (R, K) are, one after the other: (R, blocks, 64) bytes of integers, in an order that
depends on the processor (`block_tile`), their scales (R, blocks) fp32, and their terms (R, blocks)
of 4 bytes. Zeros fill the last block.

A library multiplies the rows of a prompt, in parts of the outputs: `dequantize_panel`.

Rows of a weight that are in the memory of a file become panels in a cache each time that they are
read (`step_rows`), so their products have the same bits.
"""

from functools import partial
from typing import Any

import numpy as np

from trifold.fast import instruction as ins
from trifold.fast.block_decode import new_decoder
from trifold.fast.block_tile import INSTRUCTIONS, LINE, TILE_ROWS, blocks_of, by_kind
from trifold.fast.block_weight import BLOCK, PANEL
from trifold.fast.intrinsics import (
    allocate,
    bfloat16_at,
    float32_at,
    float32_matrix_at,
    int32_at,
    release,
)
from trifold.fast.loops import F, half_to_float, inverse_scale, scale_of, subroutine
from trifold.fast.row_code import HALF_BYTES
from trifold.fast.step_linear import finish
from trifold.fast.step_rows import (
    numbers_of,
    own_scales,
    own_values,
    panel_memory,
    panel_scales,
    panel_values,
    read_rows,
    release_panel,
    scale_bytes,
    value_bytes,
)

store_integers = INSTRUCTIONS.store
largest_of = INSTRUCTIONS.largest
outputs_per_block_task = subroutine(ins.outputs_per_block_task)


# --- activations ----------------------------------------------------------------------------------


@subroutine
def quantize_blocks(op: Any, row: int, memory: int) -> None:
    """A row of x (R, K) fp32 -> its place in the memory of quantized rows.

    The term of a block is that of the sum of its integers: -zero · sum, which is added to products
    with codes, or where weights have offsets scale · sum, which is multiplied with them.
    """
    inputs = op.inputs
    blocks = blocks_of(inputs)
    zero = np.int32(ins.ZERO_CODES[op.dtype])
    scales = float32_at(memory + 2 * BLOCK * op.rows * blocks + 4 * row * blocks, blocks)
    first_term = memory + op.rows * blocks * (2 * BLOCK + 4) + 4 * row * blocks
    terms = int32_at(first_term, blocks)
    float_terms = float32_at(first_term, blocks)
    last = _filled_block(op, row)
    for block in range(blocks):
        start = op.x + 4 * (row * inputs + block * BLOCK)
        if last != 0 and block == blocks - 1:
            start = last
        integers = memory + 2 * BLOCK * (row * blocks + block)
        scale = scale_of(largest_of(start)) / F(256)
        factor = inverse_scale(scale)
        total = store_integers(integers, start, factor)
        scales[block] = scale
        if zero == 0:
            float_terms[block] = scale * F(total)
        else:
            terms[block] = -zero * total
    if last != 0:
        release(last)


@subroutine
def _filled_block(op: Any, row: int) -> Any:
    """The address of new memory with the last block of a row of x and zeros that fill it; 0 if it
    needs none.
    """
    count = op.inputs % BLOCK
    if count == 0:
        return 0
    address = allocate(4 * BLOCK)
    filled = float32_at(address, BLOCK)
    x = float32_at(op.x + 4 * ((row + 1) * op.inputs - count), count)
    for j in range(BLOCK):
        filled[j] = F(0)
    for j in range(count):
        filled[j] = x[j]
    return address


@subroutine
def quantized_rows(op: Any) -> Any:
    """The address of the quantized rows of x: many are already there."""
    if op.rows > ins.FEW_ROWS:
        return op.x
    memory = allocate(op.rows * blocks_of(op.inputs) * (2 * BLOCK + 8))
    for row in range(op.rows):
        quantize_blocks(op, row, memory)
    return memory


@subroutine
def release_rows(op: Any, memory: int) -> None:
    """Free what `quantized_rows` has allocated."""
    if op.rows <= ins.FEW_ROWS:
        release(memory)


# --- matmul ---------------------------------------------------------------------------------------


# Multiplies 8, 4, 2 or 1 rows with a panel.
_tile = by_kind(INSTRUCTIONS.new_tile)


@subroutine
def _multiply_panel(
    op: Any, values: int, scales: int, first: int, rows: int, memory: int, out: int, stride: int
) -> None:
    """Quantized rows from `first` on, at most 8, times the 16 rows of a panel at addresses -> out
    (rows, 16), whose rows are `stride` bytes apart.
    """
    blocks = blocks_of(op.inputs)
    done = 0
    while done < rows:
        count = TILE_ROWS
        while count > rows - done:
            count //= 2
        row = first + done
        x = memory + 2 * BLOCK * row * blocks
        x_scales = memory + 2 * BLOCK * op.rows * blocks + 4 * row * blocks
        x_terms = x_scales + 4 * op.rows * blocks
        target = out + done * stride
        _tile(op.dtype, count, values, scales, blocks, x, x_scales, x_terms, target, stride)
        done += count


@subroutine
def block_weight_address(op: Any, task: int) -> Any:
    """The address of the values of a task."""
    bits = ins.BLOCK_BITS[op.dtype]
    row_bytes = blocks_of(op.inputs) * BLOCK * bits // 8
    if op.row_stride != 0:
        row_bytes = op.row_stride
    return op.weight + task * outputs_per_block_task(op.inputs, bits) * row_bytes


@subroutine
def block_matmul(op: Any, task: int, memory: int) -> None:
    """Some outputs of x Wᵀ + b for all rows, which are quantized in `memory`."""
    per_task = outputs_per_block_task(op.inputs, ins.BLOCK_BITS[op.dtype])
    first = task * per_task
    last = min(op.outputs, first + per_task)
    panels = -(-(last - first) // PANEL)
    out = float32_matrix_at(op.out, op.rows, op.outputs)
    width = panels * PANEL
    scratch = allocate(4 * TILE_ROWS * width)
    result = float32_matrix_at(scratch, TILE_ROWS, width)
    read = _read_panels(op, first // PANEL, panels)
    for start in range(0, op.rows, TILE_ROWS):
        rows = min(TILE_ROWS, op.rows - start)
        for number in range(panels):
            if read == 0:
                values = own_values(op, first // PANEL + number)
                scales = own_scales(op, first // PANEL + number)
            else:
                values = read + number * (value_bytes(op) + scale_bytes(op))
                scales = values + value_bytes(op)
            place = scratch + 4 * PANEL * number
            _multiply_panel(op, values, scales, start, rows, memory, place, 4 * width)
        for r in range(rows):
            finish(result[r, : last - first], op, first, out[start + r, first:last])
    release_panel(read)
    release(scratch)


@subroutine
def _read_panels(op: Any, first: int, count: int) -> Any:
    """The address of new memory with the values and the scales of some panels of a weight in a
    file; 0 for a weight in panels.
    """
    if op.row_stride == 0:
        return 0
    panel_bytes = value_bytes(op) + scale_bytes(op)
    memory = allocate(count * panel_bytes)
    for number in range(count):
        values = memory + number * panel_bytes
        read_rows(op, first + number, op.outputs, values, values + value_bytes(op))
    return memory


# --- rows of a prompt -----------------------------------------------------------------------------


_decode = by_kind(partial(new_decoder, rounds=False))
_decode_to_bfloat16 = by_kind(partial(new_decoder, rounds=True))


@subroutine
def dequantize_panel(op: Any, panel: int) -> None:
    """The 16 rows of a panel of the weight -> 16 columns of out (32 · blocks, outputs), bf16 if the
    instruction rounds, else fp32. op: its `rows` is the number of rows of the weight.
    """
    bits = ins.BLOCK_BITS[op.dtype]
    zero = F(ins.ZERO_CODES[op.dtype])
    kinds = numbers_of(op)
    memory = panel_memory(op)
    values = panel_values(op, panel, op.rows, memory)
    halves = bfloat16_at(panel_scales(op, panel, memory), scale_bytes(op) // HALF_BYTES)
    scratch = allocate(8 * PANEL)
    scales = float32_at(scratch, PANEL)
    offsets = float32_at(scratch + 4 * PANEL, PANEL)
    for block in range(blocks_of(op.inputs)):
        first = kinds * PANEL * block
        for lane in range(PANEL):
            scales[lane] = half_to_float(halves[first + lane])
            offsets[lane] = -zero * scales[lane]
            if kinds == 2:
                offsets[lane] = half_to_float(halves[first + PANEL + lane])
        own = (values + LINE * bits * block, scratch, scratch + 4 * PANEL)
        place = BLOCK * block * op.outputs + PANEL * panel
        if op.rounds == 0:
            _decode(op.dtype, *own, op.out + 4 * place, 4 * op.outputs)
        else:
            _decode_to_bfloat16(op.dtype, *own, op.out + 2 * place, 2 * op.outputs)
    release(scratch)
    release_panel(memory)
