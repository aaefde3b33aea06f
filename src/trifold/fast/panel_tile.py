"""The inner loop of a matmul of many rows on processors with AVX2: 16 outputs of a few rows.

A tile of a step reads codes of `BlockWeight` and multiplies them with a few rows. Here the codes of
a panel become int16 once, in memory that stays in a cache, and are multiplied with all rows; the
sums of six rows fill the registers. Sums and their order are those of `block_tile`, and so are the
bits. A panel of dense weights is transposed once.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from trifold.fast.block_tile import LINE, Avx2Tile
from trifold.fast.block_weight import BLOCK, PANEL, WORD
from trifold.fast.dot_products import bfloat16_to_float, float16_to_float
from trifold.fast.instruction import BlockKind
from trifold.fast.vector_code import (
    FLOAT_TYPE,
    FLOATS,
    WORD_TYPE,
    WORDS,
    VectorCode,
    long,
    words,
)

ROWS, FEW = 6, 2  # of a tile: what fills the registers, and for the last ones
PAIRS = BLOCK // 2
SCALES = LINE * PAIRS  # where the scales of a decoded block are
DECODED_BLOCK = SCALES + 2 * LINE  # bytes: pairs of int16, scales, and offsets
_SHORTS = ir.VectorType(ir.IntType(16), 2 * PANEL)


class PanelTile(Avx2Tile):
    """LLVM code that decodes a block, and multiplies decoded ones with rows."""

    def decode(self, values: Any, scales: Any, out: Any) -> None:
        """A block of a panel -> (16 pairs, 16 outputs, 2) int16 in the order of activations, then
        scales (16,) and offsets (16,) fp32.
        """
        builder = self.builder
        zero = ir.Constant(_SHORTS, [self.zero] * 2 * PANEL)

        def decode_line(line: Any, results: list[Any]) -> list[Any]:
            place = self.moved(out, line, 2 * LINE)
            for at, codes in self.pairs(self.codes(values, line)):
                numbers = builder.sub(builder.bitcast(codes, _SHORTS), zero)
                self.store(place, LINE * at // WORD, numbers)
            return results

        self.loop(long(self.lines), [], decode_line)
        self.store(out, SCALES, self.halves(scales))
        if self.has_offsets:
            self.store(out, SCALES + LINE, self.halves(scales, 2 * PANEL))

    def multiply(
        self, panel: Any, blocks: Any, x: Any, x_scales: Any, x_terms: Any, out: Any, stride: Any
    ) -> None:
        """A loop over blocks, in which a loop over pairs adds up the int32 sums of a block."""
        builder = self.builder
        rows = range(self.rows)
        columns = builder.mul(blocks, long(2 * BLOCK))
        x_starts = [self.moved(x, columns, row) for row in rows]
        numbers = builder.mul(blocks, long(4))
        scale_starts = [self.moved(x_scales, numbers, row) for row in rows]
        term_starts = [self.moved(x_terms, numbers, row) for row in rows]

        def add_block(block: Any, totals: list[Any]) -> list[Any]:
            place = self.moved(panel, block, DECODED_BLOCK)
            x_places = [self.moved(each, block, 2 * BLOCK) for each in x_starts]

            def add_pair(pair: Any, sums: list[Any]) -> list[Any]:
                codes = self.load(self.moved(place, pair, LINE), WORDS)
                places = [self.moved(each, pair, WORD) for each in x_places]
                own = [self.splat(self.load(each, WORD_TYPE)) for each in places]
                return [self.add_products(*each, codes) for each in zip(sums, own, strict=True)]

            sums = self.loop(long(PAIRS), [words(0)] * self.rows, add_pair)
            factors = [self.moved(each, block, 4) for each in scale_starts]
            terms = [self.moved(each, block, 4) for each in term_starts]
            return self.scaled_by(place, sums, factors, terms, totals)

        zeros = [ir.Constant(FLOATS, [0.0] * PANEL)] * self.rows
        for row, result in enumerate(self.loop(blocks, zeros, add_block)):
            self.store(self.moved(out, stride, row), 0, result)

    def scaled_by(
        self, block: Any, sums: list[Any], factors: list[Any], terms: list[Any], totals: list[Any]
    ) -> list[Any]:
        """See `TileCode.scaled`, of a decoded block."""
        builder = self.builder
        scales = self.load(block, FLOATS, SCALES)
        offsets = self.load(block, FLOATS, SCALES + LINE) if self.has_offsets else None
        results = []
        for number, x_factor, term, total in zip(sums, factors, terms, totals, strict=True):
            factor = builder.fmul(scales, self.splat(self.load(x_factor, FLOAT_TYPE)))
            floats = builder.sitofp(number, FLOATS)
            result = self.call("llvm.fma.v16f32", FLOATS, floats, factor, total)
            if self.has_offsets:
                added = self.splat(self.load(term, FLOAT_TYPE))
                result = self.call("llvm.fma.v16f32", FLOATS, offsets, added, result)
            results.append(result)
        return results


def new_panel_decoder(kind: BlockKind) -> Any:
    """A function decode(values, scales, out) of addresses; see `PanelTile.decode`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        PanelTile(builder, 1, kind).decode(*arguments)
        return context.get_dummy_value()

    @intrinsic
    def decode(typing: Any, values: Any, scales: Any, out: Any) -> Any:
        return types.void(*[types.int64] * 3), generate

    return decode


def new_panel_tile(rows: int, *, has_offsets: bool) -> Any:
    """A function tile(panel, blocks, x, x_scales, x_terms, out, stride): the products of a decoded
    panel and of so many rows of activations, quantized by `step_blocks`; see
    `block_tile.new_tile`.
    """
    kind = BlockKind(8, has_offsets=has_offsets)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        PanelTile(builder, rows, kind).multiply(*arguments)
        return context.get_dummy_value()

    @intrinsic
    def tile(
        typing: Any,
        panel: Any,
        blocks: Any,
        x: Any,
        x_scales: Any,
        x_terms: Any,
        out: Any,
        stride: Any,
    ) -> Any:
        return types.void(*[types.int64] * 7), generate

    return tile


# --- dense weights --------------------------------------------------------------------------------

_SIDE = 8  # of a square of words that registers hold
_PLACES = ir.VectorType(WORD_TYPE, _SIDE)
# Which words of two registers are in the two results of a step: pairs of words of each half, then
# of pairs, then halves.
_STEPS = (
    (1, (0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15)),
    (2, (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)),
    (4, (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)),
)
_COLUMNS = (0, 2, 1, 3, 4, 6, 5, 7)  # which of the results each column is
# Numbers of 16 bits -> fp32.
_WIDEN = {types.uint16: bfloat16_to_float, types.int16: float16_to_float}


def _rows_of_square(code: VectorCode, place: Any, stride: Any, dtype: Any) -> list[Any]:
    """8 rows of 8 numbers of a type as words of fp32."""
    rows = []
    for row in range(_SIDE):
        start = code.moved(place, stride, row)
        if dtype not in _WIDEN:
            rows.append(code.load(start, _PLACES))
            continue
        halves = code.load(start, ir.VectorType(ir.IntType(16), _SIDE))
        rows.append(code.builder.bitcast(_WIDEN[dtype](code.builder, halves), _PLACES))
    return rows


def _transposed(code: VectorCode, rows: list[Any]) -> list[Any]:
    """The columns of 8 rows of 8 words."""
    for distance, *choices in _STEPS:
        result = list(rows)
        for first in range(_SIDE):
            if first & distance:
                continue
            pair = rows[first], rows[first + distance]
            both = [
                code.builder.shuffle_vector(*pair, ir.Constant(_PLACES, choice))
                for choice in choices
            ]
            result[first], result[first + distance] = both
        rows = result
    return [rows[number] for number in _COLUMNS]


@intrinsic
def transpose_panel(typing: Any, like: Any, source: Any, columns: Any, out: Any) -> Any:
    """16 rows of so many numbers, a multiple of 8, at an address -> their columns in fp32, one
    after the other. like: an array of their type, fp32, bf16 (uint16) or fp16 (int16).
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, source, columns, out = arguments
        code = VectorCode(builder)
        size = like.dtype.bitwidth // 8
        stride = builder.mul(columns, long(size))

        def transpose(square: Any, results: list[Any]) -> list[Any]:
            for half in range(PANEL // _SIDE):
                start = code.moved(source, stride, _SIDE * half)
                place = code.moved(start, square, size * _SIDE)
                rows = _transposed(code, _rows_of_square(code, place, stride, like.dtype))
                target = code.moved(out, square, LINE * _SIDE)
                for column, row in enumerate(rows):
                    at = builder.add(target, long(LINE * column + WORD * _SIDE * half))
                    pointer = builder.inttoptr(at, row.type.as_pointer())
                    builder.store(row, pointer).align = 4
            return results

        code.loop(builder.sdiv(columns, long(_SIDE)), [], transpose)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 3), generate
