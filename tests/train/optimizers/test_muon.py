from __future__ import annotations

import pytest
import torch
from tests.train.optimizers.oracles import slowly_orthogonal

from trifold.train.muon import SCALES

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


def by_the_book(weight, slopes, rates, scale, polynomial, iterations):
    x, momentum = weight.double(), torch.zeros_like(weight, dtype=torch.float64)
    for gradient, rate in zip(slopes, rates, strict=True):
        momentum = 0.95 * momentum + 0.05 * gradient.double()
        update = slowly_orthogonal(0.95 * momentum + 0.05 * gradient.double(), polynomial, iterations)
        x = x - rate * 0.1 * x - rate * scale * update
    return x


@pytest.mark.parametrize(
    ("scale", "polynomial", "iterations"),
    [
        *((scale, "jordan", 5) for scale in SCALES),
        ("match-rms", "jordan", 3),
        ("original", "polar-express", 2),
    ],
)
def test_fifty_steps_in_fp32_are_the_formula(make, gradients, scale, polynomial, iterations):
    settings = {"muon_scale": scale, "muon_polynomial": polynomial, "muon_iterations": iterations}
    weights, ours = make("muon", weight_decay=0.1, muon_rate=2.0, **settings)
    start = {n: v.clone() for n, v in hidden_of(weights).items()}
    steps = gradients(weights, 50)
    for gradient, rate in zip(steps, RATES, strict=True):
        ours.step(gradient, rate)
    for name, value in hidden_of(weights).items():
        n, m = value.shape
        factor = {"match-rms": 0.2 * max(n, m) ** 0.5, "original": max(1, n / m) ** 0.5, "none": 1}[scale]
        slopes = [weights.named(gradient)[name] for gradient in steps]
        wanted = by_the_book(
            start[name], slopes, [2 * rate for rate in RATES], factor, polynomial, iterations
        )
        torch.testing.assert_close(value.double(), wanted, rtol=1e-3, atol=1e-4)


def test_the_rest_moves_as_adamw_moves_it(make, gradients):
    (first, muon), (second, adamw) = make("muon", weight_decay=0.1), make("adamw", weight_decay=0.1)
    for gradient in gradients(first, 5):
        muon.step(gradient, 0.01)
        adamw.step(gradient, 0.01)
    ours, theirs = first.named(first.master), second.named(second.master)
    hidden = set(hidden_of(first))
    assert all(torch.equal(ours[name], theirs[name]) == (name not in hidden) for name in ours)


def test_what_has_no_gradient_only_decays(make):
    weights, ours = make("muon", weight_decay=0.1)
    before = weights.master.clone()
    ours.step(torch.zeros_like(before), 0.01)
    start, found = weights.named(before), weights.named(weights.master)
    for name in hidden_of(weights):
        torch.testing.assert_close(found[name], start[name] * (1 - 0.01 * 0.1))
