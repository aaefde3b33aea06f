"""Training loops compiled by Numba: each makes one pass where PyTorch needs several operators.

layers.py, attention.py, cross_entropy.py and int8_training.py wrap them as autograd functions. They
run on the CPU in fp32 and bf16, on one thread, and release the GIL, so that several workers can
train in parallel. bf16 arrays are uint16, the upper half of an fp32; fp16 arrays, which only
decoding steps read, are int16. All arithmetic is fp32. NaN and infinity propagate. Packed arrays
(N, ...) hold sequences one after the other; `starts` (B + 1,) holds their offsets and the end.

All loops are in one file because Numba's cache of compiled code checks only the file that defines a
function.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

import trifold.fast.compilation_note  # noqa: F401 (it prints when a loop is compiled)
from trifold.fast.processor import converts_float16

Array: TypeAlias = NDArray[Any]
F = np.float32

# Sums may be reordered, but NaN and infinity are kept (no "nnan", "ninf"). A loop with a sum stores
# nothing else: when arrays may overlap, the compiler checks at run time whether it can vectorize a
# loop that stores, and the order of the sum, and so its last bits, would depend on where the arrays
# lie.
FASTMATH = {"reassoc", "contract", "nsz", "arcp"}
loop = njit(nogil=True, fastmath=FASTMATH, error_model="numpy", cache=True)
inline = njit(inline="always", fastmath=FASTMATH, error_model="numpy")
# Part of the code of what calls it. As a function of its own it would exist twice in the process
# that compiles a caller: alone and in the caller's module, optimized differently. That process
# would execute the first, and those that load the caller from the cache the second. Only compiled
# code calls it: without the two wrappers for other callers, each of which contains its code again,
# the interpreter compiles in two thirds of the time.
_OF_CALLER: dict[str, Any] = {
    "nogil": True,
    "forceinline": True,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
subroutine = njit(fastmath=FASTMATH, **_OF_CALLER)
# For arithmetic whose order and rounding are those of its source. Without `fastmath`, a function
# would have that of its caller.
exact_subroutine = njit(fastmath=False, **_OF_CALLER)


# --- conversions ----------------------------------------------------------------------------------


def by_type(choose: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: a call is compiled as the function that `choose` returns for the types of its
    arguments.
    """

    @wraps(choose)
    def function(*arguments: Any) -> Any:
        raise NotImplementedError("for compiled code only")

    overload(function, inline="always", strict=False)(choose)
    return function


@inline
def half_to_float(bits: Any) -> Any:
    """The value of an fp16 (uint16): its exponent and fraction are moved to their places, and the
    exponent is corrected by a product, which also covers denormal numbers.
    """
    magnitude = np.uint32(np.uint32(bits) & np.uint32(0x7FFF))
    moved = np.uint32(magnitude << np.uint32(13))
    number = moved.view(np.float32) * F(2.0**112)
    if magnitude >= np.uint32(0x7C00):  # infinite or NaN
        number = np.uint32(moved | np.uint32(0x7F800000)).view(np.float32)
    return -number if np.uint32(bits) >= np.uint32(0x8000) else number


@exact_subroutine
def float_to_half(x: Any) -> Any:
    """An fp32 rounded to an fp16 (uint16): to nearest, ties to even."""
    bits = np.float32(x).view(np.uint32)
    sign = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(0x8000))
    magnitude = np.uint32(bits & np.uint32(0x7FFFFFFF))
    if magnitude > np.uint32(0x7F800000):
        half = np.uint32(0x7E00)  # NaN
    elif magnitude >= np.uint32(0x47800000):  # 65536
        half = np.uint32(0x7C00)
    elif magnitude < np.uint32(0x38800000):  # the sum rounds to the multiples of the least fp16
        moved = np.float32(magnitude.view(np.float32) + np.float32(0.5))
        half = np.uint32(moved.view(np.uint32) - np.uint32(0x3F000000))  # the bits of 0.5
    else:
        odd = np.uint32(np.uint32(magnitude >> np.uint32(13)) & np.uint32(1))
        moved_bits = np.uint32(magnitude - np.uint32(112 << 23) + np.uint32(0xFFF) + odd)
        half = np.uint32(moved_bits >> np.uint32(13))
    return np.uint16(half | sign)


@intrinsic
def _extended(typing: Any, bits: Any) -> Any:
    """The same of an int16, by an instruction of the processor."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.fpext(builder.bitcast(values[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.int16), generate


@by_type
def to_float(x: Any) -> Any:
    """Convert a bf16 (uint16), an fp16 (int16), the bits of an fp32 (uint32), an int8 or an fp32 to
    fp32.
    """
    if x == types.uint16:
        return lambda x: np.uint32(np.uint32(x) << np.uint32(16)).view(np.float32)
    if x == types.int16:
        if converts_float16():
            return lambda x: _extended(x)  # noqa: PLW0108 (Numba needs a Python function)
        return lambda x: half_to_float(np.uint16(x))
    if x == types.uint32:
        return lambda x: np.uint32(x).view(np.float32)
    if x == types.int8:
        return lambda x: F(x)  # noqa: PLW0108 (Numba needs a Python function)
    return lambda x: x


@by_type
def round_like(like: Any, x: Any) -> Any:
    """Round an fp32 to the type of `like`: to nearest, ties to even."""
    if like == types.uint16:
        # The carry of the rounding could turn a NaN into zero. NaN keeps its upper bits, with the
        # quiet bit set.
        def rounded(like: Any, x: Any) -> Any:
            bits = np.float32(x).view(np.uint32)
            nearest = np.uint32(bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
            kept = nearest if x == x else np.uint32(bits | np.uint32(0x400000))
            return np.uint16(kept >> np.uint32(16))

        return rounded
    return lambda like, x: np.float32(x)


@by_type
def round_ties_away(like: Any, x: Any) -> Any:
    """`round_like` with ties away from zero, which is faster. For values computed from bf16, where
    ties are rare.

    A NaN with bits in its lower half would become infinite or zero; one that came from bf16 has
    none.
    """
    if like == types.uint16:
        return lambda like, x: np.uint16(
            np.uint32(np.float32(x).view(np.uint32) + np.uint32(0x8000)) >> np.uint32(16)
        )
    return lambda like, x: np.float32(x)


# --- scalar functions -----------------------------------------------------------------------------


@inline
def exp(x: Any) -> Any:
    """e^x to a relative error of 3e-6: 2^n times a polynomial of the fraction. Below -87 it stays
    at 1e-38.
    """
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


@inline
def to_ordered_int(x: Any) -> Any:
    """Map fp32 to int32 in the same order, because an integer maximum vectorizes. NaN comes first
    or last.
    """
    bits = np.float32(x).view(np.int32)
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@inline
def from_ordered_int(number: Any) -> Any:
    """The inverse of `to_ordered_int`."""
    return np.int32(number ^ ((number >> np.int32(31)) & np.int32(0x7FFFFFFF))).view(np.float32)


@inline
def random_bits(counter: Any, seed: Any) -> Any:
    """32 random bits from a counter and a seed: the hash "lowbias32" (Wellons 2018)."""
    x = np.uint32(np.uint32(counter) * np.uint32(0x9E3779B1) + seed)
    x = np.uint32(x ^ (x >> np.uint32(16)))
    x = np.uint32(x * np.uint32(0x7FEB352D))
    x = np.uint32(x ^ (x >> np.uint32(15)))
    x = np.uint32(x * np.uint32(0x846CA68B))
    return np.uint32(x ^ (x >> np.uint32(16)))


# --- dropout --------------------------------------------------------------------------------------


@loop
def dropout(
    x: Array | None, y: Array, seed: np.uint32, threshold: np.uint32, scale: np.float32, out: Array
) -> None:
    """out[j] = x[j] + y[j] · scale where random_bits(j, seed) ≥ threshold, else x[j]; all (N,). x
    None: zeros.
    """
    for j in range(out.shape[0]):
        kept = to_float(y[j]) * scale if random_bits(j, seed) >= threshold else F(0)
        out[j] = round_like(out[j], kept if x is None else to_float(x[j]) + kept)


# --- activation -----------------------------------------------------------------------------------


@inline
def _exp_minus_2u(x: Any) -> Any:
    """e^-2u with u = √(2/π) (x + 0.044715 x³). The approximate GELU is x / (1 + e^-2u)."""
    u = x * (F(1.5957691216) + F(0.0713548163) * x * x)
    return exp(F(87.0) if u < F(-87.0) else -u)


@inline
def _gelu(x: Any) -> Any:
    """x Φ(x) to 2e-4, for what is rounded to bf16 or int8: a polynomial for |x| < 4. NaN stays."""
    low = F(-4) if x < F(-4) else x
    z = low if low < F(4) else F(4)
    t = z * z * F(0.0625)
    p = F(-0.34928019) * t + F(1.74799882)
    p = p * t + F(-3.83460576)
    p = p * t + F(4.90556792)
    p = p * t + F(-4.12253015)
    p = p * t + F(2.43336997)
    p = p * t + F(-1.05420423)
    p = p * t + F(0.39867335)
    return low * (F(0.5) + z * p)


@loop
def gelu(x: Array, out: Array) -> None:
    """out = x Φ(x), all (N,)."""
    for j in range(out.shape[0]):
        out[j] = round_like(out[j], _gelu(to_float(x[j])))


@loop
def gelu_tanh(x: Array, out: Array) -> None:
    """out = 0.5 x (1 + tanh u), all (N,)."""
    for j in range(out.shape[0]):
        v = to_float(x[j])
        out[j] = round_like(out[j], v / (F(1) + _exp_minus_2u(v)))


@loop
def gelu_tanh_backward(d_out: Array, x: Array, d_x: Array) -> None:
    """d_x = d_out · (s + x s (1 - s) 2u') with s = 1 / (1 + e^-2u), all (N,)."""
    for j in range(d_x.shape[0]):
        v = to_float(x[j])
        s = F(1) / (F(1) + _exp_minus_2u(v))
        slope = s + v * s * (F(1) - s) * (F(1.5957691216) + F(0.2140644489) * v * v)
        d_x[j] = round_like(d_x[j], to_float(d_out[j]) * slope)


# --- layer norm -----------------------------------------------------------------------------------


@loop
def layer_norm(
    x: Array,
    weight: Array,
    bias: Array,
    epsilon: float,
    out: Array,
    mean: Array,
    inverse_std: Array,
) -> None:
    """x (N, E), weight and bias (E,) -> out (N, E), and mean and 1 / √(variance + ε) (N,) of the
    rows. The variance is the mean of the squared differences from the mean.
    """
    rows, width = x.shape
    per_element = F(1) / F(width)
    centred = np.empty(width, F)
    w = np.empty(width, F)
    b = np.empty(width, F)
    for j in range(width):
        w[j], b[j] = to_float(weight[j]), to_float(bias[j])
    for r in range(rows):
        row = x[r]
        out_row = out[r]
        m = variance = F(0)
        for j in range(width):
            m += to_float(row[j])
        m = m * per_element
        for j in range(width):
            centred[j] = to_float(row[j]) - m
        for j in range(width):
            variance += centred[j] * centred[j]
        i = F(1) / np.sqrt(variance * per_element + F(epsilon))
        for j in range(width):
            out_row[j] = round_like(out_row[j], centred[j] * i * w[j] + b[j])
        mean[r] = m
        inverse_std[r] = i


@loop
def layer_norm_backward(
    d_out: Array, x: Array, weight: Array, mean: Array, inverse_std: Array, d_x: Array, sums: Array
) -> None:
    """d_out (N, E), mean and inverse_std (N,) of x (N, E) -> d_x (N, E), and the sums (2, E) for
    weight and bias.
    """
    rows, width = x.shape
    d_weight = sums[0]
    d_bias = sums[1]
    per_element = F(1) / F(width)
    gradient = np.empty(width, F)
    normed = np.empty(width, F)
    w = np.empty(width, F)
    for j in range(width):
        w[j], d_weight[j], d_bias[j] = to_float(weight[j]), F(0), F(0)
    for r in range(rows):
        row = x[r]
        d_out_row = d_out[r]
        d_x_row = d_x[r]
        m = mean[r]
        i = inverse_std[r]
        a = c = F(0)
        for j in range(width):
            n = (to_float(row[j]) - m) * i
            v = to_float(d_out_row[j])
            d_weight[j] += v * n
            d_bias[j] += v
            normed[j] = n
            gradient[j] = v * w[j]
        for j in range(width):
            a += gradient[j]
            c += gradient[j] * normed[j]
        a = a * per_element
        c = c * per_element
        for j in range(width):
            d_x_row[j] = round_like(d_x_row[j], i * (gradient[j] - a - normed[j] * c))


# --- attention over packed rows -------------------------------------------------------------------


@loop
def split_heads(x: Array, column: int, starts: Array, factor: float, out: Array) -> None:
    """Columns of packed x (N, C) from `column` on, times factor -> padded out (B', H, T', D);
    padding is 0.
    """
    rows, heads, _, width = out.shape
    for b in range(rows):
        length = starts[b + 1] - starts[b] if b + 1 < len(starts) else 0
        for t in range(length):
            for h in range(heads):
                first = column + h * width
                target = out[b, h, t]
                source = x[starts[b] + t, first : first + width]
                for d in range(width):
                    target[d] = round_ties_away(target[d], to_float(source[d]) * F(factor))
        out[b, :, length:] = 0


@loop
def merge_heads(y: Array, starts: Array, factor: float, out: Array, column: int) -> None:
    """The inverse: padded y (B', H, T', D), times factor -> columns of packed out (N, C); rows of
    padding are 0.
    """
    heads = y.shape[1]
    width = y.shape[3]
    for b in range(len(starts) - 1):
        for t in range(starts[b + 1] - starts[b]):
            for h in range(heads):
                first = column + h * width
                target = out[starts[b] + t, first : first + width]
                source = y[b, h, t]
                for d in range(width):
                    target[d] = round_ties_away(target[d], to_float(source[d]) * F(factor))
    out[starts[-1] :, column : column + heads * width] = 0


@loop
def masked_softmax(
    scores: Array, q_starts: Array, k_starts: Array, first: int, causal: bool
) -> None:
    """scores (B', H, T', S') of the queries from `first` on -> attention weights, in place.

    Weights of masked keys and of padding queries are 0.
    """
    rows, heads, steps, keys = scores.shape
    exps = np.empty(keys, F)
    for b in range(rows):
        is_row = b + 1 < len(q_starts)
        queries = min(max(q_starts[b + 1] - q_starts[b] - first, 0), steps) if is_row else 0
        length = k_starts[b + 1] - k_starts[b] if is_row else 0
        for h in range(heads):
            exps[:] = 0  # stays 0 beyond the visible keys, whose number never falls
            for t in range(queries):
                row = scores[b, h, t]
                visible = min(length, first + t + 1) if causal else length
                largest = np.int32(-(2**31))
                total = F(0)
                for s in range(visible):
                    x = to_ordered_int(to_float(row[s]))
                    largest = largest if largest > x else x
                m = from_ordered_int(largest)
                for s in range(visible):
                    exps[s] = exp(to_float(row[s]) - m)
                for s in range(visible):
                    total += exps[s]
                inverse = F(1) / total
                for s in range(keys):
                    row[s] = round_like(row[s], exps[s] * inverse)
            scores[b, h, queries:] = 0


@loop
def softmax_backward(weights: Array, gradient: Array) -> None:
    """The gradient (R, S) of the weights -> of the scores, in place: w ∘ (g - Σ w g)."""
    for r in range(weights.shape[0]):
        w = weights[r]
        g = gradient[r]
        total = F(0)
        for s in range(w.shape[0]):
            total += to_float(w[s]) * to_float(g[s])
        for s in range(w.shape[0]):
            g[s] = round_like(g[s], to_float(w[s]) * (to_float(g[s]) - total))


# --- cross-entropy --------------------------------------------------------------------------------


@loop
def cross_entropy(logits: Array, targets: Array, inverse_sum: Array, nll: Array) -> None:
    """logits z (V, N) -> exp(z - column maximum) in place; inverse_sum (N,) of the columns; nll
    (N,) of the targets.

    Columns with target -1 are ignored: inverse_sum and nll are 0. Each column is summed from top to
    bottom, so that the order of its sum does not depend on the number of columns.
    """
    classes, columns = logits.shape
    largest = np.full(columns, F(-3e38), F)
    block = np.empty(columns, F)
    for v in range(classes):
        row = logits[v]
        for n in range(columns):
            x = to_float(row[n])
            largest[n] = largest[n] if largest[n] > x else x
    for n in range(columns):
        nll[n] = largest[n] - to_float(logits[max(targets[n], 0), n])
    total = inverse_sum
    total[:] = 0
    for start in range(0, classes, 64):  # a sum of block sums has a smaller rounding error
        block[:] = 0
        for v in range(start, min(start + 64, classes)):
            row = logits[v]
            for n in range(columns):
                row[n] = round_ties_away(row[n], exp(to_float(row[n]) - largest[n]))
                block[n] += to_float(row[n])
        for n in range(columns):
            total[n] += block[n]
    for n in range(columns):
        nll[n] = nll[n] + np.log(total[n]) if targets[n] >= 0 else F(0)
        inverse_sum[n] = F(1) / total[n] if targets[n] >= 0 else F(0)


@loop
def accumulate_columns(x: Array, total: Array) -> None:
    """total (K,) fp32 += the column sums of x (R, K)."""
    for r in range(x.shape[0]):
        row = x[r]
        for j in range(row.shape[0]):
            total[j] += to_float(row[j])


# --- int8 quantization ----------------------------------------------------------------------------


@by_type
def magnitude(x: Any) -> Any:
    """|x| as an unsigned integer of the same size and order; NaN is largest. Integer maxima
    vectorize better.
    """
    if x == types.uint16:
        return lambda x: np.uint16(x & np.uint16(0x7FFF))
    return lambda x: np.uint32(np.float32(x).view(np.uint32) & np.uint32(0x7FFFFFFF))


@inline
def scale_of(largest: Any) -> Any:
    """The scale that maps the largest magnitude to ±127; NaN if it is NaN or infinite."""
    highest = to_float(largest)
    return highest / F(127) if highest < F(np.inf) else F(np.nan)


@inline
def inverse_scale(scale: Any) -> Any:
    """1 / scale; 0 if the scale is NaN or so small that the inverse would overflow."""
    return F(1) / scale if scale > F(1e-32) else F(0)


@inline
def to_int8(x: Any, factor: Any) -> Any:
    """x · factor rounded to the nearest integer in ±127, ties to even: adding 1.5 · 2²³ moves it to
    the last bits.

    NaN gives any value; its scale is NaN.
    """
    return np.int8(np.float32(to_float(x) * factor + F(12582912)).view(np.int32))


@subroutine
def quantize(x: Array, out: Array) -> Any:
    """x (n,) -> out (n,) int8; returns the scale, NaN if x contains NaN or infinity."""
    largest = magnitude(x.dtype.type(0))
    for j in range(x.shape[0]):
        largest = max(largest, magnitude(x[j]))
    scale = scale_of(largest)
    factor = inverse_scale(scale)
    for j in range(x.shape[0]):
        out[j] = to_int8(x[j], factor)
    return scale


@loop
def quantize_matrix(
    x: Array, by_rows: Array | None, row_scales: Any, by_columns: Array | None, column_scales: Any
) -> None:
    """x (R, K) ≈ by_rows (R, K) int8 · row_scales (R,) ≈ by_columns (R, K) int8 · column_scales
    (K,).

    Either pair may be None.
    """
    rows, width = x.shape
    largest = np.full(width, magnitude(x.dtype.type(0)))
    factors = np.empty(width, F)
    for r in range(rows):
        row = x[r]
        if by_rows is not None:
            row_scales[r] = quantize(row, by_rows[r])
        if by_columns is not None:
            for j in range(width):
                largest[j] = max(largest[j], magnitude(row[j]))
    if by_columns is not None:
        for j in range(width):
            column_scales[j] = scale_of(largest[j])
            factors[j] = inverse_scale(column_scales[j])
        for r in range(rows):
            row = x[r]
            out_row = by_columns[r]
            for j in range(width):
                out_row[j] = to_int8(row[j], factors[j])


@subroutine
def quantize_range(x: Array, out: Array) -> Any:
    """x (n,) ≈ (out (n,) int8 - zero) · scale: the range of x and 0 is divided into 253 steps, one
    less than there are, which rounding may exceed. Returns scale and zero; the scale is NaN if x
    contains NaN or infinity.
    """
    lowest = highest = np.int32(0)
    for j in range(x.shape[0]):
        number = to_ordered_int(to_float(x[j]))
        lowest = min(lowest, number)
        highest = max(highest, number)
    low = from_ordered_int(lowest)
    spread = from_ordered_int(highest) - low
    scale = spread / F(253) if spread < F(np.inf) else F(np.nan)
    factor = inverse_scale(scale)
    zero = np.floor(F(0.5) - low * factor) - F(127)
    to_last_bits = F(12582912) + zero  # see `to_int8`
    for j in range(x.shape[0]):
        out[j] = np.int8(np.float32(to_float(x[j]) * factor + to_last_bits).view(np.int32))
    return scale, zero


@loop
def quantize_rows(x: Array, factors: Array | None, out: Array, scales: Array, zeros: Array) -> None:
    """x (R, K) · factors (K,), if any, ≈ (out (R, K) int8 - zeros (R,)) · scales (R,)."""
    values = np.empty(x.shape[1], F)
    for r in range(x.shape[0]):
        row = x[r]
        if factors is None:
            scales[r], zeros[r] = quantize_range(row, out[r])
        else:
            for j in range(row.shape[0]):
                values[j] = to_float(row[j]) * factors[j]
            scales[r], zeros[r] = quantize_range(values, out[r])


@loop
def dequantize_rows(
    sums: Array,
    scales: Array,
    zeros: Array,
    weight_scales: Array,
    weight_sums: Array,
    bias: Array,
    out: Array,
) -> None:
    """sums (R, N) int32 of rows that `quantize_rows` made, scales and zeros (R,), times an int8
    matrix with scales (N,) and sums (N,) of its rows; plus bias (N,) -> out (R, N).
    """
    for r in range(sums.shape[0]):
        row = sums[r]
        out_row = out[r]
        scale = scales[r]
        zero = zeros[r]
        for j in range(row.shape[0]):
            product = (F(row[j]) - zero * weight_sums[j]) * (scale * weight_scales[j])
            out_row[j] = round_like(out_row[j], product + bias[j])


@loop
def requantize_gelu(
    sums: Array,
    scales: Array,
    zeros: Array,
    weight_scales: Array,
    weight_sums: Array,
    bias: Array,
    out: Array,
    out_scales: Array,
    out_zeros: Array,
) -> None:
    """GELU of what `dequantize_rows` computes, quantized as by `quantize_rows`."""
    values = np.empty(sums.shape[1], F)
    for r in range(sums.shape[0]):
        row = sums[r]
        scale = scales[r]
        zero = zeros[r]
        for j in range(row.shape[0]):
            product = (F(row[j]) - zero * weight_sums[j]) * (scale * weight_scales[j])
            values[j] = product + bias[j]
        for j in range(row.shape[0]):
            values[j] = _gelu(values[j])
        out_scales[r], out_zeros[r] = quantize_range(values, out[r])


@loop
def dequantize(
    sums: Array, row_scales: Array, column_scales: Array, bias: Array | None, out: Array
) -> None:
    """sums (R, N) int32 · row_scales (R,) · column_scales (N,) + bias (N,) -> out (R, N). bias
    None: add to out.
    """
    for r in range(sums.shape[0]):
        row = sums[r]
        out_row = out[r]
        scale = row_scales[r]
        for j in range(row.shape[0]):
            added = to_float(out_row[j]) if bias is None else bias[j]
            out_row[j] = round_like(out_row[j], F(row[j]) * (scale * column_scales[j]) + added)
