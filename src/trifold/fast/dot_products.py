"""Dot products of rows of weights of 16 bits with activations, for the matmul of a decoding step.

Memory limits the product with one row of activations, which stay in fp32: `dot_product` reads the
weights in order; `dot_rows` reads 4 wide rows at once, so that activations are loaded a fourth as
often. Arithmetic limits the product with several rows, whose sums stay in registers: those of 4
rows in fp32 with some rows of weights in `rows_tile`, and in `dot_tile` those of 4 by 4 rows in
bf16, of which one instruction multiplies 32 pairs (`vdpbf16ps`, AVX-512 BF16) and adds them to 16
sums.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from trifold.fast.instruction import PREFETCH_BYTES
from trifold.fast.processor import converts_float16, features

LANES = 16
TILE = 4  # rows of weights, and of activations
STEP = 64  # elements of a row that one pass of the loop of `dot_rows` reads
PAIRS = 32  # elements of a row that are multiplied by one instruction
WIDE = 4096  # elements of a row beyond which fp32 activations leave no space in the first cache
LINE_BYTES = 64
PAGE_BYTES = 4096
PAGE_LINES = 16  # lines of the next page that are prefetched when a page begins
# Distances between what is prefetched and what is read.
DOT_PREFETCH_BYTES = 16384
TILE_PREFETCH_BYTES = 8192

_INT32, _INT64 = ir.IntType(32), ir.IntType(64)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_WORDS = ir.VectorType(_INT32, LANES)

llvm.initialize_native_asmparser()  # of an instruction that LLVM has no portable name for


# Whether this processor has the instruction for pairs.
HAS_PAIRS = features().issuperset(("avx512f", "avx512bf16"))
# Numbers in a register, and rows of weights whose products with 4 rows fit in the registers.
WIDTH = 16 if "avx512f" in features() else 8
TILE_WEIGHTS = 4 if "avx512f" in features() else 2


def _load(builder: Any, address: Any, kind: Any) -> Any:
    loaded = builder.load(builder.inttoptr(address, kind.as_pointer()))
    loaded.align = 1
    return loaded


def _call(builder: Any, name: str, result: Any, *values: Any) -> Any:
    """Call a function of LLVM."""
    kind = ir.FunctionType(result, [value.type for value in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values)


def _prefetch(builder: Any, address: Any) -> None:
    """Into the second-level cache."""
    pointer = builder.inttoptr(address, cgutils.voidptr_t)
    flags = [ir.Constant(_INT32, flag) for flag in (0, 2, 1)]
    _call(builder, "llvm.prefetch.p0", ir.VoidType(), pointer, *flags)


def _plus(builder: Any, value: Any, bytes_: int) -> Any:
    return builder.add(value, ir.Constant(_INT64, bytes_)) if bytes_ else value


def _sums_of_pairs(builder: Any, a: Any, b: Any) -> Any:
    """The sums of neighbours in a, then those in b."""
    count = a.type.count
    kind = ir.VectorType(_INT32, count)
    even, odd = (ir.Constant(kind, [2 * lane + side for lane in range(count)]) for side in (0, 1))
    return builder.fadd(builder.shuffle_vector(a, b, even), builder.shuffle_vector(a, b, odd))


def _totals(builder: Any, vectors: Sequence[Any]) -> Any:
    """The totals of a power of two of vectors, at most as many as their lanes, in the first
    lanes.
    """
    sums = vectors[0].type.count
    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [_sums_of_pairs(builder, a, b) for a, b in pairs]
        sums //= 2
    while sums > 1:
        vectors = [_sums_of_pairs(builder, vectors[0], vectors[0])]
        sums //= 2
    return vectors[0]


def _loop(
    builder: Any,
    count: Any,
    step: int,
    sums: int,
    body: Callable[[Any, Sequence[Any]], list[Any]],
    kind: Any = _FLOATS,
) -> list[Any]:
    """body(index, sums) -> new sums, vectors of a type, for each step-th index below count > 0;
    returns the last.
    """
    before = builder.block
    inside = builder.append_basic_block("products")
    after = builder.append_basic_block("products.end")
    builder.branch(inside)
    builder.position_at_end(inside)
    index = builder.phi(_INT64)
    zero = ir.Constant(kind, [0.0] * kind.count)
    totals = [builder.phi(kind) for _ in range(sums)]
    results = body(index, totals)
    following = _plus(builder, index, step)
    end = builder.block
    for phi, first, last in (
        (index, ir.Constant(_INT64, 0), following),
        *((total, zero, result) for total, result in zip(totals, results, strict=True)),
    ):
        phi.add_incoming(first, before)
        phi.add_incoming(last, end)
    builder.cbranch(builder.icmp_signed("<", following, count), inside, after)
    builder.position_at_end(after)
    return results


def _starts(builder: Any, start: Any, stride: Any) -> list[Any]:
    """The addresses of TILE rows."""
    numbers = [ir.Constant(_INT64, row) for row in range(TILE)]
    return [builder.add(start, builder.mul(stride, each)) for each in numbers]


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 1


def _part(builder: Any, x: Any, first: int) -> Any:
    """TILE lanes."""
    lanes = ir.Constant(ir.VectorType(_INT32, TILE), [first + lane for lane in range(TILE)])
    return builder.shuffle_vector(x, x, lanes)


def _prefetch_next_page(builder: Any, address: Any) -> None:
    """Prefetch the beginning of the next page if a page begins in the 2 lines at the address.

    Processors prefetch by themselves what is read in order, but not beyond the page.
    """
    offset = builder.and_(address, ir.Constant(_INT64, PAGE_BYTES - 1))
    is_first = builder.icmp_unsigned("<", offset, ir.Constant(_INT64, 2 * LINE_BYTES))
    with builder.if_then(is_first, likely=False):
        for line in range(PAGE_LINES):
            _prefetch(builder, _plus(builder, address, PAGE_BYTES + line * LINE_BYTES))


def _prefetch_lines(builder: Any, address: Any) -> None:
    """Prefetch 2 lines at a distance from the address.

    On Zen 3, a decoding step takes 14 to 18 % less time than with the prefetch of the next page.
    """
    for line in range(2):
        _prefetch(builder, _plus(builder, address, PREFETCH_BYTES + line * LINE_BYTES))


# At every second line of a row that is read in order.
_prefetch_row = _prefetch_next_page if "avx512f" in features() else _prefetch_lines


# --- numbers of 16 bits ---------------------------------------------------------------------------

# Vectors of 16 bits -> their numbers in fp32.
Widen = Callable[[Any, Any], Any]


def bfloat16_to_float(builder: Any, halves: Any) -> Any:
    """bf16 are the upper halves of fp32."""
    kind = ir.VectorType(_INT32, halves.type.count)
    moved = builder.shl(builder.zext(halves, kind), ir.Constant(kind, [16] * kind.count))
    return builder.bitcast(moved, ir.VectorType(ir.FloatType(), kind.count))


def float16_to_float(builder: Any, halves: Any) -> Any:
    """One instruction of the processor, or the operations of `loops.half_to_float`."""
    count = halves.type.count
    floats = ir.VectorType(ir.FloatType(), count)
    if converts_float16():
        return builder.fpext(builder.bitcast(halves, ir.VectorType(ir.HalfType(), count)), floats)
    kind = ir.VectorType(_INT32, count)
    mask, infinite, exponent, thirteen, sixteen = (
        ir.Constant(kind, [value] * count) for value in (0x7FFF, 0x7C00, 0x7F800000, 13, 16)
    )
    bits = builder.zext(halves, kind)
    magnitude = builder.and_(bits, mask)
    moved = builder.shl(magnitude, thirteen)
    scale = ir.Constant(floats, [2.0**112] * count)
    number = builder.bitcast(builder.fmul(builder.bitcast(moved, floats), scale), kind)
    is_finite = builder.icmp_unsigned("<", magnitude, infinite)
    number = builder.select(is_finite, number, builder.or_(moved, exponent))
    sign = builder.shl(builder.xor(bits, magnitude), sixteen)
    return builder.bitcast(builder.or_(number, sign), floats)


def _add_product(builder: Any, widen: Widen, address: Any, numbers: Any, total: Any) -> Any:
    """total + weights at an address · numbers."""
    kind = ir.VectorType(ir.IntType(16), numbers.type.count)
    weights = widen(builder, _load(builder, address, kind))
    return _fused(builder, weights, numbers, total)


def _fused(builder: Any, a: Any, b: Any, total: Any) -> Any:
    return _call(builder, f"llvm.fmuladd.v{a.type.count}f32", a.type, a, b, total)


class HalfProducts(NamedTuple):
    """Functions for compiled code that multiply weights of one type of 16 bits.

    dot_product: see `_dot_product`. dot_rows: see `_dot_rows`. rows_tile, row_tile: see
    `_rows_tile`, for TILE_WEIGHTS rows of weights and for one.
    """

    dot_product: Any
    dot_rows: Any
    rows_tile: Any
    row_tile: Any


def _dot_product(widen: Widen) -> Any:
    """A function: the dot product of `count` weights with as many fp32 at the address x. count: a
    multiple of STEP.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        start, x_start, limit = values

        def body(index: Any, sums: Sequence[Any]) -> list[Any]:
            address = builder.add(start, builder.shl(index, ir.Constant(_INT64, 1)))
            x_address = builder.add(x_start, builder.shl(index, ir.Constant(_INT64, 2)))
            _prefetch_row(builder, address)
            results = []
            for part, total in enumerate(sums):
                numbers = _load(builder, _plus(builder, x_address, 4 * LANES * part), _FLOATS)
                place = _plus(builder, address, 2 * LANES * part)
                results.append(_add_product(builder, widen, place, numbers, total))
            return results

        a, b, c, d = _loop(builder, limit, STEP, STEP // LANES, body)
        total = _totals(builder, [builder.fadd(builder.fadd(a, b), builder.fadd(c, d))])
        return builder.extract_element(total, ir.Constant(_INT32, 0))

    @intrinsic
    def dot_product(typing: Any, weights: Any, x: Any, count: Any) -> Any:
        return types.float32(types.int64, types.int64, types.int64), generate

    return dot_product


def _dot_rows(widen: Widen) -> Any:
    """A function: 4 rows of weights, `stride` bytes apart, times fp32 activations x -> out: 4 fp32.

    x, out: addresses. count: of the elements of a row, a multiple of STEP.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        start, stride, x_start, limit, out = values
        starts = _starts(builder, start, stride)
        parts = range(STEP // LANES)

        def body(index: Any, sums: Sequence[Any]) -> list[Any]:
            offset = builder.shl(index, ir.Constant(_INT64, 1))
            ahead = builder.add(start, builder.mul(offset, ir.Constant(_INT64, TILE)))
            for line in range(TILE * 2 * STEP // LINE_BYTES):  # in order of memory
                _prefetch(builder, _plus(builder, ahead, DOT_PREFETCH_BYTES + line * LINE_BYTES))
            x_address = builder.add(x_start, builder.shl(index, ir.Constant(_INT64, 2)))
            numbers = [
                _load(builder, _plus(builder, x_address, 4 * LANES * part), _FLOATS)
                for part in parts
            ]
            results = []
            for row in range(TILE):
                address = builder.add(starts[row], offset)
                for part in parts:
                    place = _plus(builder, address, 2 * LANES * part)
                    total = sums[row * len(parts) + part]
                    results.append(_add_product(builder, widen, place, numbers[part], total))
            return results

        sums = _loop(builder, limit, STEP, TILE * len(parts), body)
        rows = []
        for row in range(TILE):
            a, b, c, d = sums[row * len(parts) : (row + 1) * len(parts)]
            rows.append(builder.fadd(builder.fadd(a, b), builder.fadd(c, d)))
        _store(builder, _part(builder, _totals(builder, rows), 0), out)
        return context.get_dummy_value()

    @intrinsic
    def dot_rows(typing: Any, weights: Any, stride: Any, x: Any, count: Any, out: Any) -> Any:
        return types.void(*[types.int64] * 5), generate

    return dot_rows


def _rows_tile(widen: Widen, height: int) -> Any:
    """A function: `height` rows of weights, `stride` bytes apart, times the first `rows` of 4 rows
    of fp32 activations, which are x_stride bytes apart -> out: so many rows of `height` fp32,
    out_stride bytes apart. Missing rows repeat the last one.

    x, out: addresses. count: of the elements of a row, a multiple of WIDTH.
    """
    floats = ir.VectorType(ir.FloatType(), WIDTH)
    halves = ir.VectorType(ir.IntType(16), WIDTH)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        start, stride, x, x_stride, rows, limit, out, out_stride = values
        starts = _starts(builder, start, stride)[:height]
        last = builder.sub(rows, ir.Constant(_INT64, 1))
        numbers = []
        for row in range(TILE):
            own = ir.Constant(_INT64, row)
            is_there = builder.icmp_signed("<", own, last)
            numbers.append(builder.select(is_there, own, last))
        x_starts = [builder.add(x, builder.mul(x_stride, each)) for each in numbers]

        def body(index: Any, sums: Sequence[Any]) -> list[Any]:
            offset = builder.shl(index, ir.Constant(_INT64, 1))
            x_offset = builder.shl(index, ir.Constant(_INT64, 2))
            weights = [
                widen(builder, _load(builder, builder.add(each, offset), halves)) for each in starts
            ]
            results = []
            for row, place in enumerate(x_starts):
                own = _load(builder, builder.add(place, x_offset), floats)
                totals = sums[row * height : (row + 1) * height]
                results += [
                    _fused(builder, weight, own, total)
                    for weight, total in zip(weights, totals, strict=True)
                ]
            return results

        sums = _loop(builder, limit, WIDTH, TILE * height, body, floats)
        out_starts = [builder.add(out, builder.mul(out_stride, each)) for each in numbers]
        for column in range(height):
            totals = _totals(builder, sums[column::height])
            for row, place in enumerate(out_starts):
                total = builder.extract_element(totals, ir.Constant(_INT32, row))
                _store(builder, total, _plus(builder, place, 4 * column))
        return context.get_dummy_value()

    @intrinsic
    def rows_tile(
        typing: Any,
        weights: Any,
        stride: Any,
        x: Any,
        x_stride: Any,
        rows: Any,
        count: Any,
        out: Any,
        out_stride: Any,
    ) -> Any:
        return types.void(*[types.int64] * 8), generate

    return rows_tile


def _products(widen: Widen) -> HalfProducts:
    tiles = (_rows_tile(widen, TILE_WEIGHTS), _rows_tile(widen, 1))
    return HalfProducts(_dot_product(widen), _dot_rows(widen), *tiles)


BFLOAT16_PRODUCTS = _products(bfloat16_to_float)
FLOAT16_PRODUCTS = _products(float16_to_float)


# --- pairs of bf16 --------------------------------------------------------------------------------


@intrinsic
def dot_tile(
    typing: Any, weights: Any, stride: Any, x: Any, count: Any, out: Any, step: Any
) -> Any:
    """4 rows of bf16 weights, `stride` bytes apart, times 4 rows of activations -> out: 4 rows of
    4 fp32, one for each row of activations, `step` bytes apart.

    x: an address; PAIRS elements in bf16 of each of the 4 rows, then the next ones. count: of the
    elements of a row, a multiple of PAIRS. Does nothing if this processor lacks the instruction.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        if not HAS_PAIRS:
            return context.get_dummy_value()
        start, stride, x_start, limit, out, step = values
        starts = _starts(builder, start, stride)

        def body(index: Any, sums: Sequence[Any]) -> list[Any]:
            offset = builder.shl(index, ir.Constant(_INT64, 1))
            position = builder.mul(offset, ir.Constant(_INT64, TILE))
            ahead = _plus(builder, builder.add(start, position), TILE_PREFETCH_BYTES)
            x_address = builder.add(x_start, position)
            rows = []
            for row in range(TILE):  # all of the tile is prefetched in order of memory
                _prefetch(builder, _plus(builder, ahead, LINE_BYTES * row))
                rows.append(_load(builder, builder.add(starts[row], offset), _WORDS))
            results = []
            kind = ir.FunctionType(_FLOATS, [_FLOATS, _WORDS, _WORDS])
            multiply = ir.InlineAsm(kind, "vdpbf16ps $3, $2, $0", "=v,0,v,v")
            for column in range(TILE):
                xs = _load(builder, _plus(builder, x_address, 2 * PAIRS * column), _WORDS)
                for row in range(TILE):
                    total = sums[TILE * column + row]
                    results.append(builder.call(multiply, [total, rows[row], xs]))
            return results

        totals = _totals(builder, _loop(builder, limit, PAIRS, TILE * TILE, body))
        for column, address in enumerate(_starts(builder, out, step)):
            _store(builder, _part(builder, totals, TILE * column), address)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), generate
