"""One decoding step of a whole stack, compiled: rows of instructions that several threads work off together.

A step for a few rows reads every weight once and does little else, so that nothing may stand between two products: no
operator, no allocation, no waking of threads. The layers are therefore written down beforehand as an array of LINEs
(step.py does that), and `_follow` goes through it. Each line is cut into tasks which the threads take from a counter,
whoever is free the next one; a line that reads what others write waits until their tasks are done.

Activations are fp32. Matrices are fp32, bf16 or int8 (times one scale a row), keys and values fp32 or bf16. Arrays are
given by their addresses; who gives them keeps them alive. Parts of these loops come from loops.py and addresses.py:
after a change there the compiled cache of this file has to go too (`make clean`).
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numba import carray, cfunc, types
from numpy.typing import NDArray

from trifold.nn.addresses import (
    brains,
    drawn_from,
    fetch,
    floats,
    give_way,
    octets,
    piece,
    pointer,
    seen,
    sums,
    wholes,
)
from trifold.nn.loops import F, exponential, narrow, part, wide

Array: TypeAlias = NDArray[Any]

NORM, PRODUCT, ATTENTION, TO_BYTES, FROM_BYTES = range(5)
FLOAT, BRAIN, BYTE = 0, 1, 2  # kinds of stored numbers: fp32, bf16, int8
SIZES = (4, 2, 1)  # their bytes
SET, ADD, TIMES = 0, 1, 2  # what becomes of the output that is already there
LAYER, RMS = 0, 1
NONE, RELU, GELU, GELU_TANH, QUICK_GELU, SILU, TANH = range(7)

# Addresses and sizes; an address of 0 says that there is none. Strides count numbers, not bytes.
WHOLE = (
    *("op", "waits", "tasks"),
    *(
        "units",
        "portion",
    ),  # rows, or heads of rows in attention, and how many of them make a task; not of a product
    *("rows", "inputs", "outputs"),  # of a product; a norm's width is `inputs`
    *("x", "weight", "scales", "bias", "out", "kind", "mode"),
    *("norm", "activation"),
    # Attention: x holds the queries; new_keys and new_values go to place `slot` first, unless there are none.
    *("new_keys", "new_values", "keys", "values", "slot", "first", "length"),
    *("heads", "kv_heads", "width", "sharing", "row_stride", "head_stride", "key_stride"),
    *("lineage", "lineage_stride"),  # (R, S) whose row each key of a row stands in; 0: its own
    *("allowed", "allowed_stride", "offsets", "offsets_row", "offsets_head"),
    *("cos", "sin", "turn_stride", "turned", "interleaved"),
)
LINE = np.dtype(
    [(name, np.int64) for name in WHOLE] + [(name, np.float64) for name in ("epsilon", "scale", "cap")]
)

CHUNK = 65_536  # bytes of a matrix that make a task
AHEAD = 12_288  # bytes that memory is asked for before they are needed
PATIENCE = (
    100_000  # looks at a counter (a nanosecond or two each) before the processor is offered to somebody else
)


# --- norm ----------------------------------------------------------------------------------------------


@piece
def _norm(line: Any, row: int) -> None:
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
def _approach(start: int, end: int) -> None:
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
        _approach(ahead, ahead + 2 * width)
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
            _approach(ahead, ahead + width)
            for j in range(y.shape[0]):
                total += wide(w[j]) * y[j]
            held[r, n] = total


@piece
def _beginning(line: Any, task: int) -> Any:
    """The address of a task's part of the matrix."""
    share = outputs_of_a_task(line.inputs, line.kind)
    return line.weight + task * share * line.inputs * SIZES[line.kind]


@piece
def _product(line: Any, task: int) -> None:
    """Some outputs of x Wᵀ + b for all rows."""
    inputs, outputs, rows = line.inputs, line.outputs, line.rows
    share = outputs_of_a_task(inputs, line.kind)
    first = task * share
    last = min(outputs, first + share)
    x = floats(line.x, rows * inputs).reshape(rows, inputs)
    held, count = np.empty((rows, last - first), F), (last - first) * inputs
    # A slice would not be known to lie in one piece; what begins at another address is.
    start = _beginning(line, task)
    _approach(start, start + AHEAD)
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


@piece
def outputs_of_a_task(inputs: int, kind: int) -> int:
    """About CHUNK bytes of weights; in sixteens, so that no two threads write to one line of memory."""
    return max(16, CHUNK // (inputs * SIZES[kind]) // 16 * 16)


# --- bytes times bytes ---------------------------------------------------------------------------------


@piece
def _rounded(x: Array, out: Array) -> Any:
    """x (n,) as bytes in ±127, to the nearest; gives their scale. NaN and infinity make it NaN."""
    bits = np.uint32(0)
    for j in range(x.shape[0]):
        # In whole numbers, which compilers compare quicker.
        size = np.float32(wide(x[j])).view(np.uint32) & np.uint32(0x7FFFFFFF)
        bits = max(bits, size)
    highest = np.uint32(bits).view(np.float32)
    if not highest < F(np.inf):
        return F(np.nan)
    factor = F(127) / highest if highest > F(1e-30) else F(0)
    for j in range(x.shape[0]):
        out[j] = np.int8(np.int32(np.floor(wide(x[j]) * factor + F(0.5))))
    return highest / F(127)


@piece
def _to_bytes(line: Any, row: int) -> None:
    """A row of x (R, K) as bytes into out; its scale into scales (R,)."""
    width = line.inputs
    out, scales = octets(line.out + row * width, width), floats(line.scales, line.rows)
    if line.kind == FLOAT:
        scales[row] = _rounded(floats(line.x + 4 * row * width, width), out)
    else:
        scales[row] = _rounded(brains(line.x + 2 * row * width, width), out)


@piece
def _from_bytes(line: Any, row: int) -> None:
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
        _keep(held, brains(line.out + 2 * row * width, width))


@piece
def _keep(new: Array, held: Array) -> None:
    """Numbers of fp32 where they are held, rounded to what is held there."""
    for d in range(new.shape[0]):
        held[d] = narrow(held[d], new[d])


# --- attention of one query ----------------------------------------------------------------------------


@piece
def _turn(x: Array, line: Any, row: int, out: Array) -> None:
    """x (D,) with its first dimensions turned by the angles of the row."""
    for d in range(x.shape[0]):
        out[d] = x[d]
    if line.cos == 0:
        return
    half = line.turned // 2
    start = row * line.turn_stride
    cos, sin = floats(line.cos, start + half)[start:], floats(line.sin, start + half)[start:]
    for i in range(half):
        one, two = (2 * i, 2 * i + 1) if line.interleaved else (i, i + half)
        out[one] = x[one] * cos[i] - x[two] * sin[i]
        out[two] = x[two] * cos[i] + x[one] * sin[i]


@piece
def _places(line: Any, row: int, kv_head: int, places: Array) -> None:
    """Where the keys (n,) of a row and a head begin."""
    start = row // line.sharing * line.row_stride + kv_head * line.head_stride + line.first * line.key_stride
    for s in range(places.shape[0]):
        places[s] = start + s * line.key_stride
    if line.lineage != 0:
        rows = wholes(line.lineage + 8 * (row * line.lineage_stride + line.first), places.shape[0])
        for s in range(places.shape[0]):
            places[s] += (rows[s] - row) * line.row_stride


@piece
def _asked(query: Array, keys: Array, places: Array, scores: Array) -> None:
    """query (D,) · key, of every key, into scores (n,). Four at a time."""
    width, count = query.shape[0], scores.shape[0]
    for s in range(0, count - 3, 4):
        k0, k1 = keys[places[s] : places[s] + width], keys[places[s + 1] : places[s + 1] + width]
        k2, k3 = keys[places[s + 2] : places[s + 2] + width], keys[places[s + 3] : places[s + 3] + width]
        a = b = c = d = F(0)
        for j in range(width):
            q = query[j]
            a += q * wide(k0[j])
            b += q * wide(k1[j])
            c += q * wide(k2[j])
            d += q * wide(k3[j])
        scores[s], scores[s + 1], scores[s + 2], scores[s + 3] = a, b, c, d
    for s in range(count // 4 * 4, count):
        key, a = keys[places[s] : places[s] + width], F(0)
        for j in range(width):
            a += query[j] * wide(key[j])
        scores[s] = a


@piece
def _mixed(weights: Array, values: Array, places: Array, out: Array) -> None:
    """Σ weight · value into out (D,), four at a time."""
    width, count = out.shape[0], weights.shape[0]
    out[:] = 0
    for s in range(0, count - 3, 4):
        w0, w1, w2, w3 = weights[s], weights[s + 1], weights[s + 2], weights[s + 3]
        v0, v1 = values[places[s] : places[s] + width], values[places[s + 1] : places[s + 1] + width]
        v2, v3 = values[places[s + 2] : places[s + 2] + width], values[places[s + 3] : places[s + 3] + width]
        for j in range(width):
            out[j] += w0 * wide(v0[j]) + w1 * wide(v1[j]) + w2 * wide(v2[j]) + w3 * wide(v3[j])
    for s in range(count // 4 * 4, count):
        w0, value = weights[s], values[places[s] : places[s] + width]
        for j in range(width):
            out[j] += w0 * wide(value[j])


@piece
def _softmax(scores: Array) -> None:
    """In place; 0 where all are -inf."""
    highest, total = F(-np.inf), F(0)
    for s in range(scores.shape[0]):
        highest = max(highest, scores[s])
    if highest == F(-np.inf):
        scores[:] = 0
        return
    for s in range(scores.shape[0]):
        scores[s] = exponential(scores[s] - highest) if scores[s] > F(-np.inf) else F(0)
    for s in range(scores.shape[0]):
        total += scores[s]
    for s in range(scores.shape[0]):
        scores[s] /= total


@piece
def _attention(line: Any, units: range, keys: Array, values: Array) -> None:
    """Units are a row and a head of its keys and values each, for all queries that share it."""
    width, group, count = line.width, line.heads // line.kv_heads, line.length - line.first
    turned, scores, places = np.empty(width, F), np.empty(count, F), np.empty(count, np.int64)
    for unit in units:
        row, kv_head = unit // line.kv_heads, unit % line.kv_heads
        if line.new_keys != 0:
            new = unit * width
            there = row * line.row_stride + kv_head * line.head_stride + line.slot * line.key_stride
            _turn(floats(line.new_keys, new + width)[new:], line, row, turned)
            _keep(turned, keys[there : there + width])
            _keep(floats(line.new_values, new + width)[new:], values[there : there + width])
        _places(line, row, kv_head, places)
        for head in range(kv_head * group, (kv_head + 1) * group):
            begin = (row * line.heads + head) * width
            _turn(floats(line.x, begin + width)[begin:], line, row, turned)
            _asked(turned, keys, places, scores)
            _weighed(scores, line, row, head)
            _softmax(scores)
            _mixed(scores, values, places, floats(line.out, begin + width)[begin:])


@piece
def _weighed(scores: Array, line: Any, row: int, head: int) -> None:
    """scores (n,) times their scale, capped, with offsets, and -inf where the mask forbids."""
    scale, cap = F(line.scale), F(line.cap)
    for s in range(scores.shape[0]):
        scores[s] *= scale
    if line.cap != 0:
        for s in range(scores.shape[0]):
            scores[s] = cap * np.tanh(scores[s] / cap)
    if line.offsets != 0:
        offset = row * line.offsets_row + head * line.offsets_head
        offsets = floats(line.offsets, offset + line.length)[offset + line.first :]
        for s in range(scores.shape[0]):
            scores[s] += offsets[s]
    if line.allowed != 0:
        allowed = row // line.sharing * line.allowed_stride
        marks = octets(line.allowed, allowed + line.length)[allowed + line.first :]
        for s in range(scores.shape[0]):
            scores[s] = scores[s] if marks[s] != 0 else F(-np.inf)


# --- all together --------------------------------------------------------------------------------------


@piece
def _await(done: Array, number: int, tasks: int) -> None:
    """Go on when all tasks of a line are done."""
    looks = 0
    while seen(done, number) < tasks:
        looks += 1
        if looks > PATIENCE:
            give_way()


@piece
def _units(line: Any, units: range) -> None:
    """Some units of a line that is no product."""
    far = np.int64(1) << np.int64(60)  # how long a cache is is told by its strides
    if line.op == ATTENTION:
        if line.kind == FLOAT:
            _attention(line, units, floats(line.keys, far), floats(line.values, far))
        else:
            _attention(line, units, brains(line.keys, far), brains(line.values, far))
        return
    for row in units:
        if line.op == NORM:
            _norm(line, row)
        elif line.op == TO_BYTES:
            _to_bytes(line, row)
        else:
            _from_bytes(line, row)


@piece
def _follow(program: Array, drawn: Array, done: Array) -> None:
    """Work off the lines, together with whoever was given the same arrays; returns when all is done.

    program: (n,) of LINE, which nobody changes any more. drawn, done: (n,) int64 zeros, the tasks of each line that
    were taken and those that are finished. Only tasks that were taken are waited for, never a thread: one that comes
    late, or has to leave its processor to others, finds less to do.
    """
    complete = 0
    for number in range(program.shape[0]):
        line = program[number]
        task = drawn_from(drawn, number)
        if line.op == PRODUCT and task < line.tasks:  # while others finish what it waits for
            start = _beginning(line, task)
            _approach(start, start + AHEAD)
        if line.waits:
            while complete < number:
                _await(done, complete, program[complete].tasks)
                complete += 1
        while task < line.tasks:
            if line.op == PRODUCT:
                _product(line, task)
            else:
                _units(line, range(task * line.portion, min(line.units, (task + 1) * line.portion)))
            drawn_from(done, number)
            task = drawn_from(drawn, number)
    while complete < program.shape[0]:
        _await(done, complete, program[complete].tasks)
        complete += 1


def _work(job: Any) -> None:
    """What each thread does. job: (3,) the address of the lines, how many there are, the address of the counts."""
    about = carray(job, 3)
    program = carray(pointer(about[0]), (about[1],), dtype=LINE)
    counts = carray(pointer(about[2]), (2, about[1]), dtype=np.int64)
    _follow(program, counts[0], counts[1])


@cache
def work() -> Any:
    """`_work`, compiled, as other languages call a function: by its address."""
    return cfunc(types.void(types.CPointer(types.int64)), cache=True)(_work)
