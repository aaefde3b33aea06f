from __future__ import annotations

import pytest
import torch

from trifold.train.optimizers.muon import QUINTIC, SCALES, orthogonal

RATES = [0.02 / (1 + step % 7) for step in range(50)]


def hidden_of(weights):
    return {n: v for n, v in weights.named(weights.master).items() if n.endswith("_proj.weight")}


def follow_library(make, gradients, oracle, dtype, scale, **values):
    """Fifty steps of ours, and of the library's Muon beside its AdamW: ours, theirs, and where both began."""
    weights, ours = make("muon", dtype=dtype, weight_decay=0.1, muon_scale=scale, **values)
    start = {n: v.clone() for n, v in weights.named(weights.master).items()}
    theirs = {n: torch.nn.Parameter(v.clone()) for n, v in start.items()}
    matrices = {n: theirs[n] for n in hidden_of(weights)}
    rest = {n: p for n, p in theirs.items() if n not in matrices}
    adjust = {"match-rms": "match_rms_adamw", "original": "original"}[scale]
    muon = torch.optim.Muon(matrices.values(), weight_decay=0.1, momentum=0.95, adjust_lr_fn=adjust)
    groups = [
        {"params": [p for p in rest.values() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in rest.values() if p.dim() < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-9, foreach=False)
    steps = gradients(weights, 50)
    oracle([(muon, matrices), (adamw, rest)], weights, steps, RATES)
    for gradient, rate in zip(steps, RATES, strict=True):
        ours.step(gradient, rate)
    return weights, theirs, matrices, start


@pytest.mark.parametrize("scale", ["match-rms", "original"])
def test_fifty_steps_in_bf16_are_the_librarys(make, gradients, oracle, scale):
    weights, theirs, matrices, start = follow_library(make, gradients, oracle, torch.bfloat16, scale)
    assert len(matrices) == 12
    for name, value in weights.named(weights.master).items():
        wanted = theirs[name].detach()
        if name in matrices:  # products of three digits
            assert float((value - wanted).norm()) < 0.02 * float((wanted - start[name]).norm())
        else:
            torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-6)


def slowly_orthogonal(x: torch.Tensor, iterations: int) -> torch.Tensor:
    """The same polynomial of the singular values, by the singular values themselves."""
    a, b, c = QUINTIC
    u, s, v = torch.linalg.svd(x.double() / x.double().norm(), full_matrices=False)
    for _ in range(iterations):
        s = a * s + b * s**3 + c * s**5
    return u @ torch.diag(s) @ v


def by_the_book(weight, slopes, rates, scale, iterations):
    x, momentum = weight.double(), torch.zeros_like(weight, dtype=torch.float64)
    for gradient, rate in zip(slopes, rates, strict=True):
        momentum = 0.95 * momentum + 0.05 * gradient.double()
        update = slowly_orthogonal(0.95 * momentum + 0.05 * gradient.double(), iterations)
        x = x - rate * 0.1 * x - rate * scale * update
    return x


@pytest.mark.parametrize(("scale", "iterations"), [*((scale, 5) for scale in SCALES), ("match-rms", 3)])
def test_fifty_steps_in_fp32_are_the_formula(make, gradients, scale, iterations):
    weights, ours = make(
        "muon", weight_decay=0.1, muon_scale=scale, muon_rate=2.0, muon_iterations=iterations
    )
    start = {n: v.clone() for n, v in hidden_of(weights).items()}
    steps = gradients(weights, 50)
    for gradient, rate in zip(steps, RATES, strict=True):
        ours.step(gradient, rate)
    for name, value in hidden_of(weights).items():
        n, m = value.shape
        factor = {"match-rms": 0.2 * max(n, m) ** 0.5, "original": max(1, n / m) ** 0.5, "none": 1}[scale]
        slopes = [weights.named(gradient)[name] for gradient in steps]
        wanted = by_the_book(start[name], slopes, [2 * rate for rate in RATES], factor, iterations)
        torch.testing.assert_close(value.double(), wanted, rtol=1e-3, atol=1e-4)


def test_the_rest_moves_as_adamw_moves_it(make, gradients):
    (first, muon), (second, adamw) = make("muon", weight_decay=0.1), make("adamw", weight_decay=0.1)
    for gradient in gradients(first, 5):
        muon.step(gradient, 0.01)
        adamw.step(gradient, 0.01)
    ours, theirs = first.named(first.master), second.named(second.master)
    hidden = set(hidden_of(first))
    assert all(torch.equal(ours[name], theirs[name]) == (name not in hidden) for name in ours)


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4), (1, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_orthogonal_keeps_the_singular_vectors_and_brings_the_values_near_one(shape, dtype):
    x = torch.randn(3, *shape)
    found = orthogonal(x.to(dtype), 5).float()
    for before, after in zip(x, found, strict=True):
        u, s, v = torch.linalg.svd(before, full_matrices=False)
        inner = u.T @ after @ v.T
        off = inner - torch.diag(inner.diagonal())
        assert float(off.abs().max()) < (1e-4 if dtype is torch.float32 else 0.1)
        strong = s > 0.1 * s.max()  # five steps lift by 3.4445⁵ at most
        assert bool((inner.diagonal()[strong] > 0.5).all() and (inner.diagonal() < 1.4).all())


def test_what_has_no_gradient_only_decays(make):
    weights, ours = make("muon", weight_decay=0.1)
    before = weights.master.clone()
    ours.step(torch.zeros_like(before), 0.01)
    start, found = weights.named(before), weights.named(weights.master)
    for name in hidden_of(weights):
        torch.testing.assert_close(found[name], start[name] * (1 - 0.01 * 0.1))
