from __future__ import annotations

import pytest
import torch

from trifold.train.adam import Adam

SIZES = [(3, 5), (7,), (2, 2, 2)]


def gradients(steps: int) -> list[list[torch.Tensor]]:
    return [[torch.randn(size) * 10 ** (step % 3 - 1) for size in SIZES] for step in range(steps)]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_one_flat_vector_is_updated_as_the_library_updates_each_parameter(weight_decay):
    parameters = [torch.nn.Parameter(torch.randn(size)) for size in SIZES]
    master = torch.cat([p.detach().flatten() for p in parameters])
    betas, epsilon = (0.9, 0.98), 1e-9
    oracle = torch.optim.AdamW(
        parameters, lr=0.0, betas=betas, eps=epsilon, weight_decay=weight_decay, foreach=False
    )
    ours = Adam(master, betas, epsilon, weight_decay)
    for step, each in enumerate(gradients(20)):
        rate = 0.01 / (step + 1)
        for parameter, gradient in zip(parameters, each, strict=True):
            parameter.grad = gradient
        oracle.param_groups[0]["lr"] = rate
        oracle.step()
        ours.step(torch.cat([gradient.flatten() for gradient in each]), rate)
    assert torch.allclose(master, torch.cat([p.detach().flatten() for p in parameters]), rtol=1e-5, atol=1e-7)
    assert ours.state["step"] == 20


def test_without_decay_it_is_the_formula_of_the_paper():
    master = torch.zeros(1)
    ours = Adam(master, (0.9, 0.98), 1e-9, 0.0)
    weight = mean = square = 0.0
    for step, gradient in enumerate((0.3, -0.7, 0.2), start=1):
        mean, square = 0.9 * mean + 0.1 * gradient, 0.98 * square + 0.02 * gradient**2
        weight -= 0.01 * (mean / (1 - 0.9**step)) / ((square / (1 - 0.98**step)) ** 0.5 + 1e-9)
        ours.step(torch.tensor([gradient]), 0.01)
    assert master.item() == pytest.approx(weight, rel=1e-5)


def test_restored_moments_go_on_bit_by_bit():
    master = torch.randn(11)
    one = Adam(master, (0.9, 0.98), 1e-9, 0.01)
    steps = [torch.randn(11) for _ in range(6)]
    for gradient in steps[:3]:
        one.step(gradient, 0.1)
    copy = master.clone()
    two = Adam(copy, (0.9, 0.98), 1e-9, 0.01)
    two.restore({name: value.clone() for name, value in one.state.items()})
    for gradient in steps[3:]:
        one.step(gradient, 0.1)
        two.step(gradient, 0.1)
    assert torch.equal(master, copy)
    assert all(torch.equal(one.state[name], two.state[name]) for name in one.state)


def test_the_gradient_itself_is_left_alone():
    gradient = torch.randn(5)
    before = gradient.clone()
    Adam(torch.randn(5), (0.9, 0.98), 1e-9, 0.1).step(gradient, 0.1)
    assert torch.equal(gradient, before)
