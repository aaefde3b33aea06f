from __future__ import annotations

from typing import Any, get_args

import pytest
from tests.laws.configs import CONFIGS, config_of

from trifold.hub.presets import PRESETS as PUBLISHED
from trifold.look.comparison import compare, differences
from trifold.look.drawing import draw_architecture
from trifold.nn.presets import PRESETS
from trifold.nn.variants import VARIANTS, ModelConfig


def test_the_presets_of_the_paper_have_no_differences() -> None:
    assert not [name for name, preset in PRESETS.items() if differences(preset)]


# Sizes and details of other keys, which are not differences.
IGNORED = """
vocab_size target_vocab_size max_positions d_model n_layers n_decoder_layers n_heads n_decoder_heads d_head d_ff
d_decoder_ff dropout embedding_dropout attention_dropout activation_dropout classifier_dropout pad_id bos_id eos_id
decoder_start_id norm_epsilon position_offset rotary_theta relative_buckets relative_distance relative_log
relative_scores relative_shared relative_norm relative_clamp alibi_scale alibi_rounded image_size n_channels
window_pattern heads pooler_activation pooler_width n_labels label_names problem_type classifier_input
classifier_transform classifier_bias token_transform transform_norm transform_bias encoder_final_norm
decoder_final_norm boundary_positions boundary_width embedding_scale_rounded decoder_window n_features rank
span_keys lsh dynamic_convolution axial_shape axial_widths max_decoder_positions d_decoder n_decoder_kv_heads d_decoder_head
span_layer starts_with_last separator_id parts options
""".split()
EXAMPLES: dict[str, Any] = {
    "n_kv_heads": {"n_kv_heads": 2},
    "d_embedding": {"d_embedding": 512},
    "token_projection": {
        "shape": "decoder",
        "d_embedding": 64,
        "tie_lm_head": False,
        "token_projection": True,
    },
    "block_of_layer": {"block_of_layer": [0] * 6},
    "n_token_types": {"n_token_types": 2},
    "learned_positions": {"positions": "relative", "learned_positions": True},
    "rotary_width": {"positions": "rotary", "rotary_width": 16},
    "rotary_pairs": {"positions": "rotary", "rotary_pairs": "interleaved"},
    "rotary_scaling": {
        "positions": "rotary",
        "rotary_scaling": {"kind": "linear", "factor": 2.0, "original_positions": 512},
    },
    "segment_offsets": {
        "shape": "encoder",
        "positions": "relative-sinusoidal",
        "segment_offsets": True,
    },
    "query_stream": {"shape": "encoder", "positions": "relative-sinusoidal", "query_stream": True},
    "word_matches": {"shape": "encoder", "word_matches": True},
    "linear_path": {"shape": "encoder", "heads": ["sequence"], "linear_path": {}},
    "patch_size": {
        "shape": "encoder",
        "patch_size": [16, 16],
        "image_size": [224, 224],
        "max_positions": 197,
    },
    "stem": {
        "shape": "encoder",
        "image_size": (32, 32),
        "patch_size": (16, 16),
        "max_positions": 5,
        "stem": (8,),
    },
    "embedding_scale": {"embedding_scale": 12.0},
    "rotary_local_theta": {
        **{"positions": "rotary", "sliding_window": 4, "window_pattern": ["local", "global"]},
        "rotary_local_theta": 500.0,
    },
    "rotary_pattern": {"positions": "rotary", "rotary_pattern": ["rotary", "none"]},
    "norm_weight": {"norm": "rms", "norm_weight": "plus-one"},
    "first_norm": {"norm_placement": "pre", "first_norm": False},
    "residual_scale": {"residual_scale": 0.5},
    "gate_limit": {"gated": True, "gate_limit": 7.0},
    "experts": {"experts": {"count": 4, "per_token": 2}},
    "convolution": {"shape": "encoder", "convolution": {}},
    "attention": {"shape": "encoder", "attention": "low-rank"},
    "qk_norm": {"qk_norm": "head"},
    "latent": {"positions": "rotary", "latent": {"width": 64, "d_rotary": 8, "d_value": 16}},
    "attention_out_bias": {"attention_out_bias": True},
    "attention_scale": {"attention_scale": 1.0},
    "score_soft_cap": {"score_soft_cap": 20.0},
    "logit_soft_cap": {"logit_soft_cap": 20.0},
    "sliding_window": {"sliding_window": 7},
    "global_tokens": {"sliding_window": 7, "global_tokens": "question"},
    "global_projections": {"shape": "encoder", "sliding_window": 7, "global_projections": True},
    "summary_block": {"shape": "encoder", "sliding_window": 7, "summary_block": 4},
    "sparse_blocks": {"shape": "encoder", "sparse_blocks": {}},
    "recurrence": {"shape": "decoder", "positions": "none", "recurrence": {"size": 4, "reach": 2}},
    "d_value": {"d_value": 7},
    "adaptive_span": {"shape": "decoder", "adaptive_span": {"size": 64}},
    "compression": {
        "shape": "decoder",
        "positions": "none",
        "recurrence": {"size": 4, "reach": 2},
        "compression": {"rate": 2, "memory": 3},
    },
    "logits_scale": {"logits_scale": 0.5},
    "tie_lm_head": {"tie_lm_head": False},
    "lm_head_transform": {"lm_head_transform": "gelu"},
}


def other_values(key: str) -> list[Any]:
    """The values of a boolean or literal key that are not the default."""
    field = ModelConfig.model_fields[key]
    return [
        value for value in get_args(field.annotation) or (True, False) if value != field.default
    ]


CASES = [
    *((key, values) for key, values in EXAMPLES.items()),
    *(
        (key, {key: value})
        for key in ModelConfig.model_fields
        if key not in IGNORED and key not in EXAMPLES
        for value in other_values(key)
    ),
]


def test_every_architectural_key_has_a_description() -> None:
    """A new key is either ignored or has a phrase for each of its values."""
    assert not [case for case in CASES if not has_description(*case)]


def has_description(key: str, values: dict[str, Any]) -> bool:
    """Whether a model with these values is described by more words than one without the key."""
    if key == "residual":
        values |= {"shape": "decoder", "norm_placement": "pre", "tie_lm_head": False}
    if key == "global_tokens":
        values |= {"sliding_window": 4}
    if values.get("positions") == "disentangled":
        values |= {"shape": "encoder"}
    if values.get("positions") == "axial":
        values |= {"axial_shape": (32, 32), "axial_widths": (256, 256)}
    removed = {key, "axial_shape", "axial_widths"}
    removed |= {"image_size", "max_positions"} if key == "patch_size" else set()
    without = {name: value for name, value in values.items() if name not in removed}
    described, plain = (
        ", ".join(differences(ModelConfig.parse(each))) for each in (values, without)
    )
    return len(described) > len(plain)


def test_differences_of_bert() -> None:
    bert = ModelConfig(shape="encoder", positions="learned", n_token_types=2, activation="gelu")
    assert differences(bert) == ("encoder only", "segment embeddings", "learned positions", "GELU")


def test_differences_of_sparse_attention() -> None:
    blocks = {"size": 64, "random": 3, "only_in_training": True}
    assert differences(ModelConfig(sparse_blocks=blocks)) == (
        "sparse blocks of 64 tokens",
        "3 random ones in training",
    )
    longformer = {"sliding_window": 257, "global_tokens": "question", "global_projections": True}
    assert differences(ModelConfig(**longformer)) == (
        "window of 257 tokens",
        "global tokens before the first end-of-sentence token",
        "own projections of global tokens",
    )
    unequal = {"shape": "encoder", "sliding_window": 1025, "window_pattern": ("local", 33, 65)}
    assert differences(ModelConfig(**unequal))[-1] == "window of 33 to 1,025 tokens"
    unequal["window_pattern"] = ("local", 5, "global")
    assert differences(ModelConfig(**unequal))[-1] == "window of 5 to 1,025 tokens in some layers"
    xl = ModelConfig(shape="decoder", positions="none", recurrence={"size": 128, "reach": 64})
    assert differences(xl)[-1] == "segments of 128 tokens and 64 before"


# Inputs, and no config, choose `graph`.
CHOSEN = [each for each in VARIANTS if each.PARTS[0].key in ModelConfig.model_fields]


@pytest.mark.parametrize("variant", CHOSEN, ids=lambda each: each.__name__.split(".")[-1])
def test_every_variant_describes_itself(variant: Any) -> None:
    """Some part of its file has a phrase that the comparison shows, in a model that uses it."""
    config = next(
        config
        for config in map(config_of, CONFIGS)
        if all(part.used(config) for part in variant.PARTS[:1])
    )
    own = {
        phrase
        for part in variant.PARTS
        if part.used(config)
        for phrase in (
            *part.differences(config),
            *getattr(part, "reach", no_keys)(config, "encoder"),
        )
    }
    assert own
    assert own <= {*differences(config)}


def no_keys(config: ModelConfig, side: str) -> tuple[str, ...]:
    return ()


# --- part by part ---------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_all_parts_of_the_presets_are_the_same(preset: str) -> None:
    for part in compare(PRESETS[preset]):
        assert (part.verdict, part.what) == ("same", part.paper)
        assert part.size


def test_each_difference_is_listed_under_its_part() -> None:
    for name, preset in PUBLISHED.items():
        parts = compare(preset.config)
        for part in parts:
            assert (part.verdict == "same") == (part.what == part.paper), name
        listed = "\n".join(part.what for part in parts if part.verdict == "differs")
        assert not [each for each in differences(preset.config) if each not in listed], name


def test_parts_of_t5() -> None:
    parts = {
        part.part: (part.size, part.verdict, part.what)
        for part in compare(PUBLISHED["t5-small"].config)
    }
    assert parts["shape"] == ("encoder × 6, decoder × 6", "same", "an encoder and a decoder")
    assert parts["positions"][1:] == ("differs", "relative position bias")
    assert parts["blocks"] == ("width 512", "differs", "RMS norms, norms before the sub-layers")
    assert parts["attention"] == ("8 heads of 64", "differs", "unscaled scores")
    assert parts["feed-forward"] == ("512 → 2,048 → 512", "differs", "feed-forward without biases")
    assert parts["output"] == ("512 → 32,128", "differs", "logits times 0.0442")
    parts = {part.part: (part.verdict, part.what) for part in compare(PUBLISHED["vit-b"].config)}
    assert parts["output"] == ("differs", "head: sequence")


def test_parts_of_experts() -> None:
    experts = {
        "count": 8,
        "per_token": 2,
        "d_ff": 24,
        "shared": 1,
        "groups": 4,
        "groups_per_token": 2,
    }
    for dense, more in ((0, ""), (2, ", 2 dense layers first"), (6, None)):
        config = ModelConfig.parse(
            {"shape": "decoder", "experts": experts | {"dense_layers": dense}}
        )
        part = next(part for part in compare(config) if part.part == "feed-forward")
        what, width = f"2 of 8 experts, 2 of 4 groups, 1 shared expert{more}", "24"
        what, width = (part.paper, "2,048") if more is None else (what, width)
        assert (part.what, part.size) == (what, f"512 → {width} → 512")
        assert ("2 of 8 experts" in draw_architecture(config)) == (more is not None)
