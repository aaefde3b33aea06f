"""Lays blocks of 256 values of GGUF files out in blocks of 32, as `BlockWeight` has them.

Q4_K and Q5_K keep their codes; products of two scales are rounded to fp16. Q6_K, which has a scale
for 16 values, is rounded to 8 bits. The results are those of `hub.gguf.matrices` bit for bit.
"""

from typing import Any

import numpy as np

from trifold.fast.block_weight import BLOCK, NIBBLES, PANEL, WORD
from trifold.fast.intrinsics import (
    allocate,
    bfloat16_at,
    int8_at,
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
    """
    memory = allocate(2 * GROUP)
    codes = int8_at(memory, GROUP)
    rounded = uint8_at(memory + GROUP, GROUP)
    words = int32_at(memory + GROUP, GROUP // WORD)
    is_finite = True
    for group in range(blocks // GROUPS):
        place = start + group * Q6_K_BYTES
        _read_codes(codes, uint8_at(place, 128), uint8_at(place + 128, 64))
        own = int8_at(place + 192, GROUP // SCALED)
        number = bfloat16_at(place + 208, 1)[0]
        if number & INFINITE == INFINITE:
            is_finite = False
            number = np.uint16(0)
        for part in range(GROUPS):
            scale = _round(codes, rounded, BLOCK * part, number, own)
            scales[(GROUPS * group + part) * PANEL + lane] = scale
            is_finite &= scale & INFINITE != INFINITE
        first = GROUP // WORD * group
        for word in range(GROUP // WORD):
            values[(first + word) * PANEL + lane] = words[word]
    release(memory)
    return is_finite


@subroutine
def _read_codes(codes: Any, low: Any, high: Any) -> None:
    """256 codes from -32 to 31: of each 128, 4 bits are in 64 bytes of `low`, 2 bits in 32 of
    `high`.
    """
    for part in range(GROUPS):
        half = part // 4
        quarter = part % 4
        nibbles = low[64 * half + 32 * (quarter % 2) :]
        uppers = high[32 * half :]
        own = codes[BLOCK * part :]
        for place in range(BLOCK):
            nibble = np.int32(nibbles[place] >> np.uint8(4 * (quarter // 2))) & np.int32(15)
            upper = np.int32(uppers[place] >> np.uint8(2 * quarter)) & np.int32(3)
            own[place] = np.int8(np.int32(nibble | upper << np.int32(4)) - np.int32(32))


@exact_subroutine
def _round(codes: Any, rounded: Any, first: int, number: Any, own: Any) -> Any:
    """Round a block of codes, from the number of its first, to 8 bits; its scale, fp16.

    number, own: the scale of the codes, fp16, and what it is multiplied by for each 16 of them.
    """
    factor = half_to_float(number)
    largest = F(0)
    for start in range(first, first + BLOCK, SCALED):
        most = np.int32(0)
        for place in range(start, start + SCALED):
            most = max(most, np.int32(abs(np.int32(codes[place]))))
        largest = max(largest, abs(factor * F(own[start // SCALED])) * F(most))
    scale = largest / F(127)
    inverse = F(1) / scale
    if not inverse < F(np.inf):  # the scale is 0 or too small
        inverse = F(0)
    for start in range(first, first + BLOCK, SCALED):
        own_scale = factor * F(own[start // SCALED])
        for place in range(start, start + SCALED):
            scaled = own_scale * F(codes[place]) * inverse
            whole = np.int32(scaled)
            # Half away from zero; half of what is nearly 0.5 is not rounded up.
            more = np.int32((scaled - F(whole)) * F(2))
            rounded[place] = np.uint8(np.int32(whole + more + np.int32(128)))
    return float_to_half(scale)
