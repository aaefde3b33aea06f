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


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_fifty_steps_are_the_formulas_of_the_papers(make, gradients, optimizer, weight_decay):
    """Kingma & Ba 2015, algorithm 1, with the weight decay of Loshchilov & Hutter 2019, algorithm 2, in float64."""
    on = {"weight_decay_on": "everything"} if optimizer == "adamw" else {}
    weights, ours = make(optimizer, weight_decay=weight_decay, beta1=0.8, beta2=0.98, epsilon=1e-3, **on)
    w = weights.master.double()
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for t, (gradient, rate) in enumerate(zip(gradients(weights, 50), RATES, strict=True), start=1):
        g = gradient.double()
        m, v = 0.8 * m + 0.2 * g, 0.98 * v + 0.02 * g**2
        w = w - rate * (m / (1 - 0.8**t) / ((v / (1 - 0.98**t)).sqrt() + 1e-3) + weight_decay * w)
        ours.step(gradient, rate)
    torch.testing.assert_close(weights.master.double(), w, rtol=1e-5, atol=1e-6)
    for kind, expected in (("exp_avg", m), ("exp_avg_sq", v)):
        for name, value in weights.named(expected).items():
            found = ours.state[f"{kind}.{name}"].double()
            torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-6)
