"""The inner loop of a matmul with `BlockWeight`: 16 outputs of a few rows of quantized activations.

Activations are integers of 16 bits, each 256 · upper + lower, two int8 that are multiplied in turn.
Codes of weights are unsigned, as the instruction `vpdpbusd` of AVX-512 multiplies them: it adds the
products of four pairs of bytes to each of 16 sums. Codes of levels are first replaced by these,
which `vpshufb` does for 64 at once. Without the instructions, a loop computes the same.
"""

from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from trifold.fast.block_weight import BLOCK, LEVELS, PANEL, WORD
from trifold.fast.instruction import PREFETCH_BYTES
from trifold.fast.intrinsics import bfloat16_at, float32_at, int8_at, int32_at, uint8_at
from trifold.fast.loops import F, inline, subroutine

FEATURES = ("avx512f", "avx512bw", "avx512vl", "avx512vnni")
TILE_ROWS = 8  # rows of activations that a tile multiplies at most
LINE = 64  # bytes

_WORD = ir.IntType(32)
_LONG = ir.IntType(64)
_FLOAT = ir.FloatType()
_WORDS = ir.VectorType(_WORD, PANEL)
_FLOATS = ir.VectorType(_FLOAT, PANEL)
_SHORTS = ir.VectorType(ir.IntType(16), PANEL)
_HALVES = ir.VectorType(ir.HalfType(), PANEL)
_BYTES = ir.VectorType(ir.IntType(8), LINE)
# As unsigned bytes: the level 0 is 128.
_LEVELS = tuple(level + 128 for level in LEVELS)


def _has_vnni() -> bool:
    try:
        features = llvm.get_host_cpu_features()
    except RuntimeError:  # unknown to LLVM
        return False
    return all(features.get(name, False) for name in FEATURES)


HAS_VNNI = _has_vnni()


class _TileCode:
    """LLVM code of a tile; the arguments are those of `new_tile`."""

    def __init__(
        self,
        builder: Any,
        rows: int,
        bits: int,
        *,
        has_offsets: bool = False,
        has_levels: bool = False,
    ) -> None:
        self.builder = builder
        self.rows = rows
        self.bits = bits
        self.has_offsets = has_offsets
        self.has_levels = has_levels

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
        before = builder.block
        body = builder.append_basic_block("blocks")
        after = builder.append_basic_block("store")
        rows = range(self.rows)
        columns = builder.mul(blocks, _long(2 * BLOCK))
        x_starts = [self.moved(x, columns, row) for row in rows]
        words = builder.mul(blocks, _long(4))
        scale_starts = [self.moved(x_scales, words, row) for row in rows]
        term_starts = [self.moved(x_terms, words, row) for row in rows]
        builder.branch(body)
        builder.position_at_end(body)
        block = builder.phi(_LONG)
        totals = [builder.phi(_FLOATS) for _ in rows]
        place = self.moved(values, block, LINE * self.bits)
        for word in range(self.bits):
            self.prefetch(place, PREFETCH_BYTES + LINE * word)
        terms = [self.moved(each, block, 4) for each in term_starts]
        sums = self.products(
            place, [self.moved(each, block, 2 * BLOCK) for each in x_starts], terms
        )
        factors = [self.moved(each, block, 4) for each in scale_starts]
        scale_place = self.moved(scales, block, 2 * PANEL * (1 + self.has_offsets))
        results = self.scaled(sums, scale_place, factors, terms, totals)
        following = builder.add(block, _long(1))
        for phi, first, new in zip(
            [block, *totals],
            [_long(0)] + [ir.Constant(_FLOATS, [0.0] * PANEL)] * self.rows,
            [following, *results],
            strict=True,
        ):
            phi.add_incoming(first, before)
            phi.add_incoming(new, body)
        builder.cbranch(builder.icmp_signed("<", following, blocks), body, after)
        builder.position_at_end(after)
        for row, result in enumerate(results):
            target = self.moved(out, stride, row)
            builder.store(result, builder.inttoptr(target, _FLOATS.as_pointer())).align = 4

    def products(self, values: Any, x_places: list[Any], terms: list[Any]) -> list[Any]:
        """The int32 sums of a block: of codes times activations, and without offsets the term. They
        are smaller than 2²⁹.
        """
        packed = [self.load(values, _WORDS, LINE * word) for word in range(self.bits)]
        codes = packed
        if self.bits == 4:
            upper = [self.builder.lshr(each, _words(4)) for each in packed]
            codes = [self.builder.and_(each, _words(0x0F0F0F0F)) for each in (*packed, *upper)]
        if self.has_levels:
            codes = [self.levels(each) for each in codes]
        sums = []
        for x, term in zip(x_places, terms, strict=True):
            upper = _words(0)
            lower = _words(0) if self.has_offsets else self.splat(self.load(term, _WORD))
            for word, code in enumerate(codes):
                upper = self.add_products(upper, code, x, WORD * word)
                lower = self.add_products(lower, code, x, WORD * word + BLOCK)
            sums.append(self.builder.add(self.builder.shl(upper, _words(8)), lower))
        return sums

    def levels(self, codes: Any) -> Any:
        """The levels of 64 codes in bytes. The instruction has a table for each 16 of them."""
        table = ir.Constant(_BYTES, LINE // len(_LEVELS) * _LEVELS)
        numbers = self.builder.bitcast(codes, _BYTES)
        found = self.call("llvm.x86.avx512.pshuf.b.512", _BYTES, table, numbers)
        return self.builder.bitcast(found, _WORDS)

    def add_products(self, total: Any, code: Any, x: Any, at: int) -> Any:
        """total + the products of four codes of each row with four int8, `at` bytes behind x."""
        own = self.splat(self.load(x, _WORD, at))
        return self.call("llvm.x86.avx512.vpdpbusd.512", _WORDS, total, code, own)

    def scaled(
        self, sums: list[Any], scales: Any, factors: list[Any], terms: list[Any], totals: list[Any]
    ) -> list[Any]:
        """totals + sums · scales of the weights · scale of the activations, and offsets · term."""
        builder = self.builder
        own_scales = self.halves(scales)
        results = []
        for number, x_factor, term, total in zip(sums, factors, terms, totals, strict=True):
            factor = builder.fmul(own_scales, self.splat(self.load(x_factor, _FLOAT)))
            floats = builder.sitofp(number, _FLOATS)
            result = self.call("llvm.fma.v16f32", _FLOATS, floats, factor, total)
            if self.has_offsets:
                added = self.splat(self.load(term, _FLOAT))
                offsets = self.halves(scales, 2 * PANEL)
                result = self.call("llvm.fma.v16f32", _FLOATS, offsets, added, result)
            results.append(result)
        return results

    def moved(self, address: Any, steps: Any, size: int) -> Any:
        """The address so many steps of that size further."""
        return self.builder.add(address, self.builder.mul(steps, _long(size)))

    def load(self, address: Any, kind: Any, at: int = 0) -> Any:
        """A value of that type, `at` bytes behind an address."""
        place = self.builder.add(address, _long(at))
        loaded = self.builder.load(self.builder.inttoptr(place, kind.as_pointer()))
        loaded.align = 1
        return loaded

    def halves(self, address: Any, at: int = 0) -> Any:
        """16 float16 in fp32."""
        return self.builder.fpext(self.load(address, _HALVES, at), _FLOATS)

    def splat(self, value: Any) -> Any:
        """A vector of 16 times the same value."""
        kind = ir.VectorType(value.type, PANEL)
        undefined = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(undefined, value, ir.Constant(_WORD, 0))
        return self.builder.shuffle_vector(first, undefined, _words(0))

    def call(self, name: str, result: Any, *values: Any) -> Any:
        """Call a function of LLVM."""
        kind = ir.FunctionType(result, [value.type for value in values])
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, values)

    def prefetch(self, address: Any, at: int) -> None:
        """Load the line `at` bytes behind an address into the second-level cache."""
        place = self.builder.inttoptr(self.builder.add(address, _long(at)), cgutils.voidptr_t)
        options = [ir.Constant(_WORD, number) for number in (0, 2, 1)]
        self.call("llvm.prefetch.p0", ir.VoidType(), place, *options)


def _long(number: int) -> Any:
    return ir.Constant(_LONG, number)


def _words(number: int) -> Any:
    return ir.Constant(_WORDS, [number] * PANEL)


def new_tile(rows: int, bits: int, *, has_offsets: bool = False, has_levels: bool = False) -> Any:
    """A function tile(values, scales, blocks, x, x_scales, x_terms, out, stride): the products of
    the 16 rows of a panel and of so many rows of activations, quantized by `step_blocks`.

    All but the number of blocks are addresses: of the values and scales of the panel, of x (rows,
    blocks, 2, 32) int8, x_scales and x_terms (rows, blocks), and of the result (rows, 16) fp32,
    whose rows are `stride` bytes apart.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code = _TileCode(builder, rows, bits, has_offsets=has_offsets, has_levels=has_levels)
        code.emit(*arguments)
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


# --- codes in bf16 --------------------------------------------------------------------------------


def _new_decoder(*, has_levels: bool) -> Any:
    """A function decode(words, shift, mask, scales, offsets, out): one code of each of the 16 words
    at an address, (word >> shift) & mask, or its level, times scales plus offsets (16,) fp32 -> 16
    bf16 at the address `out`.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words, shift, mask, scales, offsets, out = arguments
        code = _TileCode(builder, 1, 8)
        moved = builder.lshr(code.load(words, _WORDS), code.splat(shift))
        numbers = builder.and_(moved, code.splat(mask))
        floats = _level_floats(code, numbers) if has_levels else builder.uitofp(numbers, _FLOATS)
        products = builder.fmul(floats, code.load(scales, _FLOATS))
        values = builder.fadd(products, code.load(offsets, _FLOATS))
        bits = builder.bitcast(values, _WORDS)
        # To nearest, ties to even. The carry could turn a NaN into zero.
        last = builder.and_(builder.lshr(bits, _words(16)), _words(1))
        nearest = builder.add(bits, builder.add(last, _words(0x7FFF)))
        is_nan = builder.fcmp_unordered("uno", values, values)
        rounded = builder.select(is_nan, builder.or_(bits, _words(0x400000)), nearest)
        upper = builder.trunc(builder.lshr(rounded, _words(16)), _SHORTS)
        builder.store(upper, builder.inttoptr(out, _SHORTS.as_pointer())).align = 2
        return context.get_dummy_value()

    @intrinsic
    def decode(
        typing: Any, words: Any, shift: Any, mask: Any, scales: Any, offsets: Any, out: Any
    ) -> Any:
        addresses = types.int64
        word = types.uint32
        return types.void(addresses, word, word, addresses, addresses, addresses), generate

    return decode


def _level_floats(code: _TileCode, numbers: Any) -> Any:
    """The levels of 16 codes, plus 128, in fp32: a choice by each bit of a code."""
    builder = code.builder
    choices = [ir.Constant(_FLOATS, [float(level)] * PANEL) for level in _LEVELS]
    for bit in range(4):
        is_set = builder.icmp_unsigned("!=", builder.and_(numbers, _words(1 << bit)), _words(0))
        pairs = zip(choices[::2], choices[1::2], strict=True)
        choices = [builder.select(is_set, one, zero) for zero, one in pairs]
    return choices[0]


decode_codes = _new_decoder(has_levels=False)
decode_levels = _new_decoder(has_levels=True)


# --- without the instruction ----------------------------------------------------------------------


@inline
def half_to_float(bits: Any) -> Any:
    """The value of a float16 (uint16): its exponent and fraction are moved to their places, and the
    exponent is corrected by a product, which also covers denormal numbers.
    """
    magnitude = np.uint32(np.uint32(bits) & np.uint32(0x7FFF))
    moved = np.uint32(magnitude << np.uint32(13))
    number = moved.view(np.float32) * F(2.0**112)
    if magnitude >= np.uint32(0x7C00):  # infinite or NaN
        number = np.uint32(moved | np.uint32(0x7F800000)).view(np.float32)
    return -number if np.uint32(bits) >= np.uint32(0x8000) else number


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
        own = int8_at(x + 2 * BLOCK * blocks * row, 2 * BLOCK * blocks)
        own_scales = float32_at(x_scales + 4 * blocks * row, blocks)
        terms = int32_at(x_terms + 4 * blocks * row, blocks)
        float_terms = float32_at(x_terms + 4 * blocks * row, blocks)
        for lane in range(PANEL):
            total = F(0)
            for block in range(blocks):
                products = np.int32(0) if has_offsets else terms[block]
                first = block * LINE * bits + WORD * lane
                for word in range(BLOCK // WORD):
                    place = first + LINE * (word % bits)
                    shift = 4 if word >= bits else 0
                    mask = 15 if bits == 4 else 255
                    for byte in range(WORD):
                        code = (np.int32(codes[place + byte]) >> shift) & mask
                        if has_levels:
                            code = np.int32(_LEVELS[code])
                        at = 2 * BLOCK * block + WORD * word + byte
                        number = 256 * np.int32(own[at]) + np.int32(own[at + BLOCK])
                        products += np.int32(code) * number
                at = block * kinds * PANEL + lane
                total += F(products) * half_to_float(halves[at]) * own_scales[block]
                if has_offsets:
                    total += half_to_float(halves[at + PANEL]) * float_terms[block]
            result[lane] = total
