from __future__ import annotations

import numpy as np
import pytest
import torch

from trifold.train.optimizers import DECAY_EXPONENT, MIN_RMS, MIN_SQUARE

pytestmark = pytest.mark.slow

RATES = [0.05 / (1 + step % 7) for step in range(50)]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_fifty_steps_are_the_librarys(make, gradients, oracle, weight_decay):
    weights, ours = make("adafactor", weight_decay=weight_decay)
    theirs = {n: torch.nn.Parameter(v.clone()) for n, v in weights.named(weights.master).items()}
    groups = [
        {"params": [p for p in theirs.values() if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in theirs.values() if p.dim() < 2], "weight_decay": 0.0},
    ]
    library = torch.optim.Adafactor(groups, eps=(1e-15, MIN_RMS), d=1.0, foreach=False)
    steps = gradients(weights, 50)
    oracle([(library, theirs)], weights, steps, RATES)  # all below 1/√t, where the library leaves them alone
    for gradient, rate in zip(steps, RATES, strict=True):
        ours.step(gradient, rate)
    found = weights.named(weights.master)
    for name, parameter in theirs.items():
        torch.testing.assert_close(found[name], parameter.detach(), rtol=1e-4, atol=1e-6)


def by_the_book(weight, slopes, rates, *, relative, clip):
    """Algorithms 4 and 6 of the paper, with row and column sums as they stand there, in float64."""
    x = weight.double().numpy().copy()
    rows = columns = squares = 0.0
    for t, (gradient, rate) in enumerate(zip(slopes, rates, strict=True), start=1):
        g = gradient.double().numpy()
        beta = 1 - t**DECAY_EXPONENT
        v = g**2 + MIN_SQUARE
        if x.ndim == 2:
            rows = beta * rows + (1 - beta) * v.sum(1)
            columns = beta * columns + (1 - beta) * v.sum(0)
            u = g / np.sqrt(np.outer(rows, columns) / rows.sum())
        else:
            squares = beta * squares + (1 - beta) * v
            u = g / np.sqrt(squares)
        u /= max(1.0, np.sqrt((u**2).mean()) / clip)
        size = max(MIN_RMS, np.sqrt((x**2).mean())) if relative else 1.0
        x -= rate * size * u
    return torch.from_numpy(x)


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("clip", [1.0, 0.3])
def test_fifty_steps_are_the_papers(make, gradients, relative, clip):
    weights, ours = make("adafactor", relative_step=relative, update_clip=clip)
    steps = gradients(weights, 50)
    wanted = {
        name: by_the_book(value, [weights.named(g)[name] for g in steps], RATES, relative=relative, clip=clip)
        for name, value in weights.named(weights.master).items()
    }
    for gradient, rate in zip(steps, RATES, strict=True):
        ours.step(gradient, rate)
    for name, value in weights.named(weights.master).items():
        torch.testing.assert_close(value.double(), wanted[name], rtol=1e-4, atol=1e-5)


def test_a_matrix_is_remembered_by_its_rows_and_columns(make):
    weights, ours = make("adafactor")
    state = ours.state
    for name, value in weights.named(weights.master).items():
        if value.dim() == 2:
            n, m = value.shape
            assert (state[f"row.{name}"].shape, state[f"column.{name}"].shape) == ((n, 1), (1, m))
        else:
            assert state[f"square.{name}"].shape == value.shape
    assert sum(value.numel() for value in state.values()) < 0.4 * weights.master.numel()


def test_silence_beside_a_huge_gradient_gives_numbers(make):
    weights, ours = make("adafactor")
    before = {name: value.clone() for name, value in weights.named(weights.master).items()}
    gradient = torch.zeros_like(weights.master)
    for value in weights.named(gradient).values():
        value[0] = 1e12
    for _ in range(3):
        ours.step(gradient, 0.01)
    assert bool(weights.master.isfinite().all())
    for name, value in weights.named(weights.master).items():
        assert torch.equal(value[1:], before[name][1:])
        assert not torch.equal(value[0], before[name][0])
