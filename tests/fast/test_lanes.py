"""Operations on lanes, which each instruction set does in its own way, are those of NumPy."""

import numpy as np
import pytest
import torch
from numba import njit

from trifold.fast import as_array, lanes
from trifold.fast.instruction_sets import SETS, instruction_set
from trifold.fast.lanes import LANES, load_float, new_tile, place, store_float

FOUND = instruction_set() or SETS[0]
pytestmark = pytest.mark.skipif(
    instruction_set() is None, reason="there are no loops on lanes for this processor"
)


@njit
def store_rounded(x, out):
    lanes.store_bfloat16(place(out, 0, 0), load_float(place(x, 0, 0)))


@njit
def power_of_two(x, out):
    store_float(place(out, 0, 0), lanes.exp2(load_float(place(x, 0, 0))))


def test_numbers_are_rounded_to_bfloat16_as_by_pytorch() -> None:
    bits = [0x3F800000, 0x3F808000, 0x3F808001, 0x3F818000, 0x3F817FFF, 0xBF808001, 0x00000000]
    bits += [0x80000000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x7FC00000, 0x7F800001, 0xFFFFFFFF]
    x = np.array([[*bits, 0x3F80C000, 0x41234567]], np.uint32).view(np.float32)
    out = np.zeros((1, LANES), np.uint16)
    store_rounded(x, out)
    got = torch.from_numpy(out.view(np.int16)).view(torch.bfloat16)
    expected = torch.from_numpy(x).bfloat16()
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


def test_exp2() -> None:
    x = np.array([[0, -0.25, -0.5, -0.75, -1, -7.3, -60, -100.5, -125.5, -126, -500]], np.float32)
    x = np.concatenate([x, [[-np.inf, np.nan, -1e-6, -3, -17]]], 1, dtype=np.float32)
    out = np.zeros_like(x)
    power_of_two(x, out)
    expected = np.exp2(np.maximum(x.astype(np.float64), -126))
    np.testing.assert_allclose(out, expected, rtol=4e-6, atol=1.2e-38)


tile = new_tile(FOUND.queries, 1)


@njit
def multiply(a, packed, out):
    stride = a.shape[1] * a.itemsize
    step = 4 * LANES
    tile(a, place(a, 0, 0), stride, place(packed, 0, 0), 0, packed.shape[0], place(out, 0, 0), step)


def products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The sums (R, LANES) of a tile: rows a (R, K) times b (LANES, K)."""
    out = np.zeros((len(a), LANES), np.uint32)
    multiply(a, np.ascontiguousarray(b.view(np.uint32).T), out)
    return out


def test_the_largest_sums_of_integers_are_exact() -> None:
    kind = np.dtype(FOUND.products["int8"])
    inputs = FOUND.most_inputs // 4 * 4
    generator = np.random.default_rng(1)
    a = generator.integers(0, FOUND.steps + 3, (FOUND.queries, inputs)).astype(kind)
    b = generator.integers(-127, 128, (LANES, inputs)).astype(f"i{kind.itemsize}")
    a[0], b[0], b[1] = FOUND.steps + 2, 127, -127
    exact = a.astype(np.int64) @ b.astype(np.int64).T
    assert exact.max() > 2**31 - 2**22
    assert np.array_equal(products(a, b).view(np.int32), exact)


@pytest.mark.parametrize("name", [each for each in FOUND.products if each != "int8"])
def test_products_of_floats(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    dtype = getattr(torch, name)
    a, b = (torch.randn(rows, 40, generator=generator).to(dtype) for rows in (FOUND.queries, LANES))
    got = products(as_array(a), as_array(b)).view(np.float32)
    np.testing.assert_allclose(got, a.double() @ b.double().T, rtol=1e-5, atol=1e-5)
