"""Codes of blocks to numbers, by every instruction set of this processor."""

import numpy as np
import pytest
import torch
from tests.fast.test_block_tile import KINDS, weight_of

from trifold.fast.block_weight import LEVELS

pytest.importorskip("numba", reason="the compiled loops need numba: `make setup` installs it")

from numba import njit

from trifold.fast.block_decode import new_decoder
from trifold.fast.block_tile import BLOCK_INSTRUCTIONS, supported_instructions

STRIDE = 24  # numbers from a column to the next


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("instructions", supported_instructions())
def test_numbers_are_codes_times_scales_plus_offsets(
    instructions: str, kind: str, dtype: torch.dtype
) -> None:
    generator = np.random.default_rng(0)
    codes = generator.integers(0, 2 ** KINDS[kind].bits, (16, 1, 32))
    scales, offsets = generator.standard_normal((2, 16)).astype(np.float32)
    scales[3], offsets[5] = np.array([-1, 0x7FFFFFFF], np.int32).view(np.float32)  # NaN
    scales[7], offsets[9] = np.inf, -np.inf
    scales[11], offsets[11] = 1, 256  # ties in bf16
    weight = weight_of(codes, scales[:, None], offsets[:, None], kind)
    numbers = np.array(LEVELS)[codes] + 128 if KINDS[kind].has_levels else codes
    with np.errstate(invalid="ignore"):
        expected = numbers[:, 0].T.astype(np.float32) * scales + offsets
    tile = BLOCK_INSTRUCTIONS[instructions].code
    decode = new_decoder(KINDS[kind], rounds=dtype is torch.bfloat16, tile=tile)

    @njit
    def compiled(block, scales, offsets, out, stride):  # type: ignore[no-untyped-def]
        decode(block, scales, offsets, out, stride)

    out = torch.zeros(32, STRIDE, dtype=dtype)
    places = [scales.ctypes.data, offsets.ctypes.data, out.data_ptr()]
    compiled(weight.values.data_ptr(), *places, out.itemsize * STRIDE)
    wanted = torch.from_numpy(expected).to(dtype)
    torch.testing.assert_close(out[:, :16], wanted, rtol=0, atol=0, equal_nan=True)
    assert not out[:, 16:].any(), "numbers after those of a column"
