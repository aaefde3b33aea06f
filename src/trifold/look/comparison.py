"""Compare a model with the Transformer of 2017, part by part, by the values of its config.

Sizes, dropout and ids are not differences, because the paper has models of several sizes itself.
"""

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from trifold.data.pairs import plural
from trifold.nn.config import ModelConfig


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
    return tuple(phrase for _, _, _, *phrases in _parts(config) for phrase in phrases if phrase)


def compare(config: ModelConfig) -> tuple[Compared, ...]:
    """Every part of a model compared with that of the Transformer of 2017."""
    compared = []
    for name, size, paper, *phrases in _parts(config):
        found = [phrase for phrase in phrases if phrase]
        found += _other_heads(config) if name == "output" else []
        what = ", ".join(found) or paper
        compared.append(Compared(name, size, "differs" if found else "same", what, paper))
    return tuple(compared)


POSITIONS = {
    "sinusoidal": "sinusoidal positions",
    "sinusoidal-halves": "sines before cosines",
    "sinusoidal-tensor2tensor": "sines before cosines, down to a frequency of 1/10000",
    "learned": "learned positions",
    "axial": "learned positions of rows and columns",
    "rotary": "rotary positions",
    "relative": "relative position bias",
    "relative-sinusoidal": "relative sinusoidal positions in the scores",
    "disentangled": "disentangled content and position in the scores",
    "alibi": "ALiBi",
    "none": "no positions",
}
_NORM_PLACEMENTS = {
    "pre": "norms before the sub-layers",
    "sandwich": "norms before and after the sub-layers",
    "exit": "norms of the outputs of sub-layers",
}
_NORM_WEIGHTS = {"plus-one": "norms times 1 + weight", "none": "norms without weights"}
_LINEAR = {
    "elu": "linear attention (elu + 1)",
    "favor": "linear attention (random features)",
    "low-rank": "attention to mixtures of keys",
    "lsh": "attention to keys of similar hashes",
    "spans": "attention to spans of tokens",
}
_GLOBALS = {
    "first": "global first token",
    "question": "global tokens before the first end-of-sentence token",
    "answer": "global tokens after the second end-of-sentence token",
}
_QK_NORMS = {
    "head": "norm of the queries and keys of each head",
    "width": "norm of queries and keys",
}
_RESIDUALS = {
    "parallel": "parallel attention and feed-forward after one norm",
    "parallel-two-norms": "parallel attention and feed-forward, each after its own norm",
    "reversible": "two streams in reversible blocks",
}
_BIASES = {  # of q, k and v, of o
    (True, True): "attention biases",
    (True, False): "attention biases except in the output projection",
    (False, True): "bias in the output projection of attention",
}
_ACTIVATIONS = {
    "relu2": "squared ReLU",
    "gelu": "GELU",
    "gelu-tanh": "GELU (tanh approximation)",
    "quick-gelu": "GELU (sigmoid approximation)",
    "silu": "SiLU",
    "tanh": "tanh",
}


def _parts(config: ModelConfig) -> Iterator[tuple[str, str, str, *tuple[str | None, ...]]]:
    """Name, sizes, the paper's description, and for each possible difference a phrase, or None if
    the part agrees.
    """
    stacks = config.stacks
    yield (
        "shape",
        ", ".join(f"{side} × {stack.n_layers}" for side, stack in stacks.items()),
        "an encoder and a decoder",
        None if config.shape == "encoder-decoder" else f"{config.shape} only",
        f"{config.n_patches} image patches and a class token" if config.patch_size else None,
        f"{len(config.stem)} convolutions before the patches" if config.stem else None,
    )
    width = config.d_embedding if config.has_embedding_projection else None
    yield (
        "embeddings",
        _embedding_sizes(config),
        "multiplied by √d_model",
        None if config.scale_embeddings else "unscaled embeddings",
        f"embeddings times {config.embedding_scale:g}" if config.embedding_scale else None,
        "segment embeddings" if config.n_token_types > 1 else None,
        f"factorized embeddings of width {width}" if width else None,
        "states projected back to it" if config.token_projection else None,
        "norm after the embeddings" if config.embedding_norm else None,
    )
    yield (
        "positions",
        f"{config.max_positions:,}",
        "sines and cosines, added",
        None if config.positions == "sinusoidal" else POSITIONS[config.positions] + _rotary(config),
        "learned positions" if config.learned_positions else None,
        "bias for tokens of the same segment" if config.segment_offsets else None,
        _local_positions(config),
        "query stream for the tokens to predict" if config.query_stream else None,
    )
    layers = config.block_of_layer or ()
    blocks = len(set(layers))
    yield (
        "blocks",
        "width " + _both(f"{stack.d_model:,}" for stack in stacks.values()),
        "sequential sub-layers, a layer norm after each",
        "RMS norms" if config.norm == "rms" else None,
        _NORM_WEIGHTS.get(config.norm_weight),
        None if config.first_norm else "no norm before the first layer",
        f"sub-layers times {config.residual_scale:g}" if config.residual_scale != 1 else None,
        _NORM_PLACEMENTS.get(config.norm_placement),
        None if config.norm_bias else "norms without biases",
        _RESIDUALS.get(config.residual),
        "convolution beside the first layer" if config.convolution else None,
        f"{len(layers)} layers share {plural(blocks, 'block')}" if blocks < len(layers) else None,
    )
    shared = {
        f"{stack.n_heads} query heads share {plural(stack.kv_heads, 'key/value head')}": None
        for stack in stacks.values()
        if stack.kv_heads != stack.n_heads
    }
    scale = "unscaled scores" if config.attention_scale == 1 else "different scale of the scores"
    capped = config.score_soft_cap is not None or config.logit_soft_cap is not None
    yield (  # type: ignore[misc]  # mypy does not follow the unpacked phrases
        "attention",
        _both(f"{stack.n_heads} heads of {stack.head_width}" for stack in stacks.values()),
        "scores divided by √d_head, no biases",
        _BIASES.get((config.attention_bias, config.out_bias)),
        *shared,
        None if config.attention_scale is None else scale,
        "scores divided by the layer number" if config.attention_scale_by_layer else None,
        "soft caps" if capped else None,
        _QK_NORMS.get(config.qk_norm or ""),
        _LINEAR.get(config.attention),
        "attention sinks" if config.attention_sinks else None,
        f"keys and values from a latent vector of {config.latent.width:,}"
        if config.latent
        else None,
        *dict.fromkeys(phrase for side, stack in stacks.items() for phrase in reach(stack, side)),
    )
    experts = config.experts if config.expert_layers else None
    width = experts.d_ff if experts else None
    yield (
        "feed-forward",
        _both(
            f"{each.d_model:,} → {width or each.d_ff:,} → {each.d_model:,}"
            for each in stacks.values()
        ),
        "two layers with biases, ReLU between them",
        _ACTIVATIONS.get(config.activation),
        "gated feed-forward" if config.gated else None,
        None if config.gate_limit is None else f"gate clamped at {config.gate_limit:g}",
        None if config.feed_forward_bias else "feed-forward without biases",
        f"{experts.per_token} of {experts.count:,} experts" if experts else None,
        f"{experts.groups_per_token} of {experts.groups} groups"
        if experts and experts.groups > 1
        else None,
        plural(experts.shared, "shared expert") if experts and experts.shared else None,
        f"{plural(experts.dense_layers, 'dense layer')} first"
        if experts and experts.dense_layers
        else None,
    )
    writes = "lm" in config.chosen_heads
    yield (
        "output",
        f"{config.output_side.d_model:,} → {config.output_vocab_size:,}" if writes else "",
        "tied to the embeddings, no bias",
        f"logits times {config.logits_scale:.3g}" if config.logits_scale != 1 else None,
        "bias on the logits" if config.lm_head_bias else None,
        "untied output matrix" if writes and not config.tie_lm_head else None,
        None if config.lm_head_transform is None else "additional layer before the logits",
    )


def reach(config: ModelConfig, side: str) -> list[str]:
    """Phrases for the keys that a query of a stack attends to; none if it attends to all."""
    found = []
    windows = [window for layer in range(config.n_layers) if (window := config.window(layer))]
    if windows:
        sizes = " to ".join(f"{window:,}" for window in sorted({min(windows), max(windows)}))
        some = " in some layers" if len(windows) < config.n_layers else ""
        found.append(f"window of {sizes} tokens{some}")
    if side == "encoder" and config.global_tokens != "none":
        found.append(_GLOBALS[config.global_tokens])
    if config.global_projections:
        found.append("own projections of global tokens")
    if config.summary_block is not None:
        found.append(f"summaries of {config.summary_block:,} tokens")
    if (blocks := config.sparse_blocks) is not None:
        training = " in training" if blocks.only_in_training else ""
        found += [
            f"sparse blocks of {blocks.size:,} tokens",
            f"{blocks.random:,} random ones{training}",
        ]
    if (recurrence := config.recurrence) is not None:
        found.append(f"segments of {recurrence.size:,} tokens and {recurrence.reach:,} before")
    return found


def _embedding_sizes(config: ModelConfig) -> str:
    if config.patch_size is not None:
        return (
            f"{config.n_channels} × {config.patch_size[0]} × {config.patch_size[1]} → "
            f"{config.d_model:,}"
        )
    own = (
        [(config.target_vocab_size, config.decoder_side.embedding_width)]
        if config.target_vocab_size
        else []
    )
    tables = [(config.vocab_size, config.embedding_width), *own]
    return ", ".join(f"{size:,} × {width:,}" for size, width in tables)


def _rotary(config: ModelConfig) -> str:
    """The details of rotary positions in parentheses, if there are any."""
    scaling, rotated = config.rotary_scaling, config.rotated_width
    details = [
        "interleaved pairs" if config.rotary_pairs == "interleaved" else None,
        f"{rotated} of {config.head_width} dimensions" if rotated < config.head_width else None,
        f"scaled {scaling.factor:g} times, {scaling.kind}" if scaling else None,
    ]
    listed = "; ".join(detail for detail in details if detail)
    return f" ({listed})" if listed and config.positions == "rotary" else ""


def _local_positions(config: ModelConfig) -> str | None:
    """How the positions of some layers differ."""
    if "none" in config.rotary_pattern:
        return "no positions in some layers"
    local = config.rotary_local_theta
    return (
        None
        if local is None
        else f"another base of the rotation in layers with a window ({local:g})"
    )


def _other_heads(config: ModelConfig) -> list[str]:
    """The heads other than the language-model head."""
    others = [head for head in config.chosen_heads if head != "lm"]
    found = [f"{'heads' if len(others) > 1 else 'head'}: {', '.join(others)}"] if others else []
    return found if config.chosen_heads else ["no head"]


def _both(descriptions: Iterable[str]) -> str:
    """The descriptions of the stacks, once if they are equal."""
    return ", ".join(dict.fromkeys(descriptions))
