"""Lays the blocks of GGUF files out in panels of 16 rows, as `BlockWeight` has them."""

from typing import Any

from trifold.fast import instruction as ins
from trifold.fast.block_weight import BLOCK, PANEL
from trifold.fast.intrinsics import allocate, bfloat16_at, int32_at, int64_at, release
from trifold.fast.loops import subroutine
from trifold.fast.row_code import HALF_BYTES, INFINITE
from trifold.fast.row_types import GROUP, NUMBERS
from trifold.fast.step_rows import (
    find_rows,
    numbers_of,
    panel_memory,
    read_rows,
    release_panel,
    scale_bytes,
    value_bytes,
)

MAGNITUDE = 0x7FFF  # the bits of an fp16 number without its sign
# 1,024 in fp16. Products of smaller numbers with the other scales of a block are finite.
LARGE = 0x6400


@subroutine
def lay_out_panel(op: Any, panel: int) -> None:
    """Rows of the file, which are those of `read_rows`, -> a panel of a weight whose values, and
    after them its scales, are at `out`; 0 if only their scales are examined.

    bias: becomes 1 if a scale is not finite.
    """
    if op.out == 0 and not _has_large_scales(op, panel):
        return
    memory = 0
    values = op.out + panel * value_bytes(op)
    scales = op.out + op.units * value_bytes(op) + panel * scale_bytes(op)
    if op.out == 0:
        memory = values = panel_memory(op)
        scales = values + value_bytes(op)
    read_rows(op, panel, op.outputs, values, scales)
    _examine(op, scales)
    release_panel(memory)


@subroutine
def _has_large_scales(op: Any, panel: int) -> bool:
    """Whether a scale of the rows in the file is not finite, or products with it may not be. This
    reads the scales only.
    """
    count, at = NUMBERS[op.stored]
    length, limit = GROUP, LARGE
    if count == 0:
        return True
    if op.stored == ins.AS_STORED:
        count, length, limit = numbers_of(op), BLOCK, INFINITE
    blocks = op.inputs // length
    size = op.row_stride // blocks
    memory = allocate(8 * PANEL)
    find_rows(op, panel, op.outputs, memory)
    places = int64_at(memory, PANEL)
    found = 0
    for lane in range(PANEL):
        for block in range(blocks):
            numbers = bfloat16_at(places[lane] + block * size + at, count)
            for number in range(count):
                if numbers[number] & MAGNITUDE >= limit:
                    found += 1
    release(memory)
    return found != 0


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
