"""Attention of a decoding step as an instruction, beside the definition."""

import pytest
import torch
from torch import Tensor

from trifold.fast import compiled_interpreter, instruction as ins, thread_pool

if compiled_interpreter() is None:
    pytest.skip("Numba is not installed", allow_module_level=True)

from trifold.fast import step_attention
from trifold.fast.instruction_sets import has_panels

ROWS, HEADS, KV_HEADS = 2, 6, 2
CAPACITY = 70  # keys in the cache, of which the last ones are not there yet


def attention(queries: Tensor, keys: Tensor, values: Tensor, length: int) -> Tensor:
    """By an instruction: queries (R, H, D), keys and values (R, KV, CAPACITY, D) -> (R, H, D)."""
    width = queries.shape[2]
    out = torch.full_like(queries, torch.nan)
    names = ("row_stride", "head_stride", "key_stride")
    strides = dict(zip(names, keys.stride(), strict=False))
    sizes = {"rows": ROWS, "heads": HEADS, "kv_heads": KV_HEADS, "width": width, "beams": 1}
    thread_pool.execute_one(
        **{"opcode": ins.ATTENTION, "dtype": thread_pool.DTYPES[keys.dtype], "scale": 0.3},
        **{"x": queries, "keys": keys, "values": values, "out": out, "length": length},
        **{**sizes, **strides, "units": ROWS * KV_HEADS},
    )
    return out


# Lanes in groups of 4, single ones, both, and numbers that do not fill lanes.
@pytest.mark.parametrize("width", [64, 16, 80, 24])
@pytest.mark.parametrize("length", [1, 3, 4, 57])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_is_exact_to_rounding(width: int, length: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(width + length)
    queries = torch.randn(ROWS, HEADS, width, generator=generator)
    stored = torch.randn(2, ROWS, KV_HEADS, CAPACITY, width, generator=generator).to(dtype)
    stored[:, :, :, length:] = torch.nan
    keys, values = (
        each[:, :, :length].double().repeat_interleave(HEADS // KV_HEADS, dim=1) for each in stored
    )
    scores = 0.3 * queries.double()[:, :, None] @ keys.transpose(2, 3)
    exact = (scores.softmax(-1) @ values)[:, :, 0]
    torch.testing.assert_close(
        attention(queries, *stored, length).double(), exact, rtol=0, atol=1e-5
    )


@pytest.mark.skipif(not has_panels(), reason="lanes are used on processors with AVX2 only")
def test_lanes_are_used() -> None:
    assert step_attention.score_keys is step_attention._dot_products_on_lanes
    assert step_attention.add_values is step_attention._weighted_sum_on_lanes
