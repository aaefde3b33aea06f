"""Which parameters are trained, and their learning rates: frozen parts, and decay from layer to
layer.
"""

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch

from trifold.errors import SettingsError
from trifold.fast.int8 import Int8Weight
from trifold.nn import ModelConfig, Transformer
from trifold.nn.layers import Linear
from trifold.nn.lora import AdaptedLinear, LoRASettings
from trifold.recipe import TrainSettings
from trifold.settings import nearest

ADAPTED = ("q_proj", "v_proj", "kv_down")  # the layers with adapters by default


def freeze(model: Transformer, patterns: Sequence[str]) -> None:
    """Exclude the parameters that a pattern matches, by their name or by that of a part they belong
    to, from training.

    Raises SettingsError if a pattern matches none, or if none is left.
    """
    parameters = dict(model.named_parameters())
    for name in _select("train.freeze", patterns, parameters):
        parameters[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise SettingsError("train.freeze: no parameter is left to train; freeze fewer parts")


def _select(key: str, patterns: Sequence[str], names: Collection[str]) -> set[str]:
    """The names of which a pattern matches the whole, or some of the parts between dots."""
    selected: set[str] = set()
    for pattern in patterns:
        matching = {name for name in names if fnmatchcase(f".{name}.", f"*.{pattern}.*")}
        if not matching:
            known = {part for name in names for part in name.split(".")}
            near = nearest(pattern, [*known])
            raise SettingsError(f"{key}: no part of the model matches {pattern!r}{near}")
        selected |= matching
    return selected


def add_adapters(model: Transformer, settings: LoRASettings, new: Collection[str]) -> None:
    """Adapt the target layers; only they, heads and `new` parameters are trained. Raises
    SettingsError for no match.
    """
    for name, parameter in model.named_parameters():
        is_trained = name.startswith("heads.") or name in new
        parameter.requires_grad_(is_trained and parameter.requires_grad)
    layers = _linear_layers(model)
    if settings.targets:
        targets = _select("train.lora.targets", settings.targets, layers)
    else:
        targets = {*default_targets(model, layers)}
    for name in sorted(targets):
        layer: Any = layers[name]
        layer.__class__ = AdaptedLinear
        layer.adapt(settings)


def default_targets(model: Transformer, adaptable: Collection[str]) -> tuple[str, ...]:
    """The layers of blocks, of the adaptable ones, with adapters by default: those of queries and
    values, else all.
    """
    names = [name for name in _linear_layers(model) if name in adaptable]
    usual = [name for name in names if name.rpartition(".")[2] in ADAPTED]
    return tuple(usual or names)


def _linear_layers(model: Transformer) -> dict[str, Linear]:
    """The linear layers of the blocks by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, Linear) and ".blocks." in name
    }


def quantize_blocks(model: Transformer) -> None:
    """Store the matrices of the linear layers of the blocks in int8."""
    for layer in _linear_layers(model).values():
        small = Int8Weight.quantize(layer.weight.detach())
        del layer.weight
        layer.add_module("weight", small)


def rate_factors(model: Transformer, decay: float) -> dict[str, float]:
    """Name -> factor of the learning rate: decay^(n − i) in layer i = 0 … n − 1 of a stack,
    decay^(n + 1) in its embeddings, and 1 after its layers (Clark et al. 2020, as numbered by Bao
    et al. 2022). A block of several layers counts as the last one. Empty for decay 1.
    """
    depths: dict[str, int] = {}
    for side in ("encoder", "decoder"):
        if decay < 1 and (stack := getattr(model, side)) is not None:
            n = len(stack.block_of_layer)
            depths |= {
                f"{side}.blocks.{block}.": n - layer
                for layer, block in enumerate(stack.block_of_layer)
            }
            depths[f"{side}_embeddings."] = n + 1
    names = [name for name, _ in model.named_parameters()]
    return {name: decay**n for name in names for part, n in depths.items() if name.startswith(part)}


def count_trained(config: ModelConfig, settings: TrainSettings) -> int:
    """The number of trained parameters of such a model."""
    with torch.device("meta"):
        model = Transformer(config)
    if settings.lora is not None:
        add_adapters(model, settings.lora, ())
    freeze(model, settings.freeze)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
