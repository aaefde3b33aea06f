from __future__ import annotations

import pytest
import torch

RATES = [0.01 / (1 + step % 7) for step in range(50)]


def parameters_of(weights):
    return {n: torch.nn.Parameter(v.clone()) for n, v in weights.named(weights.master).items()}


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize(
    ("on", "decays"),
    [
        (None, lambda name, value: value.dim() >= 2),
        ("matrices", lambda name, value: value.dim() >= 2),
        ("everything", lambda name, value: True),
        ("hidden", lambda name, value: name.endswith("_proj.weight")),
    ],
)
def test_fifty_steps_are_the_librarys(make, gradients, oracle, weight_decay, on, decays):
    weights, ours = make("adamw", weight_decay=weight_decay, weight_decay_on=on, beta2=0.95, epsilon=1e-8)
    theirs = parameters_of(weights)
    groups = [
        {"params": [p for n, p in theirs.items() if decays(n, p)], "weight_decay": weight_decay},
        {"params": [p for n, p in theirs.items() if not decays(n, p)], "weight_decay": 0.0},
    ]
    library = torch.optim.AdamW(
        [group for group in groups if group["params"]], betas=(0.9, 0.95), eps=1e-8, foreach=False
    )
    steps = gradients(weights, 50)
    oracle([(library, theirs)], weights, steps, RATES)
    for gradient, rate in zip(steps, RATES, strict=True):
        ours.step(gradient, rate)
    found = weights.named(weights.master)
    for name, parameter in theirs.items():
        torch.testing.assert_close(found[name], parameter.detach(), rtol=1e-5, atol=1e-6)


def test_adam_is_the_librarys_adam_over_fifty_steps(make, gradients, oracle):
    weights, ours = make("adam")
    theirs = parameters_of(weights)
    library = torch.optim.Adam(theirs.values(), betas=(0.9, 0.98), eps=1e-9, foreach=False)
    steps = gradients(weights, 50)
    oracle([(library, theirs)], weights, steps, RATES)
    for gradient, rate in zip(steps, RATES, strict=True):
        ours.step(gradient, rate)
    found = weights.named(weights.master)
    for name, parameter in theirs.items():
        torch.testing.assert_close(found[name], parameter.detach(), rtol=1e-5, atol=1e-6)


def test_without_decay_adam_and_adamw_are_one(make, gradients):
    (first, adam), (second, adamw) = make("adam"), make("adamw")
    for gradient in gradients(first, 5):
        adam.step(gradient, 0.01)
        adamw.step(gradient, 0.01)
    torch.testing.assert_close(first.master, second.master, rtol=1e-6, atol=1e-7)
    kept = {name: value for name, value in adam.state.items() if name != "step"}
    for name, value in kept.items():
        torch.testing.assert_close(adamw.state[name], value, rtol=1e-6, atol=1e-9)
