"""The product of a few rows, such as queries, with many columns, such as keys; and the softmax of
scores.
"""

from typing import Any

import numpy as np
from numba import njit

from trifold.fast.instruction_sets import SETS, instruction_set
from trifold.fast.lanes import (
    LANES,
    VECTOR,
    exp2,
    fill,
    first_lanes,
    largest_of,
    load_float,
    maximum,
    multiply_add,
    new_tile,
    store,
    sum_of,
)
from trifold.fast.loops import F

_SET = instruction_set() or SETS[0]
QUERIES = _SET.queries  # rows of a tile

inline = njit(nogil=True, error_model="numpy", inline="always")
single_tile = new_tile(QUERIES, 1)
double_tile = new_tile(QUERIES, 2)  # more rows than AVX2 has registers for


@inline
def multiply_single_blocks(
    like: Any, a: Any, a_stride: Any, b: Any, b_stride: Any, words: Any, blocks: Any, out: Any
) -> None:
    """QUERIES rows at address a times blocks of 16 columns -> out (QUERIES, …), fp32 at an address.

    like: an array of the type of the numbers. out: the address and the stride of its rows.
    """
    address, stride = out
    for block in range(blocks):
        at = address + 4 * LANES * block
        single_tile(like, a, a_stride, b + b_stride * block, b_stride, words, at, stride)


@inline
def multiply_double_blocks(
    like: Any, a: Any, a_stride: Any, b: Any, b_stride: Any, words: Any, blocks: Any, out: Any
) -> None:
    """`multiply_single_blocks`, two blocks at a time."""
    address, stride = out
    for block in range(0, blocks - 1, 2):
        at = address + 4 * LANES * block
        double_tile(like, a, a_stride, b + b_stride * block, b_stride, words, at, stride)
    if blocks % 2:
        block = blocks - 1
        at = address + 4 * LANES * block
        single_tile(like, a, a_stride, b + b_stride * block, b_stride, words, at, stride)


multiply_blocks = {1: multiply_single_blocks, 2: multiply_double_blocks}[_SET.vectors]


@inline
def softmax(like: Any, scores: Any, weights: Any, visible: Any, vectors: Any, scale: Any) -> Any:
    """weights = 2^(scale · scores + shift), where the shift makes the largest 1; 0 from key number
    `visible` on. Returns the shift and 1 / the sum of the weights.

    scores: fp32 at an address, so many registers. weights: an address; like: an array of their
    type.
    """
    highest = fill(F(-np.inf))
    for vector in range(vectors):
        score = load_float(scores + VECTOR * vector)
        highest = maximum(first_lanes(score, visible - LANES * vector, highest), highest)
    shift = -scale * largest_of(highest)
    total = fill(F(0))
    for vector in range(vectors):
        power = multiply_add(load_float(scores + VECTOR * vector), fill(scale), fill(shift))
        weight = first_lanes(exp2(power), visible - LANES * vector, fill(F(0)))
        total = total + weight
        store(like, weights + like.itemsize * LANES * vector, weight)
    return shift, F(1) / sum_of(total)
