"""What the tests of objectives share."""

from __future__ import annotations

from typing import Any

import torch

from trifold.batches import BatchSettings
from trifold.generate import GenerationConfig
from trifold.nn import ModelConfig, Transformer
from trifold.objectives.evaluation import EvalContext


def random_model(config: ModelConfig) -> Transformer:
    """Every parameter random, so that no zero hides an error."""
    torch.manual_seed(3)
    model = Transformer(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def eval_context(tokens: int = 40, **changes: Any) -> EvalContext:
    """Options of a validation in batches of `tokens` tokens."""
    usual = {
        "batches": BatchSettings(tokens=tokens),
        "generation": GenerationConfig(),
        "samples": 2,
        "seed": 1,
    }
    return EvalContext(**usual | {"poll": lambda: None} | changes)  # type: ignore[arg-type]
