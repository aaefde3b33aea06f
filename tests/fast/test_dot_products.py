"""Matmuls of bf16 weights by an instruction: a row at a time, wide rows together, and tiles."""

import pytest
import torch

from trifold.fast import compiled_interpreter, thread_pool

if compiled_interpreter() is None:
    pytest.skip("Numba is not installed", allow_module_level=True)

from trifold.fast.dot_products import HAS_PAIRS, PAIRS, STEP, WIDE

# Those of `dot_product`, of `dot_rows`, of tiles only, and of none.
WIDTHS = (2 * STEP, WIDE + STEP, STEP + PAIRS, STEP + 5)
OUTPUTS = 86  # no multiple of the rows that are read together


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x (R, K) · weight (N, K)ᵀ by an instruction."""
    out = torch.full((len(x), len(weight)), torch.nan)
    thread_pool.execute_one(**thread_pool.matmul_fields(weight), rows=len(x), x=x, out=out)
    return out


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8])
def test_bf16_weights_times_rows_are_exact_to_rounding(rows: int, width: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(OUTPUTS, width, generator=generator).bfloat16()
    x = torch.randn(rows, width, generator=generator).bfloat16().float()
    exact = x.double() @ weight.double().t()
    assert torch.allclose(product(x, weight).double(), exact, rtol=0, atol=2e-6 * width)


def test_several_rows_are_rounded_to_bf16_and_one_row_is_not() -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(OUTPUTS, 2 * STEP, generator=generator).bfloat16()
    x = torch.randn(4, 2 * STEP, generator=generator)
    exact = x.double() @ weight.double().t()
    rounded = x.bfloat16().double() @ weight.double().t()
    one = torch.cat([product(row[None], weight) for row in x])
    assert torch.allclose(one.double(), exact, rtol=0, atol=1e-4)
    # Outputs that are not in a tile are computed in fp32.
    tiled = product(x, weight)[:, : OUTPUTS // 4 * 4].double()
    expected = rounded if HAS_PAIRS else exact
    assert torch.allclose(tiled, expected[:, : OUTPUTS // 4 * 4], rtol=0, atol=1e-4)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("rows", [1, 4])
def test_values_that_are_not_finite_stay_in_their_row(rows: int, value: float) -> None:
    weight = torch.ones(OUTPUTS, 2 * STEP).bfloat16()
    x = torch.ones(rows, 2 * STEP)
    x[0, 7] = value
    out = product(x, weight)
    assert not out[0].isfinite().any()
    assert bool((out[1:] == 2 * STEP).all())
