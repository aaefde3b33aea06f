from __future__ import annotations

from typing import Any

import pytest

from trifold.hub.presets import PRESETS as PUBLISHED
from trifold.look.differences import BEHIND, OF_VALUES, PARTS, compare, differences
from trifold.nn.config import PRESETS, ModelConfig


@pytest.mark.parametrize("preset", PRESETS)
def test_the_paper_does_not_differ_from_itself(preset: str) -> None:
    assert differences(PRESETS[preset]) == ()


def test_the_table_names_keys_and_values_that_there_are() -> None:
    assert set(BEHIND) <= set(OF_VALUES)
    for key, phrases in OF_VALUES.items():
        paper = ModelConfig.model_fields[key].default
        assert paper not in phrases
        for value in phrases:
            ModelConfig.model_validate({key: paper}).model_copy(update={key: value})


# What a difference is not, and what only says more of one that is said.
SIZES = """
vocab_size target_vocab_size max_positions d_model n_layers n_decoder_layers n_heads n_decoder_heads d_head d_ff
d_decoder_ff dropout embedding_dropout attention_dropout activation_dropout classifier_dropout pad_id bos_id eos_id
decoder_start_id norm_epsilon position_offset rotary_theta relative_buckets relative_distance relative_clamp alibi_scale
alibi_rounded
image_size n_channels window_pattern heads pooler_activation pooler_width n_labels label_names problem_type
classifier_input classifier_transform classifier_bias logits_scale encoder_final_norm decoder_final_norm
boundary_positions boundary_width
""".split()
ONE: dict[str, Any] = {
    "n_kv_heads": {"n_kv_heads": 2},
    "d_embedding": {"d_embedding": 512},
    "block_of_layer": {"block_of_layer": [0] * 6},
    "n_token_types": {"n_token_types": 2},
    "rotary_width": {"positions": "rotary", "rotary_width": 16},
    "rotary_pairs": {"positions": "rotary", "rotary_pairs": "interleaved"},
    "rotary_scaling": {
        "positions": "rotary",
        "rotary_scaling": {"kind": "linear", "factor": 2.0, "original_positions": 512},
    },
    "segment_offsets": {"shape": "encoder", "positions": "relative-sinusoidal", "segment_offsets": True},
    "query_stream": {"shape": "encoder", "positions": "relative-sinusoidal", "query_stream": True},
    "patch_size": {
        "shape": "encoder",
        "patch_size": [16, 16],
        "image_size": [224, 224],
        "max_positions": 197,
    },
    "attention_out_bias": {"attention_out_bias": True},
    "attention_scale": {"attention_scale": 1.0},
    "score_soft_cap": {"score_soft_cap": 20.0},
    "logit_soft_cap": {"logit_soft_cap": 20.0},
    "sliding_window": {"sliding_window": 7},
    "tie_lm_head": {"tie_lm_head": False},
    "lm_head_transform": {"lm_head_transform": "gelu"},
}


@pytest.mark.parametrize("key", [key for key in ModelConfig.model_fields if key not in SIZES])
def test_every_part_that_can_differ_is_said(key: str) -> None:
    """A new key of the config is a size, or has a phrase."""
    values = ONE.get(key) or {key: next(iter(OF_VALUES[key]))}
    if key == "residual":
        values |= {"shape": "decoder", "norm_placement": "pre"}
    without = {
        name: value for name, value in values.items() if name not in (key, "image_size", "max_positions")
    }
    assert len(differences(ModelConfig.parse(values))) > len(differences(ModelConfig.parse(without)))


def test_one_model_after_another() -> None:
    bert = ModelConfig(shape="encoder", positions="learned", n_token_types=2, activation="gelu")
    assert differences(bert) == ("the encoder alone", "learned positions", "segments", "GELU")


# --- part by part --------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_every_part_of_the_paper_is_the_papers(preset: str) -> None:
    for part in compare(PRESETS[preset]):
        assert (part.verdict, part.what) == ("is", part.paper)
        assert part.size


def test_every_key_belongs_to_one_part() -> None:
    keys = [key for part in PARTS.values() for key in part.keys]
    assert sorted(keys) == sorted(OF_VALUES)


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_differs_is_said_of_its_part_and_of_no_other(name: str) -> None:
    config = PUBLISHED[name].config
    parts = {part.part: part for part in compare(config)}
    assert list(parts) == list(PARTS)
    for part in parts.values():
        assert (part.verdict == "is") == (part.what == part.paper)
    for phrase in differences(config):
        assert sum(phrase in part.what for part in parts.values() if part.verdict == "differs") >= 1


def test_the_parts_of_one_model() -> None:
    told = {part.part: (part.size, part.verdict, part.what) for part in compare(PUBLISHED["t5-small"].config)}
    assert told["shape"] == ("encoder × 6, decoder × 6", "is", "an encoder and a decoder")
    assert told["positions"][1:] == ("differs", "offsets for classes of distances")
    assert told["blocks"] == ("width 512", "differs", "RMS norms, norms before the sub-layers")
    assert told["attention"] == ("8 heads of 64", "differs", "scores unscaled")
    assert told["feed-forward"] == ("512 → 2,048 → 512", "differs", "no biases in the feed-forward")
    assert told["output"] == ("512 → 32,128", "is", "the embeddings again, no bias")
    told = {part.part: (part.verdict, part.what) for part in compare(PUBLISHED["vit-b"].config)}
    assert told["output"] == ("differs", "a head: sequence")
