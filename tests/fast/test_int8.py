"""Matrices of one byte a weight: near, exact where they can be, and read as any other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trifold.fast import int8
from trifold.fast.int8 import Int8
from trifold.fast.linear import activation_linear, linear, linears, stacked
from trifold.nn.layers import Linear


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**31), st.floats(1e-6, 1e6))
def test_no_weight_is_off_by_more_than_half_a_step(rows: int, width: int, seed: int, size: float) -> None:
    matrix = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * size
    small = Int8.of(matrix)
    assert small.values.dtype is torch.int8 and int(small.values.abs().max()) <= 127
    assert bool(((small.wide() - matrix).abs() <= 0.5001 * small.scales[:, None]).all())
    assert torch.equal(Int8.of(small.wide()).values, small.values)  # rounding twice is rounding once


def test_rows_of_zeros_stay_zeros() -> None:
    matrix = torch.zeros(3, 4)
    matrix[1] = torch.tensor([0.0, -2.0, 1.0, 0.5])
    small = Int8.of(matrix)
    assert torch.equal(small.wide()[0], torch.zeros(4)) and float(small.wide()[1, 1]) == -2.0


def test_a_large_matrix_is_rounded_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = torch.randn(50, 7)
    whole = Int8.of(matrix)
    monkeypatch.setattr(int8, "PORTION", 30)
    assert torch.equal(Int8.of(matrix).values, whole.values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_read_as_its_full_twin(dtype: torch.dtype) -> None:
    small = Int8.of(torch.randn(13, 8).to(dtype))
    x, bias, numbers = (
        torch.randn(2, 7, 8).to(dtype),
        torch.randn(13).to(dtype),
        torch.tensor([[3, 12], [0, 3]]),
    )
    assert small.wide().dtype is small.rows(numbers).dtype is dtype
    assert torch.equal(small.rows(numbers), small.wide()[numbers])
    wide = small.values.double() * small.scales.double()[:, None]
    theirs = x.double() @ wide.T
    limit = 1e-5 if dtype is torch.float32 else 3e-2
    assert torch.allclose(linear(x, small).double(), theirs, atol=limit * float(theirs.abs().max()))
    assert linear(x, small, bias).dtype is dtype


def test_layers_side_by_side() -> None:
    layers = [Linear(8, 5), Linear(8, 3)]
    for layer in layers:
        torch.nn.init.normal_(layer.weight)
        torch.nn.init.normal_(layer.bias)
        small = Int8.of(layer.weight)
        del layer.weight
        layer.weight = small
    x = torch.randn(70, 8)
    alone = [layer(x) for layer in layers]
    assert all(torch.equal(a, b) for a, b in zip(linears(x, layers), alone, strict=True))
    assert torch.equal(stacked(x, layers), torch.cat(alone, -1))


def test_gradients_flow_through_it_of_an_activation_too() -> None:
    layer = Linear(8, 5)
    torch.nn.init.normal_(layer.bias)
    del layer.weight
    layer.weight = small = Int8.of(torch.randn(5, 8))
    x = torch.randn(3, 8, requires_grad=True)
    y = activation_linear(layer, torch.nn.functional.gelu, x)
    twin = torch.nn.functional.gelu(x) @ small.wide().T + layer.bias
    torch.testing.assert_close(y, twin)
    ours, theirs = (torch.autograd.grad(each.square().sum(), x)[0] for each in (y, twin))
    torch.testing.assert_close(ours, theirs)
