"""Lays the blocks of GGUF files out in panels of 16 rows, as `BlockWeight` has them."""

from typing import Any

from trifold.fast import instruction as ins
from trifold.fast.block_tile import blocks_of
from trifold.fast.block_weight import PANEL, WORD
from trifold.fast.intrinsics import bfloat16_at, int32_at, int64_at
from trifold.fast.loops import subroutine
from trifold.fast.step_groups import INFINITE, lay_out_groups, round_groups
from trifold.fast.step_rows import (
    HALF_BYTES,
    clear_lane,
    panel_memory,
    panel_scales,
    panel_values,
    read_rows,
    release_panel,
    scale_bytes,
    value_bytes,
)


@subroutine
def lay_out_panel(op: Any, panel: int) -> None:
    """Rows of the file, which are those of `read_rows`, -> a panel of a weight whose values, and
    after them its scales, are at `out`; 0 if only their scales are examined.

    mode: how the file has them. bias: becomes 1 if a scale is not finite.
    """
    if op.out == 0:
        memory = panel_memory(op)
        panel_values(op, panel, op.outputs, memory)
        scales = panel_scales(op, panel, memory)
        _examine(op, scales)
        release_panel(memory)
        return
    values = op.out + panel * value_bytes(op)
    scales = op.out + op.units * value_bytes(op) + panel * scale_bytes(op)
    if op.mode == ins.AS_STORED:
        read_rows(op, panel, op.outputs, values, scales)
        _examine(op, scales)
    else:
        _lay_out_groups(op, panel, values, scales)


@subroutine
def _lay_out_groups(op: Any, panel: int, values: int, scales: int) -> None:
    """The same of rows in blocks of 256 values."""
    blocks = blocks_of(op.inputs)
    words = ins.BLOCK_BITS[op.dtype]
    codes = int32_at(values, value_bytes(op) // WORD)
    numbers = bfloat16_at(scales, scale_bytes(op) // HALF_BYTES)
    is_finite = True
    for lane in range(PANEL):
        row = PANEL * panel + lane
        if row >= op.outputs:
            clear_lane(op, values, scales, lane)
            continue
        if op.scales != 0:
            row = int64_at(op.scales, op.outputs)[row]
        start = op.weight + row * op.row_stride
        if op.mode == ins.OF_GROUPS:
            is_finite &= lay_out_groups(codes, numbers, lane, start, blocks, words)
        else:
            is_finite &= round_groups(codes, numbers, lane, start, blocks)
    if not is_finite:
        int32_at(op.bias, 1)[0] = 1


@subroutine
def _examine(op: Any, scales: int) -> None:
    """Set the number at `bias` to 1 if a scale of a panel, or an offset, is not finite."""
    numbers = bfloat16_at(scales, scale_bytes(op) // HALF_BYTES)
    found = 0
    for place in range(numbers.shape[0]):
        if numbers[place] & INFINITE == INFINITE:
            found += 1
    if found != 0:
        int32_at(op.bias, 1)[0] = 1
