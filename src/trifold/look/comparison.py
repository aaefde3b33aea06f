"""Compare a model with the Transformer of 2017, part by part, by the values of its config.

Sizes, dropout and ids are not differences, because the paper has models of several sizes itself.
The phrases for options of the core are here; parts describe themselves (`Part.differences`).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from trifold.errors import plural
from trifold.nn.norms import LayerNorm, norm_of
from trifold.nn.parts import EmbeddingsPart, FeedForwardPart, PositionsPart, part_of, parts, reach
from trifold.nn.registry import is_from_outside
from trifold.nn.variants import ModelConfig


class Compared(NamedTuple):
    """A part of a model: sizes, whether it is as in the paper of 2017, its description, and the
    paper's.
    """

    part: str
    size: str
    verdict: Literal["same", "differs"]
    what: str
    paper: str


def differences(config: ModelConfig) -> tuple[str, ...]:
    """A phrase for each difference from the paper."""
    return tuple(phrase for row in _ROWS.values() for phrase in row.phrases(config))


def compare(config: ModelConfig) -> tuple[Compared, ...]:
    """Every part of a model compared with that of the Transformer of 2017."""
    compared = []
    for name, row in _ROWS.items():
        phrases = list(row.phrases(config))
        if name == "output":
            phrases += _other_heads(config)
        what = ", ".join(phrases) or row.paper
        verdict: Literal["same", "differs"] = "differs" if phrases else "same"
        compared.append(Compared(name, row.size(config), verdict, what, row.paper))
    return tuple(compared)


def _of_parts(config: ModelConfig, row: str) -> Iterator[str]:
    """The phrases of the parts in a row. Positions that are added follow those in scores. A part
    from outside without phrases is named.
    """
    for part in sorted(parts(config), key=lambda part: isinstance(part, PositionsPart)):
        if part.row != row:
            continue
        phrases = [*part.differences(config)]
        if not phrases and is_from_outside(part):
            phrases.append(part.label(config))
        yield from phrases


# --- shape and embeddings -------------------------------------------------------------------------


def _layers(config: ModelConfig) -> str:
    return ", ".join(f"{side} × {stack.n_layers}" for side, stack in config.stacks.items())


def _shape(config: ModelConfig) -> Iterator[str]:
    if config.shape != "encoder-decoder":
        yield f"{config.shape} only"
    yield from _of_parts(config, "shape")


def _tables(config: ModelConfig) -> str:
    return part_of(EmbeddingsPart, config).sizes(config)


def _embeddings(config: ModelConfig) -> Iterator[str]:
    if not config.scale_embeddings:
        yield "unscaled embeddings"
    if config.embedding_scale:
        yield f"embeddings times {config.embedding_scale:g}"
    if config.n_token_types > 1:
        yield "segment embeddings"
    if config.has_embedding_projection:
        yield f"factorized embeddings of width {config.d_embedding}"
    if config.token_projection:
        yield "states projected back to it"
    if config.embedding_norm:
        yield "norm after the embeddings"
    yield from _of_parts(config, "embeddings")


def _longest(config: ModelConfig) -> str:
    return f"{config.max_positions:,}"


def _positions(config: ModelConfig) -> Iterator[str]:
    yield from _of_parts(config, "positions")


# --- blocks ---------------------------------------------------------------------------------------

_NORM_PLACEMENTS = {
    "pre": "norms before the sub-layers",
    "sandwich": "norms before and after the sub-layers",
    "exit": "norms of the outputs of sub-layers",
}
_NORM_WEIGHTS = {"plus-one": "norms times 1 + weight", "none": "norms without weights"}


def _width(config: ModelConfig) -> str:
    return "width " + _both(f"{stack.d_model:,}" for stack in config.stacks.values())


def _blocks(config: ModelConfig) -> Iterator[str]:
    norm = norm_of(config)
    if norm is not LayerNorm:
        yield f"{norm.label}s"
    if phrase := _NORM_WEIGHTS.get(config.norm_weight):
        yield phrase
    if not config.first_norm:
        yield "no norm before the first layer"
    if config.residual_scale != 1:
        yield f"sub-layers times {config.residual_scale:g}"
    if phrase := _NORM_PLACEMENTS.get(config.norm_placement):
        yield phrase
    if not config.norm_bias:
        yield "norms without biases"
    yield from _of_parts(config, "blocks")
    layers = config.block_of_layer or ()
    blocks = len(set(layers))
    if blocks < len(layers):
        yield f"{len(layers)} layers share {plural(blocks, 'block')}"


# --- attention ------------------------------------------------------------------------------------

_QK_NORMS = {
    "head": "norm of the queries and keys of each head",
    "width": "norm of queries and keys",
}
_BIASES = {  # of q, k and v, of o
    (True, True): "attention biases",
    (True, False): "attention biases except in the output projection",
    (False, True): "bias in the output projection of attention",
}


def _heads(config: ModelConfig) -> str:
    return _both(f"{stack.n_heads} heads of {stack.head_width}" for stack in config.stacks.values())


def _attention(config: ModelConfig) -> Iterator[str]:
    if phrase := _BIASES.get((config.attention_bias, config.out_bias)):
        yield phrase
    yield from dict.fromkeys(
        f"values of width {stack.value_width} (d_v ≠ d_k)"
        for stack in config.stacks.values()
        if stack.value_width != stack.head_width
    )
    yield from dict.fromkeys(
        f"{stack.n_heads} query heads share {plural(stack.kv_heads, 'key/value head')}"
        for stack in config.stacks.values()
        if stack.kv_heads != stack.n_heads
    )
    yield from _scores(config)
    if phrase := _QK_NORMS.get(config.qk_norm or ""):
        yield phrase
    if config.attention_sinks:
        yield "attention sinks"
    yield from _of_parts(config, "attention")
    yield from dict.fromkeys(
        phrase for side, stack in config.stacks.items() for phrase in reach(stack, side)
    )


def _scores(config: ModelConfig) -> Iterator[str]:
    if config.attention_scale == 1:
        yield "unscaled scores"
    elif config.attention_scale is not None:
        yield "different scale of the scores"
    if config.attention_scale_by_layer:
        yield "scores divided by the layer number"
    if config.score_soft_cap is not None or config.logit_soft_cap is not None:
        yield "soft caps"


# --- feed-forward network and output --------------------------------------------------------------

_ACTIVATIONS = {
    "relu2": "squared ReLU",
    "gelu": "GELU",
    "gelu-tanh": "GELU (tanh approximation)",
    "quick-gelu": "GELU (sigmoid approximation)",
    "silu": "SiLU",
    "tanh": "tanh",
}


def _networks(config: ModelConfig) -> str:
    network = part_of(FeedForwardPart, config)
    return _both(network.sizes(config, stack) for stack in config.stacks.values())


def _feed_forward(config: ModelConfig) -> Iterator[str]:
    if phrase := _ACTIVATIONS.get(config.activation):
        yield phrase
    if config.gated:
        yield "gated feed-forward"
    if config.gate_limit is not None:
        yield f"gate clamped at {config.gate_limit:g}"
    if not config.feed_forward_bias:
        yield "feed-forward without biases"
    yield from _of_parts(config, "feed-forward")


def _logits(config: ModelConfig) -> str:
    if "lm" not in config.chosen_heads:
        return ""
    return f"{config.output_side.d_model:,} → {config.output_vocab_size:,}"


def _output(config: ModelConfig) -> Iterator[str]:
    if config.logits_scale != 1:
        yield f"logits times {config.logits_scale:.3g}"
    if config.lm_head_bias:
        yield "bias on the logits"
    if "lm" in config.chosen_heads and not config.tie_lm_head:
        yield "untied output matrix"
    if config.lm_head_transform is not None:
        yield "additional layer before the logits"
    yield from _of_parts(config, "output")


def _other_heads(config: ModelConfig) -> list[str]:
    """A phrase for the heads other than the language-model head, or for no head at all."""
    if not config.chosen_heads:
        return ["no head"]
    others = [head for head in config.chosen_heads if head != "lm"]
    if not others:
        return []
    title = "head" if len(others) == 1 else "heads"
    return [f"{title}: {', '.join(others)}"]


def _both(descriptions: Iterable[str]) -> str:
    """The descriptions of the stacks, once if they are equal."""
    return ", ".join(dict.fromkeys(descriptions))


# --- the table ------------------------------------------------------------------------------------


class _Row(NamedTuple):
    """The paper's description, the sizes of a model, and a phrase for each of its differences."""

    paper: str
    size: Callable[[ModelConfig], str]
    phrases: Callable[[ModelConfig], Iterator[str]]


_ROWS = {
    "shape": _Row("an encoder and a decoder", _layers, _shape),
    "embeddings": _Row("multiplied by √d_model", _tables, _embeddings),
    "positions": _Row("sines and cosines, added", _longest, _positions),
    "blocks": _Row("sequential sub-layers, a layer norm after each", _width, _blocks),
    "attention": _Row("scores divided by √d_head, no biases", _heads, _attention),
    "feed-forward": _Row("two layers with biases, ReLU between them", _networks, _feed_forward),
    "output": _Row("tied to the embeddings, no bias", _logits, _output),
}
