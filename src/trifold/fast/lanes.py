"""Vectors of 16 numbers for loops of Numba: explicit SIMD, and the inner loop of a matmul.

Numba vectorizes a loop if it can prove that its arrays do not overlap, or checks that each time the
loop starts. For rows of a few hundred elements that costs as much as the loop. Loops on lanes state
what is loaded and stored; they need a processor with one of the `instruction_sets`. Lanes are one
register of AVX-512, and two of AVX2.

A matmul multiplies words of 32 bits: four int8, two bf16 or int16, or one fp32. The tables
PRODUCTS, ROUND and SCALE hold what the sets do by different instructions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.typing.templates import ConcreteTemplate, infer_global
from numba.extending import intrinsic, lower_builtin, register_model

from trifold.fast.instruction_sets import SETS, instruction_set

LANES = 16
VECTOR = 4 * LANES  # bytes
# Whose instructions are emitted; without any, nothing is compiled.
SET = (instruction_set() or SETS[0]).name

_INT8, _INT32, _INT64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_WORDS = ir.VectorType(_INT32, LANES)
_HALVES = ir.VectorType(ir.IntType(16), LANES)
_BYTES = ir.VectorType(_INT8, LANES)
_MAGIC = 1.5 * 2.0**23  # plus it, a small number is rounded to the last bits of its fp32

llvm.initialize_native_asmparser()  # of instructions that LLVM has no portable name for


class Lanes(types.Type):  # type: ignore[misc]
    """16 numbers in fp32, in a register."""

    def __init__(self) -> None:
        super().__init__("lanes")


lanes = Lanes()


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    """Lanes are a vector of LLVM."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _FLOATS)


def _constant(kind: ir.VectorType, value: Any) -> ir.Constant:
    return ir.Constant(kind, [value] * LANES)


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _load(builder: Any, address: Any, kind: Any) -> Any:
    loaded = builder.load(_pointer(builder, address, kind))
    loaded.align = 1
    return loaded


def _store(builder: Any, value: Any, address: Any) -> None:
    stored = builder.store(value, _pointer(builder, address, value.type))
    stored.align = 1


def _call(builder: Any, name: str, result: Any, *values: Any) -> Any:
    """Call a function of LLVM."""
    kind = ir.FunctionType(result, [value.type for value in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values)


def _assembly(builder: Any, text: str, constraints: str, result: Any, *values: Any) -> Any:
    """One instruction of the processor."""
    kind = ir.FunctionType(result, [value.type for value in values])
    return builder.call(ir.InlineAsm(kind, text, constraints), values)


def _splat(builder: Any, value: Any) -> Any:
    """A vector of 16 times the same value."""
    kind = ir.VectorType(value.type, LANES)
    undefined = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(_INT32, 0))
    return builder.shuffle_vector(first, undefined, _constant(_WORDS, 0))


def _spaced(builder: Any, start: Any, stride: Any, count: int) -> list[Any]:
    """`count` addresses, so many bytes apart."""
    numbers = [ir.Constant(_INT64, number) for number in range(count)]
    return [builder.add(start, builder.mul(stride, each)) for each in numbers]


# --- operations on lanes --------------------------------------------------------------------------

Emit = Callable[..., Any]


def _operation(result: Any, *arguments: Any) -> Callable[[Emit], Any]:
    """Decorator: emit(builder, *values) becomes a function for compiled code."""

    def decorate(emit: Emit) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            value = emit(builder, *values)
            return context.get_dummy_value() if value is None else value

        signature = result(*arguments)
        if len(arguments) == 1:
            return intrinsic(lambda typing, a: (signature, generate))
        if len(arguments) == 2:
            return intrinsic(lambda typing, a, b: (signature, generate))
        return intrinsic(lambda typing, a, b, c: (signature, generate))

    return decorate


@_operation(lanes, types.float32)
def fill(builder: Any, x: Any) -> Any:
    """x in all lanes."""
    return _splat(builder, x)


@_operation(lanes, types.int64)
def load_float(builder: Any, address: Any) -> Any:
    """16 fp32 in memory."""
    return _load(builder, address, _FLOATS)


@_operation(types.uint32, types.int64)
def load_word(builder: Any, address: Any) -> Any:
    """32 bits in memory."""
    return _load(builder, address, _INT32)


@intrinsic
def place(typing: Any, array: Any, row: Any, column: Any) -> Any:
    """The address of array[row, column], a contiguous matrix."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        matrix = context.make_array(array)(context, builder, values[0])
        columns = builder.extract_value(matrix.shape, 1)
        index = builder.add(builder.mul(values[1], columns), values[2])
        size = ir.Constant(_INT64, array.dtype.bitwidth // 8)
        start = builder.ptrtoint(matrix.data, _INT64)
        return builder.add(start, builder.mul(index, size))

    return types.int64(array, types.int64, types.int64), generate


@intrinsic
def load(typing: Any, array: Any, address: Any) -> Any:
    """16 numbers at an address, of the type of an array: fp32 or bf16 (uint16)."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        if array.dtype == types.float32:
            return _load(builder, values[1], _FLOATS)
        words = builder.zext(_load(builder, values[1], _HALVES), _WORDS)
        return builder.bitcast(builder.shl(words, _constant(_WORDS, 16)), _FLOATS)

    return lanes(array, types.int64), generate


def _round_by_instruction(builder: Any, x: Any) -> Any:
    half = ir.VectorType(_INT32, LANES // 2)
    return _assembly(builder, "vcvtneps2bf16 $1, $0", "=v,v", half, x)


def _round_by_bits(builder: Any, x: Any) -> Any:
    """Adds half of what the last bit of bf16 is worth, less one if that bit is 0."""
    bits = builder.bitcast(x, _WORDS)
    last = builder.and_(builder.lshr(bits, _constant(_WORDS, 16)), _constant(_WORDS, 1))
    rounded = builder.add(bits, builder.add(last, _constant(_WORDS, 0x7FFF)))
    is_nan = builder.fcmp_unordered("uno", x, x)
    rounded = builder.select(is_nan, _constant(_WORDS, 0x7FC00000), rounded)
    return builder.trunc(builder.lshr(rounded, _constant(_WORDS, 16)), _HALVES)


# 16 bf16, in a register of half the size.
ROUND = {"AVX-512": _round_by_instruction, "AVX2": _round_by_bits}
_rounded = ROUND[SET]


@intrinsic
def store(typing: Any, array: Any, address: Any, x: Any) -> Any:
    """Store x at an address in the type of an array, bf16 rounded to nearest, ties to even."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, place, value = values
        if array.dtype == types.uint16:
            value = _rounded(builder, value)
        _store(builder, value, place)
        return context.get_dummy_value()

    return types.void(array, types.int64, lanes), generate


@_operation(types.void, types.int64, lanes)
def store_float(builder: Any, address: Any, x: Any) -> None:
    """x as 16 fp32."""
    _store(builder, x, address)


@_operation(types.void, types.int64, lanes)
def store_bfloat16(builder: Any, address: Any, x: Any) -> None:
    """x as 16 bf16."""
    _store(builder, _rounded(builder, x), address)


@_operation(types.void, types.int64, lanes)
def store_byte(builder: Any, address: Any, x: Any) -> None:
    """x, from 0 to 255, as 16 bytes, rounded to nearest: adding 1.5 · 2²³ moves it to the last
    bits.
    """
    moved = builder.bitcast(builder.fadd(x, _constant(_FLOATS, _MAGIC)), _WORDS)
    _store(builder, builder.trunc(moved, _BYTES), address)


@_operation(types.void, types.int64, lanes)
def store_int16(builder: Any, address: Any, x: Any) -> None:
    """x, from 0 to 32,767, as 16 int16, rounded to nearest."""
    moved = builder.bitcast(builder.fadd(x, _constant(_FLOATS, _MAGIC)), _WORDS)
    _store(builder, builder.trunc(moved, _HALVES), address)


# x as 16 integers of the type of `LaneInstructions.products`.
store_integer = {"AVX-512": store_byte, "AVX2": store_int16}[SET]


@_operation(types.void, types.int64, types.int64, types.int64)
def store_pairs(builder: Any, address: Any, first: Any, second: Any) -> None:
    """Two times 16 numbers of 16 bits in memory, in turn."""
    low, high = (builder.zext(_load(builder, each, _HALVES), _WORDS) for each in (first, second))
    _store(builder, builder.or_(low, builder.shl(high, _constant(_WORDS, 16))), address)


@_operation(types.void, types.int64)
def prefetch(builder: Any, address: Any) -> None:
    """Read the line of an address into the caches. The address may be any."""
    kind = ir.FunctionType(ir.VoidType(), [address.type])
    builder.call(ir.InlineAsm(kind, "prefetcht0 ($0)", "r", side_effect=True), [address])


@_operation(lanes, lanes, lanes, lanes)
def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a · b + c, rounded once."""
    return _call(builder, "llvm.fma.v16f32", _FLOATS, a, b, c)


def _greater(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _less(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered("<", a, b), a, b)


@_operation(lanes, lanes, lanes)
def maximum(builder: Any, a: Any, b: Any) -> Any:
    """The larger of a and b; b if either is NaN."""
    return _greater(builder, a, b)


@_operation(lanes, lanes, lanes)
def minimum(builder: Any, a: Any, b: Any) -> Any:
    """The smaller of a and b; b if either is NaN."""
    return _less(builder, a, b)


@_operation(lanes, lanes, types.int64, lanes)
def first_lanes(builder: Any, x: Any, count: Any, other: Any) -> Any:
    """The first `count` lanes of x, and the rest of other."""
    numbers = ir.Constant(_WORDS, list(range(LANES)))
    is_first = builder.icmp_signed("<", numbers, _splat(builder, builder.trunc(count, _INT32)))
    return builder.select(is_first, x, other)


def _reduced(builder: Any, x: Any, combine: Emit) -> Any:
    """All lanes combined, by halves."""
    for distance in (8, 4, 2, 1):
        moved = [(lane + distance) % LANES for lane in range(LANES)]
        x = combine(builder, x, builder.shuffle_vector(x, x, ir.Constant(_WORDS, moved)))
    return builder.extract_element(x, ir.Constant(_INT32, 0))


@_operation(types.float32, lanes)
def sum_of(builder: Any, x: Any) -> Any:
    """The sum of all lanes."""
    return _reduced(builder, x, lambda builder, a, b: builder.fadd(a, b))


@_operation(types.float32, lanes)
def largest_of(builder: Any, x: Any) -> Any:
    """The largest lane."""
    return _reduced(builder, x, _greater)


@_operation(types.float32, lanes)
def smallest_of(builder: Any, x: Any) -> Any:
    """The smallest lane."""
    return _reduced(builder, x, _less)


def _sums_of_neighbours(builder: Any, a: Any, b: Any) -> Any:
    """The sums of two neighbours of 8 lanes, within each half: two of a, then two of b."""
    even, odd = ([first, first + 2, first + 8, first + 10] for first in (0, 1))
    numbers = ([*own, *(lane + 4 for lane in own)] for own in (even, odd))
    first, second = (ir.Constant(ir.VectorType(_INT32, 8), each) for each in numbers)
    return builder.fadd(builder.shuffle_vector(a, b, first), builder.shuffle_vector(a, b, second))


@intrinsic
def store_sums(typing: Any, address: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """The sums of all lanes of each of four -> 4 fp32 at an address. Takes less time than
    `sum_of` each of them.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        def halves_of(x: Any) -> Any:
            """The sum of both halves."""
            half = x.type.count // 2
            numbers = (list(range(first, first + half)) for first in (0, half))
            lanes = (ir.Constant(ir.VectorType(_INT32, half), each) for each in numbers)
            return builder.fadd(*(builder.shuffle_vector(x, x, each) for each in lanes))

        first, second, third, fourth = map(halves_of, values[1:])
        left = _sums_of_neighbours(builder, first, second)
        right = _sums_of_neighbours(builder, third, fourth)
        _store(builder, halves_of(_sums_of_neighbours(builder, left, right)), values[0])
        return context.get_dummy_value()

    return types.void(types.int64, *[lanes] * 4), generate


def _infer(symbol: Any, emit: Emit) -> None:
    """An operator of lanes. A template, because it is compiled in less time than an overload."""

    @infer_global(symbol)
    class OfLanes(ConcreteTemplate):  # type: ignore[misc]
        cases: ClassVar = [lanes(lanes, lanes)]

    @lower_builtin(symbol, lanes, lanes)
    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return emit(builder, *values)


_infer(operator.add, lambda builder, a, b: builder.fadd(a, b))
_infer(operator.sub, lambda builder, a, b: builder.fsub(a, b))
_infer(operator.mul, lambda builder, a, b: builder.fmul(a, b))
_infer(operator.truediv, lambda builder, a, b: builder.fdiv(a, b))


def new_transpose(columns: int) -> Any:
    """A function transpose(address, stride, out): 16 rows of 16 words of 32 bits, so many bytes
    apart, -> the transposed matrix at `out`, in rows of so many columns.
    """
    out_stride = ir.Constant(_INT64, 4 * columns)
    low = [lane // 2 + lane % 2 * LANES for lane in range(LANES)]
    high = [lane + LANES // 2 for lane in low]
    halves = [ir.Constant(_WORDS, half) for half in (low, high)]

    @_operation(types.void, types.int64, types.int64, types.int64)
    def transpose(builder: Any, address: Any, stride: Any, out: Any) -> None:
        rows = [_load(builder, start, _WORDS) for start in _spaced(builder, address, stride, LANES)]
        # Each of four steps interleaves the words of rows 0 and 8, 1 and 9, …: it rotates the bits
        # of row and column.
        for _ in range(4):
            pairs = zip(rows[: LANES // 2], rows[LANES // 2 :], strict=True)
            rows = [builder.shuffle_vector(a, b, half) for a, b in pairs for half in halves]
        for row, target in zip(rows, _spaced(builder, out, out_stride, LANES), strict=True):
            _store(builder, row, target)

    return transpose


transpose = new_transpose(LANES)


# --- functions ------------------------------------------------------------------------------------


def _scale_by_instruction(builder: Any, x: Any, power: Any) -> Any:
    return _assembly(builder, "vscalefps $2, $1, $0", "=v,v,v", _FLOATS, x, power)


def _scale_by_bits(builder: Any, x: Any, power: Any) -> Any:
    """Times the number whose exponent, in the bits from 23 on, is that power."""
    moved = builder.bitcast(builder.fadd(power, _constant(_FLOATS, _MAGIC + 127)), _WORDS)
    factor = builder.bitcast(builder.shl(moved, _constant(_WORDS, 23)), _FLOATS)
    return builder.fmul(x, factor)


# x · 2^power of whole powers from -126 to 127.
SCALE = {"AVX-512": _scale_by_instruction, "AVX2": _scale_by_bits}


class _Vector:
    """Lanes while a function is compiled: operators emit instructions, a number stands for 16."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder = builder
        self.value = value

    def _new(self, value: Any) -> _Vector:
        return _Vector(self.builder, value)

    def _of(self, other: _Vector | float) -> Any:
        return other.value if isinstance(other, _Vector) else _constant(_FLOATS, other)

    def __add__(self, other: _Vector | float) -> _Vector:
        return self._new(self.builder.fadd(self.value, self._of(other)))

    def __sub__(self, other: _Vector | float) -> _Vector:
        return self._new(self.builder.fsub(self.value, self._of(other)))

    def __mul__(self, other: _Vector | float) -> _Vector:
        return self._new(self.builder.fmul(self.value, self._of(other)))

    def times_plus(self, factor: _Vector | float, added: _Vector | float) -> _Vector:
        """self · factor + added, rounded once."""
        values = self.value, self._of(factor), self._of(added)
        return self._new(_call(self.builder, "llvm.fma.v16f32", _FLOATS, *values))

    def inverse(self) -> _Vector:
        """1 / self."""
        return self._new(self.builder.fdiv(_constant(_FLOATS, 1.0), self.value))

    def at_least(self, least: float) -> _Vector:
        """max(self, least); NaN stays."""
        return self._new(_greater(self.builder, _constant(_FLOATS, least), self.value))

    def at_most(self, most: float) -> _Vector:
        """min(self, most); NaN stays."""
        return self._new(_less(self.builder, _constant(_FLOATS, most), self.value))

    def polynomial(self, *coefficients: float) -> _Vector:
        """The polynomial, the highest power first."""
        first, second, *others = coefficients
        result = self.times_plus(first, second)
        for coefficient in others:
            result = result.times_plus(self, coefficient)
        return result

    def absolute(self) -> _Vector:
        """|self|."""
        return self._new(_call(self.builder, "llvm.fabs.v16f32", _FLOATS, self.value))

    def exp2(self) -> _Vector:
        """2^self to a relative error of 4e-6, if it is at most 0. Below -126 it stays at 1e-38."""
        x = self.at_least(-126.0)
        whole = self._new(_call(self.builder, "llvm.floor.v16f32", _FLOATS, (x + 0.5).value))
        p = (x - whole).polynomial(
            *(0.0013333558, 0.0096181291, 0.0555041087, 0.2402265070, 0.6931471806, 1.0)
        )
        return self._new(SCALE[SET](self.builder, p.value, whole.value))

    def rough_gelu(self) -> _Vector:
        """x Φ(x) to 2e-4; see `loops.gelu`."""
        low = self.at_least(-4.0)
        z = low.at_most(4.0)
        p = (z * z * 0.0625).polynomial(
            *(-0.34928019, 1.74799882, -3.83460576, 4.90556792),
            *(-4.12253015, 2.43336997, -1.05420423, 0.39867335),
        )
        return low * z.times_plus(p, 0.5)

    def exact_gelu(self) -> _Vector:
        """x Φ(x) to a relative error of 3e-6 (Abramowitz & Stegun 1964, 7.1.26)."""
        u = self.absolute() * 0.7071067811865476
        t = u.times_plus(0.3275911, 1.0).inverse()
        p = t.polynomial(1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
        upper = p * t * 0.5 * (u * u * -1.4426950408889634).exp2()
        is_negative = self.builder.fcmp_ordered("<", self.value, _constant(_FLOATS, 0.0))
        lower = upper * -1.0 + 1.0
        return self * self._new(self.builder.select(is_negative, upper.value, lower.value))

    def gelu_tanh(self) -> _Vector:
        """GELU by the hyperbolic tangent: x σ(2z) with z = √(2/π) (x + 0.044715 x³)."""
        z = self * (self * self).times_plus(0.1029432, 2.3022082)  # 2z log2 e
        power = (z.absolute() * -1.0).exp2()
        is_negative = self.builder.fcmp_ordered("<", z.value, _constant(_FLOATS, 0.0))
        one = _constant(_FLOATS, 1.0)
        upper = self._new(self.builder.select(is_negative, power.value, one))
        return self * upper * (power + 1.0).inverse()


@_operation(lanes, lanes)
def gelu_tanh(builder: Any, x: Any) -> Any:
    """GELU by the hyperbolic tangent."""
    return _Vector(builder, x).gelu_tanh().value


@_operation(lanes, lanes)
def exp2(builder: Any, x: Any) -> Any:
    """2^x for x ≤ 0."""
    return _Vector(builder, x).exp2().value


@intrinsic
def gelu(typing: Any, array: Any, x: Any) -> Any:
    """x Φ(x): for a matmul with rows of the type of the array, exact if that is fp32."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        vector = _Vector(builder, values[1])
        is_float = array.dtype == types.float32
        return (vector.exact_gelu() if is_float else vector.rough_gelu()).value

    return lanes(array, lanes), generate


@intrinsic
def finish(
    typing: Any, array: Any, sums: Any, bias: Any, scale: Any, zero: Any, scales: Any, totals: Any
) -> Any:
    """16 sums of products at an address, of rows of the type of the array, plus the bias.

    Of integers (x ≈ (integer - zero) · scale) the sums are int32; scales and totals are those of
    the columns. bias, scales and totals are addresses.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, sums, bias, scale, zero, scales, totals = values
        added = _Vector(builder, _load(builder, bias, _FLOATS))
        if array.dtype not in INTEGERS:
            return (added + _Vector(builder, _load(builder, sums, _FLOATS))).value
        products = _Vector(builder, builder.sitofp(_load(builder, sums, _WORDS), _FLOATS))
        totals = _Vector(builder, _load(builder, totals, _FLOATS))
        products = totals.times_plus(_Vector(builder, _splat(builder, zero)) * -1.0, products)
        factor = _Vector(builder, _load(builder, scales, _FLOATS))
        factor = factor * _Vector(builder, _splat(builder, scale))
        return products.times_plus(factor, added).value

    addresses = types.int64
    arguments = (array, addresses, addresses, types.float32, types.float32, addresses, addresses)
    return lanes(*arguments), generate


# --- matmul ---------------------------------------------------------------------------------------


def _add_floats(builder: Any, total: Any, a: Any, b: Any) -> Any:
    a, b = (builder.bitcast(each, _FLOATS) for each in (a, b))
    return _call(builder, "llvm.fma.v16f32", _FLOATS, a, b, total)


def _add_bfloat16(builder: Any, total: Any, a: Any, b: Any) -> Any:
    return _assembly(builder, "vdpbf16ps $3, $2, $0", "=v,0,v,v", total.type, total, a, b)


def _add_bytes(builder: Any, total: Any, a: Any, b: Any) -> Any:
    return _assembly(builder, "vpdpbusd $3, $2, $0", "=v,0,v,v", total.type, total, a, b)


def _add_int16(builder: Any, total: Any, a: Any, b: Any) -> Any:
    """The instruction has no form for 16 words: two registers are multiplied."""
    count = LANES // 2
    result = ir.VectorType(_INT32, count)
    pairs = ir.VectorType(ir.IntType(16), LANES)
    products = []
    for first in (0, count):
        half = ir.Constant(result, list(range(first, first + count)))
        both = (builder.bitcast(builder.shuffle_vector(x, x, half), pairs) for x in (a, b))
        products.append(_call(builder, "llvm.x86.avx2.pmadd.wd", result, *both))
    joined = builder.shuffle_vector(*products, ir.Constant(_WORDS, list(range(LANES))))
    return builder.add(total, joined)


# Type of the rows of a matmul -> total + a · b: 16 sums, each of the products in a pair of words.
PRODUCTS = {
    types.float32: _add_floats,
    types.uint16: _add_bfloat16,
    types.uint8: _add_bytes,
    types.int16: _add_int16,
}
INTEGERS = (types.uint8, types.int16)  # whose sums are int32


class Tile(NamedTuple):
    """LLVM code of `rows` rows times 16 · vectors columns; see `new_tile`."""

    rows: int
    vectors: int
    together: bool
    transposed: bool
    adds: bool

    def emit(self, builder: Any, kind: Any, values: Sequence[Any]) -> None:
        """The loop over words and the stores after it. values: those of the function, but for the
        array, whose type is `kind`.
        """
        a, a_stride, b, b_stride, words, out, out_stride = values
        targets = self._places_of_sums(builder, out, out_stride)
        initial = self._initial_sums(builder, kind, targets)
        four = ir.Constant(_INT64, 4)
        of_row, of_word = (four, a_stride) if self.transposed else (a_stride, four)
        starts = _spaced(builder, a, of_row, self.rows)
        before = builder.block
        body = builder.append_basic_block("words")
        after = builder.append_basic_block("store")
        builder.branch(body)
        builder.position_at_end(body)
        word = builder.phi(_INT64)
        totals = [builder.phi(each.type) for each in initial]
        columns = self._words_of_columns(builder, word, b, b_stride)
        sums = list[Any]()
        for row in self._words_of_rows(builder, word, starts, of_word):
            for column in columns:
                sums.append(PRODUCTS[kind](builder, totals[len(sums)], row, column))
        following = builder.add(word, ir.Constant(_INT64, 1))
        word.add_incoming(ir.Constant(_INT64, 0), before)
        word.add_incoming(following, body)
        for total, first, new in zip(totals, initial, sums, strict=True):
            total.add_incoming(first, before)
            total.add_incoming(new, body)
        builder.cbranch(builder.icmp_signed("<", following, words), body, after)
        builder.position_at_end(after)
        for target, total in zip(targets, sums, strict=True):
            _store(builder, total, target)

    def _places_of_sums(self, builder: Any, out: Any, stride: Any) -> list[Any]:
        """The addresses of 16 sums each, row by row."""
        starts = _spaced(builder, out, stride, self.rows)
        vector = ir.Constant(_INT64, VECTOR)
        return [
            place for start in starts for place in _spaced(builder, start, vector, self.vectors)
        ]

    def _initial_sums(self, builder: Any, kind: Any, targets: Sequence[Any]) -> list[Any]:
        total_kind = _WORDS if kind in INTEGERS else _FLOATS
        if self.adds:
            return [_load(builder, target, total_kind) for target in targets]
        zero = _constant(total_kind, 0 if kind in INTEGERS else 0.0)
        return [zero] * len(targets)

    def _words_of_rows(
        self, builder: Any, word: Any, starts: Sequence[Any], of_word: Any
    ) -> Iterator[Any]:
        """A word of each row, in all lanes. Each is loaded when it is needed, because there are
        fewer registers than rows.
        """
        offset = builder.mul(word, of_word)
        for start in starts:
            yield _splat(builder, _load(builder, builder.add(start, offset), _INT32))

    def _words_of_columns(self, builder: Any, word: Any, b: Any, stride: Any) -> list[Any]:
        vector = ir.Constant(_INT64, VECTOR)
        of_word = ir.Constant(_INT64, VECTOR * self.vectors) if self.together else vector
        start = builder.add(b, builder.mul(word, of_word))
        of_column = vector if self.together else stride
        return [
            _load(builder, place, _WORDS)
            for place in _spaced(builder, start, of_column, self.vectors)
        ]


def new_tile(
    rows: int,
    vectors: int,
    *,
    together: bool = False,
    transposed: bool = False,
    adds: bool = False,
) -> Any:
    """A function tile(array, a, a_stride, b, b_stride, words, out, out_stride): `rows` rows at the
    address a, each of so many words, times b -> out (rows, 16 · vectors) of 32 bits. Strides are in
    bytes.

    b has for each word of a row 16 words, one for each of 16 columns; the next 16 columns are
    b_stride away. together: the words of all columns follow each other, and b_stride is not read;
    that leaves registers for the addresses of more rows. transposed: the first words of all rows
    of a follow each other, and a_stride is the distance to their second words. adds: to what is in
    `out`.

    The array has the type of a: fp32, bf16 (uint16), int16, or unsigned bytes, which are multiplied
    with signed ones in b. The sums stay in registers.
    """
    code = Tile(rows, vectors, together, transposed, adds)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        code.emit(builder, signature.args[0].dtype, values[1:])
        return context.get_dummy_value()

    @intrinsic
    def tile(
        typing: Any,
        array: Any,
        a: Any,
        a_stride: Any,
        b: Any,
        b_stride: Any,
        words: Any,
        out: Any,
        out_stride: Any,
    ) -> Any:
        return types.void(array, *[types.int64] * 7), generate

    return tile
