"""Consistency checks of a ModelConfig. Each problem states what to change.

A problem is a text, or a Conflict: settings that exclude each other, with the values that resolve
it. A choice excludes settings that have no meaning or no implementation with it; where two choices
exclude each other, either can be changed. The shape and the heads belong to the task, and sizes
without a known value to the user; no conflict changes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from trifold.nn.config_parts import DECODER_SIZES
from trifold.settings import Conflict, Settings, as_yaml

if TYPE_CHECKING:
    from trifold.nn.config import ModelConfig

Problems: TypeAlias = Iterator[str | Conflict]


def first_problem(config: ModelConfig) -> ValueError | None:
    """The first inconsistency, or None."""
    checks = [_needs, _sizes, _layers, _experts, _linear_attention, _sparse_attention, _latent]
    checks += [_positions, _disentangled, _rotary_scaling, _images, _heads]
    found = (problem for check in checks for problem in check(config))
    problem = next(chain(found, _of_decoder(config)), None)
    return ValueError(problem) if isinstance(problem, str) else problem


def _of_decoder(config: ModelConfig) -> Problems:
    """The problems of sizes that the decoder may have too, with the keys of its own ones."""
    own = {ours: theirs for theirs, ours in DECODER_SIZES.items()}
    for check in (_linear_attention, _latent, _positions, _rotary_scaling):
        for problem in check(config.decoder_side):
            if isinstance(problem, Conflict):
                ways = {own.get(key, key): value for key, value in problem.ways.items()}
                yield Conflict(f"decoder: {problem.text}", ways)
            else:
                yield f"decoder: {problem}"


def _default(config: ModelConfig, key: str) -> Any:
    """The default of a setting, as in a recipe."""
    value = type(config).model_fields[key].default
    return {} if isinstance(value, Settings) else value


def _exclude(config: ModelConfig, choice: str, keys: str, own: str = "") -> Problems:
    """A conflict for each of the keys that is set although the choice excludes it.

    own: the key of the choice, if it gives way to them too.
    """
    for key in keys.split():
        value = getattr(config, key)
        if value != type(config).model_fields[key].default:
            shown = "" if isinstance(value, Settings) else f": {as_yaml(value)}"
            ways = {name: _default(config, name) for name in (key, own) if name}
            yield Conflict(f"{choice} excludes {key}{shown}", ways)


# Values of a setting, and the keys that need one of them.
_NEEDED = {
    "shape": {
        "encoder-decoder": "target_vocab_size d_decoder n_decoder_heads n_decoder_kv_heads "
        "d_decoder_head "
        "d_decoder_ff decoder_window max_decoder_positions starts_with_last",
        "encoder or encoder-decoder": "global_tokens global_projections summary_block "
        "sparse_blocks",
        "encoder": "segment_offsets query_stream patch_size convolution",
        "decoder": "recurrence",
    },
    "residual": {"sequential": "query_stream span_layer"},
    "attention": {"favor": "n_features", "low-rank": "rank", "spans": "span_keys", "lsh": "lsh"},
    "positions": {
        "rotary": "rotary_width rotary_pairs rotary_theta rotary_scaling rotary_local_theta "
        "rotary_pattern",
        "disentangled": "relative_log relative_scores relative_shared relative_norm",
        "relative or disentangled": "learned_positions relative_buckets relative_distance",
        "relative-sinusoidal": "relative_clamp segment_offsets query_stream",
        "alibi": "alibi_scale alibi_rounded",
        "axial": "axial_shape axial_widths",
    },
}


def _needs(config: ModelConfig) -> Problems:
    for name, needed in _NEEDED.items():
        value = getattr(config, name)
        for values, keys in needed.items():
            for key in keys.split() if value not in values.split(" or ") else ():
                if getattr(config, key) != type(config).model_fields[key].default:
                    text = f"{key} needs {name}: {values}, not {value}"
                    yield Conflict(text, {key: _default(config, key)})


def _sizes(config: ModelConfig) -> Problems:
    own = {"n_heads": "n_decoder_heads", "n_kv_heads": "n_decoder_kv_heads", "d_model": "d_decoder"}
    named = (theirs if getattr(config, theirs) else ours for ours, theirs in own.items())
    for sized, (heads, kv_heads, width) in ((config, own), (config.decoder_side, named)):
        if sized.d_head is None and sized.d_model % sized.n_heads:
            divisors = (n for n in range(1, min(sized.d_model, 64) + 1) if sized.d_model % n == 0)
            yield (
                f"{heads} {sized.n_heads} does not divide {width} {sized.d_model}: "
                f"choose one of {', '.join(map(str, divisors))}, or set d_head"
            )
        if sized.n_kv_heads is not None and sized.n_heads % sized.n_kv_heads:
            yield f"{kv_heads} {sized.n_kv_heads} does not divide {heads} {sized.n_heads}"
    shares = config.target_vocab_size is None and config.d_embedding is None
    if shares and config.d_decoder not in (None, config.d_model):
        yield (
            "d_decoder: stacks of two widths share no embeddings: set target_vocab_size, or "
            "d_embedding"
        )


def _layers(config: ModelConfig) -> Problems:
    blocks = config.block_of_layer
    if blocks is not None:
        if {len(blocks)} != {config.encoder_layers, config.decoder_layers} - {0}:
            yield (
                f"block_of_layer has {len(blocks)} entries: give one for each of the n_layers "
                "layers"
            )
        if set(blocks) != set(range(max(blocks, default=0) + 1)):
            yield f"block_of_layer {blocks} skips a block: use each of 0, 1, … up to the largest"
        if config.attention_scale_by_layer:
            text = (
                "block_of_layer and attention_scale_by_layer exclude each other: a shared "
                "block has no single layer"
            )
            yield Conflict(text, {"attention_scale_by_layer": False, "block_of_layer": None})
    yield from _residual(config)
    if not config.first_norm and config.norm_placement != "pre":
        text = f"first_norm: false needs norm_placement: pre, not {config.norm_placement}"
        yield Conflict(text, {"first_norm": True})
    if config.norm_weight != "plain" and config.norm != "rms":
        text = f"norm_weight: {config.norm_weight} needs norm: rms, not {config.norm}"
        yield Conflict(text, {"norm_weight": "plain"})
    if config.gate_limit is not None and not config.gated:
        yield Conflict("gate_limit needs gated: true", {"gate_limit": None})
    if config.sliding_window is None and config.window_pattern != ("local",):
        text = "window_pattern needs sliding_window, the number of keys of a local layer"
        yield Conflict(text, {"window_pattern": ["local"]})
    if wrong := [own for own in config.window_pattern if isinstance(own, int) and own < 1]:
        yield f"window_pattern: {wrong[0]} is neither local, global nor a positive number of keys"
    if "local" not in config.window_pattern and {*config.window_pattern} != {"global"}:
        yield (
            "window_pattern has numbers, but no local layer, which has sliding_window: write "
            "local for one of them"
        )
    if config.sliding_window is None and config.decoder_window is not None:
        text = "decoder_window needs sliding_window, that of the encoder"
        yield Conflict(text, {"decoder_window": None})
    if (part := config.convolution) is not None:
        if part.kernel % 2 == 0:
            yield f"convolution: kernel {part.kernel} must be odd"
        if config.d_model % part.groups:
            yield f"convolution: groups {part.groups} does not divide d_model {config.d_model}"
        if config.norm_placement != "post":
            text = f"convolution needs norm_placement: post, not {config.norm_placement}"
            yield Conflict(text, {"convolution": None, "norm_placement": "post"})
        keys = "block_of_layer query_stream summary_block"
        yield from _exclude(config, "convolution", keys, own="convolution")
        if config.patch_size is not None:
            yield Conflict("convolution excludes patch_size", {"convolution": None})
        if config.attention == "spans":
            ways = {"convolution": None, "attention": "softmax"}
            yield Conflict("convolution excludes attention: spans", ways)


def _residual(config: ModelConfig) -> Problems:
    if config.residual == "sequential":
        return
    choice, ways = f"residual: {config.residual}", {"residual": "sequential"}
    if config.norm_placement != "pre":
        text = f"{choice} needs norm_placement: pre, not {config.norm_placement}"
        yield Conflict(text, {"norm_placement": "pre"} | ways)
    if config.shape == "encoder-decoder":
        yield Conflict(f"{choice} has no cross-attention: choose shape encoder or decoder", ways)
    yield from _exclude(config, choice, "first_norm residual_scale")
    if config.residual == "reversible":
        yield from _exclude(config, choice, "token_projection token_transform")
        if "replaced" in config.chosen_heads:
            yield Conflict(f"{choice} excludes the head replaced", ways)
        if config.positions in ("relative", "relative-sinusoidal", "disentangled"):
            text = f"{choice} excludes positions: {config.positions}, learned offsets of scores"
            yield Conflict(text, {"positions": _default(config, "positions")} | ways)


def _experts(config: ModelConfig) -> Problems:
    if (experts := config.experts) is None:
        return
    if config.residual != "sequential":
        text = f"experts need residual: sequential, not {config.residual}"
        yield Conflict(text, {"residual": "sequential", "experts": None})
    if experts.count % experts.groups:
        yield f"experts.groups {experts.groups} does not divide experts.count {experts.count}"
    if experts.groups_per_token > experts.groups:
        yield (
            f"experts.groups_per_token {experts.groups_per_token} exceeds experts.groups "
            f"{experts.groups}"
        )
    if experts.per_token > (most := experts.count // experts.groups * experts.groups_per_token):
        yield (
            f"experts.per_token {experts.per_token} exceeds {most}, the experts that a token "
            "can reach"
        )


def _linear_attention(config: ModelConfig) -> Problems:
    if config.attention == "softmax":
        return
    choice, ways = f"attention: {config.attention}", {"attention": "softmax"}
    positions = {"positions": _default(config, "positions")}
    if config.attention == "low-rank" and config.shape != "encoder":
        text = f"{choice} mixes all tokens and needs shape: encoder, not {config.shape}"
        yield Conflict(text, ways)
    if config.attention == "spans":
        if config.shape == "encoder-decoder":
            yield Conflict(f"{choice} excludes shape: encoder-decoder", ways)
        if config.positions == "rotary":
            yield Conflict(f"{choice} excludes positions: rotary", positions | ways)
        yield from _exclude(config, choice, "experts", own="attention")
    if config.positions in ("relative", "relative-sinusoidal", "alibi", "disentangled"):
        text = f"{choice} has no offsets of scores: choose other positions than {config.positions}"
        yield Conflict(text, positions | ways)
    if config.rotary_scaling is not None and config.rotary_scaling.kind in ("dynamic", "longrope"):
        text = f"{choice} excludes rotary_scaling: {config.rotary_scaling.kind}"
        yield Conflict(text, {"rotary_scaling": None} | ways)
    yield from _exclude(config, choice, "sliding_window latent", own="attention")
    excluded = "n_kv_heads qk_norm" if config.attention == "lsh" else "attention_dropout"
    yield from _exclude(config, choice, f"score_soft_cap attention_sinks {excluded}")


def _sparse_attention(config: ModelConfig) -> Problems:
    if config.sliding_window is None:
        for key in ("global_tokens", "global_projections", "summary_block"):
            if getattr(config, key) != (default := _default(config, key)):
                text = f"{key} needs sliding_window, the number of keys of the other tokens"
                yield Conflict(text, {key: default})
    for key in ("global_projections", "summary_block", "sparse_blocks", "recurrence"):
        if getattr(config, key):
            yield from _exclude(config, key, "attention latent", own=key)
            if config.kv_heads != config.n_heads:
                yield from _exclude(config, key, "n_kv_heads")
    if config.global_projections:
        if not config.positions.startswith(("learned", "sinusoidal", "none")):
            text = (
                "global_projections excludes offsets of scores: choose other positions than "
                f"{config.positions}"
            )
            yield Conflict(text, _other_positions(config, "global_projections"))
        yield from _exclude(config, "global_projections", "qk_norm score_soft_cap attention_sinks")
    if config.summary_block is not None:
        if config.positions in ("rotary", "alibi", "relative-sinusoidal", "disentangled"):
            text = (
                "summary_block: a summary has no position; choose other positions than "
                f"{config.positions}"
            )
            yield Conflict(text, _other_positions(config, "summary_block"))
        yield from _exclude(config, "summary_block", "global_projections", own="summary_block")
    if config.sparse_blocks is not None:
        keys = "sliding_window query_stream"
        yield from _exclude(config, "sparse_blocks", keys, own="sparse_blocks")
    if config.recurrence is not None:
        if config.positions not in ("relative-sinusoidal", "none"):
            text = (
                f"recurrence needs positions: relative-sinusoidal or none, not {config.positions}"
            )
            yield Conflict(text, {"positions": "relative-sinusoidal", "recurrence": None})
        keys = "sliding_window residual experts"
        yield from _exclude(config, "recurrence", keys, own="recurrence")


def _other_positions(config: ModelConfig, choice: str) -> dict[str, Any]:
    """Ways out of a conflict of positions with a choice."""
    return {key: _default(config, key) for key in ("positions", choice)}


def _latent(config: ModelConfig) -> Problems:
    if config.latent is None:
        return
    if config.positions not in ("rotary", "none"):
        text = f"latent needs positions: rotary or none, not {config.positions}"
        yield Conflict(text, {"positions": "rotary", "latent": None})
    if config.latent.d_rotary % 2:
        yield f"latent needs an even latent.d_rotary, not {config.latent.d_rotary}"
    keys = "n_kv_heads qk_norm rotary_width score_soft_cap attention_sinks"
    yield from _exclude(config, "latent", keys)
    yield from _exclude(config, "latent", "attention_scale_by_layer residual", own="latent")


def _positions(config: ModelConfig) -> Problems:
    has_table = config.positions.startswith(("sinusoidal", "learned")) or config.learned_positions
    if config.position_offset and not has_table:
        text = f"position_offset needs positions: learned or sinusoidal, not {config.positions}"
        yield Conflict(text, {"position_offset": 0})
    width = config.sum_width
    if config.positions.startswith("sinusoidal") and width % 2:
        name = "d_model" if width == config.d_model else "d_embedding"
        yield f"sinusoidal positions need an even {name}, not {width}"
    if config.positions == "rotary":
        rotated = config.rotated_width
        if config.latent is None and (rotated % 2 or rotated > config.head_width):
            yield (
                f"rotary_width {rotated} must be even and at most {config.head_width}, the "
                "width of a head"
            )
        if (
            rotated == 2
            and config.rotary_scaling is not None
            and config.rotary_scaling.kind == "dynamic"
        ):
            yield "rotary_scaling: dynamic needs a rotary width of at least 4, not 2"
    if config.positions == "relative-sinusoidal" and config.d_model % 2:
        yield f"relative-sinusoidal positions need an even d_model, not {config.d_model}"
    if config.positions == "relative":
        # An encoder splits the buckets between both directions; half of a direction's buckets are
        # for exact distances.
        fewest = config.relative_buckets // (4 if config.encoder_layers else 2)
        most = config.relative_buckets // (2 if config.decoder_layers else 4)
        if fewest < 1 or config.relative_distance <= most:
            yield (
                f"relative_distance {config.relative_distance} is too small for "
                f"{config.relative_buckets} "
                "relative_buckets: use at least four buckets, and a distance of more than half "
                "as many"
            )
    if config.positions == "axial":
        shape, widths = config.axial_shape or (0, 0), config.axial_widths or (0, 0)
        if prod(shape) < (most := max(config.max_positions, config.max_decoder_positions or 0)):
            yield (
                f"axial positions need axial_shape, whose product is at least max_positions {most}"
            )
        if sum(widths) != width:
            yield (
                f"axial positions need axial_widths, whose sum is the width {width} of the "
                "embeddings"
            )


def _disentangled(config: ModelConfig) -> Problems:
    if config.positions != "disentangled":
        return
    if config.shape != "encoder":
        text = f"positions: disentangled needs shape: encoder, not {config.shape}"
        yield Conflict(text, {"positions": _default(config, "positions")})
    if config.kv_heads != config.n_heads:
        yield from _exclude(config, "positions: disentangled", "n_kv_heads")
    yield from _exclude(config, "positions: disentangled", "latent", own="positions")
    buckets, farthest = config.relative_buckets, config.relative_distance
    if buckets < 4 or buckets % 2 or (config.relative_log and farthest <= buckets // 4 + 1):
        yield (
            "disentangled positions need an even number of at least 4 relative_buckets, not "
            f"{buckets}, "
            f"and relative_distance {farthest} above a quarter of them"
        )


def _rotary_scaling(config: ModelConfig) -> Problems:
    if (scaling := config.rotary_scaling) is None:
        return
    frequencies = config.rotated_width // 2
    low, high = scaling.low_frequency, scaling.high_frequency
    if scaling.kind == "llama3" and high <= low:
        yield f"rotary_scaling: high_frequency {high} must exceed low_frequency {low}"
    for key in ("short_factors", "long_factors"):
        factors = getattr(scaling, key)
        if factors is None and scaling.kind == "longrope":
            yield f"rotary_scaling: kind longrope needs {key}"
        elif factors is not None and scaling.kind != "longrope":
            yield f"rotary_scaling: {key} needs kind longrope, not {scaling.kind}"
        elif factors is not None and len(factors) != frequencies:
            yield (
                f"rotary_scaling: {key} has {len(factors)} values for {frequencies} "
                "frequencies: give one for each"
            )
    if scaling.kind == "longrope" and scaling.original_positions == 1 and scaling.magnitude is None:
        yield "rotary_scaling: longrope with original_positions 1 has no default magnitude: set it"


def _images(config: ModelConfig) -> Problems:
    if (config.patch_size is None) != (config.image_size is None):
        yield "patch_size and image_size need each other: give both or neither"
    if config.patch_size is None and config.stem:
        text = "stem needs patch_size: its convolutions come before the patches of an image"
        yield Conflict(text, {"stem": []})
    if config.patch_size is None or config.image_size is None:
        return
    # An image has no tokens, which attend to all, are predicted, or have types.
    yield from _exclude(
        config, "patch_size", "global_tokens query_stream n_token_types d_embedding"
    )
    if min(*config.patch_size, *config.image_size) < 1 or any(
        side % part for side, part in zip(config.image_size, config.patch_size, strict=True)
    ):
        yield f"patch_size {config.patch_size} does not divide image_size {config.image_size}"
    if any(side % prod(stride for *_, stride in config.stem_layers) for side in config.patch_size):
        yield f"the strides of stem {config.stem} do not divide patch_size {config.patch_size}"
    if config.max_positions != config.n_patches + 1:
        text = (
            f"max_positions is {config.max_positions}: {config.n_patches} patches and a class "
            f"token need {config.n_patches + 1}"
        )
        yield Conflict(text, {"max_positions": config.n_patches + 1})
    if "lm" in config.chosen_heads:
        yield "the head lm is for text: choose other heads in a model of images"


def _heads(config: ModelConfig) -> Problems:
    heads = config.chosen_heads
    if len(set(heads)) < len(heads):
        yield f"heads {heads} has duplicates"
    if "next-sentence" in heads and "pooler" not in heads:
        yield "the head next-sentence reads the pooler's vector: add pooler to heads"
    if (
        {"sequence", "choice"} & {*heads}
        and config.classifier_input == "pooler"
        and "pooler" not in heads
    ):
        yield "classifier_input: pooler needs pooler in heads"
    if "boundary" in heads and "lm" not in heads:
        yield "the head boundary uses the table of the head lm: add lm to heads"
    if config.label_names is not None and len(config.label_names) != config.n_labels:
        yield (
            f"label_names gives {len(config.label_names)} names to n_labels {config.n_labels} "
            "classes"
        )
    if (
        config.transform_norm
        and config.classifier_transform is None
        and config.token_transform is None
    ):
        text = "transform_norm needs classifier_transform or token_transform"
        yield Conflict(text, {"transform_norm": False})
    if config.span_layer and "span" not in heads:
        yield Conflict("span_layer needs span in heads", {"span_layer": False})
    if config.span_layer:
        yield from _exclude(config, "span_layer", "token_projection")
    if config.lm_head_transform is not None and "lm" not in heads:
        yield Conflict("lm_head_transform needs lm in heads", {"lm_head_transform": None})
    plain = "lm" in heads and config.tie_lm_head and config.lm_head_transform is None
    table, states = config.output_side.embedding_width, config.output_side.state_width
    if plain and table != states:
        text = f"a tied head of width {table} (the embeddings) cannot read states of width {states}"
        remedy = "set lm_head_transform, or tie_lm_head: false"
        yield Conflict(text, {"tie_lm_head": False}, remedy)
    if config.token_projection and (config.d_embedding is None or config.shape != "decoder"):
        yield (
            "token_projection needs d_embedding, the width of tokens and of projected states, "
            "and shape: decoder"
        )
