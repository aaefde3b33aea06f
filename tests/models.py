"""Tiny models: their sizes, and random parameters, so that no zero hides an error."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

# What a test adds to these sizes is what it is about.
TWO_LAYERS = {"d_model": 16, "n_layers": 2, "n_heads": 4, "d_ff": 24}
ONE_LAYER = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 24}


def randomize(module: Any, std: float = 1.0) -> Any:
    """The module with all parameters drawn from N(0, std²)."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=std)
    return module


def add_noise(model: Any, std: float) -> Any:
    """The model in evaluation mode, with N(0, std²) added to its initial parameters."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * std)
    return model.eval()
