"""Matrices in bf16 of computations in float32: the products are those of their values."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.laws.operations import lower_thresholds
from torch import Tensor
from torch.nn import functional as F

from trifold import fast
from trifold.fast.bfloat16_weight import Bfloat16Weight
from trifold.nn import ops

FEW = (1, 2, 3, 4, 8)  # rows that an instruction multiplies
MANY = (9, 50)
EXACT = 1e-5  # of the largest value


def new_weight(outputs: int, inputs: int) -> tuple[Bfloat16Weight, Tensor]:
    """A matrix in bf16, and its values in float32."""
    values = torch.randn(outputs, inputs).bfloat16()
    return Bfloat16Weight(values, torch.float32), values.float()


def assert_near(found: Tensor, expected: Tensor, limit: float = EXACT) -> None:
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= limit * expected.abs().max()


@pytest.mark.parametrize("inputs", [64, 40])
@pytest.mark.parametrize("rows", [*FEW, *MANY])
@pytest.mark.parametrize("is_fast", [True, False])
def test_products_are_those_of_the_values(
    rows: int, inputs: int, is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_fast:
        pytest.importorskip("numba")
    lower_thresholds(monkeypatch)
    weight, values = new_weight(37, inputs)
    x, bias = torch.randn(2, rows, inputs)[:1], torch.randn(37)
    fast.enable()
    with torch.no_grad():
        if is_fast:
            found = ops.linear(x, weight, bias)
        else:
            with fast.disabled():
                found = ops.linear(x, weight, bias)
    assert found.dtype is torch.float32
    assert_near(found.double(), F.linear(x.double(), values.double(), bias.double()))


def test_rows_and_values_are_exact() -> None:
    weight, values = new_weight(37, 40)
    indices = torch.tensor([[3, 36], [0, 3]])
    assert torch.equal(weight.dequantize(), values)
    assert torch.equal(F.embedding(indices, weight), values[indices])  # type: ignore[arg-type]
    assert (weight.shape, len(weight)) == ((37, 40), 37)
    assert str(weight).endswith("(37 x 40 in 16 bits)")


def test_gradients_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    lower_thresholds(monkeypatch)
    weight, values = new_weight(37, 40)
    x = torch.randn(3, 5, 40, requires_grad=True)
    found, expected = (
        torch.autograd.grad(F.linear(x, matrix, None).square().sum(), x)[0]  # type: ignore[arg-type]
        for matrix in (weight, values)
    )
    assert_near(found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_values_keep_their_type_when_the_model_gets_another(dtype: torch.dtype) -> None:
    weight, values = new_weight(37, 40)
    moved = copy.deepcopy(weight).to(dtype)
    assert moved.values.dtype is torch.bfloat16
    assert torch.equal(moved.values, weight.values)
    assert moved.dequantize().dtype is moved.dtype is dtype
    x = torch.randn(12, 40, dtype=dtype)
    found = moved.linear(x, None)
    assert found.dtype is dtype
    assert_near(found.double(), x.double() @ values.double().T, 2**-7)
    assert torch.equal(moved.float().dequantize(), values)
