"""GPT-Neo (Black et al. 2021): GPT-2 with unscaled scores; some layers attend to a window only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from trifold.errors import SettingsError
from trifold.hub.decoders import COMMON, DECODER, GPT_IGNORED, classes, feed_forward_width
from trifold.hub.families.gpt import GPT2_RULES
from trifold.hub.family import Family
from trifold.hub.rows import ACTIVATIONS, Fields, Group, Row, ids
from trifold.hub.rules import SAME
from trifold.nn import ModelConfig

WINDOW = 256
MOST_LAYERS = 10_000


def _load_layers(file: Any, fields: Fields) -> Fields:
    types = [[["global", "local"], 12]] if file.attention_types is None else file.attention_types
    layers: list[str] = []
    for item in types:
        match item:
            case [[*kinds], int(times)] if (
                all(k in ("global", "local") for k in kinds) and times * len(kinds) < MOST_LAYERS
            ):
                layers += list(kinds) * times
            case _:
                raise SettingsError(
                    f"attention_types: {item!r} is not [kinds, repetitions] with the kinds global and local"
                )
    if len(layers) != file.num_layers:
        raise SettingsError(f"attention_types: has {len(layers)} layers, but num_layers is {file.num_layers}")
    if file.attention_layers not in (None, layers):
        raise SettingsError(
            f"attention_layers: {file.attention_layers} contradicts attention_types, which gives {layers}"
        )
    return (
        {"sliding_window": file.window_size, "window_pattern": _period(layers)} if "local" in layers else {}
    )


def _period(layers: Sequence[str]) -> tuple[str, ...]:
    """The shortest beginning that gives all layers when it is repeated."""
    return next(
        tuple(layers[:length])
        for length in range(1, len(layers) + 1)
        if all(layer == layers[n % length] for n, layer in enumerate(layers))
    )


def _save_layers(config: ModelConfig) -> Fields:
    layers = ["local" if config.window(n) else "global" for n in range(config.n_layers)]
    return {
        "attention_types": [[layers, 1]],
        "attention_layers": layers,
        "window_size": config.sliding_window or WINDOW,
    }


ATTENTION_TYPES = Group(
    {
        "attention_types": (list[Any] | None, None),
        "attention_layers": (list[str] | None, None),  # repeats attention_types
        "window_size": (Annotated[int, Field(gt=0)], WINDOW),
    },
    _load_layers,
    _save_layers,
)
NAMES = GPT2_RULES.names | {
    "self_attention.sublayer.{p:q|k|v}_proj": "attn.attention.{p}_proj",
    "self_attention.sublayer.o_proj": "attn.attention.out_proj",
}
RULES = replace(
    GPT2_RULES,
    names=NAMES,
    qkv=None,
    matrix=SAME,
    buffers="attn.attention.bias attn.attention.masked_bias",
)
FAMILY = Family(
    model_type="gpt_neo",
    stem="GPTNeo",
    classes=classes(),
    entries=(
        Row("vocab_size", "vocab_size", 50257),
        Row("max_position_embeddings", "max_positions", 2048),
        Row("hidden_size", "d_model", 2048),
        Row("num_layers", "n_layers", 24),
        Row("num_heads", "n_heads", 16),
        Row("intermediate_size", "d_ff", None, load=feed_forward_width),
        Row("activation_function", "activation", "gelu_new", map=ACTIVATIONS),
        Row("resid_dropout", "dropout", 0.0),
        Row("embed_dropout", "embedding_dropout", 0.0),
        Row("attention_dropout", "attention_dropout", 0.0),
        Row("layer_norm_epsilon", "norm_epsilon", 1e-5),
        ids(bos=50256, eos=50256),
        *COMMON,
        ATTENTION_TYPES,
    ),
    constants=DECODER | {"positions": "learned", "attention_scale": 1.0, "attention_out_bias": True},
    rules=RULES,
    ignored=GPT_IGNORED,
)
