from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from trifold.errors import CheckpointError
from trifold.generate.config import GenerationConfig
from trifold.hub.generation import SHARED, read_generation, write_generation
from trifold.nn import ModelConfig

CONFIG = ModelConfig(max_positions=64, decoder_start_id=3)
DECODER = ModelConfig(shape="decoder")


def test_every_generation_setting_has_a_key() -> None:
    assert set(SHARED) == set(GenerationConfig.model_fields)


BEAM = st.fixed_dictionaries(
    {"num_beams": st.integers(2, 9)},
    optional={
        "length_penalty": st.floats(0, 2),
        "length_penalty_form": st.sampled_from(["power", "gnmt"]),
        "early_stopping": st.sampled_from([True, False, "never"]),
        "max_new_tokens": st.none() | st.integers(5, 99),
        "no_repeat_ngram_size": st.integers(1, 4),
    },
)
OTHER = st.fixed_dictionaries(
    {},
    optional={
        "bad_words_ids": st.sampled_from([[], [[5]], [[4, 5], [6]]]),
        "eos_token_id": st.sampled_from([7, [2, 7]]),
        "stop_strings": st.just(["."]),
        "min_length": st.integers(1, 9),
        "max_length": st.integers(10, 99),
        "presence_penalty": st.floats(-1, 1),
        "forced_bos_token_id": st.integers(0, 9),
        "prompt_lookup_num_tokens": st.integers(1, 9),
    },
)
CONTRASTIVE = st.fixed_dictionaries({"penalty_alpha": st.floats(0.1, 1), "top_k": st.integers(2, 9)})
GROUPS = st.just({"num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 0.5, "early_stopping": False})
FORCED = st.just({"num_beams": 2, "force_words_ids": [[4], [[5, 6], [7]]], "early_stopping": "never"})
DRAWN = st.fixed_dictionaries(
    {"temperature": st.floats(0.1, 2)},
    optional={
        "do_sample": st.just(True),
        "top_k": st.integers(1, 9),
        "top_p": st.floats(0.1, 1),
        "seed": st.integers(0, 9),
    },
)


@given(BEAM | DRAWN | OTHER | CONTRASTIVE | GROUPS | FORCED)
def test_written_settings_keep_their_meaning(ours: dict[str, object]) -> None:
    for config in (CONFIG, DECODER):
        back = GenerationConfig.parse(read_generation(config, write_generation(config, ours), "here"))
        meant = GenerationConfig.parse(ours)
        if meant.is_sampling:
            meant = meant.model_copy(update={"do_sample": True})
        if meant.penalty_alpha is not None:
            meant = meant.model_copy(update={"do_sample": False})
        assert back == meant


def test_defaults_have_no_effect() -> None:
    """A run writes all values of its recipe, including defaults."""
    written = write_generation(CONFIG, GenerationConfig().model_dump())
    assert "do_sample" not in written
    assert GenerationConfig.parse(read_generation(CONFIG, written, "here")) == GenerationConfig()


def test_special_ids_and_the_length_are_written() -> None:
    written = write_generation(CONFIG, {})
    assert written == {
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 3,
        "max_new_tokens": None,
        "max_length": 64,
        "bad_words_ids": [[0]],
    }
    assert read_generation(CONFIG, written, "here") == {}


def test_absent_keys_have_the_defaults_of_the_reference() -> None:
    marian = {
        "bad_words_ids": [[0]],
        "decoder_start_token_id": 3,
        "eos_token_id": 2,
        "forced_eos_token_id": 2,
        "max_length": 512,
        "num_beams": 4,
        "pad_token_id": 0,
        "transformers_version": "4.32.0",
    }
    assert read_generation(CONFIG, marian, "x") == {
        "num_beams": 4,
        "max_length": 512,
        "forced_eos_token_id": 2,
    }
    for theirs, ours in (
        ({"do_sample": True}, {"do_sample": True, "top_k": 50}),
        ({"do_sample": True, "top_k": 0}, {"do_sample": True}),
        ({"temperature": 0.6, "top_p": 0.9, "typical_p": 0.5}, {}),
        (
            {"num_beam_groups": 1, "no_repeat_ngram_size": 0, "typical_p": 1.0, "max_matching_ngram_size": 2},
            {},
        ),
        ({"penalty_alpha": 0.6, "top_p": 0.9}, {"penalty_alpha": 0.6, "top_k": 50}),
        ({"max_length": 50, "max_new_tokens": 20}, {"max_new_tokens": 20}),
        ({"eos_token_id": [2, 7]}, {"eos_token_id": [2, 7]}),
        ({"eos_token_id": [2]}, {}),
        ({"stop_strings": "."}, {"stop_strings": ["."]}),
    ):
        # They may say their padding unless it is forbidden; here it is the other way round.
        assert read_generation(CONFIG, theirs, "x") == {**ours, "bad_words_ids": []}
        assert read_generation(CONFIG, {**theirs, "bad_words_ids": [[0]]}, "x") == ours
    assert read_generation(
        DECODER, {"max_length": 50, "pad_token_id": 9, "bad_words_ids": [[0], [5]]}, "x"
    ) == {
        "max_length": 50,
        "bad_words_ids": [[0], [5]],
    }


@pytest.mark.parametrize(
    "theirs",
    [
        {"pad_token_id": 7},
        {"encoder_no_repeat_ngram_size": 2},
        {"early_stopping": "soon"},
        {"max_length": "long"},
        {"suppress_tokens": [1]},
        {"custom_generate": "https://example.org/code.py"},
    ],
)
def test_an_unsupported_key_is_named(theirs: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match=f"here: {next(iter(theirs))}: "):
        read_generation(CONFIG, theirs, "here")
