"""Models of natural size whose every parameter is random, so that no rule can hide behind a zero or a one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from trifold.nn import ModelConfig, Transformer


def _randomised(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)


@pytest.fixture
def randomised() -> Callable[[torch.nn.Module], None]:
    return _randomised


@pytest.fixture
def make_model() -> Callable[..., Transformer]:
    """A small model in evaluation mode with the given values in its config."""

    def make(**values: object) -> Transformer:
        small = {
            "vocab_size": 31,
            "max_positions": 48,
            "d_model": 16,
            "n_layers": 2,
            "n_heads": 4,
            "d_ff": 24,
        }
        model = Transformer(ModelConfig.parse(small | values)).eval()
        _randomised(model)
        return model

    return make
