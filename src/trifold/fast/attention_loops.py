"""Attention of short packed rows in bf16, with its gradients, as two compiled functions.

A library of matmuls needs a padded grid of each head and reads and writes it several times; for
rows of twenty tokens that takes ten times as long as the products. Here one row of one head is
computed at a time and stays in the first-level cache. Attention weights are not saved: the backward
pass computes them again from the largest score and the sum of each query.

Products are of bf16 with sums in fp32; scores, softmax and their gradients are in fp32; attention
weights and gradients of scores are rounded to bf16 before they are multiplied.

L: a length, rounded up to a multiple of 16; what is beyond the length is 0. D: the size of a head.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from trifold.fast.block_loops import OPTIONS, function
from trifold.fast.lanes import (
    LANES,
    VECTOR,
    exp2,
    fill,
    first_lanes,
    load_float,
    multiply_add,
    new_tile,
    place,
    prefetch,
    store_bfloat16,
    store_float,
    store_pairs,
    sum_of,
    transpose,
)
from trifold.fast.loops import Array, F
from trifold.fast.query_tile import QUERIES, multiply_blocks, softmax
from trifold.fast.sources import source_hash

# Part of the machine code of what calls it, and without counting references to arrays: passing
# arrays to functions and counting take half of the time. For code that allocates nothing.
leaf = njit(**OPTIONS, _nrt=False, forceinline=True)

LOG2_E = 1.4426950408889634


class Side(NamedTuple):
    """The states of one head of one row: queries, keys, values, or the gradient of the outputs.

    rows: (L, D). columns: (L / 16, D / 2, 16) the words of 16 rows, which are multiplied with rows
    of other states. pairs: (D / 16, L / 2, 16) words of two rows, which are multiplied with weights
    of rows.
    """

    rows: Array
    columns: Array
    pairs: Array


class TileMemory(NamedTuple):
    """Of QUERIES queries. scores, d_weights: (QUERIES, L) fp32. weights, d_scores: (QUERIES, L)
    bf16. sums: (QUERIES, D) fp32.

    weight_pairs, d_score_pairs: (L / 2, L) words of two queries, of all queries of a row.
    """

    scores: Array
    d_weights: Array
    weights: Array
    d_scores: Array
    sums: Array
    weight_pairs: Array
    d_score_pairs: Array


@function
def _new_words(count: int) -> Any:
    """Memory for words of 32 bits, aligned to registers."""
    memory = np.empty(count + LANES, np.uint32)
    first = (-memory.ctypes.data % VECTOR) // 4
    return memory[first : first + count]


@function
def _new_side(length: int, width: int) -> Any:
    words = length * width // 2
    return Side(
        _new_words(words).view(np.uint16).reshape((length, width)),
        _new_words(words).reshape((length // LANES, width // 2, LANES)),
        _new_words(words).reshape((width // LANES, length // 2, LANES)),
    )


@function
def _new_tile(length: int, queries: int, width: int) -> Any:
    """length: the largest L. queries: that of all queries if gradients are computed, else 0."""
    words = QUERIES * length
    return TileMemory(
        _new_words(words).view(F).reshape((QUERIES, length)),
        _new_words(words).view(F).reshape((QUERIES, length)),
        _new_words(words // 2).view(np.uint16).reshape((QUERIES, length)),
        _new_words(words // 2).view(np.uint16).reshape((QUERIES, length)),
        _new_words(QUERIES * width).view(F).reshape((QUERIES, width)),
        _new_words(queries // 2 * length).reshape((queries // 2, length)),
        _new_words(queries // 2 * length).reshape((queries // 2, length)),
    )


@leaf
def _rounded(length: int) -> int:
    return -(-length // LANES) * LANES


@leaf
def _longest(starts: Any) -> Any:
    """L of the longest row."""
    longest = 1
    for row in range(starts.shape[0] - 1):
        longest = max(longest, starts[row + 1] - starts[row])
    return _rounded(longest)


@leaf
def _read(x: Any, start: int, length: int, column: int, side: Any) -> None:
    """x[start : start + length], D columns from `column` on -> side.rows."""
    size = 2 * side.rows.shape[1]
    stride = 2 * x.shape[1]
    for row in range(_rounded(length)):
        target = place(side.rows, row, 0)
        if row < length:
            source = place(x, start + row, column)
            for byte in range(0, size, VECTOR):
                store_float(target + byte, load_float(source + byte))
                prefetch(source + length * stride + byte)  # of the next row
        else:
            for byte in range(0, size, VECTOR):
                store_float(target + byte, fill(F(0)))


@leaf
def _set_columns(side: Any, length: int) -> None:
    size = 2 * side.rows.shape[1]
    target = side.columns.ctypes.data
    for row in range(0, length, LANES):
        source = place(side.rows, row, 0)
        for byte in range(0, size, VECTOR):
            transpose(source + byte, size, target)
            target += VECTOR * LANES


@leaf
def _set_pairs(side: Any, length: int) -> None:
    capacity = side.pairs.shape[1]
    for pair in range((length + 1) // 2):
        for block in range(side.pairs.shape[0]):
            target = side.pairs.ctypes.data + VECTOR * (block * capacity + pair)
            first = place(side.rows, 2 * pair, LANES * block)
            store_pairs(target, first, place(side.rows, 2 * pair + 1, LANES * block))


@leaf
def _score(side: Any, row: int, others: Any, length: int, out: Any) -> None:
    """QUERIES rows of a side from `row` on times the rows of another -> out (QUERIES, L) fp32."""
    rows = side.rows
    words = rows.shape[1] // 2
    multiply_blocks(
        rows,
        place(rows, row, 0),
        4 * words,
        others.columns.ctypes.data,
        VECTOR * words,
        words,
        _rounded(length) // LANES,
        (out.ctypes.data, 4 * out.shape[1]),
    )


@leaf
def _weigh(weights: Any, others: Any, length: int, out: Any) -> None:
    """weights (QUERIES, L) bf16 times the rows of a side -> out (QUERIES, D) fp32."""
    blocks, capacity, _ = others.pairs.shape
    multiply_blocks(
        weights,
        weights.ctypes.data,
        2 * weights.shape[1],
        others.pairs.ctypes.data,
        VECTOR * capacity,
        (length + 1) // 2,
        blocks,
        (out.ctypes.data, 4 * out.shape[1]),
    )


@leaf
def _write(sums: Any, count: int, out: Any, row: int, column: int) -> None:
    """The first `count` rows of sums (QUERIES, D) -> D columns of out, rounded."""
    source = sums.ctypes.data
    width = sums.shape[1]
    for number in range(count):
        target = place(out, row + number, column)
        for j in range(0, width, LANES):
            store_bfloat16(target + 2 * j, load_float(source + 4 * j))
        source += 4 * width


# --- forward pass ---------------------------------------------------------------------------------


@leaf
def _weigh_keys(
    tile: Any,
    visible: int,
    step: int,
    count: int,
    vectors: int,
    scale: Any,
    statistics: Any,
    head: int,
    token: int,
) -> None:
    """The `softmax` of `count` rows of tile.scores; `visible` grows by `step` from one to the next.
    Keeps the shift of each row, and 1 / the sum of its weights.
    """
    for row in range(count):
        scores = place(tile.scores, row, 0)
        weights = place(tile.weights, row, 0)
        shift, inverse = softmax(tile.weights, scores, weights, visible, vectors, scale)
        statistics[0, head, token + row] = shift
        statistics[1, head, token + row] = inverse
        visible += step


@leaf
def _attend(
    tile: Any,
    sides: Any,
    lengths: Any,
    causal: bool,
    out: Any,
    start: int,
    head: int,
    statistics: Any,
) -> None:
    """One head of one row."""
    queries, keys, values = sides
    length, n_keys = lengths
    _set_columns(keys, n_keys)
    _set_pairs(values, n_keys)
    width = queries.rows.shape[1]
    scale = F(LOG2_E) / np.sqrt(F(width))
    for first in range(0, length, QUERIES):
        count = min(QUERIES, length - first)
        seen = min(n_keys, first + count) if causal else n_keys
        _score(queries, first, keys, seen, tile.scores)
        _weigh_keys(
            tile,
            first + 1 if causal else n_keys,
            1 if causal else 0,
            count,
            _rounded(seen) // LANES,
            scale,
            statistics,
            head,
            start + first,
        )
        _weigh(tile.weights, values, seen, tile.sums)
        sums = tile.sums.ctypes.data
        for row in range(count):
            target = place(out, start + first + row, head * width)
            factor = fill(F(statistics[1, head, start + first + row]))
            for j in range(0, width, LANES):
                store_bfloat16(target + 2 * j, load_float(sums + 4 * (row * width + j)) * factor)


@function
def _run_forward(
    packed: Any, columns: Any, starts: Any, causal: bool, out: Any, statistics: Any
) -> None:
    heads = statistics.shape[1]
    width = out.shape[1] // heads
    most = _longest(starts[0]), _longest(starts[1])
    queries = _new_side(most[0], width)
    keys = _new_side(most[1], width)
    values = _new_side(most[1], width)
    tile = _new_tile(max(most[0], most[1]), 0, width)
    q_starts, k_starts = starts
    for row in range(q_starts.shape[0] - 1):
        start = q_starts[row]
        k_start = k_starts[row]
        length = q_starts[row + 1] - start
        n_keys = k_starts[row + 1] - k_start
        for head in range(heads):
            column = head * width
            _read(packed[0], start, length, columns[0] + column, queries)
            _read(packed[1], k_start, n_keys, columns[1] + column, keys)
            _read(packed[1], k_start, n_keys, columns[2] + column, values)
            _attend(
                tile,
                (queries, keys, values),
                (length, n_keys),
                causal,
                out,
                start,
                head,
                statistics,
            )
    out[q_starts[-1] :] = 0


# --- backward pass --------------------------------------------------------------------------------

single_transposed_tile = new_tile(QUERIES, 1, transposed=True)
double_transposed_tile = new_tile(QUERIES, 2, transposed=True)


@leaf
def _d_scores(
    tile: Any,
    visible: int,
    step: int,
    count: int,
    vectors: int,
    scales: Any,
    statistics: Any,
    head: int,
    token: int,
) -> None:
    """Weights and gradients of scores of `count` queries; 0 in the other rows of the tile, and
    beyond the visible keys; see `softmax`.
    """
    scale, factor = scales
    length = tile.scores.shape[1]
    scores = tile.scores.ctypes.data
    d_weights = tile.d_weights.ctypes.data
    weights = tile.weights.ctypes.data
    d_scores = tile.d_scores.ctypes.data
    for row in range(count):
        shift = fill(F(statistics[0, head, token + row]))
        inverse = fill(F(statistics[1, head, token + row]))
        total = fill(F(0))
        for vector in range(vectors):
            power = multiply_add(load_float(scores + VECTOR * vector), fill(scale), shift)
            weight = exp2(power) * inverse
            weight = first_lanes(weight, visible - LANES * vector, fill(F(0)))
            total = multiply_add(weight, load_float(d_weights + VECTOR * vector), total)
            store_float(scores + VECTOR * vector, weight)
            store_bfloat16(weights + VECTOR // 2 * vector, weight)
        mean = fill(sum_of(total))
        for vector in range(vectors):
            difference = load_float(d_weights + VECTOR * vector) - mean
            d_score = load_float(scores + VECTOR * vector) * difference * fill(factor)
            store_bfloat16(d_scores + VECTOR // 2 * vector, d_score)
        visible += step
        scores += 4 * length
        d_weights += 4 * length
        weights += 2 * length
        d_scores += 2 * length
    for _ in range(count, QUERIES):
        for vector in range(vectors):
            store_bfloat16(weights + VECTOR // 2 * vector, fill(F(0)))
            store_bfloat16(d_scores + VECTOR // 2 * vector, fill(F(0)))
        weights += 2 * length
        d_scores += 2 * length


@leaf
def _keep_pairs(rows: Any, first: int, vectors: int, pairs: Any) -> None:
    """rows (QUERIES, L) bf16 of the queries from `first` on -> their words in pairs."""
    for row in range(0, QUERIES, 2):
        target = place(pairs, (first + row) // 2, 0)
        upper = place(rows, row, 0)
        lower = place(rows, row + 1, 0)
        for vector in range(vectors):
            half = VECTOR // 2 * vector
            store_pairs(target + VECTOR * vector, upper + half, lower + half)


@leaf
def _weigh_queries(pairs: Any, key: int, queries: Any, words: Any, out: Any) -> None:
    """QUERIES keys from `key` on: the sums of the rows of a side, weighted by pairs (L / 2, L), of
    words[0] to words[1] -> out (QUERIES, D) fp32.
    """
    blocks, capacity, _ = queries.pairs.shape
    begin, end = words
    a = place(pairs, begin, key)
    stride = 4 * pairs.shape[1]
    b = queries.pairs.ctypes.data + VECTOR * begin
    b_stride = VECTOR * capacity
    address = out.ctypes.data
    out_stride = 4 * out.shape[1]
    rows = queries.rows
    for _ in range(0, blocks - 1, 2):
        double_transposed_tile(rows, a, stride, b, b_stride, end - begin, address, out_stride)
        b += 2 * b_stride
        address += 2 * VECTOR
    if blocks % 2:
        single_transposed_tile(rows, a, stride, b, b_stride, end - begin, address, out_stride)


@leaf
def _differentiate(
    tile: Any,
    sides: Any,
    lengths: Any,
    causal: bool,
    places: Any,
    gradients: Any,
    statistics: Any,
    head: int,
) -> None:
    """The gradients of one head of one row. places: the row and the column of queries, keys and
    values in gradients.
    """
    queries, keys, values, outs = sides
    length, n_keys = lengths
    _set_columns(keys, n_keys)
    _set_columns(values, n_keys)
    _set_pairs(keys, n_keys)
    _set_pairs(queries, length)
    _set_pairs(outs, length)
    factor = F(1) / np.sqrt(F(queries.rows.shape[1]))
    vectors = _rounded(n_keys) // LANES
    for first in range(0, length, QUERIES):
        count = min(QUERIES, length - first)
        _score(queries, first, keys, n_keys, tile.scores)
        _score(outs, first, values, n_keys, tile.d_weights)
        _d_scores(
            tile,
            first + 1 if causal else n_keys,
            1 if causal else 0,
            count,
            vectors,
            (F(LOG2_E) * factor, factor),
            statistics,
            head,
            places[0][0] + first,
        )
        _keep_pairs(tile.weights, first, vectors, tile.weight_pairs)
        _keep_pairs(tile.d_scores, first, vectors, tile.d_score_pairs)
        seen = min(n_keys, first + count) if causal else n_keys
        _weigh(tile.d_scores, keys, seen, tile.sums)
        _write(tile.sums, count, gradients[0], places[0][0] + first, places[0][1])
    end = (length + 1) // 2
    for first in range(0, n_keys, QUERIES):
        count = min(QUERIES, n_keys - first)
        words = first // 2 if causal else 0, end
        _weigh_queries(tile.d_score_pairs, first, queries, words, tile.sums)
        _write(tile.sums, count, gradients[1], places[1][0] + first, places[1][1])
        _weigh_queries(tile.weight_pairs, first, outs, words, tile.sums)
        _write(tile.sums, count, gradients[1], places[2][0] + first, places[2][1])


@function
def _run_backward(
    packed: Any,
    columns: Any,
    starts: Any,
    causal: bool,
    statistics: Any,
    d_out: Any,
    gradients: Any,
) -> None:
    heads = statistics.shape[1]
    width = d_out.shape[1] // heads
    most = _longest(starts[0]), _longest(starts[1])
    queries = _new_side(most[0], width)
    keys = _new_side(most[1], width)
    values = _new_side(most[1], width)
    outs = _new_side(most[0], width)
    tile = _new_tile(max(most[0], most[1]), most[0], width)
    q_starts, k_starts = starts
    for row in range(q_starts.shape[0] - 1):
        start = q_starts[row]
        k_start = k_starts[row]
        length = q_starts[row + 1] - start
        n_keys = k_starts[row + 1] - k_start
        for head in range(heads):
            column = head * width
            q_column = columns[0] + column
            k_column = columns[1] + column
            v_column = columns[2] + column
            _read(packed[0], start, length, q_column, queries)
            _read(packed[1], k_start, n_keys, k_column, keys)
            _read(packed[1], k_start, n_keys, v_column, values)
            _read(d_out, start, length, column, outs)
            _differentiate(
                tile,
                (queries, keys, values, outs),
                (length, n_keys),
                causal,
                ((start, q_column), (k_start, k_column), (k_start, v_column)),
                gradients,
                statistics,
                head,
            )
    gradients[0][q_starts[-1] :] = 0
    gradients[1][k_starts[-1] :] = 0


# --- compilation ----------------------------------------------------------------------------------

SOURCES = (
    "attention_loops",
    "block_loops",
    "instruction",
    "instruction_sets",
    "lanes",
    "loops",
    "query_tile",
)


def _new_forward(key: int) -> Any:
    def forward(
        packed: Any, columns: Any, starts: Any, causal: bool, out: Any, statistics: Any
    ) -> None:
        """Packed queries (N, …) and keys with values (M, …) -> out (N, H·D), 0 in padding.

        packed: both matrices, which may be the same. columns: the first of queries, keys and
        values. starts: of the rows of both. statistics (2, H, N): for the backward pass.
        """
        if key != 0:
            _run_forward(packed, columns, starts, causal, out, statistics)

    return forward


def _new_backward(key: int) -> Any:
    def backward(
        packed: Any,
        columns: Any,
        starts: Any,
        causal: bool,
        statistics: Any,
        d_out: Any,
        gradients: Any,
    ) -> None:
        """The gradient (N, H·D) of the outputs -> those of `packed`, of the same shapes."""
        if key != 0:
            _run_backward(packed, columns, starts, causal, statistics, d_out, gradients)

    return backward


def _compiled(new: Any) -> Any:
    """See `block_loops`."""
    return njit(**OPTIONS, cache=True)(new(source_hash(*SOURCES)))


forward = _compiled(_new_forward)
backward = _compiled(_new_backward)
