"""Operations at both ends of a decoding step: from tokens to states, and from states to the input
of the head.

A model in bf16 rounds the result of each of its operations there, and so do these.
"""

from typing import Any

import numpy as np

from trifold.fast import instruction as ins
from trifold.fast.block_tile import LINE, blocks_of, code_at
from trifold.fast.block_weight import BLOCK, LEVELS, PANEL, WORD
from trifold.fast.instruction import BLOCK4_LEVELS, FLOAT16, FLOAT32
from trifold.fast.intrinsics import bfloat16_at, float16_at, float32_at, int64_at, uint8_at
from trifold.fast.loops import Array, F, half_to_float, round_like, subroutine, to_float


@subroutine
def _settled(x: Any, rounds: Any) -> Any:
    """x in fp32, rounded to bf16 if the model is in bf16."""
    if rounds != 0:
        half = round_like(np.uint16(0), x)
        x = to_float(half)
    return x


@subroutine
def embed_row(op: Any, row: int) -> None:
    """The row of a table (V, K) for token x[row] -> out (R, K) fp32."""
    width = op.inputs
    token = int64_at(op.x, op.rows)[row]
    out = float32_at(op.out + 4 * row * width, width)
    if op.dtype == FLOAT32:
        _load(float32_at(op.weight + 4 * token * width, width), out)
    elif op.dtype == FLOAT16:
        _load(float16_at(op.weight + 2 * token * width, width), out)
    else:
        _load(bfloat16_at(op.weight + 2 * token * width, width), out)
    _finish(op, out)


@subroutine
def embed_block_row(op: Any, row: int) -> None:
    """The same for a table in blocks."""
    width = op.inputs
    token = int64_at(op.x, op.rows)[row]
    out = float32_at(op.out + 4 * row * width, width)
    bits = ins.BLOCK_BITS[op.dtype]
    zero = ins.ZERO_CODES[op.dtype]
    kinds = 2 if zero == 0 else 1
    blocks = blocks_of(width)
    lane = token % PANEL
    for block in range(blocks):
        number = token // PANEL * blocks + block
        codes = uint8_at(op.weight + LINE * bits * number, LINE * bits)
        halves = bfloat16_at(op.scales + 2 * PANEL * kinds * number, kinds * PANEL)
        scale = half_to_float(halves[lane])
        offset = half_to_float(halves[PANEL + lane]) if kinds == 2 else F(0)
        for word in range(BLOCK // WORD):
            for byte in range(WORD):
                code = code_at(codes, bits, lane, word, byte)
                if op.dtype == BLOCK4_LEVELS:
                    code = np.int32(LEVELS[code]) + zero
                column = BLOCK * block + WORD * word + byte
                if column < width:
                    # The product is exact.
                    out[column] = F(code - zero) * scale + offset
    _finish(op, out)


@subroutine
def _load(x: Array, out: Array) -> None:
    for j in range(x.shape[0]):
        out[j] = to_float(x[j])


@subroutine
def _finish(op: Any, out: Array) -> None:
    """The embedding out (K,), times the scale, plus the vector of the position at the address
    `bias`, if there is one.
    """
    scale = F(op.scale)
    for j in range(out.shape[0]):
        out[j] = _settled(_settled(out[j], op.rounds) * scale, op.rounds)
    if op.bias != 0:
        if op.rounds:
            _add(bfloat16_at(op.bias, out.shape[0]), op, out)
        else:
            _add(float32_at(op.bias, out.shape[0]), op, out)


@subroutine
def _add(x: Array, op: Any, out: Array) -> None:
    for j in range(out.shape[0]):
        out[j] = _settled(out[j] + to_float(x[j]), op.rounds)


@subroutine
def scale_row(op: Any, row: int) -> None:
    """A row of x (R, K) times the scale -> out (R, K) fp32."""
    width = op.inputs
    x = float32_at(op.x + 4 * row * width, width)
    out = float32_at(op.out + 4 * row * width, width)
    scale = F(op.scale)
    for j in range(width):
        out[j] = _settled(_settled(x[j], op.rounds) * scale, op.rounds)
