"""ViT (Dosovitskiy et al. 2021): a pre-norm encoder that reads image patches after a class token."""

from __future__ import annotations

from typing import Any

import torch

from trifold.errors import SettingsError
from trifold.hub.encoders import BERT, ENCODER, TEXT_KEYS, EncoderRules
from trifold.hub.family import PART, Family, below
from trifold.hub.rows import ACTIVATIONS, Fields, Group, Row, revise, up_to
from trifold.hub.rules import LEADING_AXIS, AnyRule, Ignored, Renamed, Rule, chain, each
from trifold.nn import ModelConfig

LONGEST_SIDE = 10_000
Size = int | list[int]  # the side of a square, or [height, width]


def _load_sizes(file: Any, fields: Fields) -> Fields:
    (height, width), (tall, wide) = _pair(file, "image_size"), _pair(file, "patch_size")
    return {
        "image_size": (height, width),
        "patch_size": (tall, wide),
        "max_positions": (height // tall) * (width // wide) + 1,
    }


def _pair(file: Any, key: str) -> tuple[int, int]:
    size = getattr(file, key)
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or min(pair) < 1 or max(pair) > LONGEST_SIDE:
        raise SettingsError(
            f"{key}: {size} is neither a side nor [height, width] in pixels, {LONGEST_SIDE:,} at most"
        )
    return pair[0], pair[1]


def _save_sizes(config: ModelConfig) -> Fields:
    if config.image_size is None or config.patch_size is None:
        raise SettingsError("image_size: ViT reads images")
    sizes = {"image_size": config.image_size, "patch_size": config.patch_size}
    return {key: size[0] if size[0] == size[1] else list(size) for key, size in sizes.items()}


RULES = EncoderRules(
    "vit",
    "encoder.layer.{i}.",
    {
        "self_attention.enter": "layernorm_before",
        "self_attention.sublayer.q_proj": "attention.attention.query",
        "self_attention.sublayer.k_proj": "attention.attention.key",
        "self_attention.sublayer.v_proj": "attention.attention.value",
        "self_attention.sublayer.o_proj": "attention.output.dense",
        "feed_forward.enter": "layernorm_after",
        "feed_forward.sublayer.in_proj": "intermediate.dense",
        "feed_forward.sublayer.out_proj": "output.dense",
    },
    inner={"encoder.final_norm": "layernorm", "heads.pooler.dense": "pooler.dense"},
    heads={"heads.sequence.out_proj": "classifier"},
    unused="vit.pooler.dense",
)
# Names of layers {i} in files of the library's fifth version that keep those it has in memory.
MEMORY = {
    "layernorm_before": "layernorm_before",
    "attention.q_proj": "attention.attention.query",
    "attention.k_proj": "attention.attention.key",
    "attention.v_proj": "attention.attention.value",
    "attention.o_proj": "attention.output.dense",
    "layernorm_after": "layernorm_after",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}


def _rules(config: ModelConfig) -> list[AnyRule]:
    assert config.patch_size is not None
    window = (config.n_channels, *config.patch_size)
    base = below(config, "vit")
    embeddings = f"{base}embeddings"
    projection = f"{embeddings}.patch_embeddings.projection"
    # Their patches go through a convolution; ours, flattened, through a matrix.
    kernel = each(lambda kernel: kernel.flatten(1), lambda matrix: torch.unflatten(matrix, 1, window))
    return [
        *RULES(config),
        Rule("encoder_embeddings.patches.weight", f"{projection}.weight", kernel),
        Rule("encoder_embeddings.patches.bias", f"{projection}.bias"),
        Rule("encoder_embeddings.class_token", f"{embeddings}.cls_token", chain(LEADING_AXIS, LEADING_AXIS)),
        Rule("encoder_embeddings.positions.weight", f"{embeddings}.position_embeddings", LEADING_AXIS),
        Ignored(f"{embeddings}.mask_token"),
        *(
            Renamed(f"{base}layers.{{i}}.{memory}.{PART}", f"{base}encoder.layer.{{i}}.{disk}.{{part}}")
            for memory, disk in MEMORY.items()
        ),
    ]


FAMILY = Family(
    model_type="vit",
    stem="ViT",
    classes={"Model": {"heads": ("pooler",)}, "ForImageClassification": {"heads": ("sequence",)}},
    entries=(
        *revise(BERT, without=TEXT_KEYS, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
        Group({"image_size": (Size, 224), "patch_size": (Size, 16)}, _load_sizes, _save_sizes),
        Row("num_channels", "n_channels", 3, type=up_to(1_000)),
        Row("qkv_bias", "attention_bias", True),
        Row("pooler_output_size", "pooler_width", None, type=up_to(2**20)),
        Row("pooler_act", "pooler_activation", "tanh", map=ACTIVATIONS),
    ),
    constants=ENCODER | {"norm_placement": "pre", "attention_out_bias": True},
    rules=_rules,
    ignored="encoder_stride",  # of a head that paints hidden patches, which we do not have
)
