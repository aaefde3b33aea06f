"""Consistency checks of a ModelConfig. Each problem states what to change."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trifold.nn.config import ModelConfig


def first_problem(config: ModelConfig) -> str | None:
    """The first inconsistency, or None."""
    checks = [_needs, _sizes, _layers, _experts, _linear_attention, _sparse_attention, _latent]
    checks += [_positions, _disentangled, _rotary_scaling, _images, _heads]
    found = (problem for check in checks for problem in check(config))
    own = [
        _linear_attention,
        _latent,
        _positions,
        _rotary_scaling,
    ]  # of sizes that the decoder may have too
    more = (f"decoder: {problem}" for check in own for problem in check(config.decoder_side))
    return next(chain(found, more), None)


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
    "norm_placement": {"post": "convolution"},
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


def _needs(config: ModelConfig) -> Iterator[str]:
    for name, needed in _NEEDED.items():
        value = getattr(config, name)
        for values, keys in needed.items():
            for key in keys.split() if value not in values.split(" or ") else ():
                if getattr(config, key) != type(config).model_fields[key].default:
                    yield f"{key} needs {name}: {values}, not {value}"


def _sizes(config: ModelConfig) -> Iterator[str]:
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


def _layers(config: ModelConfig) -> Iterator[str]:
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
            yield (
                "block_of_layer and attention_scale_by_layer exclude each other: a shared "
                "block has no single layer"
            )
    if config.residual != "sequential":
        if config.norm_placement != "pre":
            yield (
                f"residual: {config.residual} needs norm_placement: pre, not "
                f"{config.norm_placement}"
            )
        if config.shape == "encoder-decoder":
            yield (
                f"residual: {config.residual} has no cross-attention: choose shape encoder or "
                "decoder"
            )
        if not config.first_norm or config.residual_scale != 1:
            yield f"residual: {config.residual} excludes first_norm: false and residual_scale"
    if config.residual == "reversible":
        if config.token_projection or config.token_transform or "replaced" in config.chosen_heads:
            yield (
                "residual: reversible excludes token_projection, token_transform and the head "
                "replaced"
            )
        if config.positions in ("relative", "relative-sinusoidal", "disentangled"):
            yield "residual: reversible excludes learned offsets of scores"
    if not config.first_norm and config.norm_placement != "pre":
        yield f"first_norm: false needs norm_placement: pre, not {config.norm_placement}"
    if config.norm_weight != "plain" and config.norm != "rms":
        yield f"norm_weight: {config.norm_weight} needs norm: rms, not {config.norm}"
    if config.gate_limit is not None and not config.gated:
        yield "gate_limit needs gated: true"
    if config.sliding_window is None and config.window_pattern != ("local",):
        yield "window_pattern needs sliding_window, the number of keys of a local layer"
    if wrong := [own for own in config.window_pattern if isinstance(own, int) and own < 1]:
        yield f"window_pattern: {wrong[0]} is neither local, global nor a positive number of keys"
    if "local" not in config.window_pattern and {*config.window_pattern} != {"global"}:
        yield (
            "window_pattern has numbers, but no local layer, which has sliding_window: write "
            "local for one of them"
        )
    if config.sliding_window is None and config.decoder_window is not None:
        yield "decoder_window needs sliding_window, that of the encoder"
    if (part := config.convolution) is not None:
        if part.kernel % 2 == 0:
            yield f"convolution: kernel {part.kernel} must be odd"
        if config.d_model % part.groups:
            yield f"convolution: groups {part.groups} does not divide d_model {config.d_model}"
        others = (
            config.block_of_layer
            or config.query_stream
            or config.summary_block
            or config.patch_size
        )
        if others or config.attention == "spans":
            yield (
                "convolution excludes block_of_layer, query_stream, summary_block, patch_size "
                "and attention: spans"
            )


def _experts(config: ModelConfig) -> Iterator[str]:
    if (experts := config.experts) is None:
        return
    if config.residual != "sequential":
        yield f"experts need residual: sequential, not {config.residual}"
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


def _linear_attention(config: ModelConfig) -> Iterator[str]:
    if config.attention == "softmax":
        return
    if config.attention == "low-rank" and config.shape != "encoder":
        yield f"attention: low-rank mixes all tokens and needs shape: encoder, not {config.shape}"
    if config.attention == "spans" and (
        config.shape == "encoder-decoder"
        or config.positions == "rotary"
        or config.experts is not None
    ):
        yield "attention: spans excludes shape: encoder-decoder, positions: rotary and experts"
    if config.positions in ("relative", "relative-sinusoidal", "alibi", "disentangled"):
        yield (
            f"attention: {config.attention} has no offsets of scores: choose other positions "
            f"than {config.positions}"
        )
    if config.rotary_scaling is not None and config.rotary_scaling.kind in ("dynamic", "longrope"):
        yield f"attention: {config.attention} excludes rotary_scaling: {config.rotary_scaling.kind}"
    excluded = ("n_kv_heads", "qk_norm") if config.attention == "lsh" else ("attention_dropout",)
    for key in ("sliding_window", "score_soft_cap", "attention_sinks", "latent", *excluded):
        if getattr(config, key):
            yield f"attention: {config.attention} excludes {key}"


def _sparse_attention(config: ModelConfig) -> Iterator[str]:
    for key, default in (
        ("global_tokens", "none"),
        ("global_projections", False),
        ("summary_block", None),
    ):
        if getattr(config, key) != default and config.sliding_window is None:
            yield f"{key} needs sliding_window, the number of keys of the other tokens"
    for key in ("global_projections", "summary_block", "sparse_blocks", "recurrence"):
        if not getattr(config, key):
            continue
        if config.attention != "softmax":
            yield f"{key} excludes attention: {config.attention}"
        if config.latent is not None or config.kv_heads != config.n_heads:
            yield f"{key} excludes {'latent' if config.latent else 'n_kv_heads'}"
    if config.global_projections:
        if not config.positions.startswith(("learned", "sinusoidal", "none")):
            yield (
                "global_projections excludes offsets of scores: choose other positions than "
                f"{config.positions}"
            )
        for key in ("qk_norm", "score_soft_cap", "attention_sinks"):
            if getattr(config, key):
                yield f"global_projections excludes {key}"
    if config.summary_block is not None:
        if config.positions in ("rotary", "alibi", "relative-sinusoidal", "disentangled"):
            yield (
                "summary_block: a summary has no position; choose other positions than "
                f"{config.positions}"
            )
        if config.global_projections:
            yield "summary_block excludes global_projections"
    if config.sparse_blocks is not None and (
        config.sliding_window is not None or config.query_stream
    ):
        yield "sparse_blocks excludes sliding_window and query_stream"
    if config.recurrence is not None:
        if config.positions not in ("relative-sinusoidal", "none"):
            yield f"recurrence needs positions: relative-sinusoidal or none, not {config.positions}"
        if (
            config.sliding_window is not None
            or config.residual != "sequential"
            or config.experts is not None
        ):
            yield "recurrence excludes sliding_window, parallel residuals and experts"


def _latent(config: ModelConfig) -> Iterator[str]:
    if config.latent is None:
        return
    if config.positions not in ("rotary", "none") or config.latent.d_rotary % 2:
        yield "latent needs positions rotary or none, and an even latent.d_rotary"
    for key in ("n_kv_heads", "qk_norm", "rotary_width", "score_soft_cap", "attention_sinks"):
        if getattr(config, key):
            yield f"latent excludes {key}"
    if config.attention_scale_by_layer or config.residual != "sequential":
        yield "latent excludes attention_scale_by_layer and parallel residuals"


def _positions(config: ModelConfig) -> Iterator[str]:
    has_table = config.positions.startswith(("sinusoidal", "learned")) or config.learned_positions
    if config.position_offset and not has_table:
        yield f"position_offset needs positions: learned or sinusoidal, not {config.positions}"
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


def _disentangled(config: ModelConfig) -> Iterator[str]:
    if config.positions != "disentangled":
        return
    if config.shape != "encoder" or config.kv_heads != config.n_heads or config.latent is not None:
        yield "disentangled positions need shape: encoder, without n_kv_heads and latent"
    buckets, farthest = config.relative_buckets, config.relative_distance
    if buckets < 4 or buckets % 2 or (config.relative_log and farthest <= buckets // 4 + 1):
        yield (
            "disentangled positions need an even number of at least 4 relative_buckets, not "
            f"{buckets}, "
            f"and relative_distance {farthest} above a quarter of them"
        )


def _rotary_scaling(config: ModelConfig) -> Iterator[str]:
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


def _images(config: ModelConfig) -> Iterator[str]:
    if (config.patch_size is None) != (config.image_size is None):
        yield "patch_size and image_size need each other: give both or neither"
    if config.patch_size is None and config.stem:
        yield "stem needs patch_size: its convolutions come before the patches of an image"
    if config.patch_size is not None:
        if config.global_tokens != "none":
            yield "patch_size excludes global_tokens: an image has no tokens"
        if config.query_stream:
            yield "patch_size excludes query_stream: an image has no tokens to predict"
    if config.patch_size is None or config.image_size is None:
        return
    if min(*config.patch_size, *config.image_size) < 1 or any(
        side % part for side, part in zip(config.image_size, config.patch_size, strict=True)
    ):
        yield f"patch_size {config.patch_size} does not divide image_size {config.image_size}"
    if any(side % prod(stride for *_, stride in config.stem_layers) for side in config.patch_size):
        yield f"the strides of stem {config.stem} do not divide patch_size {config.patch_size}"
    if config.max_positions != config.n_patches + 1:
        yield (
            f"max_positions is {config.max_positions}: {config.n_patches} patches and a class "
            "token "
            f"need {config.n_patches + 1}"
        )
    for key in ("n_token_types", "d_embedding"):
        if getattr(config, key):
            yield f"{key} is for text: omit it in a model of images"
    if "lm" in config.chosen_heads:
        yield "the head lm is for text: choose other heads in a model of images"


def _heads(config: ModelConfig) -> Iterator[str]:
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
        yield "transform_norm needs classifier_transform or token_transform"
    if config.span_layer and ("span" not in heads or config.token_projection):
        yield "span_layer needs span in heads, and excludes token_projection"
    if config.lm_head_transform is not None and "lm" not in heads:
        yield "lm_head_transform needs lm in heads"
    plain = "lm" in heads and config.tie_lm_head and config.lm_head_transform is None
    table, states = config.output_side.embedding_width, config.output_side.state_width
    if plain and table != states:
        yield (
            f"a tied head of width {table} (the embeddings) cannot read states of width "
            f"{states}: set lm_head_transform, or tie_lm_head: false"
        )
    if config.token_projection and (config.d_embedding is None or config.shape != "decoder"):
        yield (
            "token_projection needs d_embedding, the width of tokens and of projected states, "
            "and shape: decoder"
        )
