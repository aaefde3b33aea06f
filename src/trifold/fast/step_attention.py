"""Attention of a decoding step, compiled: one query a row, some rows and heads at a time.

Activations are fp32, keys and values as they are held, fp32 or bf16.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trifold.fast.intrinsics import floats, octets, wholes
from trifold.fast.loops import F, exponential, piece, wide
from trifold.fast.step_products import keep

Array: TypeAlias = NDArray[Any]


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
def attention(line: Any, units: range, keys: Array, values: Array) -> None:
    """Units are a row and a head of its keys and values each, for all queries that share it."""
    width, group, count = line.width, line.heads // line.kv_heads, line.length - line.first
    turned, scores, places = np.empty(width, F), np.empty(count, F), np.empty(count, np.int64)
    for unit in units:
        row, kv_head = unit // line.kv_heads, unit % line.kv_heads
        if line.new_keys != 0:
            new = unit * width
            there = row * line.row_stride + kv_head * line.head_stride + line.slot * line.key_stride
            _turn(floats(line.new_keys, new + width)[new:], line, row, turned)
            keep(turned, keys[there : there + width])
            keep(floats(line.new_values, new + width)[new:], values[there : there + width])
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
