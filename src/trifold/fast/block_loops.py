"""The layers of an encoder as one compiled function: attention and feed-forward networks.

It reads and writes states of packed rows in fp32 or bf16 and multiplies with weights in fp32, bf16
or int8. Between the matmuls nothing leaves the second-level cache: a layer computes the rows in
chunks, and what follows a matmul (bias, activation, sum, norm, quantization) reads its sums from a
tile of a few rows. Sums, norms and softmax are in fp32; queries, keys, values and attention weights
in the type of the states.

The last layer may compute only chosen states, one of each row of text, from the keys and values of
all.

With int8 weights, each row that enters a matmul is quantized to integers: x ≈ (integer - zero) ·
scale.

All functions are compiled into one. A is the type of the rows that enter a matmul, one of those
that the instruction set multiplies: bytes, int16, bf16 (uint16) or fp32.
"""

from __future__ import annotations

from functools import wraps
from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.extending import overload

from trifold.fast.instruction import GELU_TANH, RELU
from trifold.fast.instruction_sets import SETS, instruction_set
from trifold.fast.lanes import (
    INTEGERS,
    LANES,
    exp2,
    fill,
    finish,
    first_lanes,
    gelu,
    gelu_tanh,
    largest_of,
    load,
    load_float,
    load_word,
    maximum,
    minimum,
    multiply_add,
    new_tile,
    new_transpose,
    place,
    smallest_of,
    store,
    store_float,
    store_integer,
    store_pairs,
    sum_of,
    transpose,
)
from trifold.fast.loops import Array, F
from trifold.fast.query_tile import QUERIES, multiply_blocks
from trifold.fast.sources import source_hash

OPTIONS = {"nogil": True, "error_model": "numpy"}
# A function of its own in the machine code, which only other functions here call.
function = njit(**OPTIONS, no_cpython_wrapper=True, no_cfunc_wrapper=True)
# Part of what calls it. Numba optimizes a function again as part of each of its callers, so a chain
# of functions with one caller each would take longer to compile.
inline = njit(**OPTIONS, inline="always")


def by_type(choose: Any) -> Any:
    """`loops.by_type` whose functions may call functions of their own: those that are part of their
    callers may not, if Numba is to keep the result on disk.
    """

    @wraps(choose)
    def chosen(*arguments: Any) -> Any:
        raise NotImplementedError("for compiled code only")

    overload(chosen, strict=False, jit_options=OPTIONS)(choose)
    return chosen


_SET = instruction_set() or SETS[0]
ROWS, VECTORS = _SET.rows, _SET.vectors  # of a tile of a matmul with weights
COLUMNS = VECTORS * LANES
STEPS = _SET.steps  # of the range of a row of integers
INTEGER = np.dtype(_SET.products["int8"]).itemsize
CHUNK_ROWS = 192  # of all rows of text in a chunk, if they are not longer
INNER_ROWS = 48  # whose inner activations of the feed-forward network are in memory at a time


# Of a layer of weights, a row of addresses: the matrices; four addresses for each weight, in the
# order of `BlockWeights`, as in `Weight`; two for each norm. 0: there is none.
MATRICES = 6  # of queries, keys, values, outputs, and both of the feed-forward network
OF_WEIGHT = 4
NORMS = MATRICES + 4 * OF_WEIGHT
ADDRESSES = NORMS + 4


class Weight(NamedTuple):
    """A matrix (N, K) for tiles, and the addresses of what its products are finished with, in fp32.

    words: (tiles, words of a row, COLUMNS), 0 beyond N. bias: (N,). Of int8 also scales
    (N,), sums (N,) of the values of each row, and factors (K,) of the inputs, if there are any.
    """

    words: Array
    bias: int
    scales: int
    sums: int
    factors: int


class NormWeights(NamedTuple):
    """The addresses of weight and bias (E,); without a bias (0), it is an RMS norm."""

    weight: int
    bias: int


class BlockWeights(NamedTuple):
    """The weights of a block. qkv: those of queries, keys and values, one below the other."""

    qkv: Weight
    out: Weight
    inner: Weight
    outer: Weight
    first_norm: NormWeights
    second_norm: NormWeights


class Options(NamedTuple):
    """What all layers have in common.

    epsilon: of the norms, which come before the sub-layers (is_pre) or after them. activation: its
    code. query_scale: the factor of the scores besides 1 / √D. bias: (H·T, S) fp32, what is added
    to q·k of each head and query before they are scaled, S a multiple of LANES; or no row.
    """

    heads: int
    is_pre: bool
    epsilon: F
    activation: int
    query_scale: F
    bias: Array


class ChunkMemory(NamedTuple):
    """What a chunk needs; R rows, with those of an incomplete tile.

    entering: (R, E) of A; scales and zeros: (R,) of its rows. qkv: (R, 3·E), and its words.
    heads: (R, E) the output of attention. sums: (R, E) fp32. row: (E or d_ff,) fp32. tile: of the
    sums of a matmul. activated: (INNER_ROWS, d_ff) fp32, only of int8. inner: (INNER_ROWS, d_ff) of
    A. keys, values, scores, weights, inverses: of one head. Rows of A may have columns more that
    nothing reads.
    """

    entering: Array
    scales: Array
    zeros: Array
    qkv: Array
    qkv_words: Array
    heads: Array
    sums: Array
    row: Array
    tile: Array
    activated: Array
    inner: Array
    keys: Array
    values: Array
    scores: Array
    weights: Array
    inverses: Array


# --- rows -----------------------------------------------------------------------------------------


@inline
def copy_row(x: Any, row: int, out: Any) -> None:
    """Row x[row] (E,) -> (E,) in fp32 at the address out."""
    for j in range(0, x.shape[1], LANES):
        store_float(out + 4 * j, load(x, place(x, row, j)))


@function
def normalize(x: Any, width: int, norm: Any, epsilon: Any, out: Any) -> None:
    """The norm of a row (width,) in fp32 -> another; both are addresses, and may be the same."""
    if norm.bias == 0:
        _rms_norm(x, width, norm, epsilon, out)
    else:
        _layer_norm(x, width, norm, epsilon, out)


@inline
def _rms_norm(x: Any, width: int, norm: Any, epsilon: Any, out: Any) -> None:
    """x / √(mean(x²) + ε) · weight."""
    total = fill(F(0))
    for j in range(0, width, LANES):
        total = multiply_add(load_float(x + 4 * j), load_float(x + 4 * j), total)
    inverse = fill(F(1) / np.sqrt(sum_of(total) / F(width) + epsilon))
    for j in range(0, width, LANES):
        y = load_float(x + 4 * j) * inverse * load_float(norm.weight + 4 * j)
        store_float(out + 4 * j, y)


@inline
def _layer_norm(x: Any, width: int, norm: Any, epsilon: Any, out: Any) -> None:
    """(x - mean) / √(variance + ε) · weight + bias."""
    total = fill(F(0))
    for j in range(0, width, LANES):
        total = total + load_float(x + 4 * j)
    mean = fill(sum_of(total) / F(width))
    total = fill(F(0))
    for j in range(0, width, LANES):
        difference = load_float(x + 4 * j) - mean
        total = multiply_add(difference, difference, total)
    inverse = fill(F(1) / np.sqrt(sum_of(total) / F(width) + epsilon))
    for j in range(0, width, LANES):
        normed = (load_float(x + 4 * j) - mean) * inverse
        y = multiply_add(normed, load_float(norm.weight + 4 * j), load_float(norm.bias + 4 * j))
        store_float(out + 4 * j, y)


@function
def quantize_row(x: Any, width: int, factors: Any, out: Any) -> Any:
    """x (width,) fp32 at an address, times the factors, if any, ≈ (out - zero) · scale with
    integers at the address out. Changes x. Returns scale and zero; the scale is NaN if x contains
    NaN or infinity.
    """
    low = fill(F(0))
    high = fill(F(0))
    check = fill(F(0))  # NaN if a number is NaN or infinite
    for j in range(0, width, LANES):
        value = load_float(x + 4 * j)
        if factors != 0:
            value = value * load_float(factors + 4 * j)
            store_float(x + 4 * j, value)
        low = minimum(low, value)
        high = maximum(high, value)
        check = multiply_add(value, fill(F(0)), check)
    lowest = smallest_of(low)
    scale = (largest_of(high) - lowest) / F(STEPS) + sum_of(check)
    factor = F(1) / scale if scale > F(1e-32) else F(0)
    zero = np.floor(F(0.5) - lowest * factor)
    for j in range(0, width, LANES):
        steps = multiply_add(load_float(x + 4 * j), fill(F(factor)), fill(F(zero)))
        store_integer(out + INTEGER * j, steps)
    return scale, F(zero)


@inline
def inputs_of(weight: Any, rows: Any) -> Any:
    """K, the number of inputs of a weight, of the type of the rows that enter it."""
    return weight.words.shape[1] * 4 // rows.itemsize


@by_type
def enter(rows: Any, row: Any, x: Any, weight: Any, scales: Any, zeros: Any) -> Any:
    """Store x (K,), fp32 at an address, as an input of a weight: rows[row]; integers with scale
    and zero. Changes x.
    """
    if rows.dtype in INTEGERS:

        def quantized(rows: Any, row: Any, x: Any, weight: Any, scales: Any, zeros: Any) -> None:
            width = inputs_of(weight, rows)
            out = place(rows, row, 0)
            scales[row], zeros[row] = quantize_row(x, width, weight.factors, out)

        return quantized

    def rounded(rows: Any, row: Any, x: Any, weight: Any, scales: Any, zeros: Any) -> None:
        for j in range(0, inputs_of(weight, rows), LANES):
            store(rows, place(rows, row, j), load_float(x + 4 * j))

    return rounded


# --- matmuls --------------------------------------------------------------------------------------

weight_tile = new_tile(ROWS, VECTORS, together=True)
transpose_weights = new_transpose(COLUMNS)


@inline
def keep_outputs(rows: Any, y: Any, target: Any, row: int, column: int, option: int) -> None:
    """target = y."""
    store(target, place(target, row, column), y)


@inline
def keep_sum(rows: Any, y: Any, target: Any, row: int, column: int, option: int) -> None:
    """target += y."""
    address = place(target, row, column)
    store(target, address, load(target, address) + y)


@inline
def keep_activated(rows: Any, y: Any, target: Any, row: int, column: int, option: int) -> None:
    """target = the activation with that code of y."""
    if option == RELU:
        y = maximum(y, fill(F(0)))
    elif option == GELU_TANH:
        y = gelu_tanh(y)
    else:
        y = gelu(rows, y)
    store(target, place(target, row, column), y)


def _new_multiply(keep: Any) -> Any:
    """A function of its own for each way to keep 16 outputs."""

    @function
    def multiply(
        rows: Any, count: int, weight: Any, part: Any, memory: Any, target: Any, option: int
    ) -> None:
        """The first `count` rows times a weight, of which the rows in part = (first, last) are
        read.
        """
        begin, end = part
        words = weight.words.shape[1]
        stride = rows.shape[1] * rows.itemsize
        tile = memory.tile.ctypes.data
        of_tile = 4 * COLUMNS * words
        for first in range(begin // COLUMNS * COLUMNS, end, COLUMNS):
            b = weight.words.ctypes.data + first // COLUMNS * of_tile
            for start in range(0, count, ROWS):
                a = place(rows, start, 0)
                weight_tile(rows, a, stride, b, 0, words, tile, 4 * COLUMNS)
                for column in range(max(first, begin), min(first + COLUMNS, end), LANES):
                    bias = weight.bias + 4 * column
                    scales = weight.scales + 4 * column
                    totals = weight.sums + 4 * column
                    for row in range(start, min(start + ROWS, count)):
                        sums = tile + 4 * ((row - start) * COLUMNS + column - first)
                        scale = memory.scales[row]
                        zero = memory.zeros[row]
                        y = finish(rows, sums, bias, scale, zero, scales, totals)
                        keep(rows, y, target, row, column, option)

    return multiply


multiply = _new_multiply(keep_outputs)
multiply_add_to = _new_multiply(keep_sum)
multiply_activate = _new_multiply(keep_activated)


# --- attention ------------------------------------------------------------------------------------


@function
def pack_keys(words: Any, start: int, length: int, first: int, memory: Any) -> None:
    """Keys of a head, words (R, …) from column `first` on -> memory.keys (blocks of 16 keys, words
    of a key, 16); any beyond the length.
    """
    width = memory.keys.shape[1]
    stride = 4 * words.shape[1]
    whole = width // LANES * LANES
    for block in range(-(-length // LANES)):
        key = start + LANES * block
        out = memory.keys.ctypes.data + 4 * LANES * width * block
        for word in range(0, whole, LANES):
            transpose(place(words, key, first + word), stride, out + 4 * LANES * word)
        for word in range(whole, width):
            for lane in range(LANES):
                memory.keys[block, word, lane] = words[key + lane, first + word]


@by_type
def pack_values(qkv: Any, start: Any, length: Any, first: Any, memory: Any) -> Any:
    """Values of a head, qkv (R, …) from column `first` on -> memory.values (blocks of 16 columns,
    words of all keys, 16).
    """
    if qkv.dtype == types.uint16:

        def pairs(qkv: Any, start: Any, length: Any, first: Any, memory: Any) -> None:
            values = memory.values
            for pair in range((length + 1) // 2):
                key = start + 2 * pair
                other = key + 1 if 2 * pair + 1 < length else key  # its weight is 0
                for block in range(values.shape[0]):
                    column = first + LANES * block
                    target = values.ctypes.data + 4 * LANES * (block * values.shape[1] + pair)
                    store_pairs(target, place(qkv, key, column), place(qkv, other, column))

        return pairs

    def single(qkv: Any, start: Any, length: Any, first: Any, memory: Any) -> None:
        values = memory.values
        for key in range(length):
            for block in range(values.shape[0]):
                target = values.ctypes.data + 4 * LANES * (block * values.shape[1] + key)
                source = place(qkv, start + key, first + LANES * block)
                store_float(target, load_float(source))

    return single


@inline
def add_bias(memory: Any, row: int, length: int, bias: Any) -> None:
    """memory.scores[row] += the bias of a query, fp32 at an address."""
    scores = place(memory.scores, row, 0)
    for key in range(0, length, LANES):
        store_float(scores + 4 * key, load_float(scores + 4 * key) + load_float(bias + 4 * key))


@function
def softmax(memory: Any, row: int, length: int, scale: Any) -> None:
    """memory.weights[row] = exp(scale · (scores[row] - their maximum)), 0 beyond the length, and
    memory.inverses[row] = 1 / their sum.
    """
    scores = place(memory.scores, row, 0)
    vectors = -(-length // LANES)
    last = scores + 4 * LANES * (vectors - 1)
    real = length - LANES * (vectors - 1)
    store_float(last, first_lanes(load_float(last), real, fill(F(-np.inf))))
    highest = load_float(scores)
    for vector in range(1, vectors):
        highest = maximum(highest, load_float(scores + 4 * LANES * vector))
    shift = fill(-scale * largest_of(highest))
    total = fill(F(0))
    for vector in range(vectors):
        power = multiply_add(load_float(scores + 4 * LANES * vector), fill(scale), shift)
        weight = exp2(power)
        if vector == vectors - 1:
            weight = first_lanes(weight, real, fill(F(0)))
        total = total + weight
        store(memory.weights, place(memory.weights, row, LANES * vector), weight)
    memory.inverses[row] = F(1) / sum_of(total)


@function
def attend(memory: Any, start: int, length: int, queries: Any, options: Any, out: Any) -> None:
    """Attention to one row of text, `length` rows of memory.qkv from `start` on, of the queries in
    the rows from queries[0] up to queries[1] -> the same rows of out. With a bias, the first query
    is the first token of the text.
    """
    heads = options.heads
    bias = options.bias
    of_head_bias = bias.shape[0] // heads
    qkv = memory.qkv
    width = qkv.shape[1] // 3
    head_width = width // heads
    words = memory.keys.shape[1]
    words_of_row = memory.qkv_words.shape[1] // 3
    stride = qkv.shape[1] * qkv.itemsize
    keys = memory.keys.ctypes.data
    values = memory.values.ctypes.data
    values_stride = 4 * LANES * memory.values.shape[1]
    scores = memory.scores.ctypes.data, 4 * memory.scores.shape[1]
    weights = memory.weights.ctypes.data
    weights_stride = memory.weights.shape[1] * memory.weights.itemsize
    pairs = (length * qkv.itemsize + 3) // 4  # words of a row of attention weights
    tile = memory.tile.ctypes.data, 4 * head_width
    scale = F(1.4426950408889634) / np.sqrt(F(head_width)) * options.query_scale
    blocks = -(-length // LANES)
    of_head = head_width // LANES
    for head in range(heads):
        column = head * head_width
        pack_keys(memory.qkv_words, start, length, words_of_row + head * words, memory)
        pack_values(qkv, start, length, 2 * width + column, memory)
        for query in range(queries[0], queries[1], QUERIES):
            count = min(QUERIES, queries[1] - query)
            a = place(qkv, query, column)
            multiply_blocks(qkv, a, stride, keys, 4 * LANES * words, words, blocks, scores)
            for row in range(count):
                if of_head_bias:
                    of_query = head * of_head_bias + query + row - queries[0]
                    add_bias(memory, row, length, place(bias, of_query, 0))
                softmax(memory, row, length, scale)
            multiply_blocks(
                qkv, weights, weights_stride, values, values_stride, pairs, of_head, tile
            )
            for row in range(count):
                inverse = fill(memory.inverses[row])
                for j in range(0, head_width, LANES):
                    y = load_float(tile[0] + row * tile[1] + 4 * j) * inverse
                    store(out, place(out, query + row, column + j), y)


# --- a block --------------------------------------------------------------------------------------


@by_type
def enter_outputs(entering: Any, count: Any, x: Any, weight: Any, memory: Any) -> Any:
    """The outputs x of attention or of an activation -> entering, the inputs of a weight: the same
    memory except for integers, which are made from fp32.
    """
    if entering.dtype in INTEGERS:

        def quantized(entering: Any, count: Any, x: Any, weight: Any, memory: Any) -> None:
            for row in range(count):
                enter(entering, row, place(x, row, 0), weight, memory.scales, memory.zeros)

        return quantized
    return lambda entering, count, x, weight, memory: None


@function
def _keep_chosen(memory: Any, chosen: Any, first: int) -> None:
    """Move the rows `chosen` of memory.entering, counted from `first`, to its beginning."""
    for number in range(chosen.shape[0]):
        row = chosen[number] - first
        for column in range(memory.entering.shape[1]):
            memory.entering[number, column] = memory.entering[row, column]
        memory.scales[number] = memory.scales[row]
        memory.zeros[number] = memory.zeros[row]


@inline
def _attention(x: Any, starts: Any, chosen: Any, block: Any, options: Any, memory: Any) -> None:
    """memory.sums = x + attention of the rows of text that start at starts[:-1], of a chunk; or
    only of those that are chosen.
    """
    count, width = x.shape
    row_address = memory.row.ctypes.data
    for row in range(count):
        copy_row(x, row, row_address)
        if options.is_pre:
            normalize(row_address, width, block.first_norm, options.epsilon, row_address)
        enter(memory.entering, row, row_address, block.qkv, memory.scales, memory.zeros)
    qkv = memory.qkv
    multiply(memory.entering, count, block.qkv, (width, 3 * width), memory, qkv, 0)
    if chosen.shape[0]:
        _keep_chosen(memory, chosen, starts[0])
        count = chosen.shape[0]
    multiply(memory.entering, count, block.qkv, (0, width), memory, qkv, 0)
    for number in range(starts.shape[0] - 1):
        start = starts[number] - starts[0]
        length = starts[number + 1] - starts[number]
        queries = (number, number + 1) if chosen.shape[0] else (start, start + length)
        attend(memory, start, length, queries, options, memory.heads)
    enter_outputs(memory.entering, count, memory.heads, block.out, memory)
    for row in range(count):
        copied = chosen[row] - starts[0] if chosen.shape[0] else row
        copy_row(x, copied, place(memory.sums, row, 0))
    whole = 0, width
    multiply_add_to(memory.entering, count, block.out, whole, memory, memory.sums, 0)


@inline
def _feed_forward(sums: Any, block: Any, options: Any, memory: Any, out: Any) -> None:
    """The feed-forward network with its residual connection: sums (n, E) fp32, changed -> out
    (n, E). With norms after the layers, also the norm before it.
    """
    epsilon = options.epsilon
    count, width = sums.shape
    inner = inputs_of(block.outer, memory.inner)
    row_address = memory.row.ctypes.data
    for row in range(count):
        x = place(sums, row, 0)
        if options.is_pre:
            normalize(x, width, block.second_norm, epsilon, row_address)
        else:
            normalize(x, width, block.first_norm, epsilon, x)
            copy_row(sums, row, row_address)
        enter(memory.entering, row, row_address, block.inner, memory.scales, memory.zeros)
    activated = memory.activated
    whole = 0, inner
    code = options.activation
    multiply_activate(memory.entering, count, block.inner, whole, memory, activated, code)
    enter_outputs(memory.inner, count, activated, block.outer, memory)
    multiply_add_to(memory.inner, count, block.outer, (0, width), memory, sums, 0)
    for row in range(count):
        x = place(sums, row, 0)
        if not options.is_pre:
            normalize(x, width, block.second_norm, epsilon, x)
        for j in range(0, width, LANES):
            store(out, place(out, row, j), load_float(x + 4 * j))


@inline
def _run_block(
    x: Any, starts: Any, chosen: Any, block: Any, options: Any, memory: Any, out: Any
) -> None:
    """One layer: x (N, E) -> out (N, E), which may be x, or (B, E) of the chosen states."""
    rows = starts.shape[0] - 1
    first = 0
    while first < rows:
        last = first + 1
        while last < rows and starts[last + 1] - starts[first] <= CHUNK_ROWS:
            last += 1
        begin, end = starts[first], starts[last]
        of_chunk = chosen[first:last]
        _attention(x[begin:end], starts[first : last + 1], of_chunk, block, options, memory)
        if chosen.shape[0]:
            begin, end = first, last
        for start in range(begin, end, INNER_ROWS):
            stop = min(start + INNER_ROWS, end)
            sums = memory.sums[start - begin : stop - begin]
            _feed_forward(sums, block, options, memory, out[start:stop])
        first = last


@function
def _pack(matrix: Any, rows: int, first: int, out: Any) -> None:
    """A matrix of `rows` rows at an address -> the rows from `first` on of `Weight.words`."""
    words = out.shape[1]
    whole = words // LANES * LANES
    for row in range(0, rows, LANES):
        tile = (first + row) // COLUMNS
        column = (first + row) % COLUMNS
        source = matrix + 4 * row * words
        target = out.ctypes.data + 4 * (tile * words * COLUMNS + column)
        for word in range(0, whole, LANES):
            transpose_weights(source + 4 * word, 4 * words, target + 4 * COLUMNS * word)
        for lane in range(LANES):
            for word in range(whole, words):
                address = source + 4 * (lane * words + word)
                out[tile, word, column + lane] = load_word(address)


@function
def _block_of(addresses: Any, width: int, itemsize: int, tiles: Any) -> Any:
    """The weights of a layer, whose matrices are written into the tiles. itemsize: of a number."""
    inner = tiles[3].shape[1] * 4 // itemsize
    matrices = addresses[:MATRICES]
    for part in range(3):
        _pack(matrices[part], width, part * width, tiles[0])
    _pack(matrices[3], width, 0, tiles[1])
    _pack(matrices[4], inner, 0, tiles[2])
    _pack(matrices[5], width, 0, tiles[3])
    a = addresses[MATRICES:]
    norms = addresses[NORMS:]
    return BlockWeights(
        Weight(tiles[0], a[0], a[1], a[2], a[3]),
        Weight(tiles[1], a[4], a[5], a[6], a[7]),
        Weight(tiles[2], a[8], a[9], a[10], a[11]),
        Weight(tiles[3], a[12], a[13], a[14], a[15]),
        NormWeights(norms[0], norms[1]),
        NormWeights(norms[2], norms[3]),
    )


@inline
def _run_layers(
    x: Any,
    starts: Any,
    chosen: Any,
    layers: Any,
    options: Any,
    memory: Any,
    tiles: Any,
    states: Any,
    out: Any,
) -> None:
    n_layers = layers.shape[0]
    none = chosen[:0]
    for layer in range(n_layers):
        block = _block_of(layers[layer], x.shape[1], memory.inner.itemsize, tiles)
        is_last = layer + 1 == n_layers
        read = x if layer == 0 else states
        written = out if is_last else states
        _run_block(read, starts, chosen if is_last else none, block, options, memory, written)
    if chosen.shape[0] == 0:
        for row in range(starts[starts.shape[0] - 1], out.shape[0]):
            for column in range(out.shape[1]):
                out[row, column] = 0


# --- compilation ----------------------------------------------------------------------------------

SOURCES = ("block_loops", "instruction", "instruction_sets", "lanes", "loops", "query_tile")


def _compiled(new: Any, key: int) -> Any:
    """Numba finds what it keeps on disk by this file and by the values in the closure of the
    function: the hash of all source files.
    """
    return njit(**OPTIONS, cache=True)(new(key))


def _new_run_layers(key: int) -> Any:
    def run_layers(
        x: Any,
        starts: Any,
        chosen: Any,
        layers: Any,
        options: Any,
        memory: Any,
        tiles: Any,
        states: Any,
        out: Any,
    ) -> None:
        """All layers: packed states x (N, E) of rows that start at starts[:-1] -> out (N, E), 0
        beyond the rows; or out (B, E) of the states chosen (B,), one of each row.

        layers: (L, ADDRESSES). tiles: memory for the four matrices of a layer. states: (N, E), for
        those between layers; it may be x, and out if nothing is chosen.

        options and memory have the order of the fields of `Options` and `ChunkMemory`. They are
        plain tuples, because what Numba keeps on disk cannot be read any more after a class of its
        arguments has another name.
        """
        if key != 0:
            of_chunk = ChunkMemory(*memory)
            of_layers = Options(*options)
            _run_layers(x, starts, chosen, layers, of_layers, of_chunk, tiles, states, out)

    return run_layers


run_layers = _compiled(_new_run_layers, source_hash(*SOURCES))
