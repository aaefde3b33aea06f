"""Attention of a decoding step: one query per row.

Each function computes some (row, key head) units of an instruction. Activations are fp32; keys and
values have the precision of the cache, fp32 or bf16.
"""

from typing import Any

import numpy as np

from trifold.fast.instruction_sets import has_panels
from trifold.fast.intrinsics import allocate, float32_at, int8_at, int64_at, release
from trifold.fast.lanes import (
    LANES,
    fill,
    load,
    load_float,
    multiply_add,
    store_float,
    store_sums,
    sum_of,
)
from trifold.fast.loops import Array, F, exp, subroutine, to_float
from trifold.fast.step_linear import store


@subroutine
def attention(op: Any, units: range, keys: Array, values: Array) -> None:
    """Store the new keys and values, then attend with all queries that share a key head."""
    width = op.width
    group = op.heads // op.kv_heads
    count = op.length - op.first
    memory = allocate(8 * count + 4 * count + 4 * width)
    offsets = int64_at(memory, count)
    scores = float32_at(memory + 8 * count, count)
    rotated = float32_at(memory + 12 * count, width)
    for unit in units:
        row = unit // op.kv_heads
        kv_head = unit % op.kv_heads
        if op.new_keys != 0:
            new = unit * width
            slot = row * op.row_stride + kv_head * op.head_stride + op.slot * op.key_stride
            rotate(float32_at(op.new_keys, new + width)[new:], op, row, rotated)
            store(rotated, keys[slot : slot + width])
            store(float32_at(op.new_values, new + width)[new:], values[slot : slot + width])
        _key_offsets(op, row, kv_head, offsets)
        for head in range(kv_head * group, (kv_head + 1) * group):
            start = (row * op.heads + head) * width
            rotate(float32_at(op.x, start + width)[start:], op, row, rotated)
            score_keys(rotated, keys, offsets, scores)
            _adjust(scores, op, row, head)
            _softmax(scores)
            add_values(scores, values, offsets, float32_at(op.out, start + width)[start:])
    release(memory)


@subroutine
def rotate(x: Array, op: Any, row: int, out: Array) -> None:
    """x (D,) with its first dimensions rotated by the angles of the row."""
    for d in range(x.shape[0]):
        out[d] = x[d]
    if op.cos == 0:
        return
    half = op.rotary_width // 2
    start = row * op.rotary_stride
    cos = float32_at(op.cos, start + half)[start:]
    sin = float32_at(op.sin, start + half)[start:]
    for d in range(half):
        one, two = (2 * d, 2 * d + 1) if op.interleaved else (d, d + half)
        out[one] = x[one] * cos[d] - x[two] * sin[d]
        out[two] = x[two] * cos[d] + x[one] * sin[d]


@subroutine
def _key_offsets(op: Any, row: int, kv_head: int, offsets: Array) -> None:
    """The offsets (n,) of the keys of a row and head in the cache."""
    start = row // op.beams * op.row_stride + kv_head * op.head_stride + op.first * op.key_stride
    for s in range(offsets.shape[0]):
        offsets[s] = start + s * op.key_stride
    if op.beam_index != 0:
        rows = int64_at(
            op.beam_index + 8 * (row * op.beam_index_stride + op.first), offsets.shape[0]
        )
        for s in range(offsets.shape[0]):
            offsets[s] += (rows[s] - row) * op.row_stride


@subroutine
def _adjust(scores: Array, op: Any, row: int, head: int) -> None:
    """Scale and cap the scores (n,), add the bias, and set masked ones to -inf."""
    scale = F(op.scale)
    soft_cap = F(op.soft_cap)
    for s in range(scores.shape[0]):
        scores[s] *= scale
    if op.soft_cap != 0:
        for s in range(scores.shape[0]):
            scores[s] = soft_cap * np.tanh(scores[s] / soft_cap)
    if op.score_bias != 0:
        start = row * op.score_bias_row + head * op.score_bias_head
        bias = float32_at(op.score_bias, start + op.length)[start + op.first :]
        for s in range(scores.shape[0]):
            scores[s] += bias[s]
    if op.mask != 0:
        start = row // op.beams * op.mask_stride
        mask = int8_at(op.mask, start + op.length)[start + op.first :]
        for s in range(scores.shape[0]):
            scores[s] = scores[s] if mask[s] != 0 else F(-np.inf)


@subroutine
def _softmax(scores: Array) -> None:
    """In place; all 0 if all scores are -inf."""
    highest = F(-np.inf)
    total = F(0)
    for s in range(scores.shape[0]):
        highest = max(highest, scores[s])
    if highest == F(-np.inf):
        scores[:] = 0
        return
    for s in range(scores.shape[0]):
        scores[s] = exp(scores[s] - highest) if scores[s] > F(-np.inf) else F(0)
    for s in range(scores.shape[0]):
        total += scores[s]
    for s in range(scores.shape[0]):
        scores[s] /= total


# --- products with keys and values ----------------------------------------------------------------


@subroutine
def _dot_products(query: Array, keys: Array, offsets: Array, scores: Array) -> None:
    """query (D,) · each key -> scores (n,)."""
    width = query.shape[0]
    for s in range(scores.shape[0]):
        key = keys[offsets[s] : offsets[s] + width]
        total = F(0)
        for j in range(width):
            total += query[j] * to_float(key[j])
        scores[s] = total


@subroutine
def _weighted_sum(weights: Array, values: Array, offsets: Array, out: Array) -> None:
    """Σ weight · value -> out (D,)."""
    width = out.shape[0]
    out[:] = 0
    for s in range(weights.shape[0]):
        weight = weights[s]
        value = values[offsets[s] : offsets[s] + width]
        for j in range(width):
            out[j] += weight * to_float(value[j])


@subroutine
def _dot_products_on_lanes(query: Array, keys: Array, offsets: Array, scores: Array) -> None:
    """`_dot_products` of 4 keys at a time, if their numbers fill lanes."""
    width = query.shape[0]
    if width % LANES:
        _dot_products(query, keys, offsets, scores)
        return
    start = np.int64(query.ctypes.data)
    first = np.int64(keys.ctypes.data)
    size = keys.itemsize
    count = scores.shape[0]
    together = count // 4 * 4
    for s in range(0, together, 4):
        key_0 = first + size * offsets[s]
        key_1 = first + size * offsets[s + 1]
        key_2 = first + size * offsets[s + 2]
        key_3 = first + size * offsets[s + 3]
        sum_0 = sum_1 = sum_2 = sum_3 = fill(F(0))
        for column in range(0, width, LANES):
            own = load_float(start + 4 * column)
            at = size * column
            sum_0 = multiply_add(own, load(keys, key_0 + at), sum_0)
            sum_1 = multiply_add(own, load(keys, key_1 + at), sum_1)
            sum_2 = multiply_add(own, load(keys, key_2 + at), sum_2)
            sum_3 = multiply_add(own, load(keys, key_3 + at), sum_3)
        store_sums(np.int64(scores.ctypes.data) + 4 * s, sum_0, sum_1, sum_2, sum_3)
    for s in range(together, count):
        key = first + size * offsets[s]
        total = fill(F(0))
        for column in range(0, width, LANES):
            own = load_float(start + 4 * column)
            total = multiply_add(own, load(keys, key + size * column), total)
        scores[s] = sum_of(total)


@subroutine
def _weighted_sum_on_lanes(weights: Array, values: Array, offsets: Array, out: Array) -> None:
    """`_weighted_sum` of 64 columns at a time, whose sums stay in registers, if they fill lanes."""
    width = out.shape[0]
    if width % LANES:
        _weighted_sum(weights, values, offsets, out)
        return
    first = np.int64(values.ctypes.data)
    target = np.int64(out.ctypes.data)
    size = values.itemsize
    step = size * LANES
    together = width // (4 * LANES) * 4 * LANES
    for column in range(0, together, 4 * LANES):
        sum_0 = sum_1 = sum_2 = sum_3 = fill(F(0))
        for s in range(weights.shape[0]):
            weight = fill(weights[s])
            value = first + size * (offsets[s] + column)
            sum_0 = multiply_add(weight, load(values, value), sum_0)
            sum_1 = multiply_add(weight, load(values, value + step), sum_1)
            sum_2 = multiply_add(weight, load(values, value + 2 * step), sum_2)
            sum_3 = multiply_add(weight, load(values, value + 3 * step), sum_3)
        store_float(target + 4 * column, sum_0)
        store_float(target + 4 * (column + LANES), sum_1)
        store_float(target + 4 * (column + 2 * LANES), sum_2)
        store_float(target + 4 * (column + 3 * LANES), sum_3)
    for column in range(together, width, LANES):
        total = fill(F(0))
        for s in range(weights.shape[0]):
            value = first + size * (offsets[s] + column)
            total = multiply_add(fill(weights[s]), load(values, value), total)
        store_float(target + 4 * column, total)


score_keys = _dot_products_on_lanes if has_panels() else _dot_products
add_values = _weighted_sum_on_lanes if has_panels() else _weighted_sum
