"""Which parameters are trained, and their learning rates: frozen parts, and decay from layer to layer."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch

from trifold.errors import SettingsError
from trifold.nn import ModelConfig, Transformer
from trifold.recipe import TrainSettings
from trifold.settings import similar


def freeze(model: Transformer, patterns: Sequence[str]) -> None:
    """Exclude the parameters that a pattern matches, by their name or by that of a part they belong to, from training.

    Raises SettingsError if a pattern matches none, or if none is left.
    """
    parameters = dict(model.named_parameters())
    for pattern in patterns:
        found = [name for name in parameters if any(fnmatchcase(name, p) for p in (pattern, f"{pattern}.*"))]
        if not found:
            known = dict(model.named_modules()) | parameters
            near = similar(pattern, known, 0.4) or f"; parts: {', '.join(dict(model.named_children()))}"
            raise SettingsError(f"train.freeze: no parameter matches {pattern!r}{near}")
        for name in found:
            parameters[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise SettingsError("train.freeze: no parameter is left to train; freeze fewer parts")


def rate_factors(model: Transformer, decay: float) -> dict[str, float]:
    """Name -> factor of the learning rate: decay^(n − i) in layer i = 0 … n − 1 of a stack, decay^(n + 1) in its
    embeddings, and 1 after its layers (Clark et al. 2020, as numbered by Bao et al. 2022). A block of several layers
    counts as the last one. Empty for decay 1.
    """
    depths: dict[str, int] = {}
    for side in ("encoder", "decoder"):
        if decay < 1 and (stack := getattr(model, side)) is not None:
            n = len(stack.order)
            depths |= {f"{side}.blocks.{block}.": n - layer for layer, block in enumerate(stack.order)}
            depths[f"{side}_embeddings."] = n + 1
    names = [name for name, _ in model.named_parameters()]
    return {name: decay**n for name in names for part, n in depths.items() if name.startswith(part)}


def count_trained(config: ModelConfig, settings: TrainSettings) -> int:
    """The number of trained parameters of such a model."""
    with torch.device("meta"):
        model = Transformer(config)
    freeze(model, settings.freeze)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
