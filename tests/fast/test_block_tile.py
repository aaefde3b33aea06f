"""The inner loop of matmuls with weights in blocks, by every instruction set of this processor."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from trifold.fast.block_weight import LEVELS, BlockWeight, pack_codes
from trifold.fast.instruction import (
    BLOCK4,
    BLOCK4_LEVELS,
    BLOCK4_OFFSETS,
    BLOCK5,
    BLOCK5_OFFSETS,
    BLOCK6,
    BLOCK8,
    BLOCK_KINDS,
)

pytest.importorskip("numba", reason="the compiled loops need numba: `make setup` installs it")

from numba import njit

from trifold.fast.block_tile import BLOCK_INSTRUCTIONS, supported_instructions

BLOCKS = 3
LARGEST = 127 * 256 + 127
KINDS = {
    "8 bits": BLOCK_KINDS[BLOCK8],
    "6 bits": BLOCK_KINDS[BLOCK6],
    "5 bits": BLOCK_KINDS[BLOCK5],
    "5 bits with offsets": BLOCK_KINDS[BLOCK5_OFFSETS],
    "4 bits": BLOCK_KINDS[BLOCK4],
    "4 bits with offsets": BLOCK_KINDS[BLOCK4_OFFSETS],
    "levels": BLOCK_KINDS[BLOCK4_LEVELS],
}
Array = NDArray[Any]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("instructions", supported_instructions())
def test_the_sums_of_a_block_are_exact(instructions: str, kind: str) -> None:
    generator = np.random.default_rng(0)
    bits, has_offsets, has_levels = KINDS[kind]
    codes = generator.integers(0, 2**bits, (16, BLOCKS, 32))
    codes[3] = 2**bits - 1
    # Powers of two: a product with them is not rounded.
    scales, offsets = np.exp2(generator.integers(-3, 4, (2, 16, BLOCKS)))
    weight = weight_of(codes, scales, offsets, kind)
    values = np.array(LEVELS)[codes] + 128 if has_levels else codes
    multiply = tiles_of(instructions, kind)
    for rows in (1, 2, 4, 8):
        x = generator.integers(-LARGEST, LARGEST + 1, (rows, BLOCKS, 32))
        x[-1] = -LARGEST - 1
        terms = generator.integers(-(2**20), 2**20, (rows, BLOCKS))
        # Only one block of a row is not 0, so that a sum is rounded once.
        others = np.arange(rows)[:, None] % BLOCKS != np.arange(BLOCKS)
        x[others] = 0
        terms[others] = 0
        x_scales = np.exp2(generator.integers(-9, 1, (rows, BLOCKS)))
        sums = np.einsum("nbk,rbk->rnb", values, x)
        if not has_offsets:
            sums += terms[:, None]
        expected = (sums.astype(np.float32) * scales * x_scales[:, None]).sum(-1)
        if has_offsets:
            expected += (offsets * terms[:, None]).sum(-1)
        out = multiply(weight, x, x_scales, terms)
        np.testing.assert_array_equal(out, expected.astype(np.float32))


def weight_of(codes: Array, scales: Array, offsets: Array, kind: str) -> BlockWeight:
    """The matrix of this kind (16, 32 · blocks), of codes (16, blocks, 32)."""
    bits, has_offsets, has_levels = KINDS[kind]
    packed = torch.from_numpy(codes).to(torch.uint8)
    if bits < 8:
        packed = pack_codes(packed, bits)
    halves = [torch.from_numpy(each).half() for each in (scales, offsets)]
    return BlockWeight.from_codes(
        packed,
        halves[0],
        halves[1] if has_offsets else None,
        has_levels=has_levels,
    )


def tiles_of(instructions: str, kind: str) -> Callable[..., Array]:
    """A function of a weight, integers (rows, blocks, 32), scales and terms (rows, blocks) that
    returns their products (rows, 16) fp32.
    """
    own = BLOCK_INSTRUCTIONS[instructions]
    store = own.store
    tile = own.new_tile(KINDS[kind])

    @njit
    def compiled(v, s, numbers, x, x_scales, terms, out):  # type: ignore[no-untyped-def]
        rows, blocks, width = numbers.shape
        for row in range(rows):
            for block in range(blocks):
                start = numbers.ctypes.data + 4 * width * (row * blocks + block)
                store(x + 64 * (row * blocks + block), start, np.float32(1))
        tile(rows, v, s, blocks, x, x_scales, terms, out, 64)

    def multiply(weight: BlockWeight, numbers: Array, x_scales: Array, terms: Array) -> Array:
        x = np.zeros((*numbers.shape[:2], 64), np.uint8)
        out = np.zeros((len(numbers), 16), np.float32)
        x_scales = x_scales.astype(np.float32)
        terms = terms.astype(np.float32 if KINDS[kind].has_offsets else np.int32)
        floats = numbers.astype(np.float32)
        places = [each.ctypes.data for each in (x, x_scales, terms, out)]
        compiled(weight.values.data_ptr(), weight.scales.data_ptr(), floats, *places)
        return out

    return multiply
