"""Dot products of rows of bf16 weights with activations, for the matmul of a decoding step.

Memory limits the product with one row of activations, which stay in fp32: `dot_product` reads the
weights in order; `dot_rows` reads 4 wide rows at once, so that activations are loaded a fourth as
often. Arithmetic limits the product with several rows: in `dot_tile` 4 by 4 sums stay in registers,
and one instruction multiplies 32 pairs (`vdpbf16ps`, AVX-512 BF16) and adds them to 16 sums.
"""

from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from trifold.fast.processor import features

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
_HALVES = ir.VectorType(ir.IntType(16), LANES)
_ZEROS = ir.Constant(_FLOATS, [0.0] * LANES)
_SIXTEEN = ir.Constant(_WORDS, [16] * LANES)

llvm.initialize_native_asmparser()  # of an instruction that LLVM has no portable name for


# Whether this processor has the instruction for pairs.
HAS_PAIRS = features().issuperset(("avx512f", "avx512bf16"))


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
    """The 8 sums of neighbours in a, then those in b."""
    lanes = range(LANES)
    even, odd = (ir.Constant(_WORDS, [2 * lane + side for lane in lanes]) for side in (0, 1))
    return builder.fadd(builder.shuffle_vector(a, b, even), builder.shuffle_vector(a, b, odd))


def _totals(builder: Any, vectors: Sequence[Any]) -> Any:
    """The total of each of 16 vectors; of fewer, so many sums of each."""
    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [_sums_of_pairs(builder, a, b) for a, b in pairs]
    return vectors[0]


def _loop(
    builder: Any, count: Any, step: int, sums: int, body: Callable[[Any, Sequence[Any]], list[Any]]
) -> list[Any]:
    """body(index, sums) -> new sums, for each step-th index below count > 0; returns the last."""
    before = builder.block
    inside = builder.append_basic_block("products")
    after = builder.append_basic_block("products.end")
    builder.branch(inside)
    builder.position_at_end(inside)
    index = builder.phi(_INT64)
    totals = [builder.phi(_FLOATS) for _ in range(sums)]
    results = body(index, totals)
    following = _plus(builder, index, step)
    end = builder.block
    for phi, first, last in (
        (index, ir.Constant(_INT64, 0), following),
        *((total, _ZEROS, result) for total, result in zip(totals, results, strict=True)),
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


def _add_product(builder: Any, address: Any, numbers: Any, total: Any) -> Any:
    """total + LANES weights at an address · numbers."""
    words = builder.shl(builder.zext(_load(builder, address, _HALVES), _WORDS), _SIXTEEN)
    factors = builder.bitcast(words, _FLOATS), numbers
    return _call(builder, "llvm.fmuladd.v16f32", _FLOATS, *factors, total)


@intrinsic
def dot_product(typing: Any, weights: Any, x: Any, count: Any) -> Any:
    """The dot product of `count` weights in bf16 with as many fp32 at the address x. count: a
    multiple of STEP.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        start, x_start, limit = values

        def body(index: Any, sums: Sequence[Any]) -> list[Any]:
            address = builder.add(start, builder.shl(index, ir.Constant(_INT64, 1)))
            x_address = builder.add(x_start, builder.shl(index, ir.Constant(_INT64, 2)))
            _prefetch_next_page(builder, address)
            results = []
            for part, total in enumerate(sums):
                numbers = _load(builder, _plus(builder, x_address, 4 * LANES * part), _FLOATS)
                place = _plus(builder, address, 2 * LANES * part)
                results.append(_add_product(builder, place, numbers, total))
            return results

        a, b, c, d = _loop(builder, limit, STEP, STEP // LANES, body)
        total = builder.fadd(builder.fadd(a, b), builder.fadd(c, d))
        for _ in range(4):
            total = _sums_of_pairs(builder, total, total)
        return builder.extract_element(total, ir.Constant(_INT32, 0))

    return types.float32(types.int64, types.int64, types.int64), generate


@intrinsic
def dot_rows(typing: Any, weights: Any, stride: Any, x: Any, count: Any, out: Any) -> Any:
    """4 rows of bf16 weights, `stride` bytes apart, times fp32 activations x -> out: 4 fp32.

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
                    results.append(_add_product(builder, place, numbers[part], total))
            return results

        sums = _loop(builder, limit, STEP, TILE * len(parts), body)
        rows = []
        for row in range(TILE):
            a, b, c, d = sums[row * len(parts) : (row + 1) * len(parts)]
            rows.append(builder.fadd(builder.fadd(a, b), builder.fadd(c, d)))
        totals = _totals(builder, rows)
        for _ in range(2):  # each has four sums
            totals = _sums_of_pairs(builder, totals, totals)
        _store(builder, _part(builder, totals, 0), out)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


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
