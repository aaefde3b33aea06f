"""generation_config.json: settings are read and written, and end tokens in every file that may
contain them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from tests.hub.checkpoints import edit, settings

import trifold
from trifold.errors import CheckpointError, UsageError
from trifold.generation_config import GenerationConfig
from trifold.hub import load_model, save_model
from trifold.hub.generation import SHARED, read_generation, write_generation
from trifold.nn import ModelConfig, Transformer

Make = Callable[..., Transformer]

CONFIG = ModelConfig(max_positions=64, decoder_start_id=3)
DECODER = ModelConfig(shape="decoder")


def test_every_generation_setting_has_a_key() -> None:
    assert set(SHARED) == set(GenerationConfig.model_fields)


BEAMS = st.fixed_dictionaries(
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
        "suppress_tokens": st.lists(st.integers(0, 9), min_size=1, max_size=3),
        "begin_suppress_tokens": st.lists(st.integers(0, 9), min_size=1, max_size=3),
        "encoder_no_repeat_ngram_size": st.integers(1, 4),
        "prompt_lookup_num_tokens": st.integers(1, 9),
    },
)
CONTRASTIVE = st.fixed_dictionaries(
    {"penalty_alpha": st.floats(0.1, 1), "top_k": st.integers(2, 9)}
)
GROUPS = st.just(
    {"num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 0.5, "early_stopping": False}
)
FORCED = st.just(
    {"num_beams": 2, "force_words_ids": [[4], [[5, 6], [7]]], "early_stopping": "never"}
)
SAMPLING = st.fixed_dictionaries(
    {"temperature": st.floats(0.1, 2)},
    optional={
        "do_sample": st.just(True),
        "top_k": st.integers(1, 9),
        "top_p": st.floats(0.1, 1),
        "seed": st.integers(0, 9),
    },
)


@given(BEAMS | SAMPLING | OTHER | CONTRASTIVE | GROUPS | FORCED)
def test_written_settings_keep_their_meaning(ours: dict[str, object]) -> None:
    for config in (CONFIG, DECODER):
        back = GenerationConfig.parse(
            read_generation(config, write_generation(config, ours), "here")
        )
        expected = GenerationConfig.parse(ours)
        if expected.is_sampling:
            expected = expected.model_copy(update={"do_sample": True})
        if expected.penalty_alpha is not None:
            expected = expected.model_copy(update={"do_sample": False})
        assert back == expected


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


def test_the_settings_of_a_model_with_many_positions_can_be_read() -> None:
    """A program that drops the null reads the longest output that a file may set."""
    config = ModelConfig(shape="decoder", positions="rotary", max_positions=2**20)
    written = write_generation(config, {})
    assert read_generation(config, written, "here") == {}
    del written["max_new_tokens"]
    assert read_generation(config, written, "here") == {"max_length": 2**17}


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
        ({"temperature": 0.6, "top_p": 0.9, "typical_p": 0.5, "epsilon_cutoff": 0.1}, {}),
        (
            {
                "suppress_tokens": [],
                "begin_suppress_tokens": [10**6, -1],
                "encoder_no_repeat_ngram_size": 0,
                "top_h": None,
                "disable_compile": True,
                "target_lookbehind": 10,
            },
            {},
        ),
        (
            {
                "num_beam_groups": 1,
                "no_repeat_ngram_size": 0,
                "typical_p": 1.0,
                "max_matching_ngram_size": 2,
            },
            {},
        ),
        ({"penalty_alpha": 0.6, "top_p": 0.9}, {"penalty_alpha": 0.6, "top_k": 50}),
        ({"max_length": 50, "max_new_tokens": 20}, {"max_new_tokens": 20}),
        ({"eos_token_id": [2, 7]}, {"eos_token_id": [2, 7]}),
        ({"eos_token_id": [2]}, {}),
        ({"stop_strings": "."}, {"stop_strings": ["."]}),
    ):
        # The reference may generate padding unless it is banned; here padding is banned by default.
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
        {"encoder_repetition_penalty": 2.0},
        {"forced_decoder_ids": [[1, 5]]},
        {"epsilon_cutoff": 0.1, "do_sample": True},
        {"sequence_bias": [[[1], 2.0]]},
        {"max_time": 3.0},
        {"synced_gpus": True},
        {"custom_generate": "https://example.org/code.py"},
    ],
)
def test_an_unsupported_key_is_named(theirs: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match=f"here: {next(iter(theirs))}: "):
        read_generation(CONFIG, theirs, "here")


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("num_beams", 1.5, "num_beams: input should be a valid integer, got 1.5"),
        ("num_beams", 1001, "num_beams: 1001 is more than 1,000, "),
        ("early_stopping", "soon", "early_stopping: "),
        ("typical_p", True, "typical_p: input should be a valid number, got True"),
        ("num_beam_groups", 2, "num_beam_groups 2 does not divide num_beams 1"),
        (
            "guidance_scale",
            2.0,
            "guidance_scale: 2.0 is not supported; remove the key",
        ),
    ],
)
@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_every_error_names_the_file(
    key: str, value: object, reason: str, file: str, make_model: Make, tmp_path: Path
) -> None:
    save_model(tmp_path, make_model(**GPT2))
    if file == "config.json":
        (tmp_path / "generation_config.json").unlink()
    sampling = {"do_sample": True} if key == "typical_p" else {}
    edit(tmp_path, file, **{key: value}, **sampling)
    with pytest.raises(CheckpointError) as caught:
        trifold.load(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / file}: {reason}")


def test_a_file_cannot_set_a_static_cache() -> None:
    for kind in ("static", "sliding", "growing"):
        assert read_generation(CONFIG, {"cache": kind}, "x").get("cache") == (
            None if kind == "static" else kind
        )


# --- end tokens -----------------------------------------------------------------------------------

GPT2: dict[str, Any] = {
    "shape": "decoder",
    "positions": "learned",
    "norm_placement": "pre",
    "scale_embeddings": False,
    "attention_bias": True,
    "activation": "gelu-tanh",
}
PROMPTS = torch.tensor([[3, 4, 5], [9, 8, 7], [20, 21, 22]])


def generate(folder: Path, **options: Any) -> list[list[int]]:
    return trifold.load(folder).generate_tokens(PROMPTS, max_new_tokens=8, **options)


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_generation_stops_at_each_of_several_end_tokens(
    file: str, make_model: Make, tmp_path: Path
) -> None:
    save_model(tmp_path, make_model(**GPT2, eos_id=31))  # beyond the vocabulary: no end token
    free = generate(tmp_path)
    assert [len(row) for row in free] == [8, 8, 8]
    ends = sorted({free[0][2], free[1][4]})
    if file == "config.json":  # as before 2023
        (tmp_path / "generation_config.json").unlink()
    edit(tmp_path, file, eos_token_id=ends)
    expected = [row[: next((n for n, token in enumerate(row) if token in ends), 8)] for row in free]
    assert expected != free
    assert generate(tmp_path) == expected
    assert generate(tmp_path, num_beams=1, do_sample=False) == expected
    trifold.load(tmp_path).save(tmp_path / "again")
    assert settings(tmp_path / "again", "generation_config.json")["eos_token_id"] == ends
    assert generate(tmp_path / "again") == expected


@pytest.mark.parametrize("family", ["marian", "bart", "t5"])
def test_encoder_decoders_may_have_several_end_tokens(
    family: str, make_model: Make, tmp_path: Path
) -> None:
    parts: dict[str, dict[str, Any]] = {
        "marian": {},
        "bart": {"positions": "learned", "position_offset": 2, "embedding_norm": True, "attention_bias": True}
        | {"max_positions": 46},
        "t5": {"positions": "relative", "scale_embeddings": False, "norm": "rms", "norm_placement": "pre"}
        | {"feed_forward_bias": False, "attention_scale": 1.0, "norm_epsilon": 1e-6, "dropout": 0.0},
    }  # fmt: skip
    model = make_model(**parts[family])
    save_model(tmp_path, model)
    assert settings(tmp_path)["model_type"] == family
    edit(tmp_path, eos_token_id=[2, 5])
    edit(tmp_path, "generation_config.json", eos_token_id=[2, 5])
    back, generation = load_model(tmp_path)
    assert back.config == model.config and back.config.eos_id == 2
    assert generation["eos_token_id"] == [2, 5]
    edit(tmp_path, eos_token_id=[])
    with pytest.raises(CheckpointError, match=r"config\.json: eos_token_id: "):
        load_model(tmp_path)


def test_a_missing_end_token_is_written_as_null(make_model: Make, tmp_path: Path) -> None:
    save_model(tmp_path, make_model(**GPT2, eos_id=31))
    for name in ("config.json", "generation_config.json"):
        assert settings(tmp_path, name)["eos_token_id"] is None
    model, generation = load_model(tmp_path)
    assert model.config.eos_id == 31 and "eos_token_id" not in generation
    for options in (
        {},
        {"num_beams": 3},
        {"min_new_tokens": 5},
        {"num_beams": 3, "min_new_tokens": 8},
    ):
        assert all(len(row) == 8 for row in generate(tmp_path, **options))


@pytest.mark.parametrize("beams", [1, 3])
def test_bans_do_not_end_the_output_of_a_model_without_an_end_token(
    beams: int, make_model: Make, tmp_path: Path
) -> None:
    """No token repeats, so few tokens remain at the end, and the maximum length is still reached."""
    save_model(tmp_path, make_model(**GPT2, eos_id=31))
    pipe, length = trifold.load(tmp_path), 20
    for size in (1, 2):
        options = {"num_beams": beams, "no_repeat_ngram_size": size}
        outputs = pipe.generate_tokens(PROMPTS, **options, min_new_tokens=3, max_new_tokens=length)
        for prompt, row in zip(PROMPTS.tolist(), outputs, strict=True):
            sequence = prompt + row
            grams = [tuple(sequence[n : n + size]) for n in range(len(sequence) - size + 1)]
            assert len(row) == length
            assert len(set(grams)) == len(grams)
    with pytest.raises(UsageError, match="no_repeat_ngram_size forbid every token"):
        pipe.generate_tokens(PROMPTS, num_beams=beams, no_repeat_ngram_size=1, max_new_tokens=31)


@pytest.mark.parametrize(
    "key", ["eos_token_id", "forced_bos_token_id", "forced_eos_token_id", "bad_words_ids"]
)
def test_tokens_outside_the_vocabulary_are_rejected(
    key: str, make_model: Make, tmp_path: Path
) -> None:
    save_model(tmp_path, make_model())
    value: object = [[4], [31, 2]] if key == "bad_words_ids" else 31
    edit(tmp_path, "generation_config.json", **{key: value})
    with pytest.raises(
        CheckpointError,
        match=rf"generation_config\.json: {key}: 31 is not a token of a vocabulary of 31",
    ):
        load_model(tmp_path)
