"""The formula and the model must agree, whatever the config."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from trifold.errors import SettingsError
from trifold.look.costs import attention_matrices, count_parameters, parameter_table
from trifold.nn import PRESETS, ModelConfig, Transformer


@st.composite
def configs(draw):
    heads = draw(st.sampled_from([2, 4]))
    values = {
        "shape": draw(st.sampled_from(["encoder-decoder", "encoder", "decoder"])),
        "vocab_size": draw(st.integers(10, 40)),
        "target_vocab_size": draw(st.sampled_from([None, 23])),
        "max_positions": 16,
        "d_model": 8 * heads,
        "n_layers": draw(st.integers(1, 3)),
        "n_decoder_layers": draw(st.sampled_from([None, 1])),
        "n_heads": heads,
        "n_kv_heads": draw(st.sampled_from([None, 1, 2])),
        "d_head": draw(st.sampled_from([None, 6])),
        "d_ff": draw(st.integers(5, 30)),
        "positions": draw(st.sampled_from(["sinusoidal", "learned", "rotary", "relative", "none"])),
        "norm": draw(st.sampled_from(["layer", "rms"])),
        "norm_bias": draw(st.booleans()),
        "norm_placement": draw(st.sampled_from(["post", "pre", "sandwich"])),
        "encoder_final_norm": draw(st.sampled_from([None, True, False])),
        "embedding_norm": draw(st.booleans()),
        "n_token_types": draw(st.sampled_from([0, 2])),
        "gated": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
        "attention_out_bias": draw(st.sampled_from([None, True, False])),
        "feed_forward_bias": draw(st.booleans()),
        "tie_lm_head": draw(st.booleans()),
        "lm_head_bias": draw(st.booleans()),
        "n_labels": 3,
    }
    if values["shape"] == "encoder":
        values["heads"] = ("lm", "pooler", "next-sentence", "sequence", "token", "span", "boundary")
        values["lm_head_transform"] = draw(st.sampled_from([None, "gelu"]))
        values["classifier_transform"] = draw(st.sampled_from([None, "tanh"]))
        widths = [4, values["d_model"], None] if values["lm_head_transform"] else [values["d_model"], None]
        values["d_embedding"] = draw(st.sampled_from(widths))
    if values["shape"] == "encoder-decoder":
        values["d_decoder_ff"] = draw(st.sampled_from([None, 9]))
    elif values["norm_placement"] == "pre":
        values["residual"] = draw(st.sampled_from(["sequential", "parallel", "parallel-two-norms"]))
    if values["n_decoder_layers"] is None:
        values["block_of_layer"] = draw(st.sampled_from([None, (0,) * values["n_layers"]]))
    if values["positions"] == "learned":
        values["position_offset"] = draw(st.sampled_from([0, 2]))
    try:
        return ModelConfig.parse(values)
    except SettingsError:  # a target vocabulary belongs to an encoder-decoder alone
        return ModelConfig.parse(values | {"target_vocab_size": None})


def built(config: ModelConfig) -> Transformer:
    """On no device: nothing is allocated."""
    with torch.device("meta"):
        return Transformer(config)


@settings(max_examples=40)
@given(configs())
def test_formulas_equal_the_parameter_counts(config):
    parts = parameter_table(config)
    assert (
        sum(part.parameters for part in parts) == count_parameters(config) == built(config).count_parameters()
    )
    assert len({part.name for part in parts}) == len(parts)
    assert all(part.formula for part in parts)


@pytest.mark.parametrize(
    ("name", "parameters"), [("transformer-base", 63_045_632), ("transformer-big", 214_171_648)]
)
def test_the_models_of_the_paper(name, parameters):
    assert count_parameters(PRESETS[name]) == parameters == built(PRESETS[name]).count_parameters()


@settings(max_examples=40)
@given(configs())
def test_a_part_is_what_its_name_says(config):
    model = built(config)
    parts = {part.name: part.parameters for part in parameter_table(config)}
    for side in ("encoder", "decoder"):
        stack = getattr(model, side)
        for part in ("self_attention", "feed_forward"):
            sublayers = [getattr(block, part).sublayer for block in stack.blocks] if stack else []
            expected = sum(p.numel() for layer in sublayers for p in layer.parameters())
            assert parts.get(f"{side} {part.replace('_', '-')}", 0) == expected


@settings(max_examples=40)
@given(configs())
def test_attention_matrices_are_the_four_projections(config):
    attention = built(config).get_submodule(
        ("encoder" if config.encoder_layers else "decoder") + ".blocks.0.self_attention"
    )
    matrices = [p for name, p in attention.sublayer.named_parameters() if name.endswith("proj.weight")]
    assert len(matrices) == 4
    assert sum(p.numel() for p in matrices) == attention_matrices(config)


def test_a_picture_is_counted_too():
    config = ModelConfig(
        shape="encoder", d_model=16, n_heads=2, image_size=(8, 8), patch_size=(4, 2), max_positions=9,
        positions="learned", heads=("sequence",), n_labels=7, norm_placement="pre",
    )  # fmt: skip
    assert count_parameters(config) == built(config).count_parameters()
