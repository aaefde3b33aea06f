"""Codes of weights in blocks to numbers, 16 rows at a time."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from trifold.fast.block_tile import INSTRUCTIONS, TileCode
from trifold.fast.block_weight import NIBBLES, PANEL, WORD
from trifold.fast.instruction import BlockKind
from trifold.fast.vector_code import FLOATS, WORDS, long, words

SHORTS = ir.VectorType(ir.IntType(16), PANEL)


def new_decoder(kind: BlockKind, *, rounds: bool, tile: type[TileCode] = INSTRUCTIONS.code) -> Any:
    """A function decode(block, scales, offsets, out, stride): the codes of a block at an address,
    or their levels, times scales plus offsets (16,) fp32 -> (32, 16) fp32, or bf16 if it rounds,
    whose rows are `stride` bytes apart.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block, scales, offsets, out, stride = arguments
        code = tile(builder, 1, kind)
        factors, added = code.load(scales, FLOATS), code.load(offsets, FLOATS)
        if rounds:
            factors, added = _usual_nan(builder, factors), _usual_nan(builder, added)

        def decode_line(line: Any, results: list[Any]) -> list[Any]:
            for part, codes in enumerate(code.codes(block, line)):
                first = builder.mul(builder.add(line, long(NIBBLES * part)), long(WORD))
                for byte in range(WORD):
                    numbers = builder.and_(builder.lshr(codes, words(8 * byte)), words(255))
                    products = builder.fmul(builder.uitofp(numbers, FLOATS), factors)
                    values = builder.fadd(products, added)
                    if rounds:
                        values = _rounded(builder, values)
                    column = builder.add(first, long(byte))
                    place = builder.add(out, builder.mul(column, stride))
                    target = builder.inttoptr(place, values.type.as_pointer())
                    builder.store(values, target).align = 2
            return results

        code.loop(long(code.lines), [], decode_line)
        return context.get_dummy_value()

    @intrinsic
    def decode(typing: Any, block: Any, scales: Any, offsets: Any, out: Any, stride: Any) -> Any:
        return types.void(*[types.int64] * 5), generate

    return decode


def _usual_nan(builder: Any, values: Any) -> Any:
    """16 fp32, of which each NaN is one that `_rounded` keeps."""
    is_nan = builder.fcmp_unordered("uno", values, values)
    return builder.select(is_nan, ir.Constant(FLOATS, [float("nan")] * PANEL), values)


def _rounded(builder: Any, values: Any) -> Any:
    """16 fp32 in bf16: to nearest, ties to even. The carry turns a NaN with many bits into zero,
    but not that of an instruction, nor `_usual_nan`.
    """
    bits = builder.bitcast(values, WORDS)
    last = builder.and_(builder.lshr(bits, words(16)), words(1))
    nearest = builder.add(bits, builder.add(last, words(0x7FFF)))
    return builder.trunc(builder.lshr(nearest, words(16)), SHORTS)
