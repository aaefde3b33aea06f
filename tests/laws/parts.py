"""The table of parts: what a model may consist of, beside the defaults of `ModelConfig`.

A new part is one line here. Two parts that give one key different values are alternatives; all
others are a pair, which a config must have (configs.py) unless `ModelConfig` rejects it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, NamedTuple

from trifold.errors import SettingsError
from trifold.nn import ModelConfig, load_part, parts as nn

Values = dict[str, Any]
SIZES: Values = {
    **{"vocab_size": 31, "max_positions": 40, "d_model": 16, "n_layers": 2, "n_heads": 4},
    **{"d_ff": 24, "dropout": 0.0, "n_labels": 3},
}


class Part(NamedTuple):
    """values: they switch the part on. needs: what it needs besides, in order of preference; values
    of other parts take precedence.
    """

    values: Values
    needs: tuple[Values, ...] = ({},)


DECODER = {"shape": "decoder"}
WINDOW = {"sliding_window": 3}
GLOBALS = {**WINDOW, "global_tokens": "question"}
ROTARY = {"positions": "rotary"}
TRANSFORMER_XL = {"positions": "relative-sinusoidal"}
EXPERTS = {"count": 6, "per_token": 3, "groups": 3, "groups_per_token": 2, "score": "sigmoid"}
LONGROPE = {
    **{"kind": "longrope", "factor": 2.0, "original_positions": 9},
    **{"short_factors": (1.0, 1.5), "long_factors": (1.5, 3.0)},
}
PRE = {"norm_placement": "pre"}
PARALLEL = (PRE | {"shape": "encoder"}, PRE | DECODER)
SPARSE = {"size": 2, "random": 1}
TWO_WIDTHS = {"shape": "encoder-decoder", "n_decoder_heads": 2, "d_decoder_head": 4}
NARROW = {"d_embedding": 12, "lm_head_transform": "gelu"}
HEADS = ("pooler", "next-sentence", "sequence", "token", "span")

PARTS: dict[str, Part] = {
    # Stacks
    "encoder-decoder": Part({"shape": "encoder-decoder"}),
    "encoder": Part({"shape": "encoder"}),
    "decoder": Part({"shape": "decoder"}),
    "two widths": Part(
        {"d_decoder": 24, "d_decoder_ff": 20, "target_vocab_size": 29},
        (TWO_WIDTHS | {"n_decoder_layers": 1}, TWO_WIDTHS),
    ),
    "shared blocks": Part({"block_of_layer": (0, 1, 0), "n_layers": 3}),
    # Embeddings
    "patches": Part(
        {"image_size": (8, 9), "patch_size": (4, 3), "n_channels": 2, "max_positions": 7},
        ({"shape": "encoder", "heads": ("sequence",)},),
    ),
    "narrow embeddings": Part({"d_embedding": 12}, (NARROW, {})),
    "token types": Part({"n_token_types": 2, "embedding_norm": True}),
    "word matches": Part({"word_matches": True}, ({"shape": "encoder"},)),
    "learned positions": Part({"positions": "learned", "position_offset": 2}),
    "no positions": Part({"positions": "none"}),
    # Positions in scores
    "rotary": Part(ROTARY),
    "rotary by length": Part({"rotary_scaling": LONGROPE}, (ROTARY,)),
    "rotary pattern": Part({"rotary_pattern": ("none", "rotary")}, (ROTARY,)),
    "local theta": Part({"rotary_local_theta": 7.0}, (ROTARY | WINDOW, ROTARY)),
    "relative": Part({"positions": "relative", "relative_buckets": 8, "relative_distance": 12}),
    "relative sinusoids": Part(TRANSFORMER_XL | {"relative_clamp": 5}),
    "segment offsets": Part({"segment_offsets": True}, (TRANSFORMER_XL | {"shape": "encoder"},)),
    "two streams": Part({"query_stream": True}, (TRANSFORMER_XL | {"shape": "encoder"},)),
    "disentangled": Part(
        {"positions": "disentangled", "relative_buckets": 10, "relative_distance": 12},
        ({"shape": "encoder"},),
    ),
    "alibi": Part({"positions": "alibi", "alibi_scale": 0.5}),
    # Attention
    "elu": Part({"attention": "elu"}),
    "low rank": Part({"attention": "low-rank", "rank": 5}, ({"shape": "encoder"},)),
    "spans": Part(
        {"attention": "spans", "span_keys": 2}, ({"shape": "encoder"}, {"shape": "decoder"})
    ),
    "lsh": Part(
        {
            "attention": "lsh",
            "lsh": {"chunk": 4, "hashes": 2, "layers": ("lsh", "local"), "local_chunk": 3, "seed": 7},
        }
    ),
    "latent": Part(
        {"latent": {"width": 10, "query_width": 9, "d_rotary": 4, "d_value": 6}},
        (ROTARY, {"positions": "none"}),
    ),
    "sinks": Part({"attention_sinks": True}),
    "score cap": Part({"score_soft_cap": 2.0, "attention_scale": 0.7}),
    "scale by layer": Part({"attention_scale_by_layer": True}),
    "shared keys": Part({"n_kv_heads": 2}),
    "norm of heads": Part({"qk_norm": "head"}),
    "norm of queries": Part({"qk_norm": "width"}),
    # Which keys
    "window": Part(WINDOW),
    "window pattern": Part({"window_pattern": ("local", "global", 5), "n_layers": 3}, (WINDOW,)),
    "global tokens": Part({"global_tokens": "first"}, (WINDOW,)),
    "global projections": Part({"global_projections": True}, (GLOBALS, GLOBALS | {"positions": "none"})),
    "summaries": Part({"summary_block": 4}, (WINDOW, WINDOW | {"positions": "relative"})),
    "sparse blocks": Part({"sparse_blocks": SPARSE}),
    "recurrence": Part(
        {"recurrence": {"size": 3, "reach": 2}}, (TRANSFORMER_XL | DECODER, {"positions": "none"} | DECODER)
    ),
    # Blocks
    "sandwich": Part({"norm_placement": "sandwich"}),
    "rms": Part({"norm": "rms", "norm_weight": "plus-one"}),
    "parallel": Part({"residual": "parallel"}, PARALLEL),
    "reversible": Part(
        {"residual": "reversible"},
        (PRE | {"shape": "encoder"}, PRE | {"tie_lm_head": False}),
    ),
    "gated": Part({"gated": True, "activation": "silu"}),
    "gate limit": Part({"gate_limit": 0.8}, ({"gated": True, "activation": "silu"},)),
    "experts": Part({"experts": EXPERTS | {"shared": 1, "d_ff": 7, "correction": True}}),
    "convolution": Part(
        {"convolution": {"kernel": 5, "groups": 2, "activation": "tanh"}}, ({"shape": "encoder"},)
    ),
    # Heads
    "untied": Part({"tie_lm_head": False, "lm_head_bias": True}),
    "classes": Part({"heads": HEADS}, ({"shape": "encoder"}, {"shape": "decoder"})),
}  # fmt: skip
# Variants of parts: values that are counted for themselves and not in pairs, because they pass the
# same code of other parts as the values that they replace.
VARIANTS: dict[str, Values] = {
    **{
        f"activation {name}": {"activation": name}
        for name in ("gelu-tanh", "gelu", "quick-gelu", "relu2", "tanh")
    },
    "biases of projections": {"attention_bias": True},
    "bias of outputs": {"attention_out_bias": True, "feed_forward_bias": False},
    "wide heads": {"d_head": 6},
    "wide values": {"d_value": 7},
    "norms without bias": {"norm_bias": False},
    "norms without weight": {"norm": "rms", "norm_weight": "none"},
    "pre": PRE,
    "no first norm": PRE | {"first_norm": False},
    "exit": {"norm_placement": "exit"},
    "scaled residuals": {"residual_scale": 0.7},
    "two parallel norms": {"residual": "parallel-two-norms"},
    "final norms": {"encoder_final_norm": True, "decoder_final_norm": True},
    "halves of sinusoids": {"positions": "sinusoidal-halves"},
    "sinusoids of tensor2tensor": {"positions": "sinusoidal-tensor2tensor"},
    "axial positions": {
        **{"positions": "axial", "axial_shape": (5, 8), "axial_widths": (6, 10)},
        "position_offset": 0,
    },
    **{
        f"{kind} scaling": {
            "rotary_scaling": {"kind": kind, "factor": 2.0, "original_positions": 9}
        }
        for kind in ("linear", "dynamic", "yarn", "llama3")
    },
    "rotated neighbours": {"rotary_width": 2, "rotary_pairs": "interleaved"},
    "learned and relative": {"learned_positions": True},
    "own distances": {"relative_clamp": None},
    "shared distances": {"relative_shared": True, "relative_norm": True, "relative_log": False},
    "one relative score": {"relative_scores": "content-to-position"},
    "rounded alibi": {"alibi_rounded": True},
    "unscaled embeddings": {"scale_embeddings": False},
    "rounded scale": {"embedding_scale": 0.7, "embedding_scale_rounded": True},
    "segments after a separator": {"separator_id": 5},
    "projected tokens": {"token_projection": True},
    "stem": {"stem": (4,)},
    "additive": {"attention": "additive"},
    "compression": {
        "recurrence": {"size": 4, "reach": 3},
        "compression": {"rate": 2, "memory": 3},
    },
    "pooled compression": {
        "recurrence": {"size": 3, "reach": 2},
        "compression": {"rate": 3, "memory": 2, "function": "max"},
    },
    "adaptive span": {"adaptive_span": {"size": 6, "ramp": 4}},
    "fourier": {"attention": "fourier"},
    "dynamic convolution": {
        **{"attention": "dynamic-convolution", "dynamic_convolution": {"kernels": (3, 5)}},
    },
    "favor": {"attention": "favor", "n_features": 10},
    "only lsh": {"lsh": {"chunk": 5, "hashes": 2, "buckets": (2, 2), "seed": 3}},
    "wide queries": {"latent": {"width": 10, "d_rotary": 2, "d_value": 5}},
    "window of the decoder": {"decoder_window": 2},
    "no window in the decoder": {"decoder_window": 0},
    "global answer": {"global_tokens": "answer"},
    "repeated first block": {"sparse_blocks": SPARSE | {"only_in_training": True}},
    "softmax of experts": {"experts": {"count": 4, "per_token": 2, "dense_layers": 1}},
    "capped logits": {"logit_soft_cap": 5.0, "logits_scale": 0.25},
    "pooled classes": {"classifier_input": "pooler", "classifier_transform": "gelu"},
    "mean of classes": {"classifier_input": "mean", "transform_bias": False},
    "linear path": {"linear_path": {"words": 7, "characters": 9, "given": 3}},
    "path of images": {"linear_path": {"words": 0, "characters": 0, "filters": 3}},
}
SHAPES = ("encoder-decoder", "encoder", "decoder")


def outside_part(name: str, part: nn.Part) -> Part:
    """A part from outside, which the option --part names."""
    own: Values = {part.key: part.value} if part.value else {"options": {part.key: {}}}
    needs = {key: values[0] for key, values in part.needs.items()}
    return Part({"parts": (name,)} | own, (needs,))


OUTSIDE = {
    part.value or part.key: outside_part(name, part)
    for name in os.environ.get("TRIFOLD_PARTS", "").split()
    for part in load_part(name)
}
INSIDE = tuple(PARTS)
PARTS |= OUTSIDE


def are_alternatives(first: str, second: str) -> bool:
    """Whether the two parts give a key different values."""
    one, other = PARTS[first].values, PARTS[second].values
    return any(one[key] != other[key] for key in one.keys() & other.keys())


def candidates(names: Iterable[str]) -> Iterator[Values]:
    """The values of configs with these parts, in order of preference: with each of their needs, and
    then for each shape.
    """
    parts = [PARTS[name] for name in names]
    own = {key: value for part in parts for key, value in part.values.items()}
    found: list[Values] = []
    for needs in product(*(part.needs for part in parts)):
        needed = {key: value for each in reversed(needs) for key, value in each.items()}
        values = SIZES | needed | own
        shapes = [values["shape"]] if "shape" in values else SHAPES
        found += [more for shape in shapes if (more := values | {"shape": shape}) not in found]
    yield from found


def values_of(names: Iterable[str], more: Values | None = None) -> Values:
    """The values of a config with these parts, and `more`. Raises SettingsError, the one for the
    first candidate, if `ModelConfig` rejects all of them.
    """
    first: SettingsError | None = None
    for values in candidates(names):
        try:
            ModelConfig.parse(values | (more or {}))
        except SettingsError as error:
            first = first or error
        else:
            return values | (more or {})
    assert first is not None, "there is a candidate"
    raise first
