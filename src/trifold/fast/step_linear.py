"""Operations of a decoding step other than attention: norm, matmul, and what is done before and
after a matmul of a library.

Each function computes one task or row of an instruction. Activations are fp32, weights fp32, bf16
or fp16.
"""

from typing import Any

import numpy as np

from trifold.fast import instruction as ins
from trifold.fast.dot_products import (
    BFLOAT16_PRODUCTS,
    FLOAT16_PRODUCTS,
    HAS_PAIRS,
    PAIRS,
    STEP,
    TILE,
    TILE_WEIGHTS,
    WIDE,
    WIDTH,
    HalfProducts,
    dot_tile,
)
from trifold.fast.instruction import FLOAT16, FLOAT32, PREFETCH_BYTES
from trifold.fast.intrinsics import (
    allocate,
    bfloat16_at,
    bfloat16_matrix_at,
    float16_matrix_at,
    float32_at,
    float32_matrix_at,
    int8_at,
    int32_at,
    prefetch_line,
    release,
)
from trifold.fast.loops import Array, F, exp, inline, quantize, round_like, subroutine, to_float

outputs_per_task = subroutine(ins.outputs_per_task)
# Bytes before the result of a norm. Where memory is written less than a few vectors behind what is
# read, the compiler's check for overlap chooses a loop of single numbers, whose last bits differ.
GAP = 512
SEGMENT = 768  # elements of a row that are prefetched and multiplied in turn


# --- norm -----------------------------------------------------------------------------------------


@subroutine
def norm(op: Any, row: int) -> None:
    """out = (x - mean) / √(variance + ε) · weight + bias, set or added. An RMS norm takes 0 for the
    mean.

    row: of x (R, inputs), or (R · heads, inputs) for a norm of each head.
    """
    width = op.inputs
    x = float32_at(op.x, op.units * width)[row * width : (row + 1) * width]
    out = float32_at(op.out, op.units * width)[row * width : (row + 1) * width]
    weight = float32_at(op.weight, width)
    per_element = F(1) / F(width)
    mean = F(0)
    square = F(0)
    if op.norm == ins.LAYER_NORM:
        for j in range(width):
            mean += x[j]
        mean *= per_element
    for j in range(width):
        square += (x[j] - mean) * (x[j] - mean)
    inverse_std = F(1) / np.sqrt(square * per_element + F(op.epsilon))
    memory = allocate(4 * width + GAP)
    result = float32_at(memory + GAP, width)
    for j in range(width):
        result[j] = (x[j] - mean) * inverse_std * weight[j]
    finish(result, op, 0, out)
    release(memory)


# --- matmul ---------------------------------------------------------------------------------------


@inline
def _sigmoid(x: Any) -> Any:
    small = exp(-abs(x))
    return F(1) / (F(1) + small) if x >= F(0) else small / (F(1) + small)


@inline
def _normal_cdf(x: Any) -> Any:
    """Φ(x) to a relative error of 3e-6 (Abramowitz & Stegun 1964, 7.1.26)."""
    u = abs(x) * F(0.7071067811865476)
    t = F(1) / (F(1) + F(0.3275911) * u)
    p = F(1.061405429) * t - F(1.453152027)
    p = p * t + F(1.421413741)
    p = p * t - F(0.284496736)
    p = p * t + F(0.254829592)
    upper = F(0.5) * p * t * exp(-u * u)
    return F(1) - upper if x >= F(0) else upper


@subroutine
def activate(y: Array, activation: int) -> None:
    """y (n,) in place. The tanh of GELU is computed as a sigmoid: (1 + tanh u) / 2 = σ(2u)."""
    if activation == ins.RELU:
        for j in range(y.shape[0]):
            y[j] = y[j] if y[j] > F(0) else F(0)
    elif activation == ins.RELU2:
        for j in range(y.shape[0]):
            y[j] = y[j] * y[j] if y[j] > F(0) else F(0)
    elif activation == ins.GELU:
        for j in range(y.shape[0]):
            y[j] = y[j] * _normal_cdf(y[j])
    elif activation == ins.GELU_TANH:
        for j in range(y.shape[0]):
            y[j] = y[j] * _sigmoid(
                F(1.5957691216057308) * (y[j] + F(0.044715) * y[j] * y[j] * y[j])
            )
    elif activation == ins.QUICK_GELU:
        for j in range(y.shape[0]):
            y[j] = y[j] * _sigmoid(F(1.702) * y[j])
    elif activation == ins.SILU:
        for j in range(y.shape[0]):
            y[j] = y[j] * _sigmoid(y[j])
    elif activation == ins.TANH:
        for j in range(y.shape[0]):
            y[j] = F(2) * _sigmoid(F(2) * y[j]) - F(1)


@subroutine
def finish(result: Array, op: Any, first: int, out: Array) -> None:
    """Add the bias to result (n,), the outputs from `first` on, apply the activation and combine
    with out (n,).
    """
    count = result.shape[0]
    if op.bias != 0:
        bias = float32_at(op.bias, first + count)[first:]
        for j in range(count):
            result[j] += bias[j]
    activate(result, op.activation)
    if op.mode == ins.SET:
        for j in range(count):
            out[j] = result[j]
    elif op.mode == ins.ADD:
        for j in range(count):
            out[j] += result[j]
    else:
        for j in range(count):
            out[j] *= result[j]


@subroutine
def prefetch(start: int, end: int) -> None:
    """Prefetch the memory between two addresses. Without it, weights are read at a third of the
    bandwidth.
    """
    for address in range(start, end, 64):
        prefetch_line(address)


@subroutine
def _multiply(weight: Array, address: int, x: Array, result: Array) -> None:
    """weight (n, K), which lies at that address, times the rows of x (R, K) -> result (R, n).

    Two rows of the weight are multiplied with four of x at a time, so that each load is used
    several times; the remaining ones one by one.
    """
    count = weight.shape[0]
    rows = x.shape[0]
    row_bytes = weight.shape[1] * weight.itemsize
    blocked = rows // 4 * 4
    for n in range(0, count - 1 if blocked else 0, 2):
        v = weight[n]
        w = weight[n + 1]
        ahead = address + n * row_bytes + PREFETCH_BYTES
        prefetch(ahead, ahead + 2 * row_bytes)
        for r in range(0, blocked, 4):
            x0 = x[r]
            x1 = x[r + 1]
            x2 = x[r + 2]
            x3 = x[r + 3]
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = F(0)
            for j in range(v.shape[0]):
                p = to_float(v[j])
                q = to_float(w[j])
                a0 += p * x0[j]
                a1 += p * x1[j]
                a2 += p * x2[j]
                a3 += p * x3[j]
                b0 += q * x0[j]
                b1 += q * x1[j]
                b2 += q * x2[j]
                b3 += q * x3[j]
            result[r, n] = a0
            result[r + 1, n] = a1
            result[r + 2, n] = a2
            result[r + 3, n] = a3
            m = n + 1
            result[r, m] = b0
            result[r + 1, m] = b1
            result[r + 2, m] = b2
            result[r + 3, m] = b3
    for r in range(rows):
        y = x[r]
        for n in range(count // 2 * 2 if r < blocked else 0, count):
            w = weight[n]
            total = F(0)
            ahead = address + n * row_bytes + PREFETCH_BYTES
            for start in range(0, y.shape[0], SEGMENT):
                end = min(y.shape[0], start + SEGMENT)
                prefetch(ahead + start * weight.itemsize, ahead + end * weight.itemsize)
                v = w[start:end]
                z = y[start:end]
                for j in range(v.shape[0]):
                    total += to_float(v[j]) * z[j]
            result[r, n] = total


@subroutine
def pack(op: Any, packed: int) -> None:
    """x (R, K) of a matmul -> rounded to bf16, at the address `packed`: of each group of TILE rows
    PAIRS elements of each row, then the next ones; rows that lack are 0.
    """
    inputs = op.inputs
    rows = op.rows
    x = float32_matrix_at(op.x, rows, inputs)
    groups = (rows + TILE - 1) // TILE
    out = bfloat16_at(packed, groups * TILE * inputs)
    for group in range(groups):
        for r in range(TILE):
            row = group * TILE + r
            for start in range(0, inputs, PAIRS):
                first = (group * inputs + start) * TILE + r * PAIRS
                part = out[first : first + PAIRS]
                if row < rows:
                    store(x[row, start : start + PAIRS], part)
                else:
                    part[:] = 0


@subroutine
def is_tiled(op: Any) -> bool:
    """Whether a matmul reads packed rows (`pack`)."""
    is_bfloat16 = op.opcode == ins.MATMUL and op.dtype == ins.BFLOAT16
    return HAS_PAIRS and is_bfloat16 and op.rows > 1 and op.inputs % PAIRS == 0


def _multiplying(products: HalfProducts, matrix_at: Any) -> Any:
    """A function that multiplies weights of a type of 16 bits, with its products."""
    dot_product, dot_rows, rows_tile, row_tile = products

    @subroutine
    def multiply_row(op: Any, start: int, memory: int, result: Array) -> Any:
        """The weights (n, K) at an address times x (1, K) -> result (1, n) at the address `memory`.
        Returns how many outputs are done.
        """
        inputs = op.inputs
        count = result.shape[1]
        row_bytes = 2 * inputs
        if inputs <= WIDE:
            for n in range(count):
                result[0, n] = dot_product(start + n * row_bytes, op.x, inputs)
            return count
        done = count // TILE * TILE
        for n in range(0, done, TILE):
            dot_rows(start + n * row_bytes, row_bytes, op.x, inputs, memory + 4 * n)
        return done

    @subroutine
    def multiply_tiles(op: Any, start: int, memory: int, result: Array) -> None:
        """The same for the rows of x (R, K), TILE at a time, which stay in the first cache ->
        result (R, n).
        """
        inputs = op.inputs
        rows, count = result.shape
        row_bytes = 2 * inputs
        done = count // TILE_WEIGHTS * TILE_WEIGHTS
        for r in range(0, rows, TILE):
            x = op.x + 4 * r * inputs
            own = min(TILE, rows - r)
            out = memory + 4 * r * count
            for n in range(0, done, TILE_WEIGHTS):
                weights = start + n * row_bytes
                if r == 0:
                    ahead = weights + PREFETCH_BYTES
                    prefetch(ahead, ahead + TILE_WEIGHTS * row_bytes)
                rows_tile(weights, row_bytes, x, 4 * inputs, own, inputs, out + 4 * n, 4 * count)
            for n in range(done, count):
                weights = start + n * row_bytes
                row_tile(weights, row_bytes, x, 4 * inputs, own, inputs, out + 4 * n, 4 * count)

    @subroutine
    def multiply(op: Any, start: int, done: int, x: Array, memory: int, result: Array) -> None:
        """The weights (n, K) at an address times the rows of x (R, K) -> result (R, n) at the
        address `memory`, the first `done` outputs excepted.
        """
        inputs = op.inputs
        rows, count = result.shape
        if done == 0 and rows > 1 and inputs % WIDTH == 0:
            multiply_tiles(op, start, memory, result)
            done = count
        elif done == 0 and rows == 1 and inputs % STEP == 0:
            done = multiply_row(op, start, memory, result)
        if done < count:
            rest = matrix_at(start + 2 * done * inputs, count - done, inputs)
            _multiply(rest, start + 2 * done * inputs, x, result[:, done:])

    return multiply


_multiply_bfloat16 = _multiplying(BFLOAT16_PRODUCTS, bfloat16_matrix_at)
_multiply_float16 = _multiplying(FLOAT16_PRODUCTS, float16_matrix_at)


@subroutine
def _multiply_pairs(op: Any, start: int, packed: int, result: Array) -> Any:
    """The bf16 weights (n, K) at an address times the rows of x (R, K), which are at the address
    `packed` -> result (R, n). Returns how many outputs are done: those of whole tiles.
    """
    inputs = op.inputs
    rows, count = result.shape
    row_bytes = 2 * inputs
    done = count // TILE * TILE
    groups = (rows + TILE - 1) // TILE
    memory = allocate(4 * groups * TILE * TILE)
    tile = float32_matrix_at(memory, groups * TILE, TILE)
    for n in range(0, done, TILE):
        for group in range(groups):
            group_start = packed + 2 * group * TILE * inputs
            tile_start = memory + 4 * group * TILE * TILE
            weights = start + n * row_bytes
            dot_tile(weights, row_bytes, group_start, inputs, tile_start, 4 * TILE)
        for r in range(rows):
            for j in range(TILE):
                result[r, n + j] = tile[r, j]
    release(memory)
    return done


@subroutine
def weight_address(op: Any, task: int) -> Any:
    """The address of the weights of a task."""
    return (
        op.weight
        + task * outputs_per_task(op.inputs, op.dtype) * op.inputs * ins.ITEM_BYTES[op.dtype]
    )


@subroutine
def matmul(op: Any, task: int, packed: int) -> None:
    """Some outputs of x Wᵀ + b for all rows. The caller has prefetched the first PREFETCH_BYTES of
    the weights, and stored what `pack` does at the address `packed` if the matmul is tiled.
    """
    inputs = op.inputs
    outputs = op.outputs
    rows = op.rows
    per_task = outputs_per_task(inputs, op.dtype)
    first = task * per_task
    last = min(outputs, first + per_task)
    count = last - first
    x = float32_matrix_at(op.x, rows, inputs)
    memory = allocate(4 * rows * count)
    result = float32_matrix_at(memory, rows, count)
    # An array at its own address is known to be contiguous, a slice is not.
    start = weight_address(op, task)
    if op.dtype == FLOAT32:
        _multiply(float32_matrix_at(start, count, inputs), start, x, result)
    elif op.dtype == FLOAT16:
        _multiply_float16(op, start, 0, x, memory, result)
    else:
        done = _multiply_pairs(op, start, packed, result) if is_tiled(op) else 0
        _multiply_bfloat16(op, start, done, x, memory, result)
    out = float32_matrix_at(op.out, rows, outputs)
    for r in range(rows):
        finish(result[r], op, first, out[r, first:last])
    release(memory)


# --- before and after a matmul of a library -------------------------------------------------------


@subroutine
def quantize_row(op: Any, row: int) -> None:
    """A row of x (R, K) bf16 -> out (R, K) int8, and its scale -> scales (R,)."""
    width = op.inputs
    out = int8_at(op.out + row * width, width)
    scales = float32_at(op.scales, op.rows)
    scales[row] = quantize(bfloat16_at(op.x + 2 * row * width, width), out)


@subroutine
def dequantize_row(op: Any, row: int) -> None:
    """A row of the sums x (R, N) int32 · its scale (in `weight`) · scales (N,), with bias and
    activation, -> out.
    """
    width = op.outputs
    x = int32_at(op.x + 4 * row * width, width)
    scales = float32_at(op.scales, width)
    scale = float32_at(op.weight, op.rows)[row]
    memory = allocate(4 * width)
    result = float32_at(memory, width)
    for j in range(width):
        result[j] = F(x[j]) * scale * scales[j]
    if op.dtype == FLOAT32:
        finish(result, op, 0, float32_at(op.out + 4 * row * width, width))
    else:
        finish(result, op, 0, result)
        store(result, bfloat16_at(op.out + 2 * row * width, width))
    release(memory)


@subroutine
def convert_row(op: Any, row: int) -> None:
    """A row of x (R, K) fp32 -> out (R, K) bf16, or of x in bf16 -> out in fp32: dtype is that of
    out.
    """
    width = op.inputs
    if op.dtype == FLOAT32:
        _load(
            bfloat16_at(op.x + 2 * row * width, width), float32_at(op.out + 4 * row * width, width)
        )
    else:
        store(
            float32_at(op.x + 4 * row * width, width), bfloat16_at(op.out + 2 * row * width, width)
        )


@subroutine
def finish_row(op: Any, row: int) -> None:
    """A row of the product x (R, N), with bias and activation, -> out (R, N) fp32."""
    width = op.outputs
    memory = allocate(4 * width)
    result = float32_at(memory, width)
    if op.dtype == FLOAT32:
        _load(float32_at(op.x + 4 * row * width, width), result)
    else:
        _load(bfloat16_at(op.x + 2 * row * width, width), result)
    finish(result, op, 0, float32_at(op.out + 4 * row * width, width))
    release(memory)


@subroutine
def _load(x: Array, out: Array) -> None:
    """out (n,) = x in fp32."""
    for j in range(x.shape[0]):
        out[j] = to_float(x[j])


@subroutine
def store(x: Array, out: Array) -> None:
    """out = x (n,) fp32, rounded to the type of out."""
    for d in range(x.shape[0]):
        out[d] = round_like(out[d], x[d])
