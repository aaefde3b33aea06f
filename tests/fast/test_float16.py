"""Numbers in fp32 are rounded to fp16 as by the reference."""

import numpy as np
import pytest

numba = pytest.importorskip("numba")
loops = pytest.importorskip("trifold.fast.loops", reason="needs numba")


@numba.njit(error_model="numpy")  # not `loops.loop`, whose code on disk may be that of another one
def round_all(x, out):
    for place in range(x.size):
        out[place] = loops.float_to_half(x[place])


def test_every_kind_of_number_is_rounded_to_nearest_even() -> None:
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    between = (halves[1:] + halves[:-1]) / 2
    near = [np.nextafter(between, np.float32(end)) for end in (-np.inf, np.inf)]
    large = np.float32([65504, 65519.996, 65520, 65536, 3e38, np.inf, 1e-8, 1e-45])
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    x = np.concatenate([halves, between, *near, large, bits.view(np.float32)])
    x = np.concatenate([x, -x])
    found = np.empty(len(x), np.uint16)
    round_all(x, found)
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    is_number = ~np.isnan(x)
    np.testing.assert_array_equal(found[is_number], expected.view(np.uint16)[is_number])
    assert np.isnan(found.view(np.float16)[~is_number]).all()
