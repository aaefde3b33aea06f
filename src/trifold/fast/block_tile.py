"""The inner loop of a matmul with `BlockWeight`: 16 outputs of a few rows of quantized activations.

Activations are integers of 16 bits, and codes of weights are unsigned bytes. BLOCK_INSTRUCTIONS has
the ways in which processors multiply them. The sums of a block are exact, and all instruction sets
give the same bits. Only the portable loop scales the sums in another order.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from trifold.fast.block_weight import (
    BLOCK,
    LEVELS,
    NIBBLES,
    PANEL,
    WORD,
    blocks_of as plain_blocks_of,
)
from trifold.fast.instruction import BLOCK_KINDS, PREFETCH_BYTES, BlockKind
from trifold.fast.intrinsics import (
    bfloat16_at,
    float32_at,
    int8_at,
    int16_at,
    int32_at,
    uint8_at,
)
from trifold.fast.loops import F, half_to_float, inline, magnitude, subroutine
from trifold.fast.processor import features
from trifold.fast.vector_code import (
    FLOAT_TYPE,
    FLOATS,
    WORD_TYPE,
    WORDS,
    VectorCode,
    long,
    words,
)

TILE_ROWS = 8  # rows of activations that a tile multiplies at most
LINE = 64  # bytes
# As unsigned bytes: the level 0 is 128.
UNSIGNED_LEVELS = tuple(level + 128 for level in LEVELS)

_LINE_BYTES = ir.VectorType(ir.IntType(8), LINE)


class TileCode(VectorCode):
    """LLVM code of a tile; the arguments are those of `new_tile`. Subclasses multiply."""

    def __init__(
        self,
        builder: Any,
        rows: int,
        kind: BlockKind,
    ) -> None:
        super().__init__(builder)
        self.rows = rows
        self.bits, self.has_offsets, self.has_levels = kind
        self.zero = kind.zero
        self.lines = 8 if self.bits == 8 else NIBBLES  # of a block; a line of nibbles is two words

    def emit(
        self,
        values: Any,
        scales: Any,
        blocks: Any,
        x: Any,
        x_scales: Any,
        x_terms: Any,
        out: Any,
        stride: Any,
    ) -> None:
        """A loop over blocks. The sums stay in registers and are stored after it."""
        builder = self.builder
        rows = range(self.rows)
        columns = builder.mul(blocks, long(2 * BLOCK))
        x_starts = [self.moved(x, columns, row) for row in rows]
        numbers = builder.mul(blocks, long(4))
        scale_starts = [self.moved(x_scales, numbers, row) for row in rows]
        term_starts = [self.moved(x_terms, numbers, row) for row in rows]

        def body(block: Any, totals: list[Any]) -> list[Any]:
            place = self.moved(values, block, LINE * self.bits)
            for word in range(self.bits):
                self.prefetch(place, PREFETCH_BYTES + LINE * word)
            terms = [self.moved(each, block, 4) for each in term_starts]
            x_places = [self.moved(each, block, 2 * BLOCK) for each in x_starts]
            sums = self.products(place, x_places, terms)
            factors = [self.moved(each, block, 4) for each in scale_starts]
            scale_place = self.moved(scales, block, 2 * PANEL * (1 + self.has_offsets))
            return self.scaled(sums, scale_place, factors, terms, totals)

        zeros = [ir.Constant(FLOATS, [0.0] * PANEL)] * self.rows
        for row, result in enumerate(self.loop(blocks, zeros, body)):
            target = self.moved(out, stride, row)
            builder.store(result, builder.inttoptr(target, FLOATS.as_pointer())).align = 4

    def products(self, values: Any, x_places: list[Any], terms: list[Any]) -> list[Any]:
        """The int32 sums of a block, a vector for each row: of codes times activations, and without
        offsets the term. They are smaller than 2²⁹.
        """
        raise NotImplementedError

    def codes(self, values: Any, line: Any) -> list[Any]:
        """The codes, or their levels, of a line of a block: in the bytes of the word of the same
        number, and of nibbles also in those of word 4 + line.
        """
        packed = self.load(self.moved(values, line, LINE), WORDS)
        if self.bits == 8:
            return [packed]
        upper = self.builder.lshr(packed, words(4))
        codes = [self.builder.and_(each, words(0x0F0F0F0F)) for each in (packed, upper)]
        number = self.splat(self.builder.trunc(line, WORD_TYPE))
        codes = self.with_upper_bits(values, number, codes)
        return [self.levels(each) for each in codes] if self.has_levels else codes

    def levels(self, codes: Any) -> Any:
        """The levels of 64 codes in bytes: a choice by each bit of a code."""
        numbers = self.builder.bitcast(codes, _LINE_BYTES)
        choices = [_bytes(level) for level in UNSIGNED_LEVELS]
        for bit in range(4):
            own = self.builder.and_(numbers, _bytes(1 << bit))
            is_set = self.builder.icmp_unsigned("!=", own, _bytes(0))
            pairs = zip(choices[::2], choices[1::2], strict=True)
            choices = [self.builder.select(is_set, one, zero) for zero, one in pairs]
        return self.builder.bitcast(choices[0], WORDS)

    def with_upper_bits(self, values: Any, word: Any, both: list[Any]) -> list[Any]:
        """The codes of 4 bits of words `word` (0 … 3) and 4 + word of a block, with their fifth and
        sixth bits: bits `word` and 4 + word of the bytes of the lines after the codes.
        """
        builder = self.builder
        lower, upper = both
        for bit in range(4, self.bits):
            line = self.load(values, WORDS, LINE * (NIBBLES + bit - 4))
            mask = words(0x01010101 << bit)
            first = builder.shl(line, builder.sub(words(bit), word))
            second = builder.shl(builder.lshr(line, word), words(bit - 4))
            lower = builder.or_(lower, builder.and_(first, mask))
            upper = builder.or_(upper, builder.and_(second, mask))
        return [lower, upper]

    def scaled(
        self, sums: list[Any], scales: Any, factors: list[Any], terms: list[Any], totals: list[Any]
    ) -> list[Any]:
        """totals + sums · scales of the weights · scale of the activations, and offsets · term."""
        builder = self.builder
        own_scales = self.halves(scales)
        results = []
        for number, x_factor, term, total in zip(sums, factors, terms, totals, strict=True):
            factor = builder.fmul(own_scales, self.splat(self.load(x_factor, FLOAT_TYPE)))
            floats = builder.sitofp(number, FLOATS)
            result = self.call("llvm.fma.v16f32", FLOATS, floats, factor, total)
            if self.has_offsets:
                added = self.splat(self.load(term, FLOAT_TYPE))
                offsets = self.halves(scales, 2 * PANEL)
                result = self.call("llvm.fma.v16f32", FLOATS, offsets, added, result)
            results.append(result)
        return results


# --- AVX-512 --------------------------------------------------------------------------------------


class Avx512Tile(TileCode):
    """`vpdpbusd` adds the products of four pairs of bytes to each of 16 sums. Activations are
    256 · upper + lower, two int8 that are multiplied in turn.
    """

    def products(self, values: Any, x_places: list[Any], terms: list[Any]) -> list[Any]:
        """See `TileCode.products`."""
        lines = [self.codes(values, long(line)) for line in range(self.lines)]
        codes = [code for some in zip(*lines, strict=True) for code in some]
        sums = []
        for x, term in zip(x_places, terms, strict=True):
            upper = words(0)
            lower = words(0) if self.has_offsets else self.splat(self.load(term, WORD_TYPE))
            for word, code in enumerate(codes):
                upper = self.add_products(upper, code, x, WORD * word)
                lower = self.add_products(lower, code, x, WORD * word + BLOCK)
            sums.append(self.builder.add(self.builder.shl(upper, words(8)), lower))
        return sums

    def levels(self, codes: Any) -> Any:
        """The levels of 64 codes in bytes. The instruction has a table for each 16 of them."""
        table = ir.Constant(_LINE_BYTES, LINE // len(UNSIGNED_LEVELS) * UNSIGNED_LEVELS)
        numbers = self.builder.bitcast(codes, _LINE_BYTES)
        found = self.call("llvm.x86.avx512.pshuf.b.512", _LINE_BYTES, table, numbers)
        return self.builder.bitcast(found, WORDS)

    def add_products(self, total: Any, code: Any, x: Any, at: int) -> Any:
        """total + the products of four codes of each row with four int8, `at` bytes behind x."""
        own = self.splat(self.load(x, WORD_TYPE, at))
        return self.call("llvm.x86.avx512.vpdpbusd.512", WORDS, total, code, own)


@inline
def to_int(x: Any) -> Any:
    """The nearest integer of a number below 2²²: adding 1.5 · 2²³ moves it to the last bits."""
    return np.int32(np.float32(x + F(12582912)).view(np.int32) - np.int32(0x4B400000))


@subroutine
def largest_of(x: Any) -> Any:
    """See `BlockInstructions.largest`."""
    floats = float32_at(x, BLOCK)
    largest = magnitude(F(0))
    for j in range(BLOCK):
        largest = max(largest, magnitude(floats[j]))
    return largest


@subroutine
def store_bytes(block: Any, x: Any, factor: Any) -> Any:
    """See `BlockInstructions.store`: the upper bytes of all integers, then the lower ones."""
    floats = float32_at(x, BLOCK)
    total = np.int32(0)
    for j in range(BLOCK):
        number = to_int(floats[j] * factor)
        high = np.int32((number + np.int32(128)) >> np.int32(8))
        int8_at(block, BLOCK)[j] = np.int8(high)
        int8_at(block + BLOCK, BLOCK)[j] = np.int8(number - np.int32(256) * high)
        total += number
    return total


# --- AVX2 -----------------------------------------------------------------------------------------

_HALF = PANEL // 2
_HALF_WORDS = ir.VectorType(WORD_TYPE, _HALF)
_HALF_SHORTS = ir.VectorType(ir.IntType(16), 2 * _HALF)
_HALF_BYTES = ir.VectorType(ir.IntType(8), 4 * _HALF)


class Avx2Tile(TileCode):
    """`vpmaddwd` multiplies pairs of 16 bits and adds both products, in 8 words at once. A word has
    two pairs of codes: those in its even bytes and those in its odd ones.
    """

    def products(self, values: Any, x_places: list[Any], terms: list[Any]) -> list[Any]:
        """See `TileCode.products`. The registers hold the sums of four rows."""
        sums: list[Any] = []
        for first in range(0, len(x_places), 4):
            some = slice(first, first + 4)
            sums += self.few_products(values, x_places[some], terms[some])
        return sums

    def few_products(self, values: Any, x_places: list[Any], terms: list[Any]) -> list[Any]:
        """The same of at most four rows: a loop over lines.

        In one long block of code LLVM would multiply one row after the other, with all codes in
        memory, because there are more than registers.
        """
        sums = [words(0)] * len(terms)
        if not self.has_offsets:
            sums = [self.splat(self.load(term, WORD_TYPE)) for term in terms]

        def body(line: Any, sums: list[Any]) -> list[Any]:
            places = [self.moved(x, line, 2 * WORD) for x in x_places]
            for at, codes in self.pairs(self.codes(values, line)):
                own = [self.splat(self.load(place, WORD_TYPE, at)) for place in places]
                sums = [self.add_products(*each, codes) for each in zip(sums, own, strict=True)]
                if len(sums) > 1:
                    sums = [self.ordered(each) for each in sums]
            return sums

        return self.loop(long(self.lines), sums, body)

    def pairs(self, codes_of_line: list[Any]) -> Iterator[tuple[int, Any]]:
        """Pairs of codes of a line, and how many bytes behind the activations of its first word
        theirs are.
        """
        shorts = ir.VectorType(ir.IntType(16), 2 * PANEL)
        eight = ir.Constant(shorts, [8] * 2 * PANEL)
        for part, codes in enumerate(codes_of_line):
            yield BLOCK * part, self.builder.and_(codes, words(0x00FF00FF))
            odd = self.builder.lshr(self.builder.bitcast(codes, shorts), eight)
            yield BLOCK * part + WORD, self.builder.bitcast(odd, WORDS)

    def levels(self, codes: Any) -> Any:
        """The levels of 64 codes in bytes. The instruction has a table for each 16 of them."""
        table = ir.Constant(_HALF_BYTES, LINE // 2 // len(UNSIGNED_LEVELS) * UNSIGNED_LEVELS)
        numbers = [self.builder.bitcast(each, _HALF_BYTES) for each in self.halves_of(codes)]
        found = [self.call("llvm.x86.avx2.pshuf.b", _HALF_BYTES, table, each) for each in numbers]
        return self.joined(found)

    def add_products(self, total: Any, own: Any, codes: Any) -> Any:
        """total + the products of 16 pairs of codes with a pair of activations in each word."""
        halves = zip(self.halves_of(codes), self.halves_of(own), strict=True)
        pairs = [[self.builder.bitcast(each, _HALF_SHORTS) for each in both] for both in halves]
        products = [self.call("llvm.x86.avx2.pmadd.wd", _HALF_WORDS, *both) for both in pairs]
        return self.builder.add(total, self.joined(products))

    def halves_of(self, vector: Any) -> list[Any]:
        """The lower and the upper 8 of 16 words."""
        parts = [list(range(first, first + _HALF)) for first in (0, _HALF)]
        lanes = [ir.Constant(_HALF_WORDS, part) for part in parts]
        return [self.builder.shuffle_vector(vector, vector, each) for each in lanes]

    def joined(self, halves: list[Any]) -> Any:
        """16 words of two halves."""
        both = [self.builder.bitcast(each, _HALF_WORDS) for each in halves]
        return self.builder.shuffle_vector(*both, ir.Constant(WORDS, list(range(PANEL))))

    def ordered(self, vector: Any) -> Any:
        """The same value. LLVM computes what is before this place, and loads what is after it, in
        this order, and does not unroll the loop around it.
        """
        kind = ir.FunctionType(_HALF_WORDS, [_HALF_WORDS])
        nothing = ir.InlineAsm(kind, "", "=x,0,~{memory}", side_effect=True)
        halves = [self.builder.call(nothing, [each]) for each in self.halves_of(vector)]
        return self.joined(halves)


_ORDER = [lane // WORD * WORD + (0, 2, 1, 3)[lane % WORD] for lane in range(PANEL)]
_MAGIC = 1.5 * 2.0**23  # plus it, a small number is rounded to the last bits of its fp32
_MAGIC_BITS = 0x4B400000


def _store_pairs(builder: Any, block: Any, x: Any, factor: Any) -> Any:
    code = VectorCode(builder)
    magic = ir.Constant(FLOATS, [_MAGIC] * PANEL)
    order = ir.Constant(WORDS, _ORDER)
    total = words(0)
    for first in range(0, BLOCK, PANEL):
        floats = code.load(x, FLOATS, 4 * first)
        moved = code.call("llvm.fma.v16f32", FLOATS, floats, code.splat(factor), magic)
        numbers = builder.sub(builder.bitcast(moved, WORDS), words(_MAGIC_BITS))
        total = builder.add(total, numbers)
        shorts = builder.trunc(numbers, ir.VectorType(ir.IntType(16), PANEL))
        place = builder.inttoptr(builder.add(block, long(2 * first)), shorts.type.as_pointer())
        builder.store(builder.shuffle_vector(shorts, shorts, order), place).align = 2
    return code.call("llvm.vector.reduce.add.v16i32", WORD_TYPE, total)


@intrinsic
def largest_of_pairs(typing: Any, x: Any) -> Any:
    """See `BlockInstructions.largest`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code = VectorCode(builder)
        parts = [code.load(arguments[0], WORDS, 4 * first) for first in range(0, BLOCK, PANEL)]
        first, second = (builder.and_(each, words(0x7FFFFFFF)) for each in parts)
        larger = builder.select(builder.icmp_unsigned(">", first, second), first, second)
        return code.call("llvm.vector.reduce.umax.v16i32", WORD_TYPE, larger)

    return types.uint32(types.int64), generate


@intrinsic
def store_pairs(typing: Any, block: Any, x: Any, factor: Any) -> Any:
    """See `BlockInstructions.store`. Of four integers, the first and the third are a pair."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _store_pairs(builder, *arguments)

    return types.int32(types.int64, types.int64, types.float32), generate


# --- any processor --------------------------------------------------------------------------------


@subroutine
def store_integers(block: Any, x: Any, factor: Any) -> Any:
    """See `BlockInstructions.store`."""
    floats = float32_at(x, BLOCK)
    total = np.int32(0)
    for j in range(BLOCK):
        number = to_int(floats[j] * factor)
        int16_at(block, BLOCK)[j] = np.int16(number)
        total += number
    return total


@inline
def code_at(block: Any, bits: Any, lane: Any, word: Any, byte: Any) -> Any:
    """The code of column 4 · word + byte of a row of a panel, of the bytes of a block."""
    place = WORD * lane + byte
    if bits == 8:
        return np.int32(block[LINE * word + place])
    code = (np.int32(block[LINE * (word % NIBBLES) + place]) >> (4 * (word // NIBBLES))) & 15
    for bit in range(4, bits):
        line = np.int32(block[LINE * (NIBBLES + bit - 4) + place])
        code |= ((line >> word) & 1) << bit
    return np.int32(code)


@subroutine
def loop_tile(
    rows: Any,
    bits: Any,
    has_offsets: Any,
    has_levels: Any,
    values: Any,
    scales: Any,
    blocks: Any,
    x: Any,
    x_scales: Any,
    x_terms: Any,
    out: Any,
    stride: Any,
) -> None:
    """The same as a tile of that many rows, for any processor."""
    codes = uint8_at(values, blocks * LINE * bits)
    kinds = 2 if has_offsets else 1
    halves = bfloat16_at(scales, blocks * kinds * PANEL)
    for row in range(rows):
        result = float32_at(out + stride * row, PANEL)
        own = int16_at(x + 2 * BLOCK * blocks * row, BLOCK * blocks)
        own_scales = float32_at(x_scales + 4 * blocks * row, blocks)
        terms = int32_at(x_terms + 4 * blocks * row, blocks)
        float_terms = float32_at(x_terms + 4 * blocks * row, blocks)
        for lane in range(PANEL):
            total = F(0)
            for block in range(blocks):
                products = np.int32(0) if has_offsets else terms[block]
                first = block * LINE * bits
                for word in range(BLOCK // WORD):
                    for byte in range(WORD):
                        code = code_at(codes[first:], bits, lane, word, byte)
                        if has_levels:
                            code = np.int32(UNSIGNED_LEVELS[code])
                        number = np.int32(own[BLOCK * block + WORD * word + byte])
                        products += np.int32(code) * number
                at = block * kinds * PANEL + lane
                total += F(products) * half_to_float(halves[at]) * own_scales[block]
                if has_offsets:
                    total += half_to_float(halves[at + PANEL]) * float_terms[block]
            result[lane] = total


def new_loop(kind: BlockKind) -> Any:
    """The loop as a function like that of `new_tile`."""
    bits, has_offsets, has_levels = kind

    @subroutine
    def loop(
        rows: Any,
        values: Any,
        scales: Any,
        blocks: Any,
        x: Any,
        x_scales: Any,
        x_terms: Any,
        out: Any,
        stride: Any,
    ) -> None:
        own = (rows, bits, has_offsets, has_levels)
        loop_tile(*own, values, scales, blocks, x, x_scales, x_terms, out, stride)

    return loop


# --- this processor -------------------------------------------------------------------------------


def new_tile(code: type[TileCode], kind: BlockKind) -> Any:
    """A function tile(rows, values, scales, blocks, x, x_scales, x_terms, out, stride): the
    products of the 16 rows of a panel and of 8, 4, 2 or 1 rows of activations, quantized by
    `step_blocks`.

    All but the numbers of rows and blocks are addresses: of the values and scales of the panel, of
    x (rows, blocks, 64) bytes, x_scales and x_terms (rows, blocks), and of the result (rows, 16)
    fp32, whose rows are `stride` bytes apart.
    """
    eight, four, two, one = (_fixed_tile(code, kind, rows) for rows in (8, 4, 2, 1))

    @subroutine
    def tile(
        rows: Any,
        values: Any,
        scales: Any,
        blocks: Any,
        x: Any,
        x_scales: Any,
        x_terms: Any,
        out: Any,
        stride: Any,
    ) -> None:
        if rows == 8:
            eight(values, scales, blocks, x, x_scales, x_terms, out, stride)
        elif rows == 4:
            four(values, scales, blocks, x, x_scales, x_terms, out, stride)
        elif rows == 2:
            two(values, scales, blocks, x, x_scales, x_terms, out, stride)
        else:
            one(values, scales, blocks, x, x_scales, x_terms, out, stride)

    return tile


def _fixed_tile(code: type[TileCode], kind: BlockKind, rows: int) -> Any:
    """The same of so many rows."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code(builder, rows, kind).emit(*arguments)
        return context.get_dummy_value()

    @intrinsic
    def tile(
        typing: Any,
        values: Any,
        scales: Any,
        blocks: Any,
        x: Any,
        x_scales: Any,
        x_terms: Any,
        out: Any,
        stride: Any,
    ) -> Any:
        return types.void(*[types.int64] * 8), generate

    return tile


def _bytes(number: int) -> Any:
    """A vector of 64 times the same constant."""
    return ir.Constant(_LINE_BYTES, [number] * LINE)


class BlockInstructions(NamedTuple):
    """How a processor with these features, by the names of LLVM, reads and multiplies blocks.

    code: reads their codes.
    new_tile: a function of a kind of blocks that returns a tile, as the function `new_tile`.
    store: a function of the addresses of a block of activations (64 bytes) and of 32 fp32, and of a
        factor: it stores their products, rounded to integers, where the tile expects them, and
        returns the sum of the integers.
    largest: a function of the address of 32 fp32: the `magnitude` of the largest.
    """

    features: tuple[str, ...]
    code: type[TileCode]
    new_tile: Callable[[BlockKind], Any]
    store: Any
    largest: Any = largest_of


AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512vnni")
# The fastest is the first.
BLOCK_INSTRUCTIONS = {
    "AVX-512 VNNI": BlockInstructions(
        AVX512, Avx512Tile, partial(new_tile, Avx512Tile), store_bytes
    ),
    "AVX2": BlockInstructions(
        ("avx2", "fma", "f16c"),
        Avx2Tile,
        partial(new_tile, Avx2Tile),
        store_pairs,
        largest_of_pairs,
    ),
    "none": BlockInstructions((), TileCode, new_loop, store_integers),
}


def supported_instructions() -> list[str]:
    """The names of those that this processor has. Every one has the last."""
    return [
        name for name, each in BLOCK_INSTRUCTIONS.items() if features().issuperset(each.features)
    ]


INSTRUCTIONS = BLOCK_INSTRUCTIONS[supported_instructions()[0]]


# --- by the kind of an instruction ----------------------------------------------------------------

blocks_of = subroutine(plain_blocks_of)


def by_kind(new: Callable[[BlockKind], Any]) -> Any:
    """A function of the number of a kind of blocks and of what follows: it calls the one that `new`
    makes for that kind.
    """
    # Numba compiles no loop over functions. One function for each kind that calls that of the next
    # takes seconds to compile.
    call_0, call_1, call_2, call_3, call_4, call_5, call_6 = map(new, BLOCK_KINDS)

    @subroutine
    def call(kind: Any, *arguments: Any) -> None:
        if kind == 0:
            call_0(*arguments)
        elif kind == 1:
            call_1(*arguments)
        elif kind == 2:
            call_2(*arguments)
        elif kind == 3:
            call_3(*arguments)
        elif kind == 4:
            call_4(*arguments)
        elif kind == 5:
            call_5(*arguments)
        else:
            call_6(*arguments)

    return call
