from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st
from tests.train.optimizer_oracles import (
    best_quintics,
    copy_parameters,
    decay_groups,
    draw_gradients,
    make_optimizer,
    orthogonalize_by_svd,
    step_all,
)

from trifold.recipe import TrainSettings
from trifold.train.muon import POLYNOMIALS, SCALES, orthogonalize

RATES = [0.02 / (1 + step % 7) for step in range(50)]
SHAPES = [(6, 6), (4, 7), (9, 4), (3, 20), (1, 5)]

every_shape = pytest.mark.parametrize("shape", SHAPES)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
every_polynomial = pytest.mark.parametrize("name", POLYNOMIALS)


def hidden_matrices(weights):
    return {n: v for n, v in weights.named(weights.master).items() if n.endswith("_proj.weight")}


# --- the optimizer --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["match-rms", "original"])
def test_fifty_steps_in_bf16_equal_pytorch(scale):
    weights, ours = make_optimizer("muon", dtype=torch.bfloat16, weight_decay=0.1, muon_scale=scale)
    start, theirs = (copy_parameters(weights) for _ in range(2))
    matrices = {name: theirs[name] for name in hidden_matrices(weights)}
    assert len(matrices) == 12
    rest = {name: p for name, p in theirs.items() if name not in matrices}
    adjust = {"match-rms": "match_rms_adamw", "original": "original"}[scale]
    muon = torch.optim.Muon(matrices.values(), weight_decay=0.1, momentum=0.95, adjust_lr_fn=adjust)
    groups = decay_groups(rest, 0.1, lambda name, p: p.dim() >= 2)
    adamw = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-9, foreach=False)
    step_all(weights, ours, [(muon, matrices), (adamw, rest)], RATES)
    for name, value in weights.named(weights.master).items():
        expected = theirs[name].detach()
        if name in matrices:  # matmuls with three digits
            assert float((value - expected).norm()) < 0.02 * float(
                (expected - start[name].detach()).norm()
            )
        else:
            torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scale", "polynomial", "iterations"),
    [
        *((scale, "jordan", 5) for scale in SCALES),
        ("match-rms", "jordan", 3),
        ("original", "polar-express", 2),
    ],
)
def test_fifty_steps_in_fp32_equal_the_formula(scale, polynomial, iterations):
    settings = {"muon_scale": scale, "muon_polynomial": polynomial, "muon_iterations": iterations}
    weights, ours = make_optimizer("muon", weight_decay=0.1, muon_rate=2.0, **settings)
    start = copy_parameters(weights)
    step_all(weights, ours, [], RATES)
    gradients = [weights.named(gradient) for gradient in draw_gradients(weights, 50)]
    for name, value in hidden_matrices(weights).items():
        n, m = value.shape
        factor = {"match-rms": 0.2 * max(n, m) ** 0.5, "original": max(1, n / m) ** 0.5, "none": 1}[
            scale
        ]
        x, momentum = start[name].detach().double(), 0
        for gradient, rate in zip(gradients, RATES, strict=True):
            g = gradient[name].double()
            momentum = 0.95 * momentum + 0.05 * g
            update = orthogonalize_by_svd(0.95 * momentum + 0.05 * g, polynomial, iterations)
            x = x - 2 * rate * (0.1 * x + factor * update)
        torch.testing.assert_close(value.double(), x, rtol=1e-3, atol=1e-4)


def test_other_parameters_are_updated_by_adamw():
    (first, muon), (second, adamw) = (
        make_optimizer(name, weight_decay=0.1) for name in ("muon", "adamw")
    )
    for weights, optimizer in ((first, muon), (second, adamw)):
        step_all(weights, optimizer, [], [0.01] * 5)
    ours, theirs = first.named(first.master), second.named(second.master)
    hidden = hidden_matrices(first)
    assert all(torch.equal(ours[name], theirs[name]) == (name not in hidden) for name in ours)


def test_matrices_without_gradient_only_decay():
    weights, ours = make_optimizer("muon", weight_decay=0.1)
    start = copy_parameters(weights)
    ours.step(torch.zeros_like(weights.master), 0.01)
    for name, value in hidden_matrices(weights).items():
        torch.testing.assert_close(value, start[name].detach() * (1 - 0.01 * 0.1))


# --- orthogonalization ----------------------------------------------------------------------------


def test_recipe_accepts_every_polynomial():
    assert set(TrainSettings.model_fields["muon_polynomial"].annotation.__args__) == set(
        POLYNOMIALS
    )


@every_shape
@pytest.mark.parametrize("iterations", [1, 2, 3, 4, 5])
@every_polynomial
def test_orthogonalize_applies_the_polynomial_to_the_singular_values(name, iterations, shape):
    x = torch.randn(3, *shape, dtype=torch.float64) * torch.tensor([1e-6, 1.0, 1e6]).view(3, 1, 1)
    found = orthogonalize(x, name, iterations)
    expected = torch.stack([orthogonalize_by_svd(one, name, iterations) for one in x])
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


@every_shape
@every_dtype
@pytest.mark.parametrize(("name", "iterations"), [("jordan", 5), ("polar-express", 2)])
def test_singular_vectors_stay_and_singular_values_approach_one(name, iterations, shape, dtype):
    x = torch.randn(3, *shape)
    found = orthogonalize(x.to(dtype), name, iterations).float()
    for before, after in zip(x, found, strict=True):
        u, s, v = torch.linalg.svd(before, full_matrices=False)
        inner = u.T @ after @ v.T
        off = inner - torch.diag(inner.diagonal())
        assert float(off.abs().max()) < (1e-4 if dtype is torch.float32 else 0.1)
        strong = s > 0.1 * s.max()  # five steps multiply by at most 3.4445⁵
        assert bool((inner.diagonal()[strong] > 0.5).all() and (inner.diagonal() < 1.45).all())


@pytest.mark.slow
@pytest.mark.parametrize("iterations", [1, 2, 3, 4, 5])
def test_polar_express_has_the_best_quintics(iterations):
    low, high = 1e-5, 0.9
    while high / low > 1 + 1e-9:  # the smallest value that ends within 0.7 … 1.3
        middle = math.sqrt(low * high)
        low, high = (low, middle) if best_quintics(iterations, middle)[1] < 0.3 else (middle, high)
    expected, _ = best_quintics(iterations, high)
    for ours, best in zip(POLYNOMIALS["polar-express"](iterations), expected, strict=True):
        assert ours == pytest.approx(best, abs=2e-5)
    assert high == pytest.approx(
        [0.15964, 0.03988, 0.00964, 0.00232, 0.00056][iterations - 1], rel=0.01
    )


@pytest.mark.slow
@given(
    values=st.lists(
        st.floats(0, 1) | st.sampled_from([0.0, 1e-6, 1.0]), min_size=1, max_size=12
    ).filter(any),
    iterations=st.integers(1, 5),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    diagonal=st.booleans(),
)
def test_singular_values_of_polar_express_are_bounded(values, iterations, dtype, diagonal):
    """Above 1 the first quintic is steep, and the input of each may exceed 1."""
    n = len(values)
    u = (
        torch.eye(n) if diagonal else torch.linalg.qr(torch.randn(n, n))[0]
    )  # without cancelling rounding errors
    for m in (n, n + 3, 4 * n):
        v = torch.linalg.qr(torch.randn(m, n))[0]
        x = (u @ torch.diag(torch.tensor(values)) @ v.T).to(dtype)
        for matrix in (x, x.mT):
            found = orthogonalize(matrix[None], "polar-express", iterations)[0]
            norm = float(torch.linalg.matrix_norm(found.float(), 2))
            assert norm < (1.31 if dtype is torch.float32 else 1.45)


def test_two_steps_of_polar_express_equal_three_of_jordan():
    """For singular values over two powers of ten, as those of a momentum."""
    u, v = (torch.linalg.qr(torch.randn(96, 96))[0] for _ in range(2))
    x = (u @ torch.diag(torch.logspace(0, -2.2, 96)) @ v)[None]

    def nearness(name: str, iterations: int) -> float:
        """The cosine between the result and the orthogonal matrix."""
        found = orthogonalize(x, name, iterations)[0]
        return float((found * (u @ v)).sum() / found.norm() / math.sqrt(96))

    assert nearness("jordan", 2) + 0.1 < nearness("polar-express", 2)
    assert nearness("polar-express", 2) == pytest.approx(nearness("jordan", 3), abs=0.02)


@every_polynomial
@every_dtype
def test_zero_stays_zero(name, dtype):
    assert not orthogonalize(torch.zeros(2, 3, 8, dtype=dtype), name, 2).any()
