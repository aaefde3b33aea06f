"""Attention of short packed rows in bf16 computes what the definition does: outputs and gradients,
of a row to itself, causal, and to a memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from tests.laws.models import relative_error
from torch import Tensor
from torch.nn import functional as F

from trifold.fast import attention, compiled_attention, has_instructions, short_attention
from trifold.nn.packing import Packing

pytestmark = [
    pytest.mark.parametrize("operations", ["fast"], indirect=True),
    pytest.mark.skipif(
        compiled_attention() is None or not has_instructions("bfloat16"),
        reason="the processor lacks instructions, or numba is not installed",
    ),
]
# Of queries and keys: odd and even, around the sizes of tiles and registers.
LENGTHS = (
    (1, 3),
    (2, 1),
    (7, 16),
    (8, 33),
    (9, 8),
    (16, 2),
    (17, 15),
    (31, 40),
    (33, 17),
    (128, 9),
)
HEADS = 2
KINDS = ("self", "causal", "cross")
kinds = pytest.mark.parametrize("kind", KINDS)
widths = pytest.mark.parametrize("width", [32, 96])


class Case:
    """Packed queries, keys and values in bf16 of rows of these lengths, and the gradient of the
    outputs.
    """

    def __init__(self, kind: str, width: int, lengths: Sequence[tuple[int, int]] = LENGTHS) -> None:
        generator = torch.Generator().manual_seed(3)
        self.kind = kind
        self.width = width
        self.queries = Packing.of(torch.tensor([length for length, _ in lengths]))
        self.keys = self.queries
        size = HEADS * width
        shapes = [(self.queries.length, 3 * size)]
        if kind == "cross":
            self.keys = Packing.of(torch.tensor([length for _, length in lengths]))
            shapes = [(self.queries.length, size), (self.keys.length, 2 * size)]
        self.packed = [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]
        self.gradient = torch.randn(self.queries.length, size, generator=generator).bfloat16()

    def compute(self) -> list[Tensor]:
        """The outputs, and the gradients of `packed`."""
        leaves = [each.clone().requires_grad_() for each in self.packed]
        out = attention.packed_attention(
            leaves[0],
            leaves[1] if self.kind == "cross" else None,
            self.queries,
            self.keys,
            self.width,
            causal=self.kind == "causal",
        )
        return [out.detach(), *torch.autograd.grad(out, leaves, self.gradient)]

    def exact(self) -> list[Tensor]:
        """The same by definition, in float64; 0 in padding."""
        leaves = [each.double().requires_grad_() for each in self.packed]
        size = HEADS * self.width
        parts = [part for leaf in leaves for part in leaf.split(size, 1)]
        rows = []
        for row in range(len(self.queries.starts) - 1):
            of_query = slice(*self.queries.starts[row : row + 2].tolist())
            of_key = slice(*self.keys.starts[row : row + 2].tolist())
            q, k, v = (
                part[place].unflatten(1, (HEADS, -1)).transpose(0, 1)
                for part, place in zip(parts, (of_query, of_key, of_key), strict=True)
            )
            found = F.scaled_dot_product_attention(q, k, v, is_causal=self.kind == "causal")
            rows.append(found.transpose(0, 1).flatten(1))
        padding = self.queries.length - self.queries.n_real
        out = F.pad(torch.cat(rows), (0, 0, 0, padding))
        return [out.detach(), *torch.autograd.grad(out, leaves, self.gradient.double())]


@kinds
@widths
def test_outputs_and_gradients_equal_the_definition(
    kind: str, width: int, operations: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As closely as with matmuls over all rows."""
    case = Case(kind, width)
    ours, exact = case.compute(), case.exact()
    monkeypatch.setattr(attention, "supports_short_attention", lambda *_: False)
    for got, other, expected in zip(ours, case.compute(), exact, strict=True):
        error = relative_error([got], [expected])
        assert error < 5e-3
        assert error < 1.1 * relative_error([other], [expected])


@kinds
def test_padding_is_zero(kind: str, operations: str) -> None:
    case = Case(kind, 32, [(3, 5), (4, 2)])
    out, *gradients = case.compute()
    assert not out[case.queries.n_real :].any()
    assert not gradients[0][case.queries.n_real :].any()
    assert not gradients[-1][case.keys.n_real :].any()


@kinds
def test_a_row_does_not_depend_on_others(kind: str, operations: str) -> None:
    case = Case(kind, 32)
    for row in (1, 4, 7):
        alone = Case(kind, 32, [LENGTHS[row]])
        of_query = slice(*case.queries.starts[row : row + 2].tolist())
        of_key = slice(*case.keys.starts[row : row + 2].tolist())
        for name, whole in (("packed", case.packed), ("gradient", [case.gradient])):
            own = alone.packed if name == "packed" else [alone.gradient]
            for target, source, place in zip(own, whole, (of_query, of_key), strict=False):
                target[: place.stop - place.start] = source[place]
        places = (of_query, of_query, of_key)
        for got, source, place in zip(alone.compute(), case.compute(), places, strict=False):
            assert torch.equal(got[: place.stop - place.start], source[place])


@kinds
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_values_stay_in_their_row(kind: str, bad: float, operations: str) -> None:
    case = Case(kind, 32, [(5, 6), (9, 3), (7, 7)])  # odd: a pair of queries has one
    states = case.packed[-1]
    place = slice(*case.keys.starts[1:3].tolist())
    states[place.start + 1, -1] = bad  # a value
    states[place.start + 1, -40 - 32 * HEADS] = bad  # a key
    out, *gradients = case.compute()
    rows = slice(*case.queries.starts[1:3].tolist())
    assert not out[rows][2:].isfinite().all()
    assert not gradients[-1][place].isfinite().all()
    for found, inside in ((out, rows), (gradients[0], rows), (gradients[-1], place)):
        assert found[: inside.start].isfinite().all()
        assert found[inside.stop :].isfinite().all()


def test_which_rows_are_short(operations: str, monkeypatch: pytest.MonkeyPatch) -> None:
    q = torch.zeros(200, 64, dtype=torch.bfloat16)
    short, long = (Packing.of(torch.tensor([length, 2])) for length in (128, 129))
    supports = short_attention.supports_short_attention
    assert supports(q, short, short, 32)
    assert not supports(q, short, long, 32)
    assert not supports(q, long, short, 32)
    assert not supports(q, short, short, 16)
    assert not supports(q.float(), short, short, 32)
    monkeypatch.setattr(short_attention, "has_instructions", lambda products: False)
    assert not supports(q, short, short, 32)
