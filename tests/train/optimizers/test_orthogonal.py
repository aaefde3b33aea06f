from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st
from tests.train.optimizers.oracles import best_quintics, slowly_orthogonal

from trifold.recipe import TrainSettings
from trifold.train.muon import POLYNOMIALS, orthogonalize

SHAPES = [(6, 6), (4, 7), (9, 4), (3, 20), (1, 5)]


def test_the_recipe_knows_the_polynomials():
    assert set(TrainSettings.model_fields["muon_polynomial"].annotation.__args__) == set(POLYNOMIALS)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("iterations", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", POLYNOMIALS)
def test_products_are_the_polynomial_of_the_singular_values(name, iterations, shape):
    x = torch.randn(3, *shape, dtype=torch.float64) * torch.tensor([1e-6, 1.0, 1e6]).view(3, 1, 1)
    found = orthogonalize(x, POLYNOMIALS[name], iterations)
    wanted = torch.stack([slowly_orthogonal(one, name, iterations) for one in x])
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "iterations"), [("jordan", 5), ("polar-express", 2)])
def test_the_singular_vectors_stay_and_the_values_come_near_one(name, iterations, shape, dtype):
    x = torch.randn(3, *shape)
    found = orthogonalize(x.to(dtype), POLYNOMIALS[name], iterations).float()
    for before, after in zip(x, found, strict=True):
        u, s, v = torch.linalg.svd(before, full_matrices=False)
        inner = u.T @ after @ v.T
        off = inner - torch.diag(inner.diagonal())
        assert float(off.abs().max()) < (1e-4 if dtype is torch.float32 else 0.1)
        strong = s > 0.1 * s.max()  # five steps lift by 3.4445⁵ at most
        assert bool((inner.diagonal()[strong] > 0.5).all() and (inner.diagonal() < 1.45).all())


@pytest.mark.parametrize("iterations", [1, 2, 3, 4, 5])
def test_polar_express_is_the_best_of_so_many_steps(iterations):
    low, high = 1e-5, 0.9
    while high / low > 1 + 1e-9:  # the smallest value that ends within 0.7 … 1.3
        middle = math.sqrt(low * high)
        low, high = (low, middle) if best_quintics(iterations, middle)[1] < 0.3 else (middle, high)
    wanted, _ = best_quintics(iterations, high)
    for ours, best in zip(POLYNOMIALS["polar-express"].steps(iterations), wanted, strict=True):
        assert ours == pytest.approx(best, abs=2e-5)
    assert high == pytest.approx([0.15964, 0.03988, 0.00964, 0.00232, 0.00056][iterations - 1], rel=0.01)


@given(
    values=st.lists(st.floats(0, 1) | st.sampled_from([0.0, 1e-6, 1.0]), min_size=1, max_size=12).filter(any),
    iterations=st.integers(1, 5),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    along_axes=st.booleans(),
)
def test_no_value_runs_away_whatever_the_matrix(values, iterations, dtype, along_axes):
    """Above 1 the first quintic is steep, and each is above what the one before may leave."""
    n = len(values)
    u = (
        torch.eye(n) if along_axes else torch.linalg.qr(torch.randn(n, n))[0]
    )  # where no rounding averages out
    for m in (n, n + 3, 4 * n):
        v = torch.linalg.qr(torch.randn(m, n))[0]
        x = (u @ torch.diag(torch.tensor(values)) @ v.T).to(dtype)
        for matrix in (x, x.mT):
            found = orthogonalize(matrix[None], POLYNOMIALS["polar-express"], iterations)[0]
            assert float(torch.linalg.matrix_norm(found.float(), 2)) < (
                1.31 if dtype is torch.float32 else 1.45
            )


def test_two_steps_of_polar_express_do_what_three_of_jordans_do():
    """Of values that fall as a momentum's do, over two and some powers of ten."""
    u, v = (torch.linalg.qr(torch.randn(96, 96))[0] for _ in range(2))
    x = (u @ torch.diag(torch.logspace(0, -2.2, 96)) @ v)[None]

    def nearness(name: str, iterations: int) -> float:
        """The cosine between what was found and the orthogonal matrix."""
        found = orthogonalize(x, POLYNOMIALS[name], iterations)[0]
        return float((found * (u @ v)).sum() / found.norm() / math.sqrt(96))

    assert nearness("jordan", 2) + 0.1 < nearness("polar-express", 2)
    assert nearness("polar-express", 2) == pytest.approx(nearness("jordan", 3), abs=0.02)


@pytest.mark.parametrize("name", POLYNOMIALS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_stays_nothing(name, dtype):
    assert not orthogonalize(torch.zeros(2, 3, 8, dtype=dtype), POLYNOMIALS[name], 2).any()
