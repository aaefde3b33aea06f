"""Codes of weights in blocks to numbers, 16 rows at a time."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from trifold.fast.block_tile import LINE, UNSIGNED_LEVELS
from trifold.fast.block_weight import NIBBLES, PANEL
from trifold.fast.instruction import BlockKind
from trifold.fast.vector_code import FLOATS, WORD_TYPE, WORDS, VectorCode, long, words

SHORTS = ir.VectorType(ir.IntType(16), PANEL)


def new_decoder(kind: BlockKind, *, rounds: bool) -> Any:
    """A function decode(block, word, byte, scales, offsets, out): the codes of column 4 · word +
    byte of a block at an address, or their levels, times scales plus offsets (16,) fp32 -> 16 fp32,
    or bf16 if it rounds, at the address `out`.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block, word, byte, scales, offsets, out = arguments
        code = VectorCode(builder)
        numbers = _codes(code, kind.bits, block, word, byte)
        floats = builder.uitofp(numbers, FLOATS)
        if kind.has_levels:
            floats = _level_floats(code, numbers)
        products = builder.fmul(floats, code.load(scales, FLOATS))
        values = builder.fadd(products, code.load(offsets, FLOATS))
        if rounds:
            values = _rounded(builder, values)
        builder.store(values, builder.inttoptr(out, values.type.as_pointer())).align = 2
        return context.get_dummy_value()

    @intrinsic
    def decode(
        typing: Any, block: Any, word: Any, byte: Any, scales: Any, offsets: Any, out: Any
    ) -> Any:
        return types.void(*[types.int64] * 6), generate

    return decode


def _codes(code: VectorCode, bits: int, block: Any, word: Any, byte: Any) -> Any:
    """One code of each of 16 rows, as words."""
    builder = code.builder
    first = builder.mul(byte, long(8))
    if bits == 8:
        packed = code.load(code.moved(block, word, LINE), WORDS)
        return builder.and_(_moved(code, packed, first), words(255))
    line = builder.and_(word, long(NIBBLES - 1))
    half = builder.and_(word, long(NIBBLES))  # 4 bits further in the upper half
    packed = code.load(code.moved(block, line, LINE), WORDS)
    codes = builder.and_(_moved(code, packed, builder.add(first, half)), words(15))
    if bits == 5:
        fifth = code.load(block, WORDS, LINE * NIBBLES)
        bit = builder.and_(_moved(code, fifth, builder.add(first, word)), words(1))
        codes = builder.or_(codes, builder.shl(bit, words(4)))
    return codes


def _moved(code: VectorCode, packed: Any, distance: Any) -> Any:
    """Words shifted to the right by a number of bits."""
    return code.builder.lshr(packed, code.splat(code.builder.trunc(distance, WORD_TYPE)))


def _rounded(builder: Any, values: Any) -> Any:
    """16 fp32 in bf16: to nearest, ties to even. The carry could turn a NaN into zero."""
    bits = builder.bitcast(values, WORDS)
    last = builder.and_(builder.lshr(bits, words(16)), words(1))
    nearest = builder.add(bits, builder.add(last, words(0x7FFF)))
    is_nan = builder.fcmp_unordered("uno", values, values)
    rounded = builder.select(is_nan, builder.or_(bits, words(0x400000)), nearest)
    return builder.trunc(builder.lshr(rounded, words(16)), SHORTS)


def _level_floats(code: VectorCode, numbers: Any) -> Any:
    """The levels of 16 codes, plus 128, in fp32: a choice by each bit of a code."""
    builder = code.builder
    choices = [ir.Constant(FLOATS, [float(level)] * PANEL) for level in UNSIGNED_LEVELS]
    for bit in range(4):
        is_set = builder.icmp_unsigned("!=", builder.and_(numbers, words(1 << bit)), words(0))
        pairs = zip(choices[::2], choices[1::2], strict=True)
        choices = [builder.select(is_set, one, zero) for zero, one in pairs]
    return choices[0]
