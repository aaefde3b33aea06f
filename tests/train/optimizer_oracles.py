"""A small model with given gradients, and references for its optimizers: PyTorch's, singular
values, Remez.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from trifold.nn import ModelConfig, Transformer
from trifold.recipe import TrainSettings
from trifold.train.flat_weights import FlatWeights
from trifold.train.muon import POLYNOMIALS
from trifold.train.optimizers import Optimizer, create_optimizer

CONFIG = ModelConfig.parse(
    {
        "shape": "decoder",
        "vocab_size": 13,
        "max_positions": 9,
        "positions": "learned",
        "d_model": 8,
        "n_layers": 2,
        "n_heads": 2,
        "d_ff": 20,
        "attention_bias": True,
        "tie_lm_head": False,
    }
)


def make_optimizer(
    optimizer: str, *, dtype: torch.dtype = torch.float32, **values: object
) -> tuple[FlatWeights, Optimizer]:
    """The same initial weights every time, and an optimizer for them."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        weights = FlatWeights(Transformer(CONFIG), dtype)
    settings = TrainSettings.parse({"optimizer": optimizer, "learning_rate": 0.01} | values)
    return weights, create_optimizer(weights, settings)


def draw_gradients(weights: FlatWeights, steps: int) -> list[Tensor]:
    """Flat gradients whose scale varies over the steps and over the parameters."""
    named = weights.named(torch.ones_like(weights.master)).values()
    scales = torch.cat(
        [10.0 ** (number % 4 - 2) * value.flatten() for number, value in enumerate(named)]
    )
    rng = torch.Generator().manual_seed(5)
    return [
        torch.randn(scales.shape, generator=rng) * scales * 3 ** (step % 3 - 1)
        for step in range(steps)
    ]


def copy_parameters(weights: FlatWeights) -> dict[str, nn.Parameter]:
    """The parameters of a library optimizer."""
    return {
        name: nn.Parameter(value.clone()) for name, value in weights.named(weights.master).items()
    }


def decay_groups(
    parameters: Mapping[str, nn.Parameter], decay: float, decays: Callable[[str, Tensor], bool]
) -> list[dict[str, object]]:
    """Parameter groups of a library optimizer: those with weight decay and those without."""
    groups = [
        {
            "params": [p for n, p in parameters.items() if decays(n, p) == side],
            "weight_decay": value,
        }
        for side, value in ((True, decay), (False, 0.0))
    ]
    return [group for group in groups if group["params"]]


def step_all(
    weights: FlatWeights,
    ours: Optimizer,
    library: Sequence[tuple[torch.optim.Optimizer, Mapping[str, nn.Parameter]]],
    rates: Sequence[float],
) -> None:
    """One step per rate of our optimizer and of library optimizers, with the same gradients."""
    for gradient, rate in zip(draw_gradients(weights, len(rates)), rates, strict=True):
        named = weights.named(gradient)
        for optimizer, parameters in library:
            for group in optimizer.param_groups:
                group["lr"] = rate
            for name, parameter in parameters.items():
                parameter.grad = named[name].clone()
            optimizer.step()
        ours.step(gradient, rate)


def orthogonalize_by_svd(x: Tensor, name: str, iterations: int) -> Tensor:
    """The polynomial of the singular values of x (n, m), computed with a singular value
    decomposition.
    """
    u, s, v = torch.linalg.svd(x.double(), full_matrices=False)
    s = s / (s.pow(8).sum() ** (1 / 8) if name == "polar-express" else s.norm())
    for a, b, c in POLYNOMIALS[name](iterations):
        s = a * s + b * s**3 + c * s**5
    return u @ torch.diag(s) @ v


def best_quintic(lowest: float, highest: float) -> tuple[tuple[float, float, float], float]:
    """The a x + b x³ + c x⁵ closest to 1 on lowest … highest, and its largest distance (Remez
    1934).
    """
    q, r = (3 * lowest + highest) / 4, (lowest + 3 * highest) / 4
    for _ in range(40):
        x = np.array([lowest, q, r, highest])
        a, b, c, error = np.linalg.solve(
            np.stack([x, x**3, x**5, [1, -1, 1, -1]], axis=1), np.ones(4)
        )
        q, r = np.sqrt((-3 * b + np.array([-1, 1]) * np.sqrt(9 * b * b - 20 * a * c)) / (10 * c))
    return (float(a), float(b), float(c)), float(error)


def best_quintics(iterations: int, lowest: float) -> tuple[list[tuple[float, float, float]], float]:
    """The best quintics in sequence from lowest … 1, each with 2 % of room above; and the last
    distance from 1.
    """
    found, highest = [], 1.0
    for _ in range(iterations):
        quintic, error = best_quintic(lowest, 1.02 * highest)
        found.append(quintic)
        lowest, highest = 1 - error, 1 + error
    return found, error
