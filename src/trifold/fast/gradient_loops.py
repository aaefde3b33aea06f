"""The gradients of a weight and of a bias in bf16, as one compiled function.

The gradient gᵀ · x of a weight is a matmul over tokens, of which the processor multiplies pairs.
oneDNN first transposes a matrix. Here the words of two tokens are made from rows as they lie, for a
block of tokens at a time, so that they stay in the second-level cache.

Products are of bf16; sums over all tokens are in fp32 and rounded once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from trifold.fast.attention_loops import leaf
from trifold.fast.block_loops import OPTIONS, function
from trifold.fast.lanes import (
    LANES,
    VECTOR,
    fill,
    load,
    load_float,
    new_tile,
    place,
    store_bfloat16,
    store_float,
    store_pairs,
)
from trifold.fast.loops import Array, F
from trifold.fast.sources import source_hash

ROWS, VECTORS = 8, 2  # of a tile: 16 of the 32 registers hold its sums
COLUMNS = VECTORS * LANES  # a multiple of them are the columns of both matrices
PAIRS = 128  # of tokens in a block
CAPACITY = (
    PAIRS + 1
)  # for which memory is: the words of a pair do not compete for a line of a cache

tile = new_tile(ROWS, VECTORS, transposed=True, adds=True)


@function
def _new_words(columns: int) -> Any:
    """Memory (columns / 16, CAPACITY, 16) for words, aligned to registers."""
    count = columns * CAPACITY
    memory = np.empty(count + LANES, np.uint32)
    first = (-memory.ctypes.data % VECTOR) // 4
    return memory[first : first + count].reshape((columns // LANES, CAPACITY, LANES))


@leaf
def _set_words(x: Any, start: int, count: int, zeros: Any, words: Any) -> None:
    """x[start : start + count] -> words (columns / 16, CAPACITY, 16), each of two tokens."""
    stride = 2 * x.shape[1]
    size = VECTOR * words.shape[1]
    for pair in range((count + 1) // 2):
        source = place(x, start + 2 * pair, 0)
        target = words.ctypes.data + VECTOR * pair
        is_whole = 2 * pair + 1 < count
        for _ in range(words.shape[0]):
            store_pairs(target, source, source + stride if is_whole else zeros.ctypes.data)
            source += 2 * LANES
            target += size


@leaf
def _add_rows(g: Any, start: int, count: int, total: Any) -> None:
    """total (N,) fp32 += the sum of g[start : start + count]."""
    stride = 2 * g.shape[1]
    for column in range(0, g.shape[1], LANES):
        target = total.ctypes.data + 4 * column
        source = place(g, start, column)
        even = load_float(target)
        odd = fill(F(0))
        for _ in range(count // 2):
            even = even + load(g, source)
            odd = odd + load(g, source + stride)
            source += 2 * stride
        if count % 2:
            even = even + load(g, source)
        store_float(target, even + odd)


@leaf
def _add_products(g: Any, g_words: Any, x_words: Any, pairs: int, total: Any) -> None:
    """total (N, K) fp32 += the products of the words of a block."""
    outputs, inputs = total.shape
    g_address = g_words.ctypes.data
    x_address = x_words.ctypes.data
    size = VECTOR * CAPACITY
    for column in range(0, inputs, COLUMNS):
        b = x_address + size * (column // LANES)
        for row in range(0, outputs, ROWS):
            a = g_address + size * (row // LANES) + 4 * (row % LANES)
            tile(g, a, VECTOR, b, size, pairs, place(total, row, column), 4 * inputs)


@function
def _run(g: Any, x: Any, d_weight: Any, d_bias: Any) -> None:
    tokens, outputs = g.shape
    inputs = x.shape[1]
    total = np.zeros((outputs, inputs), F)
    g_words = _new_words(outputs)
    x_words = _new_words(inputs)
    zeros = np.zeros(LANES, np.uint16)
    d_bias[:] = 0
    for start in range(0, tokens, 2 * PAIRS):
        count = min(2 * PAIRS, tokens - start)
        _set_words(g, start, count, zeros, g_words)
        _set_words(x, start, count, zeros, x_words)
        if d_bias.shape[0]:
            _add_rows(g, start, count, d_bias)
        _add_products(g, g_words, x_words, (count + 1) // 2, total)
    for row in range(outputs):
        for column in range(0, inputs, LANES):
            sums = load_float(place(total, row, column))
            store_bfloat16(place(d_weight, row, column), sums)


# --- compilation ----------------------------------------------------------------------------------

SOURCES = (
    "gradient_loops",
    "attention_loops",
    "block_loops",
    "instruction",
    "instruction_sets",
    "lanes",
    "loops",
    "query_tile",
)


def _new_weight_gradient(key: int) -> Any:
    def weight_gradient(g: Array, x: Array, d_weight: Array, d_bias: Array) -> None:
        """The gradient g (R, N) of outputs, and inputs x (R, K), N and K multiples of COLUMNS, ->
        d_weight (N, K) = gᵀ · x, and the sums d_bias (N,) of g in fp32, (0,) if there is no bias.
        """
        if key != 0:
            _run(g, x, d_weight, d_bias)

    return weight_gradient


# See `block_loops`.
weight_gradient = njit(**OPTIONS, cache=True)(_new_weight_gradient(source_hash(*SOURCES)))
