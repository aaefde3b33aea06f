"""Lays blocks of 256 values of GGUF files out in blocks of 32, as `BlockWeight` has them.

Q4_K and Q5_K keep their codes; products of two scales are rounded to fp16. Q6_K, which has a scale
for 16 values, is rounded to 8 bits. The results are those of `hub.gguf.matrices` bit for bit.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from trifold.fast.block_weight import BLOCK, NIBBLES, PANEL, WORD
from trifold.fast.intrinsics import (
    allocate,
    bfloat16_at,
    int32_at,
    release,
    uint8_at,
)
from trifold.fast.loops import (
    F,
    exact_subroutine,
    float_to_half,
    half_to_float,
    subroutine,
)
from trifold.fast.vector_code import FLOAT_TYPE, WORD_TYPE, VectorCode

GROUP = 256  # values
GROUPS = GROUP // BLOCK  # blocks of 32 values in one of 256
SCALED = 16  # codes of Q6_K with one scale
HEADER_BYTES = 16  # of Q4_K and Q5_K: a scale, an offset, and eight of both in 6 bits each
CODE_BYTES = 128  # 4 bits of 256 codes
Q6_K_BYTES = 210
INFINITE = np.uint16(0x7C00)  # the exponent of fp16 numbers that are not finite
LOWER = np.int32(0x0F0F0F0F)  # of the bytes of a word
UPPER = np.int32(-0x0F0F0F10)
ONES = np.int32(0x01010101)
_BYTES = ir.VectorType(ir.IntType(8), BLOCK)
_WORDS = ir.VectorType(WORD_TYPE, BLOCK)
_FLOATS = ir.VectorType(FLOAT_TYPE, BLOCK)


@subroutine
def lay_out_groups(
    values: Any, scales: Any, lane: int, start: int, blocks: int, words: int
) -> bool:
    """A row at an address, of Q4_K or Q5_K (4 or 5 words in a block) -> a lane of a panel; whether
    its scales are finite.
    """
    fifths = 0 if words == NIBBLES else 32  # bytes: bit j of byte i is that of code i of block j
    size = HEADER_BYTES + fifths + CODE_BYTES
    is_finite = True
    for group in range(blocks // GROUPS):
        place = start + group * size
        numbers = bfloat16_at(place, 2)
        packed = uint8_at(place + 4, 12)
        bits = int32_at(place + HEADER_BYTES, fifths // WORD)
        codes = int32_at(place + HEADER_BYTES + fifths, CODE_BYTES // WORD)
        for part in range(GROUPS):
            block = GROUPS * group + part
            scale, offset = _scale_and_offset(numbers, packed, part)
            scales[2 * block * PANEL + lane] = scale
            scales[(2 * block + 1) * PANEL + lane] = offset
            is_finite &= scale & INFINITE != INFINITE
            is_finite &= offset & INFINITE != INFINITE
            first = words * block * PANEL + lane
            for word in range(NIBBLES):
                values[first + word * PANEL] = _nibbles(codes, part, word)
            if words > NIBBLES:
                values[first + NIBBLES * PANEL] = _fifth_bits(bits, part)
    return is_finite


@exact_subroutine
def _scale_and_offset(numbers: Any, packed: Any, part: int) -> Any:
    """Those of one of eight blocks, fp16: the products of two fp16 and of its scale and offset of 6
    bits, in 12 bytes. The last four have their upper bits in the first bytes.
    """
    if part < 4:
        scale = packed[part] & 63
        minimum = packed[part + 4] & 63
    else:
        scale = packed[part + 4] & 15 | packed[part - 4] >> 6 << 4
        minimum = packed[part + 4] >> 4 | packed[part] >> 6 << 4
    return (
        float_to_half(half_to_float(numbers[0]) * F(scale)),
        float_to_half(-half_to_float(numbers[1]) * F(minimum)),
    )


@subroutine
def _nibbles(codes: Any, part: int, word: int) -> Any:
    """A word of a block: four of its first 16 codes in the lower halves of bytes, and of the others
    in the upper ones. Two blocks are the lower and the upper halves of 32 bytes of the file.
    """
    place = 8 * (part // 2) + word
    first = codes[place]
    second = codes[place + 4]
    if part % 2 == 0:
        return np.int32(first & LOWER | (second & LOWER) << 4)
    return np.int32(first >> 4 & LOWER | second & UPPER)


@subroutine
def _fifth_bits(bits: Any, part: int) -> Any:
    """A word of a block: bit w of byte b is that of code 4 · w + b."""
    found = 0
    for word in range(BLOCK // WORD):
        found |= (bits[word] >> part & ONES) << word
    return np.int32(found)


@subroutine
def round_groups(values: Any, scales: Any, lane: int, start: int, blocks: int) -> bool:
    """A row at an address, of Q6_K -> a lane of a panel of blocks of 8 bits; whether its scales are
    finite.

    Of each 128 codes, 4 bits are in 64 bytes, and of all codes before 2 bits in 32 bytes each.
    """
    memory = allocate(BLOCK)
    words = int32_at(memory, BLOCK // WORD)
    is_finite = True
    for group in range(blocks // GROUPS):
        place = start + group * Q6_K_BYTES
        number = bfloat16_at(place + 208, 1)[0]
        if number & INFINITE == INFINITE:
            is_finite = False
            number = np.uint16(0)
        factor = half_to_float(number)
        for part in range(GROUPS):
            half = part // 4
            quarter = part % 4
            low = place + 64 * half + BLOCK * (quarter % 2)
            high = place + 128 + BLOCK * half
            shifts = np.int32(4 * (quarter // 2)), np.int32(2 * quarter)
            own = place + 192 + 2 * part
            scale = float_to_half(_round(low, high, *shifts, own, factor, memory))
            block = GROUPS * group + part
            scales[block * PANEL + lane] = scale
            is_finite &= scale & INFINITE != INFINITE
            for word in range(BLOCK // WORD):
                values[(BLOCK // WORD * block + word) * PANEL + lane] = words[word]
    release(memory)
    return is_finite


@exact_subroutine
def _round(
    low: int, high: int, low_shift: Any, high_shift: Any, own: int, factor: Any, out: int
) -> Any:
    """`_round_block`, whose instructions would otherwise be those of arithmetic in any order."""
    return _round_block(low, high, low_shift, high_shift, own, factor, out)


@intrinsic
def _round_block(
    typing: Any,
    low: Any,
    high: Any,
    low_shift: Any,
    high_shift: Any,
    own: Any,
    factor: Any,
    out: Any,
) -> Any:
    """Round 32 codes of Q6_K, whose 4 and 2 bits begin at these bits of the bytes at two addresses,
    to 8 bits -> (32,) bytes at an address. The result is their scale.

    factor: the scale of 256 codes. own: the address of what it is multiplied by, an int8 for each
    16 codes.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return RoundingCode(builder).emit(*arguments)

    kinds = (types.int64, types.int64, types.int32, types.int32)
    return types.float32(*kinds, types.int64, types.float32, types.int64), generate


class RoundingCode(VectorCode):
    """LLVM code of `_round_block`, whose arithmetic has the order of `BlockWeight.quantize`."""

    def emit(
        self, low: Any, high: Any, low_shift: Any, high_shift: Any, own: Any, factor: Any, out: Any
    ) -> Any:
        """See `_round_block`."""
        builder = self.builder
        codes = self.codes(low, high, low_shift, high_shift)
        factors = [self.factor(own, number, factor) for number in range(2)]
        largest = _float(0.0)
        for number, each in enumerate(factors):
            lanes = list(range(SCALED * number, SCALED * (number + 1)))
            magnitudes = self.magnitude(self.shuffled(codes, codes, lanes))
            most = self.call("llvm.vector.reduce.fmax.v16f32", FLOAT_TYPE, magnitudes)
            largest = self.larger(largest, builder.fmul(self.magnitude(each), most))
        scale = builder.fdiv(largest, _float(127.0))
        inverse = builder.fdiv(_float(1.0), scale)
        # The scale may be 0 or too small.
        is_number = builder.fcmp_ordered("<", inverse, _float(float("inf")))
        inverse = builder.select(is_number, inverse, _float(0.0))
        first, second = map(self.splat, factors)
        joined = self.shuffled(first, second, list(range(BLOCK)))
        inverses = self.splat(inverse)
        inverses = self.shuffled(inverses, inverses, [0] * BLOCK)
        scaled = builder.fmul(builder.fmul(joined, codes), inverses)
        whole = builder.fptosi(scaled, _WORDS)
        # Half away from zero; half of what is nearly 0.5 is not rounded up.
        rest = builder.fsub(scaled, builder.sitofp(whole, _FLOATS))
        more = builder.fptosi(builder.fmul(rest, _floats(2.0)), _WORDS)
        zero = ir.Constant(_WORDS, [128] * BLOCK)
        rounded = builder.add(builder.add(whole, more), zero)
        self.store(out, 0, builder.trunc(rounded, _BYTES))
        return scale

    def codes(self, low: Any, high: Any, low_shift: Any, high_shift: Any) -> Any:
        """32 codes from -32 to 31, in fp32."""
        builder = self.builder
        kind = ir.VectorType(WORD_TYPE, BLOCK // WORD)
        parts = []
        for address, shift, mask in ((low, low_shift, 0x0F0F0F0F), (high, high_shift, 0x03030303)):
            shifts = self.splat(shift)
            shifts = self.shuffled(shifts, shifts, [0] * (BLOCK // WORD))
            bits = builder.lshr(self.load(address, kind), shifts)
            parts.append(builder.and_(bits, ir.Constant(kind, [mask] * (BLOCK // WORD))))
        upper = builder.shl(parts[1], ir.Constant(kind, [4] * (BLOCK // WORD)))
        codes = builder.bitcast(builder.or_(parts[0], upper), _BYTES)
        numbers = builder.sub(codes, ir.Constant(_BYTES, [32] * BLOCK))
        return builder.sitofp(builder.sext(numbers, _WORDS), _FLOATS)

    def factor(self, own: Any, number: int, factor: Any) -> Any:
        """The scale of 16 codes."""
        multiplier = self.load(own, ir.IntType(8), number)
        return self.builder.fmul(factor, self.builder.sitofp(multiplier, FLOAT_TYPE))

    def magnitude(self, x: Any) -> Any:
        """The absolute value of a number, or those of 16."""
        name = "llvm.fabs.f32" if x.type == FLOAT_TYPE else "llvm.fabs.v16f32"
        return self.call(name, x.type, x)

    def larger(self, one: Any, other: Any) -> Any:
        """The larger of two numbers."""
        is_larger = self.builder.fcmp_ordered(">", other, one)
        return self.builder.select(is_larger, other, one)


def _float(number: float) -> Any:
    return ir.Constant(FLOAT_TYPE, number)


def _floats(number: float) -> Any:
    return ir.Constant(_FLOATS, [number] * BLOCK)
