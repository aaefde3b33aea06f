"""The config of a model folder: read, completed from the weights, and checked for sizes that would
cost hours or all memory.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trifold.costs import position_table
from trifold.errors import CheckpointError, SettingsError
from trifold.folders import UntrustedPath
from trifold.hub.families import FAMILIES, UNSUPPORTED
from trifold.hub.family import Family
from trifold.hub.files import naming
from trifold.hub.quantized import check_unquantized, check_unquantized_tensors
from trifold.hub.rows import group_of
from trifold.hub.tensors import shapes_of
from trifold.hub.unknown_keys import warn_of_ignored
from trifold.nn import ModelConfig, Transformer
from trifold.nn.stack import all_parameters

# Entries of a table of sinusoids, which is not stored, beside small weights.
MAX_POSITION_TABLE = 2**24


def parse_config(values: Mapping[str, Any], place: UntrustedPath) -> tuple[Family, ModelConfig]:
    """The family and config in the content of a config.json. Warns of ignored keys. Raises
    CheckpointError for an unknown family, for unsupported keys and for quantized weights.
    """
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        if (reason := UNSUPPORTED.get(str(model_type))) is not None:
            raise CheckpointError(f"{place}: model_type: {model_type!r} is not supported: {reason}")
        known = ", ".join(FAMILIES)
        raise CheckpointError(f"{place}: model_type: {model_type!r} is not known; known: {known}")
    family = FAMILIES[model_type]
    check_unquantized(values, place)
    with naming(place):
        config = family.read(values)
    if place.exists():  # an adapter has the content of that of its base, which was read before
        unknown = family.unknown_keys(values)
        missing = family.missing_keys(values)
        warn_of_ignored(str(place), unknown, missing, values.get("transformers_version"))
    return family, config


def complete_config(
    family: Family, config: ModelConfig, weights: Mapping[str, Tensor], place: UntrustedPath
) -> ModelConfig:
    """The config completed from the tensors. Raises CheckpointError for implausible sizes."""
    check_unquantized_tensors(weights, place.parent)
    if family.infer is not None:
        config = family.infer(config, weights)
    _check_sizes(config, weights, place)
    _check_ids(config, place)
    return config


def infer_config(
    family: Family, config: ModelConfig, weights: Mapping[str, Tensor], place: UntrustedPath
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The config completed from the tensors, and the parameters of such a model on the meta device.

    Raises CheckpointError for implausible sizes.
    """
    config = complete_config(family, config, weights, place)
    return config, meta_parameters(config, place)


def meta_parameters(config: ModelConfig, place: UntrustedPath) -> dict[str, Tensor]:
    """The parameters of such a model on the meta device. Raises CheckpointError for sizes that no
    model has.
    """
    with torch.device("meta"):
        return {**all_parameters(empty_model(config, place))}


def empty_model(config: ModelConfig, place: UntrustedPath) -> Transformer:
    """A model whose parameters are not initialized, so that they take no memory yet. Raises
    CheckpointError for sizes that no model has.
    """
    try:
        return Transformer(config, initialize=False)
    except (RuntimeError, TypeError, OverflowError) as error:  # an overflow in the product of sizes
        raise CheckpointError(
            f"{place}: no model has such sizes ({str(error).splitlines()[0]})"
        ) from None


def _check_sizes(config: ModelConfig, weights: Mapping[str, Tensor], place: UntrustedPath) -> None:
    """Reject implausible sizes before they cost hours or all memory."""
    layers = config.encoder_layers + config.decoder_layers
    blocks = layers if config.block_of_layer is None else len(set(config.block_of_layer))
    if blocks > len(weights):  # a block of a part from outside may have few
        raise CheckpointError(
            f"{place}: {layers} layers, but the weights are {len(weights)} tensors"
        )
    elements = sum(tensor.numel() for tensor in shapes_of(weights).values())
    with naming(place):
        check_positions(config, elements)
    routed = min(blocks, config.expert_layers)
    experts = group_of(config, "experts")
    if experts is not None and routed * experts.count * config.d_model > elements:
        what = f"{routed} layers of {experts.count} experts"
        raise CheckpointError(f"{place}: {what}, but the weights have {elements} elements")
    for side in config.stacks.values():
        heads = side.n_heads * max(side.head_width, side.value_width)
        widest = max(side.d_ff, side.vocab_size, side.output_vocab_size, heads)
        width = max(side.d_model, config.d_model)
        if widest * width > 2**48:
            raise CheckpointError(f"{place}: a matrix of {widest} x {width} is too large")


def _check_ids(config: ModelConfig, place: UntrustedPath) -> None:
    """Reject ids that the model reads in every batch or output, and has no row for."""
    size = config.vocab_size
    if config.shape == "encoder-decoder":
        size = min(size, config.output_vocab_size)
        if config.start_id >= config.output_vocab_size:
            raise CheckpointError(
                f"{place}: outputs start with the id {config.start_id}, but the model has "
                f"{config.output_vocab_size:,} tokens (from 0); correct decoder_start_token_id"
            )
    if config.pad_id >= size and not config.n_patches:
        raise CheckpointError(
            f"{place}: the id of padding is {config.pad_id}, but the model has {size:,} tokens "
            "(from 0); correct pad_token_id"
        )


def check_positions(config: ModelConfig, elements: int, at: str = "") -> None:
    """Raise SettingsError, which begins with `at`, for too many positions beside weights of so many
    elements.
    """
    for side in config.stacks.values():
        if position_table(side) > max(MAX_POSITION_TABLE, elements):
            what = f"{at}{side.max_positions} positions of width {side.sum_width}"
            raise SettingsError(
                f"{what} are too many: their table would be larger than the weights"
            )
