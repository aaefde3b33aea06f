"""The layers of a classical encoder over packed rows in fp32, compiled by Numba.

A block of about BLOCK tokens passes all layers before the next one, so that its activations stay in
the cache of a core. The products are those of `tiles`, the softmax and the activations those of the
other loops. N tokens of B rows, E model width, F inner width, H heads, D head size.
"""

from functools import cache
from typing import Any

import numpy as np
from numba import njit

from trifold.fast.loops import (
    FASTMATH,
    Array,
    F,
    exp,
    from_ordered_int,
    loop,
    subroutine,
    to_ordered_int,
)
from trifold.fast.sources import source_hash
from trifold.fast.step_linear import activate
from trifold.fast.tiles import LANES, tile_of

TILE = 12  # rows of a tile, whose sums with two vectors take 24 of 32 registers
PANEL = 2 * LANES  # its columns
HEAD_TILE = 8  # rows of a tile in attention
BLOCK = 240
LOWEST = F(-1e30)
# What a compiled function depends on besides its own file, which Numba checks.
SOURCES = ("loops", "step_linear", "tiles")

# The parts of the weights of a layer: matrices, each with its bias, and the norms after them.
QKV, QKV_BIAS, MERGE, MERGE_BIAS, NORM, NORM_BIAS = range(6)
IN, IN_BIAS, OUT, OUT_BIAS, LAST_NORM, LAST_NORM_BIAS = range(6, 12)

# Not part of the code of what calls it, which would take long to compile. A tile defines the order
# of its sums, so that results do not depend on how the function is compiled.
function = njit(nogil=True, fastmath=FASTMATH, error_model="numpy")

_tile = tile_of(TILE, 2)
_head_tile = tile_of(HEAD_TILE, 1)


# --- matrices -------------------------------------------------------------------------------------


@loop
def pack_panels(weight: Array, out: Array) -> None:
    """weight (N, K) -> out (N / PANEL, K, PANEL)."""
    panels, inputs, _ = out.shape
    for panel in range(panels):
        target = out[panel]
        rows = weight[panel * PANEL : (panel + 1) * PANEL]
        for first in range(0, inputs, LANES):
            for j in range(PANEL):
                row = rows[j, first : first + LANES]
                for k in range(LANES):
                    target[first + k, j] = row[k]


@function
def _linear(x: Array, rows: int, panels: Array, bias: Array, out: Array) -> None:
    """x (rows, K) times the panels of a matrix, plus bias (N,) -> out (rows, N).

    Both have up to TILE - 1 further rows, which are read and written.
    """
    inputs = x.shape[1]
    outputs = bias.shape[0]
    for column in range(0, outputs, PANEL):
        panel = panels[column * inputs :].ctypes.data
        for row in range(0, rows, TILE):
            _tile(
                x[row:].ctypes.data,
                inputs,
                panel,
                PANEL,
                inputs,
                bias[column:].ctypes.data,
                out[row:, column:].ctypes.data,
                outputs,
            )


# --- attention ------------------------------------------------------------------------------------


@subroutine
def _softmax(scores: Array, rows: int, keys: int) -> None:
    """scores (rows, S) of `keys` keys -> attention weights, in place; S is a multiple of LANES."""
    width = scores.shape[1]
    for t in range(rows):
        row = scores[t]
        for s in range(keys, width):
            row[s] = LOWEST
        largest = np.int32(-(2**31))
        for first in range(0, width, LANES):
            for s in range(LANES):
                x = to_ordered_int(row[first + s])
                largest = largest if largest > x else x
        m = from_ordered_int(largest)
        for first in range(0, width, LANES):
            for s in range(LANES):
                row[first + s] -= m
    flat = scores.reshape(scores.size)
    for first in range(0, rows * width, LANES):
        for s in range(LANES):
            flat[first + s] = exp(flat[first + s])
    for t in range(rows):
        row = scores[t]
        total = F(0)
        for first in range(0, width, LANES):
            for s in range(LANES):
                total += row[first + s]
        inverse = F(1) / total
        for first in range(0, width, LANES):
            for s in range(LANES):
                row[first + s] *= inverse


@subroutine
def _attend(q: Array, rows: int, kv: Array, memory: Array, out: Array, width: int) -> None:
    """Attention of one row: q (rows, H·D), kv (S, 2·H·D) -> out (rows, H·D), of heads of `width`.

    memory: for LANES + D · S' + rows' · S' numbers, where S' and rows' are rounded up to multiples
    of LANES and HEAD_TILE. q and out have up to HEAD_TILE - 1 further rows.
    """
    keys = kv.shape[0]
    size = q.shape[1]
    padded = (keys + LANES - 1) // LANES * LANES
    tiled = (rows + HEAD_TILE - 1) // HEAD_TILE * HEAD_TILE
    for j in range(LANES):
        memory[j] = 0
    places = memory[LANES:]
    turned = places[: width * padded].reshape(width, padded)
    scores = places[width * padded : (width + tiled) * padded].reshape(tiled, padded)
    scale = F(1) / np.sqrt(F(width))
    for head in range(0, size, width):
        for d in range(width):
            for s in range(keys):
                turned[d, s] = kv[s, head + d] * scale
        for t in range(0, rows, HEAD_TILE):
            for s in range(0, padded, LANES):
                _head_tile(
                    q[t:, head:].ctypes.data,
                    size,
                    turned[0, s:].ctypes.data,
                    padded,
                    width,
                    memory.ctypes.data,
                    scores[t:, s:].ctypes.data,
                    padded,
                )
        _softmax(scores, rows, keys)
        for t in range(0, rows, HEAD_TILE):
            for d in range(head, head + width, LANES):
                _head_tile(
                    scores[t:].ctypes.data,
                    padded,
                    kv[0, size + d :].ctypes.data,
                    2 * size,
                    keys,
                    memory.ctypes.data,
                    out[t:, d:].ctypes.data,
                    size,
                )


# --- layers ---------------------------------------------------------------------------------------


@subroutine
def _add_and_norm(
    x: Array, rows: int, added: Array, weight: Array, bias: Array, epsilon: Any
) -> None:
    """x (rows, E) = LayerNorm(x + added), in place."""
    width = x.shape[1]
    per_element = F(1) / F(width)
    for r in range(rows):
        row = x[r]
        other = added[r]
        mean = F(0)
        square = F(0)
        for j in range(width):
            row[j] += other[j]
        for j in range(width):
            mean += row[j]
        mean *= per_element
        for j in range(width):
            square += (row[j] - mean) * (row[j] - mean)
        inverse_std = F(1) / np.sqrt(square * per_element + F(epsilon))
        for j in range(width):
            row[j] = (row[j] - mean) * inverse_std * weight[j] + bias[j]


@subroutine
def _part(weights: Array, places: Array, part: int) -> Array:
    """A part of the weights of a layer."""
    return weights[places[part] : places[part + 1]]


@subroutine
def _finish_layer(x: Array, rows: int, weights: Array, model: Any, memory: Any) -> None:
    """What follows the attention of a layer, in place: x (rows, E)."""
    _, places, _, activation, epsilon = model
    _, _, added, attended, _, inner, _ = memory
    bias = _part(weights, places, MERGE_BIAS)
    _linear(attended, rows, _part(weights, places, MERGE), bias, added)
    norm = _part(weights, places, NORM)
    _add_and_norm(x, rows, added, norm, _part(weights, places, NORM_BIAS), epsilon)
    _linear(x, rows, _part(weights, places, IN), _part(weights, places, IN_BIAS), inner)
    for row in range(rows):
        activate(inner[row], activation)
    _linear(inner, rows, _part(weights, places, OUT), _part(weights, places, OUT_BIAS), added)
    norm = _part(weights, places, LAST_NORM)
    _add_and_norm(x, rows, added, norm, _part(weights, places, LAST_NORM_BIAS), epsilon)


@subroutine
def _copy_rows(x: Array, first: int, count: int, out: Array, place: int) -> None:
    """out[place …] = x[first …], `count` rows."""
    for row in range(count):
        source = x[first + row]
        target = out[place + row]
        for j in range(target.shape[0]):
            target[j] = source[j]


@subroutine
def _encode(x: Array, starts: Array, model: Any, chosen: Array, out: Array, memory: Any) -> None:
    """See `encode`."""
    weights, places, heads, _, _ = model
    states, few, queries, attended, kv, _, scores = memory
    width = x.shape[1]
    n_rows = starts.shape[0] - 1
    layers = weights.shape[0]
    has_chosen = chosen.shape[0] > 0
    begin = 0
    while begin < n_rows:
        end = begin + 1
        while end < n_rows and starts[end + 1] - starts[begin] <= BLOCK:
            end += 1
        first = starts[begin]
        tokens = starts[end] - first
        _copy_rows(x, first, tokens, states, 0)
        reading = states
        count = tokens
        for layer in range(layers):
            of_layer = weights[layer]
            panels = _part(of_layer, places, QKV)
            bias = _part(of_layer, places, QKV_BIAS)
            _linear(states, tokens, panels[width * width :], bias[width:], kv)
            reads_one = has_chosen and layer + 1 == layers
            if reads_one:
                for row in range(begin, end):
                    _copy_rows(states, chosen[row] - first, 1, few, row - begin)
                reading = few
                count = end - begin
            _linear(reading, count, panels[: width * width], bias[:width], queries)
            for row in range(begin, end):
                place = starts[row] - first
                length = starts[row + 1] - starts[row]
                keys = kv[place : place + length]
                at = row - begin if reads_one else place
                n_queries = 1 if reads_one else length
                _attend(queries[at:], n_queries, keys, scores, attended[at:], width // heads)
            _finish_layer(reading, count, of_layer, model, memory)
        _copy_rows(reading, 0, count, out, begin if has_chosen else first)
        begin = end


@cache
def encode() -> Any:
    """The compiled function (x, starts, model, chosen, out, memory).

    x (N, E) with the rows that begin at starts (B + 1,) -> out (N, E); or, of the tokens chosen
    (B,), one of each row, -> out (B, E).
    model: weights (L, P) of each layer, with the parts that begin at places (13,); the number of
    heads, the code of the activation and ε.
    memory: for BLOCK and TILE tokens, or a longer row: (·, E) of states, those that are chosen,
    queries, and what heads read; (·, 2·E) of keys and values, (·, F); and for `_attend`.
    """
    return _compiled(source_hash(*SOURCES))


def _compiled(key: int) -> Any:
    """Numba finds what it compiled before by this file and the values in the closure."""

    @loop
    def encode_rows(
        x: Array, starts: Array, model: Any, chosen: Array, out: Array, memory: Any
    ) -> None:
        if key != 0:
            _encode(x, starts, model, chosen, out, memory)

    return encode_rows
