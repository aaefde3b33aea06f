"""ViT (Dosovitskiy et al. 2021): a pre-norm encoder that reads image patches after a class
token.
"""

from typing import Any

import torch

from trifold.errors import SettingsError
from trifold.hub.families import bert
from trifold.hub.family import PART, TensorRules
from trifold.hub.images import height_and_width
from trifold.hub.rows import Entry, Fields, resized, row, rows, up_to
from trifold.hub.rules import AnyRule, Ignored, ParameterRule, Renamed
from trifold.hub.transforms import LEADING_AXIS, chain, per_tensor
from trifold.nn import ModelConfig

Size = int | list[int]  # the side of a square, or [height, width]


def _load_sizes(file: Any, fields: Fields) -> Fields:
    sizes = (height_and_width(key, getattr(file, key)) for key in ("image_size", "patch_size"))
    (height, width), (tall, wide) = sizes
    positions = (height // tall) * (width // wide) + 1
    return {"image_size": (height, width), "patch_size": (tall, wide), "max_positions": positions}


def _save_sizes(config: ModelConfig) -> Fields:
    if config.image_size is None or config.patch_size is None:
        raise SettingsError("image_size: ViT reads images")
    return {
        "image_size": _side_or_both(config.image_size),
        "patch_size": _side_or_both(config.patch_size),
    }


def _side_or_both(size: tuple[int, int]) -> Size:
    height, width = size
    if height == width:
        return height
    return [height, width]


LAYER = bert.block_names(
    "attention.attention.query attention.attention.key attention.attention.value "
    "attention.output.dense "
    "layernorm_before",
    "intermediate.dense output.dense layernorm_after",
)
# Names of the same modules in some files of `transformers` 5, which keep the names in memory.
MEMORY = """
    attention.q_proj attention.k_proj attention.v_proj attention.o_proj layernorm_before mlp.fc1
    mlp.fc2 layernorm_after
""".split()


def _more(config: ModelConfig, base: str) -> list[AnyRule]:
    assert config.patch_size is not None
    window = (config.n_channels, *config.patch_size)
    embeddings = f"{base}embeddings"
    ours = "encoder_embeddings."
    # Their patches go through a convolution; ours, flattened, through a matrix.
    kernel = per_tensor(
        lambda kernel: kernel.flatten(1), lambda matrix: torch.unflatten(matrix, 1, window)
    )
    projection = f"{embeddings}.patch_embeddings.projection"
    return [
        ParameterRule(f"{ours}patches.weight", f"{projection}.weight", kernel),
        ParameterRule(f"{ours}patches.bias", f"{projection}.bias"),
        ParameterRule(
            f"{ours}class_token", f"{embeddings}.cls_token", chain(LEADING_AXIS, LEADING_AXIS)
        ),
        ParameterRule(f"{ours}positions.weight", f"{embeddings}.position_embeddings", LEADING_AXIS),
        Ignored(f"{embeddings}.mask_token"),
        *(
            Renamed(
                f"{base}layers.{{i}}.{memory}.{PART}", f"{base}encoder.layer.{{i}}.{disk}.{{part}}"
            )
            for memory, disk in zip(MEMORY, LAYER.values(), strict=True)
        ),
    ]


FAMILY = bert.FAMILY.related(
    "vit",
    Entry({"image_size": (Size, 224), "patch_size": (Size, 16)}, _load_sizes, _save_sizes),
    row("num_channels", "n_channels", 3, kind=up_to(1_000)),
    row("pooler_output_size", "pooler_width", None, kind=up_to(2**20)),
    *rows(pooler_activation=("pooler_act", "tanh"), attention_bias=("qkv_bias", True)),
    stem="ViT",
    classes={"Model": {"heads": ("pooler",)}, "ForImageClassification": {"heads": ("sequence",)}},
    constants={"norm_placement": "pre", "attention_out_bias": True, "embedding_norm": False},
    rules=TensorRules(
        "vit",
        "-",  # no tokens
        {
            "encoder.final_norm": ".layernorm",
            "heads.pooler.dense": ".pooler.dense",
            **LAYER,
            "heads.sequence.out_proj": "classifier",
        },
        layer=".encoder.layer.{i}.",
        more=_more,
        buffers=bert.BUFFERS,
        unused=".pooler.dense",
    ),
    ignored="encoder_stride",  # of the head for masked image modeling, which is not supported
    without="""
    vocab_size max_position_embeddings type_vocab_size pad_token_id tie_word_embeddings
    classifier_dropout position_embedding_type
    """,
    **resized(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
)
