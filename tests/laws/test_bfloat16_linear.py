"""Linear layers in bf16 compute what the definition does in training: outputs, and gradients by the
loops and by oneDNN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
from tests.laws.models import relative_error
from torch import Tensor
from torch.nn import functional as F

from trifold.fast import bfloat16_linear, compiled_gradients, has_instructions
from trifold.fast.bfloat16_linear import (
    adds_bias,
    parameter_gradients,
    supports_parameter_gradients,
    supports_trained_linear,
)
from trifold.nn import ops

pytestmark = [
    pytest.mark.parametrize("operations", ["fast"], indirect=True),
    pytest.mark.skipif(
        compiled_gradients() is None or not has_instructions("bfloat16") or not adds_bias(),
        reason="the processor lacks instructions, or numba is not installed",
    ),
]
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "dense": Tensor.contiguous,
    "transposed": lambda x: x.mT.contiguous().mT,
    "columns": lambda x: F.pad(x, (1, 3))[..., 1:-3],
}


def tensors(rows: tuple[int, ...], outputs: int, inputs: int) -> list[Tensor]:
    """x, weight, bias and the gradient of the outputs."""
    generator = torch.Generator().manual_seed(5)
    shapes = ((*rows, inputs), (outputs, inputs), (outputs,), (*rows, outputs))
    return [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]


def with_gradients(
    linear: Callable[..., Tensor], values: list[Tensor], view: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """The outputs, and the gradients of x, weight and bias, of views of x and of the gradient."""
    *values, g = values
    leaves = [each.clone().requires_grad_() for each in values]
    y = linear(view(leaves[0]), *leaves[1:])
    return [y.detach(), *torch.autograd.grad(y, leaves, view(g))]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_outputs_and_gradients_equal_the_definition(layout: str, operations: str) -> None:
    """Also of one row, odd numbers of rows, and more than a block; of sizes for the loops, and of
    others.
    """
    view = LAYOUTS[layout]
    rows = ((9,), (2, 5), (33,), (255,), (3, 257))
    for shape, (outputs, inputs) in product(rows, [(32, 64), (96, 32), (32, 31), (7, 32)]):
        values = tensors(shape, outputs, inputs)
        assert supports_trained_linear(values[0].requires_grad_(), *values[1:3])
        values[0] = values[0].detach()
        exact = with_gradients(F.linear, [each.double() for each in values], view)
        for got, expected in zip(with_gradients(ops.linear, values, view), exact, strict=True):
            assert got.dtype is torch.bfloat16
            assert relative_error([got], [expected]) < 3e-3


def test_the_loops_are_as_exact_as_one_rounding(operations: str) -> None:
    """Sums over all rows are rounded once."""
    *_, g = tensors((3001,), 64, 32)
    x = tensors((3001,), 1, 32)[0]
    d_weight, d_bias = parameter_gradients(g, x, needs_bias=True)
    exact = g.double().t() @ x.double(), g.double().sum(0)
    for got, expected in zip((d_weight, d_bias), exact, strict=True):
        torch.testing.assert_close(got.double(), expected, rtol=2**-8, atol=1e-3)
    alone, none = parameter_gradients(g, x, needs_bias=False)
    assert torch.equal(alone, d_weight) and none is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_values_propagate(bad: float, operations: str) -> None:
    for name in ("x", "g"):
        x, _, _, g = tensors((41,), 64, 32)
        (x if name == "x" else g)[40, 5] = bad
        d_weight, d_bias = parameter_gradients(g, x, needs_bias=True)
        place = d_weight[:, 5] if name == "x" else d_weight[5]
        assert not place.isfinite().any()
        assert d_bias is not None and d_bias.isfinite().all() == (name == "x")
        others = d_weight.isfinite().sum()
        assert others == d_weight.numel() - place.numel()


def test_frozen_parameters(operations: str) -> None:
    """Only what is needed is saved and computed."""
    x, weight, bias, g = tensors((70,), 32, 64)
    for needed in product([False, True], repeat=3):
        leaves = [
            each.clone().requires_grad_(needs)
            for each, needs in zip((x, weight, bias), needed, strict=True)
        ]
        y = ops.linear(*leaves)
        saved = getattr(y.grad_fn, "saved_tensors", ())
        assert [each is not None for each in saved] == list(reversed(needed[:2])) * bool(saved)
        if any(needed):
            y.backward(g)
        assert [each.grad is not None for each in leaves] == list(needed)


def test_second_derivatives(operations: str) -> None:
    """They are those of the definition, because the loops have none."""
    *values, g = tensors((70,), 32, 64)

    def second(linear: Callable[..., Tensor], *values: Tensor) -> list[Tensor]:
        leaves = [each.clone().requires_grad_() for each in values]
        y = linear(*leaves)
        first = torch.autograd.grad(y, leaves, g.to(y.dtype) * y, create_graph=True)
        return list(torch.autograd.grad(sum(each.square().sum() for each in first), leaves))

    got = second(ops.linear, *values)
    exact = second(F.linear, *(each.double() for each in values))
    assert relative_error(got, exact) < 2e-2


def test_which_layers(operations: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias, g = tensors((70,), 32, 64)
    weight.requires_grad_()
    assert supports_trained_linear(x, weight, bias)
    assert not supports_trained_linear(x[:8], weight, bias), "few rows"
    assert not supports_trained_linear(x.float(), weight, bias)
    assert not supports_trained_linear(x, weight, bias.float())
    assert not supports_trained_linear(x, weight.detach(), bias), "no gradient"
    with torch.no_grad():
        assert not supports_trained_linear(x, weight, bias)
        assert supports_parameter_gradients(g, x)
        assert not supports_parameter_gradients(g[:, :31], x)
        monkeypatch.setattr(bfloat16_linear, "MAX_WEIGHTS", 32 * 64 - 1)
        assert not supports_parameter_gradients(g, x)
    monkeypatch.undo()
    assert not supports_parameter_gradients(g, x), "a graph of gradients"
