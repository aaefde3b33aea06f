"""Random models and evaluation contexts for the tests of objectives."""

from __future__ import annotations

from typing import Any

import torch
from tests.models import add_noise

from trifold.batches import BatchSettings
from trifold.generate import GenerationConfig
from trifold.nn import ModelConfig, Transformer
from trifold.objectives.evaluation import EvalContext


def random_model(config: ModelConfig) -> Transformer:
    """The same model every time; every parameter is random, so that no zero hides an error."""
    torch.manual_seed(3)
    model: Transformer = add_noise(Transformer(config), 0.2)
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
