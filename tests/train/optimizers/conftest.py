"""A small decoder, its flat weights, and gradients that are given rather than learnt."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from trifold.nn import ModelConfig, Transformer
from trifold.recipe import TrainSettings
from trifold.train.optimizers import Optimizer, create_optimizer
from trifold.train.trainer import FlatWeights

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


@pytest.fixture
def make() -> Callable[..., tuple[FlatWeights, Optimizer]]:
    """Fresh weights, always the same, and an optimiser by name over them."""

    def make(
        optimizer: str, *, dtype: torch.dtype = torch.float32, **values: object
    ) -> tuple[FlatWeights, Optimizer]:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            weights = FlatWeights(Transformer(CONFIG), dtype)
        settings = TrainSettings.parse({"optimizer": optimizer, "learning_rate": 0.01} | values)
        return weights, create_optimizer(weights, settings)

    return make


@pytest.fixture
def gradients() -> Callable[..., list[torch.Tensor]]:
    """As many flat gradients as asked for, of sizes that vary over the steps and over the parameters."""

    def gradients(weights: FlatWeights, steps: int) -> list[torch.Tensor]:
        sizes = torch.cat(
            [
                torch.full((value.numel(),), 10.0 ** (number % 4 - 2), dtype=weights.master.dtype)
                for number, value in enumerate(weights.named(weights.master).values())
            ]
        )
        drawn = torch.Generator().manual_seed(5)
        return [
            torch.randn(sizes.shape, generator=drawn) * sizes * 3 ** (step % 3 - 1) for step in range(steps)
        ]

    return gradients


@pytest.fixture
def oracle() -> Callable[..., None]:
    """Let library optimisers, each with its parameters by name, make the same steps; gives all parameters."""

    def follow(
        optimizers: list[tuple[torch.optim.Optimizer, dict[str, torch.nn.Parameter]]],
        weights: FlatWeights,
        steps: list[torch.Tensor],
        rates: list[float],
    ) -> None:
        for gradient, rate in zip(steps, rates, strict=True):
            named = weights.named(gradient)
            for optimizer, parameters in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = rate
                for name, parameter in parameters.items():
                    parameter.grad = named[name].clone()
                optimizer.step()

    return follow
