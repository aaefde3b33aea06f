"""The length limit is the minimum of the setting and the available positions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

from trifold.generate import GenerationConfig, generate_tokens, output_limit
from trifold.generate.config import DEFAULT_MAX_NEW_TOKENS
from trifold.nn import Inputs, ModelConfig

sizes = st.integers(1, 300)


requested = st.sampled_from(["max_new_tokens", "max_length", None])


@given(st.sampled_from(["decoder", "encoder-decoder"]), sizes, sizes, requested, sizes)
def test_limit_is_the_minimum_and_names_its_source(shape, positions, length, asks, most):
    length = min(length, positions)
    model = ModelConfig(shape=shape, max_positions=positions)
    found = output_limit(GenerationConfig.parse({asks: most} if asks else {}), model, length)
    prompt = length if shape == "decoder" else 1
    room = positions + 1 - prompt  # the last token is generated, but never read
    usual = DEFAULT_MAX_NEW_TOKENS + (length if shape == "encoder-decoder" else 0)
    wanted = {"max_new_tokens": most, "max_length": most - prompt, None: usual}[asks]
    assert found.tokens == min(room, wanted)
    assert found.source == ("positions" if room < wanted else "requested" if asks else "default")


@pytest.mark.parametrize("shape", ["decoder", "encoder-decoder"])
def test_searches_respect_the_limit(kit, shape):
    model = kit.tiny(shape, max_positions=12)
    for requested in (
        {},
        {"max_new_tokens": 3},
        {"max_length": 9},
        {"num_beams": 2},
        {"max_new_tokens": 100},
    ):
        config = GenerationConfig.parse(requested | {"bad_words_ids": [[model.config.eos_id]]})
        for size in (1, 5, 8):
            (found,) = generate_tokens(model, Inputs(torch.full((1, size), 5)), config)
            assert found[0].finish_reason == "length"
            assert len(found[0].tokens) == output_limit(config, model.config, size).tokens
