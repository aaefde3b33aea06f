"""Lays the blocks of GGUF files out in panels of 16 rows, as `BlockWeight` has them."""

from typing import Any

import numpy as np

from trifold.fast import instruction as ins
from trifold.fast.block_tile import LINE
from trifold.fast.block_weight import BLOCK, PANEL, upper_bits as plain_upper_bits
from trifold.fast.intrinsics import bfloat16_at, int32_at, int64_at
from trifold.fast.loops import inline, subroutine
from trifold.fast.step_groups import INFINITE, lay_out_groups, round_groups

SIGNS = np.int32(-0x7F7F7F80)  # 0x80 in four bytes: int8 -> codes whose zero is 128

upper_bits = subroutine(plain_upper_bits)


@subroutine
def lay_out_panel(op: Any, panel: int) -> None:
    """Rows of the file -> a panel: their codes at `out`, their scales at `scales`.

    x: the rows, `row_stride` bytes apart. weight: which rows these are, 0 for those in order. mode:
    how the file has them. bias: becomes 1 if a scale is not finite.
    """
    blocks = op.inputs // BLOCK
    words = ins.BLOCK_BITS[op.dtype]
    kinds = 2 if ins.ZERO_CODES[op.dtype] == 0 else 1
    values = int32_at(op.out + panel * blocks * LINE * words, blocks * words * PANEL)
    scales = bfloat16_at(op.scales + 2 * PANEL * kinds * panel * blocks, blocks * kinds * PANEL)
    is_finite = True
    for lane in range(PANEL):
        row = PANEL * panel + lane
        if row >= op.outputs:
            _clear(values, scales, lane)
            continue
        if op.weight != 0:
            row = int64_at(op.weight, op.outputs)[row]
        start = op.x + row * op.row_stride
        if op.mode == ins.OF_GROUPS:
            is_finite &= lay_out_groups(values, scales, lane, start, blocks, words)
        elif op.mode == ins.ROUNDED_GROUPS:
            is_finite &= round_groups(values, scales, lane, start, blocks)
        else:
            is_finite &= _lay_out_row(values, scales, lane, start, blocks, words, kinds)
    if not is_finite:
        int32_at(op.bias, 1)[0] = 1


@subroutine
def _lay_out_row(
    values: Any, scales: Any, lane: int, start: int, blocks: int, words: int, kinds: int
) -> bool:
    """A row at an address, of blocks of 32 values -> a lane of a panel; whether its scales are
    finite. A block is its scale, its offset if it has one, and its codes.
    """
    size = 2 * kinds + 4 * words
    is_finite = True
    for block in range(blocks):
        place = start + block * size
        numbers = bfloat16_at(place, kinds)
        for kind in range(kinds):
            scales[(block * kinds + kind) * PANEL + lane] = numbers[kind]
            is_finite &= numbers[kind] & INFINITE != INFINITE
        codes = int32_at(place + 2 * kinds, words)
        for word in range(words):
            values[(block * words + word) * PANEL + lane] = _word(codes, word)
    return is_finite


@inline
def _word(codes: Any, word: int) -> Any:
    """A word of a block of `BlockWeight`, of the codes (words,) int32 of a block of a file. Those
    of 5 bits are first the fifth bits in the order of the codes, then 4 bits of each.
    """
    words = codes.shape[0]
    if words == 8:
        return codes[word] ^ SIGNS
    if words == 4:
        return codes[word]
    if word == 4:
        return np.int32(upper_bits(codes[0]))
    return codes[word + 1]


@subroutine
def _clear(values: Any, scales: Any, lane: int) -> None:
    """Zeros for a row that is missing from the last panel."""
    for place in range(lane, values.shape[0], PANEL):
        values[place] = 0
    for place in range(lane, scales.shape[0], PANEL):
        scales[place] = 0
