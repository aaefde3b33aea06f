"""Matmuls of many rows, such as those of a prompt, on processors with AVX2 and no AVX-512.

The weights of 32 outputs are decoded, or transposed, into memory that stays in a cache and are
multiplied with all rows. The last rows are multiplied in smaller tiles, the very last one together
with the row before it. Every row has the same bits whatever their number.
"""

from typing import Any

from trifold.fast import instruction as ins
from trifold.fast.block_tile import LINE, blocks_of, by_kind
from trifold.fast.block_weight import BLOCK, PANEL
from trifold.fast.instruction import FLOAT16, FLOAT32
from trifold.fast.instruction_sets import has_panels
from trifold.fast.intrinsics import allocate, bfloat16_at, float16_at, float32_at, release
from trifold.fast.lanes import LANES, load_float, new_tile, store_float
from trifold.fast.loops import subroutine
from trifold.fast.panel_tile import (
    DECODED_BLOCK,
    FEW,
    ROWS,
    new_panel_decoder,
    new_panel_tile,
    transpose_panel,
)
from trifold.fast.step_linear import activate
from trifold.fast.step_rows import (
    numbers_of,
    panel_memory,
    panel_scales,
    panel_values,
    release_panel,
)

WIDTH = ins.PANELS * PANEL  # outputs of a unit


# --- a panel --------------------------------------------------------------------------------------

_decode = by_kind(new_panel_decoder)


@subroutine
def _panel_bytes(op: Any) -> Any:
    """The memory of a decoded or transposed panel."""
    if op.opcode == ins.BLOCK_PANELS:
        return DECODED_BLOCK * blocks_of(op.inputs)
    return LINE * op.inputs


@subroutine
def _prepare_panel(op: Any, panel: int, out: int) -> None:
    """The panel with that number -> decoded blocks, or (inputs, 16) fp32."""
    inputs = op.inputs
    if op.opcode == ins.BLOCK_PANELS:
        memory = panel_memory(op)
        values = panel_values(op, panel, op.outputs, memory)
        scales = panel_scales(op, panel, memory)
        for block in range(blocks_of(inputs)):
            codes = values + LINE * ins.BLOCK_BITS[op.dtype] * block
            numbers = scales + 2 * PANEL * numbers_of(op) * block
            _decode(op.dtype, codes, numbers, out + DECODED_BLOCK * block)
        release_panel(memory)
        return
    first = panel * PANEL * inputs
    if op.dtype == FLOAT32:
        transpose_panel(float32_at(op.weight, 1), op.weight + 4 * first, inputs, out)
    elif op.dtype == FLOAT16:
        transpose_panel(float16_at(op.weight, 1), op.weight + 2 * first, inputs, out)
    else:
        transpose_panel(bfloat16_at(op.weight, 1), op.weight + 2 * first, inputs, out)


# --- a tile ---------------------------------------------------------------------------------------

_tile = new_panel_tile(ROWS, has_offsets=False)
_small_tile = new_panel_tile(FEW, has_offsets=False)
_tile_with_offsets = new_panel_tile(ROWS, has_offsets=True)
_small_tile_with_offsets = new_panel_tile(FEW, has_offsets=True)
_dense_tile = new_tile(ROWS, 1, together=True)
_small_dense_tile = new_tile(FEW, 1, together=True)


@subroutine
def _multiply(op: Any, panel: int, row: int, count: int, out: int) -> None:
    """ROWS or FEW rows of x, from `row` on, times a panel -> out (count, 16), in rows of WIDTH."""
    inputs = op.inputs
    stride = 4 * WIDTH
    if op.opcode == ins.DENSE_PANELS:
        like = float32_at(op.x, 1)
        own = op.x + 4 * row * inputs
        if count == ROWS:
            _dense_tile(like, own, 4 * inputs, panel, 0, inputs, out, stride)
        else:
            _small_dense_tile(like, own, 4 * inputs, panel, 0, inputs, out, stride)
        return
    blocks = blocks_of(inputs)
    x = op.x + 2 * BLOCK * row * blocks
    scales = op.x + 2 * BLOCK * op.rows * blocks + 4 * row * blocks
    terms = scales + 4 * op.rows * blocks
    if numbers_of(op) == 2:
        if count == ROWS:
            _tile_with_offsets(panel, blocks, x, scales, terms, out, stride)
        else:
            _small_tile_with_offsets(panel, blocks, x, scales, terms, out, stride)
    elif count == ROWS:
        _tile(panel, blocks, x, scales, terms, out, stride)
    else:
        _small_tile(panel, blocks, x, scales, terms, out, stride)


@subroutine
def _finish_tile(op: Any, tile: int, rows: range, row: int, first: int) -> None:
    """Some rows of a tile (ROWS, WIDTH) of products -> out, where the tile begins at this row and
    output.
    """
    count = min(op.outputs - first, WIDTH)
    whole = count // LANES * LANES
    if op.bias != 0:
        bias = float32_at(op.bias + 4 * first, count)
        for r in rows:
            own = float32_at(tile + 4 * WIDTH * r, count)
            for j in range(count):
                own[j] += bias[j]
    activate(float32_at(tile, ROWS * WIDTH), op.activation)
    for r in rows:
        own = tile + 4 * WIDTH * r
        place = op.out + 4 * ((row + r) * op.outputs + first)
        for column in range(0, whole, LANES):
            result = load_float(own + 4 * column)
            if op.mode == ins.ADD:
                result = load_float(place + 4 * column) + result
            elif op.mode == ins.MULTIPLY:
                result = load_float(place + 4 * column) * result
            store_float(place + 4 * column, result)
        results = float32_at(own, count)
        out = float32_at(place, count)
        for column in range(whole, count):
            if op.mode == ins.ADD:
                out[column] += results[column]
            elif op.mode == ins.MULTIPLY:
                out[column] *= results[column]
            else:
                out[column] = results[column]


# --- the instruction ------------------------------------------------------------------------------


@subroutine
def _multiply_panels(op: Any, units: range) -> None:
    """Some units of WIDTH outputs of x Wᵀ + b: of quantized rows x and a weight in blocks, or of
    rows in fp32 and a dense weight, both sizes of which are multiples of 16.
    """
    size = _panel_bytes(op)
    memory = allocate(ins.PANELS * size + 4 * ROWS * WIDTH + LINE)
    panels = -(-memory // LINE) * LINE
    tile = panels + ins.PANELS * size
    for unit in units:
        first = unit * WIDTH
        count = min(ins.PANELS, -(-(op.outputs - first) // PANEL))
        for panel in range(count):
            _prepare_panel(op, unit * ins.PANELS + panel, panels + size * panel)
        done = 0
        while done < op.rows:
            rows = ROWS if op.rows - done >= ROWS else FEW
            row = min(done, op.rows - rows)
            for panel in range(count):
                _multiply(op, panels + size * panel, row, rows, tile + 4 * PANEL * panel)
            _finish_tile(op, tile, range(done - row, rows), row, first)
            done = row + rows
    release(memory)


@subroutine
def _multiply_nothing(op: Any, units: range) -> None:
    """On other processors; see `has_panels`."""


multiply_panels = _multiply_panels if has_panels() else _multiply_nothing
