"""Norms and products of a decoding step, compiled: what some threads do of a line at a time.

Activations are fp32. Matrices are fp32, bf16 or int8 (times one scale a row).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trifold.fast.instruction import (
    ADD,
    AHEAD,
    BRAIN,
    FLOAT,
    GELU,
    GELU_TANH,
    LAYER,
    QUICK_GELU,
    RELU,
    SET,
    SILU,
    SIZES,
    TANH,
    outputs_of_a_task,
)
from trifold.fast.intrinsics import brains, fetch, floats, octets, sums
from trifold.fast.loops import F, exponential, narrow, part, piece, to_bytes, wide

Array: TypeAlias = NDArray[Any]
share_of_a_task = piece(outputs_of_a_task)
STRETCH = 768  # numbers of a row that are asked for and multiplied in turn


# --- norm ----------------------------------------------------------------------------------------------


@piece
def norm(line: Any, row: int) -> None:
    """out (set, or added to) = (x - mean) / √(variance + ε) · weight + bias; an RMS norm takes the mean for 0."""
    width = line.inputs
    x = floats(line.x, line.rows * width)[row * width : (row + 1) * width]
    out = floats(line.out, line.rows * width)[row * width : (row + 1) * width]
    weight = floats(line.weight, width)
    share, mean, square = F(1) / F(width), F(0), F(0)
    if line.norm == LAYER:
        for j in range(width):
            mean += x[j]
        mean *= share
    for j in range(width):
        square += (x[j] - mean) * (x[j] - mean)
    inverse = F(1) / np.sqrt(square * share + F(line.epsilon))
    held = np.empty(width, F)
    for j in range(width):
        held[j] = (x[j] - mean) * inverse * weight[j]
    _finish(held, line, 0, out)


# --- product -------------------------------------------------------------------------------------------


@part
def _sigmoid(x: Any) -> Any:
    small = exponential(-abs(x))
    return F(1) / (F(1) + small) if x >= F(0) else small / (F(1) + small)


@part
def _below(x: Any) -> Any:
    """Φ(x), the share of a normal distribution below x, to 3e-6 of itself (Abramowitz & Stegun 1964, 7.1.26)."""
    u = abs(x) * F(0.7071067811865476)
    t = F(1) / (F(1) + F(0.3275911) * u)
    p = F(1.061405429) * t - F(1.453152027)
    p = p * t + F(1.421413741)
    p = p * t - F(0.284496736)
    p = p * t + F(0.254829592)
    beyond = F(0.5) * p * t * exponential(-u * u)
    return F(1) - beyond if x >= F(0) else beyond


@piece
def _activate(y: Array, kind: int) -> None:
    """y (n,) in place; GELU's tanh is written as a sigmoid: (1 + tanh u) / 2 = σ(2u)."""
    if kind == RELU:
        for j in range(y.shape[0]):
            y[j] = y[j] if y[j] > F(0) else F(0)
    elif kind == GELU:
        for j in range(y.shape[0]):
            y[j] = y[j] * _below(y[j])
    elif kind == GELU_TANH:
        for j in range(y.shape[0]):
            y[j] = y[j] * _sigmoid(F(1.5957691216057308) * (y[j] + F(0.044715) * y[j] * y[j] * y[j]))
    elif kind == QUICK_GELU:
        for j in range(y.shape[0]):
            y[j] = y[j] * _sigmoid(F(1.702) * y[j])
    elif kind == SILU:
        for j in range(y.shape[0]):
            y[j] = y[j] * _sigmoid(y[j])
    elif kind == TANH:
        for j in range(y.shape[0]):
            y[j] = F(2) * _sigmoid(F(2) * y[j]) - F(1)


@piece
def _finish(held: Array, line: Any, first: int, out: Array) -> None:
    """held (n,), which belongs to the outputs from `first` on, with bias and activation into out (n,)."""
    count = held.shape[0]
    if line.bias != 0:
        bias = floats(line.bias, first + count)[first:]
        for j in range(count):
            held[j] += bias[j]
    _activate(held, line.activation)
    if line.mode == SET:
        for j in range(count):
            out[j] = held[j]
    elif line.mode == ADD:
        for j in range(count):
            out[j] += held[j]
    else:
        for j in range(count):
            out[j] *= held[j]


@piece
def approach(start: int, end: int) -> None:
    """What lies at these addresses is going to be read. Left to itself, memory comes at a third of its speed."""
    for address in range(start, end, 64):
        fetch(address)


@piece
def _dots(matrix: Array, address: int, x: Array, held: Array) -> None:
    """matrix (n, K), which lies at that address, times the rows of x (R, K) -> held (R, n).

    Two rows of the matrix go with four of x, so that what was loaded serves several times; what is left, one by one.
    """
    count, rows, width = matrix.shape[0], x.shape[0], matrix.shape[1] * matrix.itemsize
    together = rows // 4 * 4
    for n in range(0, count - 1 if together else 0, 2):
        v, w, ahead = matrix[n], matrix[n + 1], address + n * width + AHEAD
        approach(ahead, ahead + 2 * width)
        for r in range(0, together, 4):
            x0, x1, x2, x3 = x[r], x[r + 1], x[r + 2], x[r + 3]
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = F(0)
            for j in range(v.shape[0]):
                p, q = wide(v[j]), wide(w[j])
                a0 += p * x0[j]
                a1 += p * x1[j]
                a2 += p * x2[j]
                a3 += p * x3[j]
                b0 += q * x0[j]
                b1 += q * x1[j]
                b2 += q * x2[j]
                b3 += q * x3[j]
            held[r, n], held[r + 1, n], held[r + 2, n], held[r + 3, n] = a0, a1, a2, a3
            m = n + 1
            held[r, m], held[r + 1, m], held[r + 2, m], held[r + 3, m] = b0, b1, b2, b3
    for r in range(rows):
        y = x[r]
        for n in range(count // 2 * 2 if r < together else 0, count):
            w, total, ahead = matrix[n], F(0), address + n * width + AHEAD
            for start in range(0, y.shape[0], STRETCH):
                end = min(y.shape[0], start + STRETCH)
                approach(ahead + start * matrix.itemsize, ahead + end * matrix.itemsize)
                v, z = w[start:end], y[start:end]
                for j in range(v.shape[0]):
                    total += wide(v[j]) * z[j]
            held[r, n] = total


@piece
def beginning(line: Any, task: int) -> Any:
    """The address of a task's part of the matrix."""
    share = share_of_a_task(line.inputs, line.kind)
    return line.weight + task * share * line.inputs * SIZES[line.kind]


@piece
def product(line: Any, task: int) -> None:
    """Some outputs of x Wᵀ + b for all rows. What the task reads first, somebody has asked for."""
    inputs, outputs, rows = line.inputs, line.outputs, line.rows
    share = share_of_a_task(inputs, line.kind)
    first = task * share
    last = min(outputs, first + share)
    x = floats(line.x, rows * inputs).reshape(rows, inputs)
    held, count = np.empty((rows, last - first), F), (last - first) * inputs
    # A slice would not be known to lie in one piece; what begins at another address is.
    start = beginning(line, task)
    if line.kind == FLOAT:
        _dots(floats(start, count).reshape(last - first, inputs), start, x, held)
    elif line.kind == BRAIN:
        _dots(brains(start, count).reshape(last - first, inputs), start, x, held)
    else:
        _dots(octets(start, count).reshape(last - first, inputs), start, x, held)
        scales = floats(line.scales, outputs)[first:last]
        for r in range(rows):
            for j in range(last - first):
                held[r, j] *= scales[j]
    out = floats(line.out, rows * outputs).reshape(rows, outputs)
    for r in range(rows):
        _finish(held[r], line, first, out[r, first:last])


# --- bytes times bytes ---------------------------------------------------------------------------------


@piece
def row_to_bytes(line: Any, row: int) -> None:
    """A row of x (R, K) as bytes into out; its scale into scales (R,)."""
    width = line.inputs
    out, scales = octets(line.out + row * width, width), floats(line.scales, line.rows)
    if line.kind == FLOAT:
        scales[row] = to_bytes(floats(line.x + 4 * row * width, width), out)
    else:
        scales[row] = to_bytes(brains(line.x + 2 * row * width, width), out)


@piece
def row_from_bytes(line: Any, row: int) -> None:
    """A row of sums x (R, N) int32 · scale of the row (in weight) · scales (N,), finished, into out."""
    width = line.outputs
    x, scales = sums(line.x + 4 * row * width, width), floats(line.scales, width)
    scale, held = floats(line.weight, line.rows)[row], np.empty(width, F)
    for j in range(width):
        held[j] = F(x[j]) * scale * scales[j]
    if line.kind == FLOAT:
        _finish(held, line, 0, floats(line.out + 4 * row * width, width))
    else:
        _finish(held, line, 0, held)
        keep(held, brains(line.out + 2 * row * width, width))


@piece
def keep(new: Array, held: Array) -> None:
    """Numbers of fp32 where they are held, rounded to what is held there."""
    for d in range(new.shape[0]):
        held[d] = narrow(held[d], new[d])
