"""In what a model is, and differs from, the Transformer of 2017: read off the values of its config, part by part.

Sizes, dropout and ids are not differences: the paper has models of several sizes itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from trifold.nn.config import ModelConfig

# Key of the config -> value -> what to say of it. A value that is not here is the paper's.
OF_VALUES: dict[str, dict[Any, str]] = {
    "shape": {"encoder": "the encoder alone", "decoder": "the decoder alone"},
    "positions": {
        "learned": "learned positions",
        "sinusoidal-halves": "sines before cosines",
        "rotary": "rotary positions",
        "relative": "offsets for classes of distances",
        "relative-sinusoidal": "sines and cosines of distances, in the scores",
        "alibi": "offsets that grow with the distance",
        "none": "no positions",
    },
    "rotary_pairs": {"interleaved": "of neighbours"},
    "scale_embeddings": {False: "embeddings unscaled"},
    "embedding_norm": {True: "a norm on the embeddings"},
    "norm": {"rms": "RMS norms"},
    "norm_placement": {
        "pre": "norms before the sub-layers",
        "sandwich": "norms before and after the sub-layers",
    },
    "norm_bias": {False: "norms without biases"},
    "residual": {
        "parallel": "attention and feed-forward side by side, behind one norm",
        "parallel-two-norms": "attention and feed-forward side by side, behind a norm each",
    },
    "activation": {
        "gelu": "GELU",
        "gelu-tanh": "GELU by tanh",
        "quick-gelu": "GELU by a sigmoid",
        "silu": "SiLU",
        "tanh": "tanh",
    },
    "gated": {True: "gated feed-forward"},
    "feed_forward_bias": {False: "no biases in the feed-forward"},
    "attention_bias": {True: "biases in attention"},
    "attention_scale_by_layer": {True: "scores divided by the number of the layer"},
    "lm_head_bias": {True: "a bias on the logits"},
}


def _rotated(config: ModelConfig) -> str | None:
    part = config.positions == "rotary" and config.rotated_width < config.head_width
    return f"which turn {config.rotated_width} of {config.head_width} dimensions" if part else None


def _stretched(config: ModelConfig) -> str | None:
    scaling = config.rotary_scaling
    return None if scaling is None else f"stretched {scaling.factor:g} times ({scaling.kind})"


def _pictures(config: ModelConfig) -> str | None:
    return f"{config.n_patches} patches of a picture behind a class token" if config.patch_size else None


def _segments(config: ModelConfig) -> str | None:
    return "segments" if config.n_token_types > 1 else None


def _related(config: ModelConfig) -> str | None:
    return "and whether two tokens are of one segment" if config.segment_offsets else None


def _asks(config: ModelConfig) -> str | None:
    return "a second stream for tokens that are not seen" if config.query_stream else None


def _narrow(config: ModelConfig) -> str | None:
    return (
        f"embeddings of width {config.d_embedding}, and a matrix" if config.has_embedding_projection else None
    )


def _shared_blocks(config: ModelConfig) -> str | None:
    shared = config.block_of_layer
    if shared is None or len(set(shared)) == len(shared):
        return None
    blocks = len(set(shared))
    return f"{len(shared)} layers of {blocks} {'block' if blocks == 1 else 'blocks'}"


def _shared_heads(config: ModelConfig) -> str | None:
    if config.kv_heads == config.n_heads:
        return None
    return f"{config.n_heads} heads of queries share {config.kv_heads} of keys"


def _out_bias(config: ModelConfig) -> str | None:
    if config.out_bias == config.attention_bias:
        return None
    return "a bias behind attention" if config.out_bias else "but none behind it"


def _scores(config: ModelConfig) -> str | None:
    if config.attention_scale is None:
        return None
    return "scores unscaled" if config.attention_scale == 1 else "scores scaled otherwise"


def _window(config: ModelConfig) -> str | None:
    if config.sliding_window is None:
        return None
    some = " in some layers" if "global" in config.window_pattern else ""
    return f"a window of {config.sliding_window:,} tokens{some}"


def _capped(config: ModelConfig) -> str | None:
    capped = config.score_soft_cap is not None or config.logit_soft_cap is not None
    return "soft caps" if capped else None


def _untied(config: ModelConfig) -> str | None:
    return "an output matrix of its own" if "lm" in config.chosen_heads and not config.tie_lm_head else None


def _transformed(config: ModelConfig) -> str | None:
    return None if config.lm_head_transform is None else "a layer more before the logits"


# What is said of several keys at once, each behind the key in the table that it belongs to.
BEHIND: dict[str, tuple[Callable[[ModelConfig], str | None], ...]] = {
    "shape": (_pictures,),
    "rotary_pairs": (_rotated, _stretched, _related, _asks),
    "scale_embeddings": (_segments, _narrow),
    "residual": (_shared_blocks,),
    "attention_bias": (_out_bias, _shared_heads, _scores),
    "attention_scale_by_layer": (_window, _capped),
    "lm_head_bias": (_untied, _transformed),
}


def differences(config: ModelConfig) -> tuple[str, ...]:
    """What is not as in the paper, in a phrase each; none where the model is the paper's."""
    return tuple(_differences(config))


def _differences(config: ModelConfig) -> Iterator[str]:
    for key in OF_VALUES:
        yield from _of_key(config, key)


def _of_key(config: ModelConfig, key: str) -> Iterator[str]:
    found = [OF_VALUES[key].get(getattr(config, key)), *(look(config) for look in BEHIND.get(key, ()))]
    yield from (phrase for phrase in found if phrase is not None)


# --- part by part ----------------------------------------------------------------------------------------


class Compared(NamedTuple):
    """A part of a model: its sizes, whether it is the part of 2017, what it is or in what it differs, what it was."""

    part: str
    size: str
    verdict: Literal["is", "differs"]
    what: str
    paper: str


def compare(config: ModelConfig) -> tuple[Compared, ...]:
    """Every part of a model beside the same part of the Transformer of 2017."""
    return tuple(_compared(config, part) for part in PARTS)


def _compared(config: ModelConfig, name: str) -> Compared:
    part = PARTS[name]
    phrases = [phrase for key in part.keys for phrase in _of_key(config, key)]
    if name == "output":
        phrases += _heads(config)
    what = ", ".join(phrases) or part.paper
    return Compared(name, part.size(config), "differs" if phrases else "is", what, part.paper)


class _Part(NamedTuple):
    """What the paper has there, the keys of the config that say otherwise, and what the sizes are."""

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


def _both(config: ModelConfig, say: Callable[[ModelConfig], str]) -> str:
    """What is said of each stack, once where it is the same."""
    stacks = [config] if config.encoder_layers else []
    stacks += [config.decoder_side] if config.decoder_layers else []
    return ", ".join(dict.fromkeys(say(stack) for stack in stacks))


def _output(config: ModelConfig) -> str:
    return f"{config.d_model:,} → {config.output_vocab_size:,}" if "lm" in config.chosen_heads else ""


def _heads(config: ModelConfig) -> list[str]:
    """Of other heads than the one that writes."""
    others = [head for head in config.chosen_heads if head != "lm"]
    if not config.chosen_heads:
        return ["no head"]
    return [f"{'heads' if len(others) > 1 else 'a head'}: {', '.join(others)}"] if others else []


PARTS: dict[str, _Part] = {
    "shape": _Part("an encoder and a decoder", ("shape",), _stacks),
    "embeddings": _Part("times √d_model", ("scale_embeddings", "embedding_norm"), _table),
    "positions": _Part(
        "sines and cosines, added", ("positions", "rotary_pairs"), lambda config: f"{config.max_positions:,}"
    ),
    "blocks": _Part(
        "one sub-layer after the other, a layer norm behind each",
        ("norm", "norm_placement", "norm_bias", "residual"),
        lambda config: f"width {config.d_model:,}",
    ),
    "attention": _Part(
        "scores by √d_head, no biases",
        ("attention_bias", "attention_scale_by_layer"),
        lambda config: _both(config, lambda side: f"{side.n_heads} heads of {side.head_width}"),
    ),
    "feed-forward": _Part(
        "two matrices with biases, ReLU between them",
        ("activation", "gated", "feed_forward_bias"),
        lambda config: _both(config, lambda side: f"{side.d_model:,} → {side.d_ff:,} → {side.d_model:,}"),
    ),
    "output": _Part("the embeddings again, no bias", ("lm_head_bias",), _output),
}
