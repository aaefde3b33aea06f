"""Small models of natural size, every parameter random."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from trifold.fast import thread_pool
from trifold.nn import ModelConfig, Transformer


@pytest.fixture
def make_model() -> Callable[..., Transformer]:
    """A small model in evaluation mode with the given values in its config."""

    def make(**values: object) -> Transformer:
        small = {
            "vocab_size": 29,
            "max_positions": 40,
            "d_model": 16,
            "n_layers": 2,
            "n_heads": 4,
            "d_ff": 24,
        }
        model = Transformer(ModelConfig.parse(small | values)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        return model

    return make


@pytest.fixture
def small_products_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pool, "WORTH", 0)
