"""Inner loops that no operator of PyTorch does in one pass, compiled by numba (an extra; without it, `loops()` is None
and everything is done operator by operator).

Each runs on one thread and lets go of Python's lock, so that several can learn side by side. Numbers of bf16 come as
uint16, the upper half of an fp32; every loop reckons in fp32. NaN and infinity pass through to the result. Arrays
(N, …) hold rows packed one after the other, and `starts` (B + 1,) says where each begins and the last one ends.

All loops are in this file, because numba's cache of compiled code looks no further than the file it came from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import config
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
F = np.float32

# Sums may be taken in any order; that a number is NaN or infinite must not be assumed away. A loop that sums writes
# nothing else: where arrays happen to lie close together, a compiled loop that writes goes one number at a time for
# fear of overlap, which would change the order of the sum, and its last bits, from one call to the next.
MATHS = {"reassoc", "contract", "nsz", "arcp"}
loop = njit(nogil=True, fastmath=MATHS, error_model="numpy", cache=True)
part = njit(inline="always", fastmath=MATHS, error_model="numpy")
piece = njit(nogil=True, fastmath=MATHS, error_model="numpy")

# Whether it has an instruction that rounds to bf16: without one the compiler would call a function that is not there.
ROUNDS_OFF = "+avx512bf16" in (
    get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
)


# --- numbers -------------------------------------------------------------------------------------------


def wide(x: Any) -> Any:
    """An fp32 from a bf16 (uint16), an int8, an fp32 or its bits (uint32)."""


def narrow(like: Any, x: Any) -> Any:
    """An fp32 rounded to nearest, ties to even, to the type of `like`."""


@overload(wide, inline="always", strict=False)
def _wide(x: Any) -> Callable[..., Any]:
    if x == types.uint16:
        return lambda x: np.uint32(np.uint32(x) << np.uint32(16)).view(np.float32)
    if x == types.uint32:
        return lambda x: np.uint32(x).view(np.float32)
    if x == types.int8:
        return lambda x: F(x)  # noqa: PLW0108 (numba wants a function of its own)
    return lambda x: x


@overload(narrow, inline="always", strict=False)
def _narrow(like: Any, x: Any) -> Callable[..., Any]:
    if like == types.uint16:
        # The carry of the rounding would turn some NaN into a zero: those keep their bits, with one that says NaN.
        def rounded(like: Any, x: Any) -> Any:
            bits = np.float32(x).view(np.uint32)
            nearest = np.uint32(bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
            kept = nearest if x == x else np.uint32(bits | np.uint32(0x400000))
            return np.uint16(kept >> np.uint32(16))

        return rounded
    return lambda like, x: np.float32(x)


def round_off(like: Any, x: Any) -> Any:
    """`narrow` by the processor's own instruction, if it has one, which makes 0 of numbers below 1e-38. For loops that
    reckon much: in others the compiler, which thinks it dear, takes fewer numbers at a time for its sake.
    """


class _Brain(ir.Type):  # type: ignore[misc]
    """bf16, which the compiler knows and its Python side does not."""

    def _to_string(self) -> str:
        return "bfloat"


@intrinsic
def _rounded(typing: Any, x: Any) -> Any:
    """The bits of the bf16 nearest to an fp32."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.bitcast(builder.fptrunc(values[0], _Brain()), ir.IntType(16))

    return types.uint16(types.float32), generate


@overload(round_off, inline="always", strict=False)
def _round_off(like: Any, x: Any) -> Callable[..., Any]:
    if like == types.uint16 and ROUNDS_OFF:
        return lambda like, x: _rounded(np.float32(x))
    return lambda like, x: narrow(like, x)  # noqa: PLW0108 (numba wants a function of its own)


def shorten(like: Any, x: Any) -> Any:
    """`narrow` with ties away from zero, which is quicker: for numbers where a tie is chance, and that come from bf16.
    A NaN with bits in its lower half, which those have not, would become infinite or a zero.
    """


@overload(shorten, inline="always", strict=False)
def _shorten(like: Any, x: Any) -> Callable[..., Any]:
    if like == types.uint16:
        return lambda like, x: np.uint16(
            np.uint32(np.float32(x).view(np.uint32) + np.uint32(0x8000)) >> np.uint32(16)
        )
    return lambda like, x: np.float32(x)


@part
def exponential(x: Any) -> Any:
    """e^x to 3e-6: 2 to the whole part of x / ln 2, times a polynomial of the rest. Below -87 it stays at 1e-38."""
    t = x * F(1.4426950408889634)
    t = F(-126.0) if t < F(-126.0) else t
    whole = np.floor(t + F(0.5))
    f = t - whole
    p = F(0.0013333558) * f + F(0.0096181291)
    p = p * f + F(0.0555041087)
    p = p * f + F(0.2402265070)
    p = p * f + F(0.6931471806)
    p = p * f + F(1.0)
    return p * np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)


LEAST = np.int32(-(2**31))


@part
def ordinal(x: Any) -> Any:
    """A whole number for each fp32, in the same order: of those a maximum may be taken sixteen at once. NaN is first or
    last.
    """
    bits = np.float32(x).view(np.int32)
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@part
def of_ordinal(number: Any) -> Any:
    """The inverse."""
    return np.int32(number ^ ((number >> np.int32(31)) & np.int32(0x7FFFFFFF))).view(np.float32)


@part
def hashed(number: Any, seed: Any) -> Any:
    """32 bits, each as good as random, from a number and a seed: multiply, fold, twice, with the constants of
    Wellons' search for mixers of least bias ("lowbias32", 2018).
    """
    x = np.uint32(np.uint32(number) * np.uint32(0x9E3779B1) + seed)
    x = np.uint32(x ^ (x >> np.uint32(16)))
    x = np.uint32(x * np.uint32(0x7FEB352D))
    x = np.uint32(x ^ (x >> np.uint32(15)))
    x = np.uint32(x * np.uint32(0x846CA68B))
    return np.uint32(x ^ (x >> np.uint32(16)))


# --- dropout -------------------------------------------------------------------------------------------


@loop
def dropped(y: Array, seed: np.uint32, threshold: np.uint32, scale: np.float32, out: Array) -> None:
    """out[j] = y[j] · scale where the j-th 32 bits of the seed reach the threshold, else 0; all (N,)."""
    for j in range(out.shape[0]):
        out[j] = round_off(out[j], wide(y[j]) * scale if hashed(j, seed) >= threshold else F(0))


@loop
def added_dropped(
    x: Array, y: Array, seed: np.uint32, threshold: np.uint32, scale: np.float32, out: Array
) -> None:
    """out = x + dropped(y)."""
    for j in range(out.shape[0]):
        kept = wide(y[j]) * scale if hashed(j, seed) >= threshold else F(0)
        out[j] = round_off(out[j], wide(x[j]) + kept)


# --- activation ----------------------------------------------------------------------------------------


@part
def steepness(x: Any) -> Any:
    """e^-2u with u = √(2/π) (x + 0.044715 x³): the approximate GELU is x / (1 + e^-2u)."""
    u = x * (F(1.5957691216) + F(0.0713548163) * x * x)
    return exponential(F(87.0) if u < F(-87.0) else -u)


@loop
def gelu_tanh(x: Array, out: Array) -> None:
    """out = 0.5 x (1 + tanh u), all (N,)."""
    for j in range(out.shape[0]):
        v = wide(x[j])
        out[j] = round_off(out[j], v / (F(1) + steepness(v)))


@loop
def gelu_tanh_backward(g: Array, x: Array, out: Array) -> None:
    """out = g · (s + x s (1 − s) 2u') with s = 1 / (1 + e^-2u), all (N,)."""
    for j in range(out.shape[0]):
        v = wide(x[j])
        s = F(1) / (F(1) + steepness(v))
        slope = s + v * s * (F(1) - s) * (F(1.5957691216) + F(0.2140644489) * v * v)
        out[j] = round_off(out[j], wide(g[j]) * slope)


# --- layer norm ----------------------------------------------------------------------------------------


@loop
def layer_norm(
    x: Array, weight: Array, bias: Array, epsilon: float, out: Array, mean: Array, inverse: Array
) -> None:
    """x (N, E) -> out (N, E); mean and inverse (N,) fp32 are kept for the way back."""
    rows, width = x.shape
    share, least = F(1) / F(width), F(epsilon)
    held, w, b = np.empty(width, F), np.empty(width, F), np.empty(width, F)
    for j in range(width):
        w[j], b[j] = wide(weight[j]), wide(bias[j])
    for r in range(rows):
        row, there = x[r], out[r]
        total = square = F(0)
        for j in range(width):
            held[j] = wide(row[j])
        for j in range(width):
            total += held[j]
        m = total * share
        for j in range(width):
            square += (held[j] - m) * (held[j] - m)
        i = F(1) / np.sqrt(square * share + least)
        for j in range(width):
            there[j] = narrow(there[j], (held[j] - m) * i * w[j] + b[j])
        mean[r], inverse[r] = m, i


@loop
def layer_norm_backward(
    g: Array, x: Array, weight: Array, mean: Array, inverse: Array, out: Array, d_weight: Array, d_bias: Array
) -> None:
    """g (N, E) -> out (N, E), and the sums d_weight, d_bias (E,) fp32."""
    rows, width = x.shape
    share = F(1) / F(width)
    gradient, normed, w = np.empty(width, F), np.empty(width, F), np.empty(width, F)
    for j in range(width):
        w[j], d_weight[j], d_bias[j] = wide(weight[j]), F(0), F(0)
    for r in range(rows):
        row, above, there = x[r], g[r], out[r]
        m, i = mean[r], inverse[r]
        a = c = F(0)
        for j in range(width):
            n, v = (wide(row[j]) - m) * i, wide(above[j])
            d_weight[j] += v * n
            d_bias[j] += v
            normed[j], gradient[j] = n, v * w[j]
        for j in range(width):
            a += gradient[j]
            c += gradient[j] * normed[j]
        a, c = a * share, c * share
        for j in range(width):
            there[j] = narrow(there[j], i * (gradient[j] - a - normed[j] * c))


# --- attention over packed rows ------------------------------------------------------------------------


@loop
def to_heads(x: Array, column: int, starts: Array, factor: float, out: Array) -> None:
    """The columns of x (N, C) from `column` -> out (B', H, T', D), times factor; 0 beyond the rows."""
    rows, heads, _, width = out.shape
    for b in range(rows):
        length = starts[b + 1] - starts[b] if b + 1 < len(starts) else 0
        for t in range(length):
            for h in range(heads):
                first = column + h * width
                there, here = out[b, h, t], x[starts[b] + t, first : first + width]
                for d in range(width):
                    there[d] = shorten(there[d], wide(here[d]) * F(factor))
        out[b, :, length:] = 0


@loop
def from_heads(y: Array, starts: Array, factor: float, out: Array, column: int) -> None:
    """The inverse: y (B', H, T', D) -> the columns of out (N, C) from `column`, times factor; 0 in rows of filling."""
    heads, width = y.shape[1], y.shape[3]
    for b in range(len(starts) - 1):
        for t in range(starts[b + 1] - starts[b]):
            for h in range(heads):
                first = column + h * width
                there, here = out[starts[b] + t, first : first + width], y[b, h, t]
                for d in range(width):
                    there[d] = shorten(there[d], wide(here[d]) * F(factor))
    out[starts[-1] :, column : column + heads * width] = 0


@loop
def softmax_rows(scores: Array, q_starts: Array, k_starts: Array, first: int, causal: bool) -> None:
    """scores (B', H, T', S') of the queries from `first` -> weights, in place; 0 where there is no key to attend to, or
    no query that asks.
    """
    rows, heads, steps, keys = scores.shape
    held = np.empty(keys, F)
    for b in range(rows):
        asked = b + 1 < len(q_starts)
        queries = min(max(q_starts[b + 1] - q_starts[b] - first, 0), steps) if asked else 0
        real = k_starts[b + 1] - k_starts[b] if asked else 0
        for h in range(heads):
            held[:] = 0  # and so it stays beyond what is seen, which never becomes less
            for t in range(queries):
                row = scores[b, h, t]
                seen = min(real, first + t + 1) if causal else real
                largest, total = LEAST, F(0)
                for s in range(seen):
                    x = ordinal(wide(row[s]))
                    largest = largest if largest > x else x
                m = of_ordinal(largest)
                for s in range(seen):
                    held[s] = exponential(wide(row[s]) - m)
                for s in range(seen):
                    total += held[s]
                inverse = F(1) / total
                for s in range(keys):
                    row[s] = narrow(row[s], held[s] * inverse)
            scores[b, h, queries:] = 0


@loop
def softmax_rows_backward(weights: Array, gradient: Array) -> None:
    """gradient (R, S) of the weights -> of the scores, in place: w ∘ (g − Σ w g)."""
    for r in range(weights.shape[0]):
        w, g = weights[r], gradient[r]
        total = F(0)
        for s in range(w.shape[0]):
            total += wide(w[s]) * wide(g[s])
        for s in range(w.shape[0]):
            g[s] = round_off(g[s], wide(w[s]) * (wide(g[s]) - total))


# --- cross-entropy -------------------------------------------------------------------------------------


@loop
def exponentials(logits: Array, targets: Array, inverse: Array, lost: Array) -> None:
    """logits (V, N) -> exp(z − max of the column) in place, inverse (N,) one over their sums, lost (N,) -log p of the
    target.

    A target of -1 asks nothing: its inverse and lost are 0. Columns are reckoned side by side, each from top to bottom,
    so that the order of its sum does not hang on how many there are.
    """
    classes, columns = logits.shape
    most, block = np.full(columns, F(-3e38), F), np.empty(columns, F)
    for v in range(classes):
        row = logits[v]
        for n in range(columns):
            x = wide(row[n])
            most[n] = most[n] if most[n] > x else x
    for n in range(columns):
        lost[n] = most[n] - wide(logits[max(targets[n], 0), n])
    total = inverse
    total[:] = 0
    for start in range(0, classes, 64):  # a sum of sums: few numbers are added to what is already large
        block[:] = 0
        for v in range(start, min(start + 64, classes)):
            row = logits[v]
            for n in range(columns):
                row[n] = shorten(row[n], exponential(wide(row[n]) - most[n]))
                block[n] += wide(row[n])
        for n in range(columns):
            total[n] += block[n]
    for n in range(columns):
        lost[n] = lost[n] + np.log(total[n]) if targets[n] >= 0 else F(0)
        inverse[n] = F(1) / total[n] if targets[n] >= 0 else F(0)


@loop
def added_to(total: Array, part: Array) -> None:
    """total (N,) fp32 += part (N,)."""
    for j in range(total.shape[0]):
        total[j] += wide(part[j])


# --- bytes ---------------------------------------------------------------------------------------------


def size_of(x: Any) -> Any:
    """|x| as a whole number in the same order, as wide as x; NaN above infinity. Of these a maximum is found quicker,
    and of narrow ones twice as many at once.
    """


def no_size(x: Array) -> Any:
    """The least of the sizes that there are of numbers like those of x."""


@overload(size_of, inline="always", strict=False)
def _size_of(x: Any) -> Callable[..., Any]:
    if x == types.uint16:
        return lambda x: np.uint16(x & np.uint16(0x7FFF))
    return lambda x: np.uint32(np.float32(x).view(np.uint32) & np.uint32(0x7FFFFFFF))


@overload(no_size, inline="always", strict=False)
def _no_size(x: Any) -> Callable[..., Any]:
    return (lambda x: np.uint16(0)) if x.dtype == types.uint16 else (lambda x: np.uint32(0))


@part
def scale_of(size: Any) -> Any:
    """The scale that makes ±127 of the largest size; NaN of NaN and infinity."""
    highest = wide(size)
    return highest / F(127) if highest < F(np.inf) else F(np.nan)


@part
def factor_of(scale: Any) -> Any:
    """What is multiplied with to divide by a scale; 0 where that would overflow, or is no number."""
    return F(1) / scale if scale > F(1e-32) else F(0)


@part
def as_byte(x: Any, factor: Any) -> Any:
    """x · factor to the nearest whole number in ±127, ties to even: added to 1.5 · 2²³ it is what the last bits say. Of
    NaN any byte: its scale says what it is.
    """
    return np.int8(np.float32(wide(x) * factor + F(12582912)).view(np.int32))


@piece
def to_bytes(x: Array, out: Array) -> Any:
    """x (n,) as bytes in ±127, to the nearest; gives their scale. NaN and infinity make it NaN."""
    size = no_size(x)
    for j in range(x.shape[0]):
        size = max(size, size_of(x[j]))
    scale = scale_of(size)
    factor = factor_of(scale)
    for j in range(x.shape[0]):
        out[j] = as_byte(x[j], factor)
    return scale


@loop
def rows_to_bytes(x: Array, out: Array, scales: Array) -> None:
    """x (R, K) ≈ out (R, K) int8 · scales (R,) of its rows."""
    for r in range(x.shape[0]):
        scales[r] = to_bytes(x[r], out[r])


@piece
def by_columns_to_bytes(x: Array, sizes: Array, out: Array, scales: Array) -> None:
    """The same by columns, whose largest sizes (K,) are known: x (R, K) ≈ out (R, K) int8 · scales (K,)."""
    factors = np.empty(x.shape[1], F)
    for j in range(x.shape[1]):
        scales[j] = scale_of(sizes[j])
        factors[j] = factor_of(scales[j])
    for r in range(x.shape[0]):
        row, there = x[r], out[r]
        for j in range(row.shape[0]):
            there[j] = as_byte(row[j], factors[j])


@loop
def columns_to_bytes(x: Array, out: Array, scales: Array) -> None:
    """x (R, K) ≈ out (R, K) int8 · scales (K,) of its columns."""
    sizes = np.full(x.shape[1], no_size(x))
    for r in range(x.shape[0]):
        row = x[r]
        for j in range(row.shape[0]):
            sizes[j] = max(sizes[j], size_of(row[j]))
    by_columns_to_bytes(x, sizes, out, scales)


@loop
def both_to_bytes(x: Array, by_rows: Array, its: Array, by_columns: Array, scales: Array) -> None:
    """x (R, K) ≈ by_rows (R, K) int8 · its (R,) of its rows ≈ by_columns (R, K) int8 · scales (K,) of its columns."""
    sizes = np.full(x.shape[1], no_size(x))
    for r in range(x.shape[0]):
        row = x[r]
        its[r] = to_bytes(row, by_rows[r])
        for j in range(row.shape[0]):
            sizes[j] = max(sizes[j], size_of(row[j]))
    by_columns_to_bytes(x, sizes, by_columns, scales)


@loop
def from_bytes(sums: Array, rows: Array, columns: Array, bias: Array, out: Array) -> None:
    """sums (R, N) int32 · rows (R,) · columns (N,) + bias (N,) -> out (R, N)."""
    for r in range(sums.shape[0]):
        here, there, scale = sums[r], out[r], rows[r]
        for j in range(here.shape[0]):
            there[j] = narrow(there[j], F(here[j]) * (scale * columns[j]) + bias[j])


@loop
def added_from_bytes(sums: Array, rows: Array, columns: Array, total: Array) -> None:
    """total (R, N) fp32 += sums (R, N) int32 · rows (R,) · columns (N,)."""
    for r in range(sums.shape[0]):
        here, there, scale = sums[r], total[r], rows[r]
        for j in range(here.shape[0]):
            there[j] += F(here[j]) * (scale * columns[j])


@loop
def summed_columns(x: Array, total: Array) -> None:
    """total (K,) fp32 += the sums of the columns of x (R, K)."""
    for r in range(x.shape[0]):
        row = x[r]
        for j in range(row.shape[0]):
            total[j] += wide(row[j])
