"""ViT (Dosovitskiy et al. 2021): a pre-norm encoder that reads patches of a picture behind a class token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field
from torch import Tensor

from trifold.errors import SettingsError
from trifold.hub.encoders import (
    BLOCK,
    ENCODER,
    KEYS,
    EncoderFile,
    below,
    either_way,
    encoder_says,
    head_to_ours,
    head_to_theirs,
    modules,
    unread,
)
from trifold.hub.family import (
    ACTIVATIONS,
    Architectures,
    Family,
    activation,
    architecture_of,
    heads_of,
    key_of,
    parse_config,
    to_ours,
    to_theirs,
    unless,
)
from trifold.hub.rules import LEADING_AXIS, AnyRule, Ignored, Renamed, Rule, chain, each
from trifold.nn import ModelConfig
from trifold.nn.config import Head

CLASSES: Architectures = {
    "ViTModel": ("pooler",),
    "ViTForImageClassification": ("sequence",),
}
FIXED = ENCODER | {"norm_placement": "pre"}
SIZES = {"num_channels": "n_channels", "qkv_bias": "attention_bias"}
SAID = frozenset(
    """
    activation image_size patch_size max_positions attention_out_bias pooler_width pooler_activation
    """.split()
) | {*KEYS.values(), *SIZES.values()}
HARMLESS = frozenset({"encoder_stride"})  # of a head that paints the hidden patches, which we do not have
LONGEST_SIDE = 10_000


class ViTFile(EncoderFile):
    """Their keys, types and defaults. A size is a side of a square, or [height, width]."""

    hidden_dropout_prob: float = Field(0.0, ge=0, lt=1)
    attention_probs_dropout_prob: float = Field(0.0, ge=0, lt=1)
    image_size: int | list[int] = 224
    patch_size: int | list[int] = 16
    num_channels: int = Field(3, gt=0, le=1_000)
    qkv_bias: bool = True
    pooler_output_size: int | None = Field(None, gt=0, le=2**20)
    pooler_act: str = "tanh"


def _of_head(activation: str) -> dict[Head, dict[str, Any]]:
    return {}


def _fits(config: ModelConfig) -> bool:
    known = {config.activation, config.pooler_activation} <= set(ACTIVATIONS.values())
    sees = config.patches > 0 and config.out_bias
    return known and sees and encoder_says(config, CLASSES, SAID, _of_head, **FIXED)


def _write(config: ModelConfig) -> dict[str, object]:
    return {
        **to_theirs(KEYS | SIZES, config),
        **head_to_theirs(config),
        "hidden_act": key_of(ACTIVATIONS, config.activation),
        "image_size": _side(config.image_size),
        "patch_size": _side(config.patch_size),
        "pooler_output_size": config.pooler_width or config.d_model,
        "pooler_act": key_of(ACTIVATIONS, config.pooler_activation),
    }


def _side(size: tuple[int, int] | None) -> int | list[int]:
    assert size is not None, "asked of what does not fit"
    return size[0] if size[0] == size[1] else list(size)


def _read(values: Mapping[str, Any]) -> ModelConfig:
    file = parse_config(ViTFile, values, HARMLESS)
    picture, patch = _pair("image_size", file.image_size), _pair("patch_size", file.patch_size)
    patches = (picture[0] // patch[0]) * (picture[1] // patch[1])
    return ModelConfig.parse(
        {
            **FIXED,
            **to_ours(KEYS | SIZES, file),
            **head_to_ours(values, heads_of(values, CLASSES)),
            "activation": activation("hidden_act", file.hidden_act),
            "image_size": picture,
            "patch_size": patch,
            "max_positions": patches + 1,
            "attention_out_bias": unless(True, file.qkv_bias),
            "pooler_width": unless(file.pooler_output_size, file.hidden_size),
            "pooler_activation": activation("pooler_act", file.pooler_act),
        }
    )


def _pair(key: str, size: int | list[int]) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or min(pair) < 1 or max(pair) > LONGEST_SIDE:
        raise SettingsError(
            f"{key}: {size} is neither a side nor [height, width] in pixels, {LONGEST_SIDE:,} at most"
        )
    return pair[0], pair[1]


# --- weights -------------------------------------------------------------------------------------------

# Theirs, on disk; and in files of the library's fifth version that keep the names which it has in memory.
LAYER = {
    "self_attention.enter": ("layernorm_before", "layernorm_before"),
    "self_attention.sublayer.q_proj": ("attention.attention.query", "attention.q_proj"),
    "self_attention.sublayer.k_proj": ("attention.attention.key", "attention.k_proj"),
    "self_attention.sublayer.v_proj": ("attention.attention.value", "attention.v_proj"),
    "self_attention.sublayer.o_proj": ("attention.output.dense", "attention.o_proj"),
    "feed_forward.enter": ("layernorm_after", "layernorm_after"),
    "feed_forward.sublayer.in_proj": ("intermediate.dense", "mlp.fc1"),
    "feed_forward.sublayer.out_proj": ("output.dense", "mlp.fc2"),
}


def _rules(config: ModelConfig) -> list[AnyRule]:
    assert config.patch_size is not None, "asked of what does not fit"
    window = (config.n_channels, *config.patch_size)
    base = below(config, "vit")
    embeddings, layer = f"{base}embeddings", f"{base}encoder.layer.{{i}}."
    projection = f"{embeddings}.patch_embeddings.projection"

    def opened(matrix: Tensor) -> Tensor:
        patches: Tensor = matrix.unflatten(1, window)
        return patches

    rules: list[AnyRule] = [
        # Their patches go through a convolution, ours through a matrix over flat patches.
        Rule(
            "encoder_embeddings.patches.weight", f"{projection}.weight", each(lambda t: t.flatten(1), opened)
        ),
        Rule("encoder_embeddings.patches.bias", f"{projection}.bias"),
        Rule("encoder_embeddings.class_token", f"{embeddings}.cls_token", chain(LEADING_AXIS, LEADING_AXIS)),
        Rule("encoder_embeddings.positions.weight", f"{embeddings}.position_embeddings", LEADING_AXIS),
        Ignored(f"{embeddings}.mask_token"),
        *modules({ours: disk for ours, (disk, _) in LAYER.items()}, BLOCK, layer),
        *modules(
            {
                "encoder.final_norm": f"{base}layernorm",
                "heads.pooler.dense": f"{base}pooler.dense",
                "heads.sequence.out_proj": "classifier",
            }
        ),
    ]
    rules += [
        Renamed(f"{base}layers.{{i}}.{new}.{{part:weight|bias}}", f"{layer}{disk}.{{part}}")
        for disk, new in LAYER.values()
    ]
    rules.append(either_way(base, "vit"))
    return rules if "pooler" in config.chosen_heads else [*rules, *unread(f"{base}pooler.dense")]


FAMILY = Family("vit", architecture_of(CLASSES), _fits, _write, _read, _rules)
