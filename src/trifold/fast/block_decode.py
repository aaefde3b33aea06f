"""Codes of weights in blocks to numbers, 16 rows at a time."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from trifold.fast.block_tile import UNSIGNED_LEVELS
from trifold.fast.block_weight import PANEL
from trifold.fast.vector_code import FLOATS, WORDS, VectorCode, words

SHORTS = ir.VectorType(ir.IntType(16), PANEL)


def _new_decoder(*, has_levels: bool, rounds: bool) -> Any:
    """A function decode(words, shift, mask, scales, offsets, out): one code of each of the 16 words
    at an address, (word >> shift) & mask, or its level, times scales plus offsets (16,) fp32 -> 16
    fp32, or bf16 if it rounds, at the address `out`.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        packed, shift, mask, scales, offsets, out = arguments
        code = VectorCode(builder)
        moved = builder.lshr(code.load(packed, WORDS), code.splat(shift))
        numbers = builder.and_(moved, code.splat(mask))
        floats = _level_floats(code, numbers) if has_levels else builder.uitofp(numbers, FLOATS)
        products = builder.fmul(floats, code.load(scales, FLOATS))
        values = builder.fadd(products, code.load(offsets, FLOATS))
        if rounds:
            values = _rounded(builder, values)
        builder.store(values, builder.inttoptr(out, values.type.as_pointer())).align = 2
        return context.get_dummy_value()

    @intrinsic
    def decode(
        typing: Any, words: Any, shift: Any, mask: Any, scales: Any, offsets: Any, out: Any
    ) -> Any:
        addresses = types.int64
        word = types.uint32
        return types.void(addresses, word, word, addresses, addresses, addresses), generate

    return decode


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


decode_codes = _new_decoder(has_levels=False, rounds=False)
decode_levels = _new_decoder(has_levels=True, rounds=False)
decode_codes_to_bfloat16 = _new_decoder(has_levels=False, rounds=True)
decode_levels_to_bfloat16 = _new_decoder(has_levels=True, rounds=True)
