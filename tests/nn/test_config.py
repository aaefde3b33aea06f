from __future__ import annotations

import json
import re
from itertools import product
from typing import Any

import pytest

from trifold.errors import SettingsError
from trifold.nn import ModelConfig, RotaryScaling

CONVOLUTION: dict[str, Any] = {"shape": "encoder", "convolution": {}}
INVALID: list[tuple[dict[str, Any], str]] = [
    (
        {"d_model": 100, "n_heads": 8},
        r"model: n_heads 8 does not divide d_model 100: choose one of 1, 2, 4, 5, 10, 20",
    ),
    ({"n_heads": 8, "n_kv_heads": 3}, "n_kv_heads 3 does not divide n_heads 8"),
    ({"d_model": 15, "n_heads": 5}, "even d_model, not 15"),
    (
        {"shape": "decoder", "target_vocab_size": 9},
        "target_vocab_size needs shape: encoder-decoder",
    ),
    ({"n_head": 4}, r"model\.n_head: unknown key; did you mean 'n_heads'"),
    ({"drop_out": 0.1}, r"model\.drop_out: unknown key; did you mean 'dropout'"),
    ({"dropout": 1.0}, r"model\.dropout: .*less than 1"),
    ({"d_model": "512"}, r"model\.d_model: .*integer, got '512'"),
    ({"d_model": 0}, r"model\.d_model: .*greater than 0, got 0"),
    ({"shape": "decoder", "d_decoder_ff": 9}, "d_decoder_ff needs shape: encoder-decoder"),
    ({"decoder_window": 9}, "decoder_window needs sliding_window"),
    ({"n_decoder_heads": 7}, "n_decoder_heads 7 does not divide d_model 512"),
    ({"shape": "decoder", "d_decoder": 9}, "d_decoder needs shape: encoder-decoder"),
    ({"shape": "encoder", "d_decoder_head": 9}, "d_decoder_head needs shape: encoder-decoder"),
    ({"shape": "encoder", "starts_with_last": True}, "starts_with_last needs shape: encoder-dec"),
    (
        {"shape": "decoder", "n_decoder_kv_heads": 2},
        "n_decoder_kv_heads needs shape: encoder-decoder",
    ),
    (
        {"d_decoder": 9},
        "n_heads 8 does not divide d_decoder 9: choose one of 1, 3, 9, or set d_head",
    ),
    ({"n_decoder_kv_heads": 3}, "n_decoder_kv_heads 3 does not divide n_heads 8"),
    ({"n_kv_heads": 4, "n_decoder_heads": 2}, "n_kv_heads 4 does not divide n_decoder_heads 2"),
    (
        {"d_decoder": 256},
        "d_decoder: stacks of two widths share no embeddings: set target_vocab_size",
    ),
    (
        {"d_decoder": 9, "d_decoder_head": 4, "target_vocab_size": 7},
        "decoder: sinusoidal positions need an even d_model, not 9",
    ),
    (
        {"positions": "rotary", "rotary_width": 8, "d_decoder_head": 4},
        "decoder: rotary_width 8 must be even and at most 4",
    ),
    (
        {"d_decoder": 256, "d_embedding": 512, "target_vocab_size": 7},
        "d_embedding: 512 excludes tie_lm_head: a tied head of width 512 .* states of width 256",
    ),
    (
        {"shape": "decoder", "residual": "reversible", "norm_placement": "pre"},
        "residual: reversible excludes tie_lm_head: a tied head of width 512 .* of width 1024",
    ),
    (
        {"attention": "lsh", "positions": "none", "n_decoder_kv_heads": 2},
        "decoder: attention: lsh excludes n_kv_heads",
    ),
    (
        {
            "positions": "none",
            "latent": {"width": 8, "d_rotary": 2, "d_value": 8},
            "n_decoder_kv_heads": 2,
        },
        "decoder: latent excludes n_kv_heads",
    ),
    ({"residual": "parallel"}, "residual: parallel needs norm_placement: pre, not post"),
    ({"residual": "parallel", "norm_placement": "pre"}, "has no cross-attention"),
    ({"window_pattern": ["local", "global"]}, "window_pattern needs sliding_window"),
    ({"window_pattern": ["local", 4]}, "window_pattern needs sliding_window"),
    (
        {"window_pattern": ["global", 4], "sliding_window": 3},
        "numbers, but no local layer, which has sliding_window",
    ),
    (
        {"window_pattern": ["local", 0], "sliding_window": 3},
        "window_pattern: 0 is neither local, global nor a positive number of keys",
    ),
    (
        {"window_pattern": ["local", True], "sliding_window": 3},
        r"model\.window_pattern: .*got True",
    ),
    ({"rotary_width": 8}, "rotary_width needs positions: rotary, not sinusoidal"),
    ({"alibi_scale": 0.5, "positions": "rotary"}, "alibi_scale needs positions: alibi, not rotary"),
    ({"positions": "rotary", "rotary_width": 66}, "rotary_width 66 must be even and at most 64"),
    ({"positions": "rotary", "rotary_width": 3}, "rotary_width 3 must be even and at most 64"),
    (
        {
            "positions": "rotary",
            "rotary_width": 2,
            "rotary_scaling": {"kind": "dynamic", "factor": 2.0, "original_positions": 9},
        },
        "dynamic needs a rotary width of at least 4",
    ),
    (
        {
            "positions": "rotary",
            "rotary_scaling": {
                "kind": "longrope",
                "factor": 2.0,
                "original_positions": 9,
                "short_factors": (1.0,),
            },
        },
        "short_factors has 1 values for 32 frequencies",
    ),
    (
        {
            "positions": "rotary",
            "rotary_scaling": {
                "kind": "yarn",
                "factor": 2.0,
                "original_positions": 9,
                "long_factors": (1.0,) * 32,
            },
        },
        "long_factors needs kind longrope, not yarn",
    ),
    (
        {
            "positions": "rotary",
            "rotary_scaling": {
                **{"kind": "longrope", "factor": 2.0, "original_positions": 1},
                **{"short_factors": (1.0,) * 32, "long_factors": (2.0,) * 32},
            },
        },
        "original_positions 1 has no default magnitude",
    ),
    (
        {
            "positions": "rotary",
            "rotary_scaling": {
                **{"kind": "llama3", "factor": 2.0, "original_positions": 9},
                **{"low_frequency": 4.0, "high_frequency": 4.0},
            },
        },
        "high_frequency 4.0 must exceed low_frequency 4.0",
    ),
    (
        {"positions": "relative", "relative_distance": 16},
        "relative_distance 16 is too small for 32",
    ),
    ({"block_of_layer": [0, 0]}, "block_of_layer has 2 entries"),
    ({"block_of_layer": [0, 0, 0, 2, 2, 2]}, "skips a block"),
    ({"block_of_layer": [0] * 6, "attention_scale_by_layer": True}, "no single layer"),
    ({"shape": "encoder", "patch_size": [4, 4]}, "patch_size and image_size need each other"),
    (
        {"shape": "encoder", "patch_size": [4, 4], "image_size": [8, 9], "max_positions": 5},
        "does not divide image_size",
    ),
    (
        {"shape": "encoder", "patch_size": [4, 4], "image_size": [8, 8]},
        "max_positions is 1024: 4 patches and a class token need 5",
    ),
    ({"heads": ["lm", "lm"]}, "has duplicates"),
    ({"heads": ["next-sentence"]}, "add pooler to heads"),
    ({"heads": ["sequence"], "classifier_input": "pooler"}, "needs pooler in heads"),
    ({"shape": "encoder", "lm_head_transform": "gelu"}, "lm_head_transform needs lm in heads"),
    ({"token_projection": True, "shape": "decoder"}, "token_projection needs d_embedding"),
    (
        {"positions": "rotary", "position_offset": 2},
        "position_offset needs positions: learned or sinusoidal",
    ),
    ({"d_embedding": 64}, "set lm_head_transform, or tie_lm_head: false"),
    ({"convolution": {}}, "convolution needs shape: encoder, not encoder-decoder"),
    (CONVOLUTION | {"norm_placement": "pre"}, "convolution needs norm_placement: post, not pre"),
    (CONVOLUTION | {"convolution": {"kernel": 4}}, "kernel 4 must be odd"),
    (CONVOLUTION | {"convolution": {"groups": 3}}, "groups 3 does not divide d_model 512"),
    (CONVOLUTION | {"block_of_layer": [0] * 6}, "convolution excludes block_of_layer"),
    (CONVOLUTION | {"attention": "spans"}, "convolution excludes .*attention: spans"),
    (
        CONVOLUTION | {"positions": "relative-sinusoidal", "query_stream": True},
        "excludes .*query_stream",
    ),
    (
        CONVOLUTION | {"sliding_window": 4, "summary_block": 2},
        "convolution excludes .*summary_block",
    ),
    (
        CONVOLUTION | {"patch_size": [4, 4], "image_size": [8, 8], "max_positions": 5},
        "convolution excludes .*patch_size",
    ),
    ({"heads": ["poler"]}, r"model\.heads"),
    (
        {
            "positions": "rotary",
            "rotary_scaling": {"kind": "yarn", "factr": 2.0, "original_positions": 9},
        },
        r"model\.rotary_scaling\.factr: unknown key; did you mean 'factor'",
    ),
    (
        {"norm_placement": "middle"},
        r"model\.norm_placement: .*'post', 'pre', 'sandwich' or 'exit', got 'middle'",
    ),
]


# Settings that choices exclude, each with what it needs itself.
ROTARY, WINDOW = {"positions": "rotary"}, {"sliding_window": 4}
DEFAULTS: list[dict[str, Any]] = [
    {"d_decoder_ff": 9}, {"n_decoder_kv_heads": 2}, WINDOW | {"decoder_window": 2}, {"n_kv_heads": 2},
    {"block_of_layer": [0] * 6}, {"attention_scale_by_layer": True}, {"token_projection": True, "d_embedding": 64},
    {"positions": "relative", "learned_positions": True}, {"positions": "learned", "position_offset": 2},
    ROTARY | {"rotary_width": 8}, ROTARY | {"rotary_theta": 5.0}, ROTARY | {"rotary_pattern": ["rotary", "none"]},
    ROTARY | {"rotary_scaling": {"kind": "dynamic", "factor": 2.0, "original_positions": 9}},
    {"positions": "relative", "relative_buckets": 16}, {"positions": "disentangled", "relative_norm": True},
    {"positions": "relative-sinusoidal", "segment_offsets": True}, {"positions": "alibi", "alibi_scale": 2.0},
    {"positions": "relative-sinusoidal", "query_stream": True},
    {"positions": "axial", "axial_shape": [32, 32], "axial_widths": [256, 256]},
    *[{"norm_placement": "pre", "first_norm": False}, {"norm": "rms", "norm_weight": "plus-one"}],
    *[{"norm_placement": "pre", "residual": each} for each in ("parallel", "reversible")],
    *[{"residual_scale": 0.5}, {"gated": True, "gate_limit": 7.0}, {"qk_norm": "head"}, {"attention_sinks": True}],
    *[{"attention": "favor", "n_features": 8}, {"attention": "low-rank", "rank": 8}],
    *[{"attention": "spans", "span_keys": 4}, {"attention": "lsh", "lsh": {"chunk": 8}}],
    *[{"attention_dropout": 0.1}, {"score_soft_cap": 30.0}, {"experts": {"count": 2, "per_token": 1}}],
    *[WINDOW | {"global_tokens": "first"}, WINDOW | {"global_projections": True}, WINDOW | {"summary_block": 4}],
    *[WINDOW | {"window_pattern": ["global", "local"]}, {"sparse_blocks": {}}, {"convolution": {}}],
    {"positions": "none", "recurrence": {"size": 8, "reach": 8}},
    ROTARY | {"latent": {"width": 8, "d_rotary": 4, "d_value": 8}},
    {"heads": ["lm"], "lm_head_transform": "gelu"}, {"token_transform": "tanh", "transform_norm": True},
    {"heads": ["span"], "span_layer": True},
]  # fmt: skip
# What a user may choose: another kind of a part, or to have or not to have one.
CHOICES: list[tuple[str, Any]] = [
    *[("attention", kind) for kind in ("softmax", "elu", "favor", "low-rank", "spans", "lsh")],
    *[("residual", kind) for kind in ("sequential", "parallel", "parallel-two-norms", "reversible")],
    *[("norm_placement", kind) for kind in ("pre", "post", "sandwich", "exit")],
    *[
        ("positions", kind)
        for kind in ("sinusoidal", "learned", "rotary", "relative", "relative-sinusoidal", "disentangled", "alibi", "none")
    ],
    *[("norm", "layer"), ("gated", False), ("sliding_window", None), ("sliding_window", 4), ("heads", ["token"])],
    *[("experts", {"count": 2, "per_token": 1}), ("latent", {"width": 8, "d_rotary": 4, "d_value": 8})],
    *[("sparse_blocks", {}), ("recurrence", {"size": 8, "reach": 8}), ("convolution", {})],
    *[("block_of_layer", [0] * 6), ("attention_scale_by_layer", True)],
]  # fmt: skip


def problem_of(values: dict[str, Any], at: str = "") -> str:
    try:
        ModelConfig.parse(values, at)
    except SettingsError as error:
        return str(error)
    return ""


def settled(values: dict[str, Any], chosen: dict[str, Any]) -> dict[str, Any]:
    """The values after defaults have given way to the chosen ones."""
    values = values | chosen
    list(ModelConfig.settle(values, chosen, "model"))
    return values


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["encoder", "decoder", "encoder-decoder"])
def test_a_default_that_a_choice_excludes_gives_way(shape: str) -> None:
    """A choice that is valid alone is valid in every model of its shape, whose settings give way
    if it excludes them, and only then. Two explicit settings are an error that names both.
    """
    choices = [{"shape": shape, key: value} for key, value in CHOICES]
    choices = [choice for choice in choices if not problem_of(settled({}, choice))]
    models = [base for base in DEFAULTS if not problem_of({"shape": shape} | base)]
    plain, given_way = ModelConfig().model_dump(), 0
    for choice, base in product(choices, models):
        found, both = settled(base, choice), base | choice
        if problem := problem_of(both):
            given_way += 1
            explicit = plain | both
            assert problem_of(found) == "", (base, choice)
            assert {key: found[key] for key in choice} == choice
            gave_way = [key for key in found if found[key] != explicit[key]]
            assert any(key in problem for key in gave_way), (problem, choice, base)
            assert any(key in problem for key in choice.keys() - {"shape"}), (problem, choice, base)
            assert settled(explicit, explicit) == explicit
        else:
            assert found == both, (base, choice)
    assert given_way > len(choices) * len(models) / 6


def test_a_contradiction_is_named() -> None:
    found = [(problem_of(values, at="model"), message) for values, message in INVALID]
    assert not [each for each in found if not re.search(each[1], each[0])]


def test_all_wrong_keys_are_reported_together() -> None:
    with pytest.raises(SettingsError) as caught:
        ModelConfig.parse({"n_head": 4, "dropout": 2.0, "d_ff": None})
    named = {line.split(":")[0] for line in str(caught.value).splitlines()}
    assert named == {"n_head", "dropout", "d_ff"}


def test_derived_sizes() -> None:
    config = ModelConfig(
        d_model=96, n_heads=6, n_kv_heads=2, n_layers=4, n_decoder_layers=2, target_vocab_size=7
    )
    assert (config.head_width, config.kv_heads) == (16, 2)
    assert (config.encoder_layers, config.decoder_layers) == (4, 2)
    assert (config.output_vocab_size, config.start_id) == (7, 1)
    assert (
        ModelConfig(shape="decoder").encoder_layers
        == ModelConfig(shape="encoder").decoder_layers
        == 0
    )
    assert ModelConfig(d_model=100, n_heads=8, d_head=16).head_width == 16


def test_sizes_of_the_decoder() -> None:
    config = ModelConfig(d_decoder=256, n_kv_heads=2, n_decoder_heads=4, target_vocab_size=7)
    side = config.decoder_side
    assert (
        side == config.output_side == side.decoder_side
        and ModelConfig(shape="encoder").output_side.d_model == 512
    )
    assert (side.d_model, side.n_heads, side.kv_heads, side.head_width) == (256, 4, 2, 64)
    assert (side.embedding_factor, side.state_width) == (16, 256)
    own = config.model_copy(update={"n_decoder_kv_heads": 4, "d_decoder_head": 8}).decoder_side
    assert (own.kv_heads, own.head_width, config.head_width) == (4, 8, 64)
    # A shared table.
    assert ModelConfig(d_decoder=256, d_embedding=256).decoder_side.embedding_width == 256


def test_a_config_is_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        ModelConfig().d_model = 3  # type: ignore[misc]


def test_a_config_equals_its_json_round_trip() -> None:
    config = ModelConfig(
        shape="decoder",
        positions="rotary",
        rotary_scaling=RotaryScaling(kind="linear", factor=2.0, original_positions=9),
        sliding_window=4,
        window_pattern=("global", "local", 7),
        block_of_layer=(0, 0, 1, 1, 1, 1),
        heads=("lm", "token"),
    )
    assert ModelConfig.parse(json.loads(config.model_dump_json())) == config
    assert ModelConfig.parse(config.model_dump()) == config


def test_windows_follow_their_pattern_and_final_norms_their_options() -> None:
    config = ModelConfig(
        sliding_window=3, window_pattern=("global", "local"), decoder_final_norm=True
    )
    assert [config.window(layer) for layer in range(4)] == [None, 3, None, 3]
    config = config.model_copy(
        update={"window_pattern": ("local", 9, "global"), "decoder_window": 0}
    )
    assert [config.window(layer) for layer in range(4)] == [3, 9, None, 3]
    assert [config.decoder_side.window(layer) for layer in range(4)] == [None] * 4
    assert (config.has_final_norm("encoder"), config.has_final_norm("decoder")) == (False, True)
    assert ModelConfig(norm_placement="pre", encoder_final_norm=False).has_final_norm("decoder")
