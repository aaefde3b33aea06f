"""Reads 16 rows of the types of GGUF files that memory has in another form as a panel of blocks of
32 values, as `BlockWeight` has them.

Most have blocks of 256 values. Q4_K and Q5_K keep their codes; products of two scales are rounded
to fp16. Q6_K, Q3_K and Q2_K, which have a scale for 16 values, and MXFP4, whose scales are powers
of 2, are rounded to 8 bits. The results are those of `hub.gguf.matrices` bit for bit.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from trifold.fast import instruction as ins
from trifold.fast.block_tile import LINE
from trifold.fast.block_weight import BLOCK, NIBBLES, PANEL, WORD
from trifold.fast.instruction import BLOCK4_OFFSETS, BLOCK5_OFFSETS, BLOCK8, BLOCK_KINDS
from trifold.fast.loops import exact_subroutine
from trifold.fast.row_code import HALF_BYTES, INFINITE, SHORTS, RowCode, new_row_reader
from trifold.fast.vector_code import FLOATS, LONG_TYPE, WORD_TYPE, WORDS, long, words

GROUP = 256  # values
GROUPS = GROUP // BLOCK  # blocks of 32 values in one of 256
HEADER_BYTES = 16  # of Q4_K and Q5_K: a scale, an offset, and eight of both in 6 bits each
CODE_BYTES = 128  # 4 bits of 256 codes
SCALED = 16  # codes with one scale, in types that are rounded
LOWER = 0x0F0F0F0F  # of the bytes of a word
UPPER = -0x0F0F0F10
ONES = 0x01010101
NEARLY_HALF = 0x3EFFFFFF  # the largest fp32 number below 0.5
_TRUTHS = ir.VectorType(ir.IntType(1), PANEL)
_BYTES = ir.VectorType(ir.IntType(8), WORD * PANEL)


class GroupCode(RowCode):
    """LLVM code that reads blocks of 256 values.

    number_count, numbers_at: how many fp16 numbers a block of the file has, and where.
    """

    length = GROUP
    number_count = 2
    numbers_at = 0

    def numbers(self, rows: Sequence[Any]) -> list[Any]:
        """The fp16 numbers of a block of the file, as the bits of words."""
        builder = self.builder
        if self.number_count == 0:
            return []
        if self.number_count == 1:
            return [builder.lshr(self.column(rows, self.numbers_at - HALF_BYTES), words(16))]
        both = self.column(rows, self.numbers_at)
        return [builder.and_(both, words(0xFFFF)), builder.lshr(both, words(16))]

    def widened(self, bits: Any) -> Any:
        """fp16 numbers, the bits of words, in fp32; see `loops.half_to_float`."""
        builder = self.builder
        moved = builder.shl(builder.and_(bits, words(0x7FFF)), words(13))
        scaled = builder.fmul(builder.bitcast(moved, FLOATS), _floats(2.0**112))
        number = builder.bitcast(scaled, WORDS)
        is_infinite = builder.icmp_unsigned(">=", moved, words(INFINITE << 13))
        number = builder.select(is_infinite, builder.or_(moved, words(0x7F800000)), number)
        sign = builder.shl(builder.and_(bits, words(0x8000)), words(16))
        return builder.bitcast(builder.or_(number, sign), FLOATS)

    def narrowed(self, numbers: Any) -> Any:
        """fp32 numbers in fp16, as the bits of words; see `loops.float_to_half`."""
        builder = self.builder
        bits = builder.bitcast(numbers, WORDS)
        sign = builder.and_(builder.lshr(bits, words(16)), words(0x8000))
        magnitude = builder.and_(bits, words(0x7FFFFFFF))
        odd = builder.and_(builder.lshr(magnitude, words(13)), words(1))
        # The exponent has another origin, and what is cut off is added to round.
        moved = builder.add(magnitude, builder.add(odd, words(0xFFF - (112 << 23))))
        found = builder.lshr(moved, words(13))
        # The sum rounds to the multiples of the least fp16; 0x3F000000 are the bits of 0.5.
        small = builder.fadd(builder.bitcast(magnitude, FLOATS), _floats(0.5))
        small = builder.sub(builder.bitcast(small, WORDS), words(0x3F000000))
        for relation, bound, result in (
            ("<", 0x38800000, small),
            (">=", 0x47800000, words(INFINITE)),
            (">", 0x7F800000, words(0x7E00)),  # NaN
        ):
            is_other = builder.icmp_unsigned(relation, magnitude, words(bound))
            found = builder.select(is_other, result, found)
        return builder.or_(found, sign)

    def store_numbers(self, place: Any, at: int, bits: Any) -> None:
        """Store fp16 numbers, the bits of words."""
        self.store(place, at, self.builder.trunc(bits, SHORTS))

    def at(self, rows: Sequence[Any], offset: Any) -> list[Any]:
        """The addresses so many bytes further."""
        return [self.builder.add(row, offset) for row in rows]


class OffsetCode(GroupCode):
    """Of Q4_K and Q5_K: eight blocks of 32 codes with a scale and an offset each."""

    @property
    def fifth_bytes(self) -> int:
        """Of the fifth bits: bit j of byte i is that of code i of block j."""
        return (self.kind.bits - NIBBLES) * BLOCK

    @property
    def bytes(self) -> int:
        """Of 256 values."""
        return HEADER_BYTES + self.fifth_bytes + CODE_BYTES

    def lay_out(self, rows: Sequence[Any], values: Any, scales: Any) -> None:
        """See `RowCode`."""
        builder = self.builder
        factor, minimum = map(self.widened, self.numbers(rows))
        minimum = builder.fneg(minimum)
        factors_of_blocks, minima_of_blocks = self.six_bits(
            [self.column(rows, at) for at in (4, 8, 12)]
        )
        fifths = self.eight_words(rows, HEADER_BYTES) if self.fifth_bytes else []
        first = HEADER_BYTES + self.fifth_bytes

        def read_pair(pair: Any, results: list[Any]) -> list[Any]:
            """Two blocks, which are the lower and the upper halves of 32 bytes."""
            codes = self.eight_words(self.at(rows, builder.mul(pair, long(BLOCK))), first)
            factors = self.of_pair(*factors_of_blocks, pair)
            minima = self.of_pair(*minima_of_blocks, pair)
            for part in (0, 1):
                block = builder.add(builder.mul(pair, long(2)), long(part))
                place = self.moved(scales, block, self.scale_bytes)
                self.store_numbers(place, 0, self.product(factor, factors, part))
                offset = self.product(minimum, minima, part)
                self.store_numbers(place, PANEL * HALF_BYTES, offset)
                found = [*self.nibbles(codes, part), *self.fifth_bits(fifths, block)]
                place = self.moved(values, block, self.value_bytes)
                for number, word in enumerate(found):
                    self.store(place, LINE * number, word)
            return results

        self.loop(long(GROUPS // 2), [], read_pair)

    def product(self, number: Any, sixes: Any, part: int) -> Any:
        """A number in fp32 times a byte of words, fp16."""
        builder = self.builder
        byte = builder.and_(builder.lshr(sixes, words(8 * part)), words(255))
        return self.narrowed(builder.fmul(number, builder.uitofp(byte, FLOATS)))

    def six_bits(self, packed: Sequence[Any]) -> list[tuple[Any, Any]]:
        """12 bytes -> the scales, and the offsets, of the first and of the last four blocks, in
        bytes. Those of the last four have their upper bits in the first bytes.
        """
        builder = self.builder
        scales, minima, others = packed
        lower = builder.and_(others, words(LOWER))
        upper = builder.and_(builder.lshr(others, words(4)), words(LOWER))
        found = []
        for first, rest in ((scales, lower), (minima, upper)):
            more = builder.and_(builder.lshr(first, words(2)), words(0x30303030))
            found.append((builder.and_(first, words(0x3F3F3F3F)), builder.or_(rest, more)))
        return found

    def of_pair(self, first: Any, last: Any, pair: Any) -> Any:
        """Bytes of eight blocks, whose lower two are those of a pair of blocks."""
        builder = self.builder
        chosen = builder.select(builder.icmp_signed("<", pair, long(2)), first, last)
        odd = builder.trunc(builder.and_(pair, long(1)), WORD_TYPE)
        return builder.lshr(chosen, self.splat(builder.mul(odd, ir.Constant(WORD_TYPE, 16))))

    def nibbles(self, codes: Sequence[Any], part: int) -> list[Any]:
        """The words of a block: its first 16 codes in the lower halves of bytes, and the others in
        the upper ones.
        """
        builder = self.builder
        found = []
        for word in range(NIBBLES):
            first, second = codes[word], codes[word + NIBBLES]
            if part == 0:
                second = builder.shl(second, words(4))
            else:
                first = builder.lshr(first, words(4))
            first = builder.and_(first, words(LOWER))
            found.append(builder.or_(first, builder.and_(second, words(UPPER))))
        return found

    def fifth_bits(self, fifths: Sequence[Any], block: Any) -> list[Any]:
        """The last word of a block, if codes have 5 bits: bit w of byte b is that of code
        4 · w + b.
        """
        if not fifths:
            return []
        builder = self.builder
        shift = self.splat(builder.trunc(block, WORD_TYPE))
        found = words(0)
        for number, word in enumerate(fifths):
            bits = builder.and_(builder.lshr(word, shift), words(ONES))
            found = builder.or_(found, builder.shl(bits, words(number)))
        return [found]


class RoundingCode(GroupCode):
    """Of types that become blocks of 8 bits, by the arithmetic of `BlockWeight.quantize` in its
    order.
    """

    @abstractmethod
    def values(self, rows: Sequence[Any], block: Any, numbers: Sequence[Any]) -> list[Any]:
        """The 32 values of a block in fp32; block: its number in the block of the file. numbers:
        those of the file, in fp32.
        """

    def lay_out(self, rows: Sequence[Any], values: Any, scales: Any) -> None:
        """See `RowCode`."""
        numbers = self.numbers(rows)
        is_infinite = ir.Constant(_TRUTHS, [0] * PANEL)
        for number in numbers:
            is_infinite = self.builder.or_(is_infinite, self.is_infinite(number))
        finite = [self.builder.select(is_infinite, words(0), number) for number in numbers]
        floats = [self.widened(number) for number in finite]

        def read_block(block: Any, results: list[Any]) -> list[Any]:
            scale = self.store_rounded(
                self.values(rows, block, floats), self.moved(values, block, self.value_bytes)
            )
            bits = self.builder.select(is_infinite, words(INFINITE), self.narrowed(scale))
            self.store_numbers(self.moved(scales, block, self.scale_bytes), 0, bits)
            return results

        self.loop(long(self.length // BLOCK), [], read_block)

    def is_infinite(self, bits: Any) -> Any:
        """Which fp16 numbers are not finite."""
        exponents = self.builder.and_(bits, words(INFINITE))
        return self.builder.icmp_unsigned("==", exponents, words(INFINITE))

    def store_rounded(self, found: Sequence[Any], values: Any) -> Any:
        """Round the 32 values of a block -> codes at an address. The result is their scale."""
        builder = self.builder
        # In memory, so that loops can read them, which take less code.
        memory = self.memory(len(found))
        for number, value in enumerate(found):
            self.store(memory, LINE * number, value)

        def words_of(word: Any) -> list[Any]:
            place = self.moved(memory, word, WORD * LINE)
            return [self.load(place, FLOATS, LINE * number) for number in range(WORD)]

        def enlarge(word: Any, results: list[Any]) -> list[Any]:
            [largest] = results
            for value in words_of(word):
                largest = self.larger(largest, self.call("llvm.fabs.v16f32", FLOATS, value))
            return [largest]

        [largest] = self.loop(long(BLOCK // WORD), [_floats(0.0)], enlarge)
        scale = builder.fdiv(largest, _floats(127.0))
        inverse = builder.fdiv(_floats(1.0), scale)
        # The scale may be 0 or too small.
        is_number = builder.fcmp_ordered("<", inverse, _floats(float("inf")))
        inverse = builder.select(is_number, inverse, _floats(0.0))

        def round_word(word: Any, results: list[Any]) -> list[Any]:
            codes = words(0)
            for number, value in enumerate(words_of(word)):
                code = self.rounded(builder.fmul(value, inverse))
                codes = builder.or_(codes, builder.shl(code, words(8 * number)))
            self.store(self.moved(values, word, LINE), 0, codes)
            return results

        self.loop(long(BLOCK // WORD), [], round_word)
        return scale

    def memory(self, count: int) -> Any:
        """The address of memory for so many vectors."""
        place = cgutils.alloca_once(self.builder, FLOATS, count)
        return self.builder.ptrtoint(place, LONG_TYPE)

    def larger(self, one: Any, other: Any) -> Any:
        """The larger of each two numbers."""
        is_larger = self.builder.fcmp_ordered(">", other, one)
        return self.builder.select(is_larger, other, one)

    def rounded(self, scaled: Any) -> Any:
        """The codes of 8 bits of scaled values: to nearest, half away from zero."""
        builder = self.builder
        # The sum of what is nearly 0.5 and 0.5 would be 1.
        sign = builder.and_(builder.bitcast(scaled, WORDS), words(-(2**31)))
        half = builder.bitcast(builder.or_(sign, words(NEARLY_HALF)), FLOATS)
        code = builder.fptosi(builder.fadd(scaled, half), WORDS)
        return builder.and_(builder.add(code, words(128)), words(255))

    # --- codes ------------------------------------------------------------------------------------

    def split(self, block: Any, *, size: int, count: int) -> tuple[Any, Any]:
        """Where a block is: the offset of its group of `count` blocks, which share the bits of so
        many bytes, and its number there.
        """
        group = self.builder.lshr(block, long(count.bit_length() - 1))
        number = self.builder.and_(block, long(count - 1))
        return self.builder.mul(group, long(size)), number

    def bits(self, codes: Sequence[Any], number: Any, count: int) -> list[Any]:
        """The bits of bytes from bit `number` · `count` on, `count` of them."""
        builder = self.builder
        place = builder.mul(number, long(count))
        shift = self.splat(builder.trunc(place, WORD_TYPE))
        mask = words((2**count - 1) * ONES)
        return [builder.and_(builder.lshr(each, shift), mask) for each in codes]

    def joined_bits(self, low: Sequence[Any], high: Sequence[Any], count: int) -> list[Any]:
        """Bytes with `count` lower bits, and others above them."""
        builder = self.builder
        return [
            builder.or_(one, builder.shl(other, words(count)))
            for one, other in zip(low, high, strict=True)
        ]

    def minus(self, codes: Sequence[Any], zero: int) -> list[Any]:
        """Bytes minus this number, int8."""
        builder = self.builder
        zeros = ir.Constant(_BYTES, [zero] * (WORD * PANEL))
        found = [builder.sub(builder.bitcast(each, _BYTES), zeros) for each in codes]
        return [builder.bitcast(each, WORDS) for each in found]

    def signed(self, codes: Any, number: int) -> Any:
        """A byte of each word, an int8, in fp32."""
        builder = self.builder
        moved = builder.shl(codes, words(24 - 8 * number))
        return builder.sitofp(builder.ashr(moved, words(24)), FLOATS)

    def factors(self, number: Any, multipliers: Any) -> list[Any]:
        """A number times the first two bytes of words, int8."""
        return [self.builder.fmul(number, self.signed(multipliers, part)) for part in (0, 1)]

    def products(self, codes: Sequence[Any], factors: Sequence[Any]) -> list[Any]:
        """32 codes, int8 in the bytes of words, times the factor of each 16 of them."""
        return [
            self.builder.fmul(factors[word // NIBBLES], self.signed(each, number))
            for word, each in enumerate(codes)
            for number in range(WORD)
        ]


class CodeOfQ6K(RoundingCode):
    """Of Q6_K: codes of 6 bits, with a scale for 16 of them.

    Of each 128 codes, 4 bits are in 64 bytes, and of all codes before 2 bits in 32 bytes each.
    """

    bytes = 210
    number_count = 1
    numbers_at = 208

    def values(self, rows: Sequence[Any], block: Any, numbers: Sequence[Any]) -> list[Any]:
        """See `RoundingCode`."""
        builder = self.builder
        half, quarter = self.split(block, size=BLOCK, count=4)
        odd = builder.mul(builder.and_(block, long(1)), long(BLOCK))
        start = builder.add(builder.mul(half, long(2)), odd)
        low = self.bits(
            self.eight_words(self.at(rows, start), 0), builder.lshr(quarter, long(1)), 4
        )
        high = self.bits(self.eight_words(self.at(rows, half), CODE_BYTES), quarter, 2)
        own = self.column(self.at(rows, builder.mul(block, long(2))), 192)
        factors = self.factors(numbers[0], own)
        return self.products(self.minus(self.joined_bits(low, high, 4), 32), factors)


class CodeOfQ3K(RoundingCode):
    """Of Q3_K: codes of 3 bits, with a scale of 6 bits for 16 of them.

    Bit j of 32 bytes is the upper one of the codes of block j; then, of each 128 codes, 2 bits are
    in 32 bytes. Four bits of the scales are in 8 bytes, and the others in 4.
    """

    bytes = 110
    number_count = 1
    numbers_at = 108

    def values(self, rows: Sequence[Any], block: Any, numbers: Sequence[Any]) -> list[Any]:
        """See `RoundingCode`."""
        half, quarter = self.split(block, size=BLOCK, count=4)
        low = self.bits(self.eight_words(self.at(rows, half), 32), quarter, 2)
        high = self.bits(self.eight_words(rows, 0), block, 1)
        own = self.scales(rows, block)
        factors = self.factors(numbers[0], own)
        return self.products(self.minus(self.joined_bits(low, high, 2), 4), factors)

    def scales(self, rows: Sequence[Any], block: Any) -> Any:
        """Words whose first two bytes are the scales of a block, int8."""
        builder = self.builder
        # Those of blocks 0, 1 and 4, 5 are in the first word, of 2, 3 and 6, 7 in the second.
        place, _ = self.split(block, size=WORD, count=2)
        place = builder.and_(place, long(WORD))
        half, _ = self.split(block, size=1, count=4)
        low = self.bits([self.column(self.at(rows, place), 96)], half, 4)
        pair, _ = self.split(block, size=1, count=2)
        high = self.bits([self.column(rows, 104)], pair, 2)
        [found] = self.minus(self.joined_bits(low, high, 4), 32)
        last = builder.mul(builder.and_(block, long(1)), long(16))
        return builder.lshr(found, self.splat(builder.trunc(last, WORD_TYPE)))


class CodeOfQ2K(RoundingCode):
    """Of Q2_K: codes of 2 bits, with a scale and an offset of 4 bits for 16 of them, in a byte. Of
    each 128 codes, 2 bits are in 32 bytes.
    """

    bytes = 84
    numbers_at = 80

    def values(self, rows: Sequence[Any], block: Any, numbers: Sequence[Any]) -> list[Any]:
        """See `RoundingCode`."""
        builder = self.builder
        half, quarter = self.split(block, size=BLOCK, count=4)
        codes = self.bits(self.eight_words(self.at(rows, half), 16), quarter, 2)
        own = self.column(self.at(rows, builder.mul(block, long(2))), 0)
        factors = self.factors(numbers[0], builder.and_(own, words(LOWER)))
        offsets = self.factors(numbers[1], builder.and_(builder.lshr(own, words(4)), words(LOWER)))
        return [
            builder.fsub(product, offsets[number // SCALED])
            for number, product in enumerate(self.products(codes, factors))
        ]


class CodeOfMXFP4(RoundingCode):
    """Of MXFP4: 32 numbers of 4 bits, which are 2^(e - 128) times 0, 1, 2, 3, 4, 6, 8 or 12 with a
    sign. The first 16 are in the lower halves of bytes; e is a byte.
    """

    bytes = 17
    length = BLOCK
    number_count = 0

    def values(self, rows: Sequence[Any], block: Any, numbers: Sequence[Any]) -> list[Any]:
        """See `RoundingCode`."""
        builder = self.builder
        exponent = builder.and_(self.column(rows, 0), words(255))
        small = builder.shl(words(0x00200000), exponent)  # the two smallest are denormal
        large = builder.shl(builder.sub(exponent, words(1)), words(23))
        is_small = builder.icmp_unsigned("<", exponent, words(2))
        scale = builder.bitcast(builder.select(is_small, small, large), FLOATS)
        codes = self.four_words(rows, 1)
        return [
            builder.fmul(scale, self.level(builder.lshr(word, words(8 * number + shift))))
            for shift in (0, 4)
            for word in codes
            for number in range(WORD)
        ]

    def level(self, codes: Any) -> Any:
        """The numbers of the lowest 4 bits of words, fp32: of the upper three, 2 bits are an
        exponent and one is a fraction.
        """
        builder = self.builder
        exponent = builder.and_(builder.lshr(codes, words(1)), words(3))
        fraction = builder.and_(codes, words(1))
        above = builder.sub(exponent, words(1))
        large = builder.shl(builder.or_(fraction, words(2)), builder.and_(above, words(3)))
        is_small = builder.icmp_unsigned("==", exponent, words(0))
        number = builder.uitofp(builder.select(is_small, fraction, large), FLOATS)
        sign = builder.and_(builder.shl(codes, words(28)), words(-(2**31)))
        return builder.bitcast(builder.or_(builder.bitcast(number, WORDS), sign), FLOATS)


def _floats(number: float) -> Any:
    return ir.Constant(FLOATS, [number] * PANEL)


# By `stored` of instructions, from Q4_K on.
_CODES: tuple[Any, ...] = (OffsetCode, OffsetCode, CodeOfQ6K, CodeOfQ3K, CodeOfQ2K, CodeOfMXFP4)
_PANEL_KINDS = (BLOCK4_OFFSETS, BLOCK5_OFFSETS, BLOCK8, BLOCK8, BLOCK8, BLOCK8)
_q4_k, _q5_k, _q6_k, _q3_k, _q2_k, _mxfp4 = (
    new_row_reader(code, BLOCK_KINDS[kind]) for code, kind in zip(_CODES, _PANEL_KINDS, strict=True)
)
# How many fp16 numbers a block of the file has, and where: by `stored`. Blocks as memory has them
# have two if they have offsets.
NUMBERS = ((1, 0), *((code.number_count, code.numbers_at) for code in _CODES))


@exact_subroutine
def read_others(
    stored: int, places: int, blocks: int, values: int, scales: int, ahead: int
) -> None:
    """See `new_row_reader`; blocks: of 32 values. stored: the type of the file."""
    groups = blocks // GROUPS
    if stored == ins.Q4_K:
        _q4_k(places, groups, values, scales, ahead)
    elif stored == ins.Q5_K:
        _q5_k(places, groups, values, scales, ahead)
    elif stored == ins.Q6_K:
        _q6_k(places, groups, values, scales, ahead)
    elif stored == ins.Q3_K:
        _q3_k(places, groups, values, scales, ahead)
    elif stored == ins.Q2_K:
        _q2_k(places, groups, values, scales, ahead)
    else:
        _mxfp4(places, blocks, values, scales, ahead)
