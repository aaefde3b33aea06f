"""Matrices in 16 bits of computations in float32: the products are those of their values."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.laws.operations import lower_thresholds
from torch import Tensor
from torch.nn import functional as F

from trifold import fast
from trifold.fast import layers
from trifold.fast.half_weight import STORED, HalfWeight
from trifold.fast.instruction import FEW_WIDENED_ROWS
from trifold.nn import ops

FEW = (1, 2, 3, 4, 5, 8, 9, 16, FEW_WIDENED_ROWS)  # rows that an instruction multiplies
MANY = (FEW_WIDENED_ROWS + 1, 64)
EXACT = 1e-6  # of the largest value
# Of `dot_product`, of `dot_rows`, of tiles of some rows, and of none of them.
WIDTHS = (64, 4160, 48, 41)

pytestmark = pytest.mark.parametrize("stored", STORED, ids=str)


def new_weight(outputs: int, inputs: int, stored: torch.dtype) -> tuple[HalfWeight, Tensor]:
    """A matrix in 16 bits, and its values in float32."""
    values = torch.randn(outputs, inputs).to(stored)
    return HalfWeight(values, torch.float32), values.float()


def assert_near(found: Tensor, expected: Tensor, limit: float = EXACT) -> None:
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= limit * expected.abs().max()


@pytest.mark.parametrize("inputs", WIDTHS)
@pytest.mark.parametrize("rows", [*FEW, *MANY])
@pytest.mark.parametrize("is_fast", [True, False])
def test_products_are_those_of_the_values(
    rows: int, inputs: int, is_fast: bool, stored: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_fast:
        pytest.importorskip("numba")
    lower_thresholds(monkeypatch)
    runs = list[int]()
    run = layers.execute_one
    monkeypatch.setattr(layers, "execute_one", lambda **fields: runs.append(rows) or run(**fields))
    weight, values = new_weight(37, inputs, stored)
    x, bias = torch.randn(2, rows, inputs)[:1], torch.randn(37)
    fast.enable()
    with torch.no_grad():
        if is_fast:
            found = ops.linear(x, weight, bias)  # type: ignore[arg-type]
        else:
            with fast.disabled():
                found = ops.linear(x, weight, bias)  # type: ignore[arg-type]
    assert runs == [rows] * (is_fast and rows in FEW)
    assert found.dtype is torch.float32
    assert_near(found.double(), F.linear(x.double(), values.double(), bias.double()))


@pytest.mark.parametrize("rows", [1, 9])
def test_each_number_of_16_bits_has_its_value(
    stored: torch.dtype, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    lower_thresholds(monkeypatch)
    numbers = torch.arange(2**16).to(torch.uint16).view(stored)
    numbers = torch.where(numbers.isnan(), torch.nan, numbers)
    fast.enable()
    for width in (64, 32, 1):  # whole vectors, and single numbers
        weight = HalfWeight(numbers.view(-1, width), torch.float32)
        table = numbers.view(-1, width).float()
        for column in {0, width - 1}:
            # Infinite numbers times 0 are NaN, also in the other columns of a row.
            x = torch.zeros(rows, width)
            x[:, column] = 1
            with torch.no_grad():
                found = ops.linear(x, weight)  # type: ignore[arg-type]
            expected = table[:, column].where(table.isfinite().all(1), torch.nan)
            if width == 1:
                expected = table[:, column]
            assert torch.equal(found[0].nan_to_num(7.5), expected.nan_to_num(7.5))


def test_rows_and_values_are_exact(stored: torch.dtype) -> None:
    weight, values = new_weight(37, 40, stored)
    indices = torch.tensor([[3, 36], [0, 3]])
    assert torch.equal(weight.dequantize(), values)
    assert torch.equal(F.embedding(indices, weight), values[indices])  # type: ignore[arg-type]
    assert (weight.shape, len(weight)) == ((37, 40), 37)
    assert str(weight).endswith("(37 x 40 in 16 bits)")


def test_gradients_pass_through(stored: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    lower_thresholds(monkeypatch)
    weight, values = new_weight(37, 40, stored)
    x = torch.randn(3, 5, 40, requires_grad=True)
    found, expected = (
        torch.autograd.grad(F.linear(x, matrix, None).square().sum(), x)[0]  # type: ignore[arg-type]
        for matrix in (weight, values)
    )
    assert_near(found, expected, 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_values_keep_their_type_when_the_model_gets_another(
    dtype: torch.dtype, stored: torch.dtype
) -> None:
    weight, values = new_weight(37, 40, stored)
    moved = copy.deepcopy(weight).to(dtype)
    assert moved.values.dtype is stored
    assert torch.equal(moved.values, weight.values)
    assert moved.dequantize().dtype is moved.dtype is dtype
    x = torch.randn(12, 40, dtype=dtype)
    found = moved.linear(x, None)
    assert found.dtype is dtype
    assert_near(found.double(), x.double() @ values.double().T, 2**-7)
    assert torch.equal(moved.float().dequantize(), values)
