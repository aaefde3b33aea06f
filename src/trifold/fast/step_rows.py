"""Reads 16 rows of the blocks of a GGUF file as a panel of `BlockWeight`."""

from functools import partial
from typing import Any

from trifold.fast import instruction as ins
from trifold.fast.block_tile import LINE, blocks_of, by_kind
from trifold.fast.block_weight import PANEL, WORD
from trifold.fast.intrinsics import allocate, bfloat16_at, int32_at, int64_at, release
from trifold.fast.loops import subroutine
from trifold.fast.row_code import HALF_BYTES, StoredCode, new_row_reader
from trifold.fast.row_types import read_others

_read = by_kind(partial(new_row_reader, StoredCode))


@subroutine
def numbers_of(op: Any) -> Any:
    """The numbers of a block beside its codes: its scale, and the offset if it has one."""
    return 2 if ins.ZERO_CODES[op.dtype] == 0 else 1


@subroutine
def value_bytes(op: Any) -> Any:
    """The size of the values of a panel."""
    return blocks_of(op.inputs) * LINE * ins.BLOCK_BITS[op.dtype]


@subroutine
def scale_bytes(op: Any) -> Any:
    """The size of the scales of a panel."""
    return blocks_of(op.inputs) * PANEL * HALF_BYTES * numbers_of(op)


@subroutine
def find_rows(op: Any, panel: int, count: int, memory: int) -> None:
    """The addresses (16,) of the rows of a panel, of a weight of `count` rows in the memory of a
    file; the last row again for those that are missing.

    op: its `weight` has the first row, rows are `row_stride` bytes apart. Its `scales` has the
    numbers of the rows, 0 for those in order.
    """
    places = int64_at(memory, PANEL)
    first = PANEL * panel
    for lane in range(PANEL):
        row = min(first + lane, count - 1)
        if op.scales != 0:
            row = int64_at(op.scales, count)[row]
        places[lane] = op.weight + row * op.row_stride


@subroutine
def read_rows(op: Any, panel: int, count: int, values: int, scales: int) -> None:
    """The rows of a panel (see `find_rows`) become values and scales at addresses."""
    memory = allocate(8 * PANEL)
    find_rows(op, panel, count, memory)
    ahead = int64_at(memory, PANEL)[0] + PANEL * op.row_stride
    if op.stored == ins.AS_STORED:
        _read(op.dtype, memory, blocks_of(op.inputs), values, scales, ahead)
    else:
        read_others(op.stored, memory, blocks_of(op.inputs), values, scales, ahead)
    release(memory)
    for lane in range(count - PANEL * panel, PANEL):
        clear_lane(op, values, scales, lane)


@subroutine
def clear_lane(op: Any, values: int, scales: int, lane: int) -> None:
    """Zeros for a row that is missing from the last panel."""
    codes = int32_at(values, value_bytes(op) // WORD)
    for place in range(lane, codes.shape[0], PANEL):
        codes[place] = 0
    numbers = bfloat16_at(scales, scale_bytes(op) // HALF_BYTES)
    for place in range(lane, numbers.shape[0], PANEL):
        numbers[place] = 0


@subroutine
def panel_memory(op: Any) -> Any:
    """The address of new memory for a panel of rows of a file; 0 for a weight in panels."""
    if op.row_stride == 0:
        return 0
    return allocate(value_bytes(op) + scale_bytes(op))


@subroutine
def panel_values(op: Any, panel: int, count: int, memory: int) -> Any:
    """The address of the values of a panel of a weight of `count` rows, of which those of a file
    become a panel in this memory.
    """
    if op.row_stride == 0:
        return own_values(op, panel)
    read_rows(op, panel, count, memory, memory + value_bytes(op))
    return memory


@subroutine
def panel_scales(op: Any, panel: int, memory: int) -> Any:
    """The address of the scales of a panel, after `panel_values`."""
    if op.row_stride == 0:
        return own_scales(op, panel)
    return memory + value_bytes(op)


@subroutine
def own_values(op: Any, panel: int) -> Any:
    """The address of the values of a panel of a weight in panels."""
    return op.weight + panel * value_bytes(op)


@subroutine
def own_scales(op: Any, panel: int) -> Any:
    """The address of its scales."""
    return op.scales + panel * scale_bytes(op)


@subroutine
def release_panel(memory: int) -> None:
    """Free what `panel_memory` has allocated."""
    if memory != 0:
        release(memory)
