"""Compare a model with the Transformer of 2017, part by part, by the values of its config.

Sizes, dropout and ids are not differences, because the paper has models of several sizes itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from trifold.nn.config import ModelConfig

# Key of the config -> value -> description. Other values are those of the paper.
DESCRIPTIONS: dict[str, dict[Any, str]] = {
    "shape": {"encoder": "encoder only", "decoder": "decoder only"},
    "positions": {
        "learned": "learned positions",
        "sinusoidal-halves": "sines before cosines",
        "rotary": "rotary positions",
        "relative": "learned bias per distance bucket",
        "relative-sinusoidal": "sinusoidal relative positions, in the scores",
        "alibi": "ALiBi",
        "none": "no positions",
    },
    "rotary_pairs": {"interleaved": "of interleaved pairs"},
    "scale_embeddings": {False: "unscaled embeddings"},
    "embedding_norm": {True: "a norm after the embeddings"},
    "norm": {"rms": "RMS norms"},
    "norm_placement": {
        "pre": "norms before the sub-layers",
        "sandwich": "norms before and after the sub-layers",
    },
    "norm_bias": {False: "norms without biases"},
    "residual": {
        "parallel": "parallel attention and feed-forward, after one norm",
        "parallel-two-norms": "parallel attention and feed-forward, each after a norm",
    },
    "activation": {
        "gelu": "GELU",
        "gelu-tanh": "GELU (tanh approximation)",
        "quick-gelu": "GELU (sigmoid approximation)",
        "silu": "SiLU",
        "tanh": "tanh",
    },
    "gated": {True: "gated feed-forward"},
    "feed_forward_bias": {False: "no biases in the feed-forward"},
    "attention_bias": {True: "biases in attention"},
    "attention_scale_by_layer": {True: "scores divided by the layer number"},
    "lm_head_bias": {True: "a bias on the logits"},
}


def _partial_rotary(config: ModelConfig) -> str | None:
    part = config.positions == "rotary" and config.rotated_width < config.head_width
    return f"on {config.rotated_width} of {config.head_width} dimensions" if part else None


def _rotary_scaling(config: ModelConfig) -> str | None:
    scaling = config.rotary_scaling
    return None if scaling is None else f"scaled {scaling.factor:g} times ({scaling.kind})"


def _pictures(config: ModelConfig) -> str | None:
    return f"{config.n_patches} image patches after a class token" if config.patch_size else None


def _segments(config: ModelConfig) -> str | None:
    return "segment embeddings" if config.n_token_types > 1 else None


def _segment_bias(config: ModelConfig) -> str | None:
    return "and a bias for tokens of the same segment" if config.segment_offsets else None


def _query_stream(config: ModelConfig) -> str | None:
    return "a query stream for tokens to predict" if config.query_stream else None


def _factorized(config: ModelConfig) -> str | None:
    return f"factorized embeddings of width {config.d_embedding}" if config.has_embedding_projection else None


def _shared_blocks(config: ModelConfig) -> str | None:
    shared = config.block_of_layer
    if shared is None or len(set(shared)) == len(shared):
        return None
    blocks = len(set(shared))
    return f"{len(shared)} layers share {blocks} {'block' if blocks == 1 else 'blocks'}"


def _shared_heads(config: ModelConfig) -> str | None:
    if config.kv_heads == config.n_heads:
        return None
    return f"{config.n_heads} query heads share {config.kv_heads} key/value heads"


def _out_bias(config: ModelConfig) -> str | None:
    if config.out_bias == config.attention_bias:
        return None
    return "a bias in the output projection" if config.out_bias else "but not in the output projection"


def _scores(config: ModelConfig) -> str | None:
    if config.attention_scale is None:
        return None
    return "unscaled scores" if config.attention_scale == 1 else "another scale of the scores"


def _window(config: ModelConfig) -> str | None:
    if config.sliding_window is None:
        return None
    some = " in some layers" if "global" in config.window_pattern else ""
    return f"a window of {config.sliding_window:,} tokens{some}"


def _capped(config: ModelConfig) -> str | None:
    capped = config.score_soft_cap is not None or config.logit_soft_cap is not None
    return "soft caps" if capped else None


def _untied(config: ModelConfig) -> str | None:
    return "a separate output matrix" if "lm" in config.chosen_heads and not config.tie_lm_head else None


def _transformed(config: ModelConfig) -> str | None:
    return None if config.lm_head_transform is None else "an additional layer before the logits"


# Descriptions of several keys, each listed after one key of the table above.
COMBINED: dict[str, tuple[Callable[[ModelConfig], str | None], ...]] = {
    "shape": (_pictures,),
    "rotary_pairs": (_partial_rotary, _rotary_scaling, _segment_bias, _query_stream),
    "scale_embeddings": (_segments, _factorized),
    "residual": (_shared_blocks,),
    "attention_bias": (_out_bias, _shared_heads, _scores),
    "attention_scale_by_layer": (_window, _capped),
    "lm_head_bias": (_untied, _transformed),
}


def differences(config: ModelConfig) -> tuple[str, ...]:
    """A phrase for each difference from the paper."""
    return tuple(_differences(config))


def _differences(config: ModelConfig) -> Iterator[str]:
    for key in DESCRIPTIONS:
        yield from _of_key(config, key)


def _of_key(config: ModelConfig, key: str) -> Iterator[str]:
    found = [DESCRIPTIONS[key].get(getattr(config, key)), *(look(config) for look in COMBINED.get(key, ()))]
    yield from (phrase for phrase in found if phrase is not None)


# --- part by part ----------------------------------------------------------------------------------------


class Compared(NamedTuple):
    """A part of a model: sizes, whether it is that of 2017, a description, and that of the paper."""

    part: str
    size: str
    verdict: Literal["same", "differs"]
    what: str
    paper: str


def compare(config: ModelConfig) -> tuple[Compared, ...]:
    """Every part of a model compared with that of the Transformer of 2017."""
    return tuple(_compared(config, part) for part in PARTS)


def _compared(config: ModelConfig, name: str) -> Compared:
    part = PARTS[name]
    phrases = [phrase for key in part.keys for phrase in _of_key(config, key)]
    if name == "output":
        phrases += _heads(config)
    what = ", ".join(phrases) or part.paper
    return Compared(name, part.size(config), "differs" if phrases else "same", what, part.paper)


class _Part(NamedTuple):
    """The paper's description, the keys of the config that change it, and the sizes."""

    paper: str
    keys: tuple[str, ...]
    size: Callable[[ModelConfig], str]


def _stacks(config: ModelConfig) -> str:
    layers = {"encoder": config.encoder_layers, "decoder": config.decoder_layers}
    return ", ".join(f"{side} × {number}" for side, number in layers.items() if number)


def _table(config: ModelConfig) -> str:
    if config.patch_size is not None:
        return f"{config.n_channels} × {config.patch_size[0]} × {config.patch_size[1]} → {config.d_model:,}"
    tables = [config.vocab_size, *([config.target_vocab_size] if config.target_vocab_size else [])]
    return ", ".join(f"{size:,} × {config.embedding_width:,}" for size in tables)


def _both(config: ModelConfig, describe: Callable[[ModelConfig], str]) -> str:
    """The description of each stack, once if they are equal."""
    stacks = [config] if config.encoder_layers else []
    stacks += [config.decoder_side] if config.decoder_layers else []
    return ", ".join(dict.fromkeys(describe(stack) for stack in stacks))


def _output(config: ModelConfig) -> str:
    return f"{config.d_model:,} → {config.output_vocab_size:,}" if "lm" in config.chosen_heads else ""


def _heads(config: ModelConfig) -> list[str]:
    """The heads other than the language-model head."""
    others = [head for head in config.chosen_heads if head != "lm"]
    if not config.chosen_heads:
        return ["no head"]
    return [f"{'heads' if len(others) > 1 else 'a head'}: {', '.join(others)}"] if others else []


PARTS: dict[str, _Part] = {
    "shape": _Part("an encoder and a decoder", ("shape",), _stacks),
    "embeddings": _Part("multiplied by √d_model", ("scale_embeddings", "embedding_norm"), _table),
    "positions": _Part(
        "sines and cosines, added", ("positions", "rotary_pairs"), lambda config: f"{config.max_positions:,}"
    ),
    "blocks": _Part(
        "sequential sub-layers, a layer norm after each",
        ("norm", "norm_placement", "norm_bias", "residual"),
        lambda config: f"width {config.d_model:,}",
    ),
    "attention": _Part(
        "scores divided by √d_head, no biases",
        ("attention_bias", "attention_scale_by_layer"),
        lambda config: _both(config, lambda side: f"{side.n_heads} heads of {side.head_width}"),
    ),
    "feed-forward": _Part(
        "two layers with biases, ReLU between them",
        ("activation", "gated", "feed_forward_bias"),
        lambda config: _both(config, lambda side: f"{side.d_model:,} → {side.d_ff:,} → {side.d_model:,}"),
    ),
    "output": _Part("tied to the embeddings, no bias", ("lm_head_bias",), _output),
}
