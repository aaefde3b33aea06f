from __future__ import annotations

import inspect
import math
from itertools import product
from typing import Any

import pytest
import torch

import trifold
from trifold.errors import UsageError
from trifold.generate import GenerationConfig, generate_tokens, resolve
from trifold.nn import Inputs
from trifold.pipeline import Pipeline


@pytest.mark.parametrize(
    ("requested", "named"),
    [
        ({"temperature": 0.7, "do_sample": False}, ("temperature 0.7", "do_sample false")),
        ({"min_p": 0.1, "do_sample": False}, ("min_p 0.1", "do_sample false")),
        ({"num_beams": 4, "top_k": 5}, ("num_beams 4", "top_k 5")),
        ({"num_beams": 4, "do_sample": True}, ("num_beams 4", "do_sample true")),
        ({"num_return_sequences": 3, "num_beams": 2}, ("num_return_sequences 3", "num_beams 2")),
        ({"min_new_tokens": 9, "max_new_tokens": 5}, ("min_new_tokens 9", "max_new_tokens 5")),
        ({"temperature": 0.0}, ("temperature: 0.0 is below 1e-30", "do_sample")),
        ({"temperature": 1e-38}, ("temperature: 1e-38", "do_sample")),
        ({"top_p": 0.0}, ("top_p", "0.0")),
        ({"top_p": 1.5}, ("top_p", "1.5")),
        ({"top_k": 0}, ("top_k", "0")),
        ({"num_beams": 0}, ("num_beams", "0")),
        ({"num_beams": "5"}, ("num_beams", "'5'")),
        ({"early_stopping": "sometimes"}, ("early_stopping", "'sometimes'")),
        ({"num_beam": 5}, ("num_beam", "'num_beams'")),
        ({"max_time": 5}, ("max_time", "unknown key")),
        ({"typical_p": 0.5, "do_sample": False}, ("typical_p 0.5", "do_sample false")),
        ({"top_k_form": "uniform"}, ("top_k_form uniform", "set top_k")),
        (
            {"top_k_form": "uniform", "top_k": 4, "temperature": 2.0},
            ("temperature 2.0", "top_k_form uniform"),
        ),
        ({"max_length": 9, "max_new_tokens": 5}, ("max_new_tokens 5", "max_length 9")),
        ({"min_length": 9, "max_length": 5}, ("min_length 9", "max_length 5")),
        ({"min_length": 3, "min_new_tokens": 2}, ("min_new_tokens 2", "min_length 3")),
        ({"penalty_alpha": 0.6}, ("penalty_alpha 0.6", "set top_k")),
        ({"penalty_alpha": 0.6, "top_k": 1}, ("penalty_alpha 0.6", "set top_k")),
        (
            {"penalty_alpha": 0.6, "top_k": 4, "do_sample": True},
            ("penalty_alpha 0.6", "do_sample true"),
        ),
        (
            {"penalty_alpha": 0.6, "top_k": 4, "temperature": 0.5},
            ("penalty_alpha 0.6", "temperature 0.5"),
        ),
        ({"penalty_alpha": 0.6, "top_k": 4, "num_beams": 2}, ("penalty_alpha 0.6", "num_beams 2")),
        (
            {"num_beams": 5, "num_beam_groups": 2, "diversity_penalty": 1.0},
            ("num_beam_groups 2", "num_beams 5"),
        ),
        ({"num_beams": 4, "num_beam_groups": 2}, ("num_beam_groups 2", "set diversity_penalty")),
        ({"num_beams": 4, "diversity_penalty": 1.0}, ("diversity_penalty 1.0", "num_beam_groups")),
        ({"force_words_ids": [[5]]}, ("force_words_ids", "set num_beams")),
        ({"force_words": ["dog"]}, ("force_words", "set num_beams")),
        ({"force_words_ids": [[]], "num_beams": 2}, ("force_words_ids",)),
        (
            {"force_words": ["a"], "num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0},
            ("force_words", "num_beam_groups 2"),
        ),
        (
            {"force_words_ids": [[4, 5, 6]], "bad_words_ids": [[5, 6]], "num_beams": 2},
            ("[4, 5, 6]", "force_words_ids", "bad_words_ids", "[5, 6]"),
        ),
        ({"force_words": ["dogs"], "bad_words": ["dog"], "num_beams": 2}, ("'dogs'", "bad_words")),
        ({"bad_words": ["dog"], "bad_words_ids": [[4]]}, ("bad_words", "bad_words_ids")),
        (
            {"prompt_lookup_num_tokens": 3, "num_beams": 2},
            ("prompt_lookup_num_tokens 3", "num_beams 2"),
        ),
        ({"max_matching_ngram_size": 3}, ("max_matching_ngram_size 3", "prompt_lookup_num_tokens")),
        ({"stop_strings": [""]}, ("stop_strings",)),
        ({"eos_token_id": -1}, ("eos_token_id",)),
    ],
)
def test_contradictions_are_refused(requested, named):
    with pytest.raises(UsageError) as refusal:
        resolve({}, requested)
    assert all(name in str(refusal.value) for name in named)


EXTREMES = [
    ("temperature", (0.0, 1e-46, 1e-38, 1e-30, 1e30, 1e39, math.nan)),
    ("top_p", (1e-46, 1e-38, 1e-30, math.nan)),
    ("length_penalty", (-1e9, -400.0, -10.0, 10.0, 400.0, 1e9, math.inf, math.nan)),
    ("repetition_penalty", (1e-46, 1e-30, 1e30, 1e39)),
    ("presence_penalty", (-1e39, -1e30, 1e30, 1e39, math.nan)),
    ("frequency_penalty", (-1e38, -1e30, 1e30, 1e39)),
    ("diversity_penalty", (1e-46, 1e30, 1e39)),
]
STRATEGIES: list[dict[str, Any]] = [
    {"do_sample": True, "seed": 1},
    {"num_beams": 4, "num_return_sequences": 2},
    {"num_beams": 4, "length_penalty_form": "gnmt", "early_stopping": "never"},
    {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0},
    {"num_beams": 2, "force_words_ids": [[8]]},
    {"penalty_alpha": 0.5, "top_k": 4},
    {"prompt_lookup_num_tokens": 3},
]


@pytest.mark.slow
@pytest.mark.parametrize(("key", "values"), EXTREMES)
def test_an_extreme_number_is_refused_by_name_or_gives_finite_scores(key, values, make_model):
    model, refused, scores = make_model(shape="decoder"), [], []
    for strategy, value in product(STRATEGIES, values):
        try:
            config = resolve({}, {"max_new_tokens": 20, **strategy, key: value})
        except UsageError as error:
            refused.append(str(error))
            continue
        found = generate_tokens(model, Inputs(torch.tensor([[5, 9, 9], [7, 8, 9]])), config)
        scores += [output.score for outputs in found for output in outputs]
    assert all(map(math.isfinite, scores))
    assert scores
    assert refused
    assert all(key in message for message in refused)


def test_precedence_argument_stored_default():
    config = resolve({"num_beams": 5, "length_penalty": 0.6}, {"num_beams": 3})
    assert (config.num_beams, config.length_penalty, config.early_stopping) == (3, 0.6, False)
    assert resolve(config, {}) == config


@pytest.mark.parametrize("requested", [{"do_sample": True}, {"temperature": 0.8}])
def test_sampling_drops_stored_beams(requested):
    config = resolve({"num_beams": 5, "length_penalty": 0.6, "max_new_tokens": 7}, requested)
    assert config.is_sampling
    assert (config.num_beams, config.length_penalty, config.max_new_tokens) == (1, 1.0, 7)


@pytest.mark.parametrize("requested", [{"do_sample": False}, {"num_beams": 4}])
def test_greedy_or_beams_drop_stored_sampling(requested):
    config = resolve({"do_sample": True, "temperature": 0.8, "top_p": 0.9}, requested)
    assert not config.is_sampling
    assert config.temperature is None


def test_seed_alone_does_not_select_sampling():
    assert not GenerationConfig(seed=3).is_sampling
    assert GenerationConfig(top_p=1.0).is_sampling


def test_sampling_overrides_stored_do_sample():
    assert resolve({"do_sample": False}, {"temperature": 0.8}).is_sampling


def test_a_banned_alternative_leaves_the_others():
    requested = {"force_words_ids": [[[4, 5], [6]]], "bad_words_ids": [[5]], "num_beams": 2}
    assert GenerationConfig(**requested).force_words_ids == [[[4, 5], [6]]]


@pytest.mark.parametrize(
    ("stored", "requested", "gone"),
    [
        ({"penalty_alpha": 0.6, "top_k": 4}, {"num_beams": 3}, ("penalty_alpha", "top_k")),
        ({"penalty_alpha": 0.6, "top_k": 4}, {"temperature": 0.7}, ("penalty_alpha", "top_k")),
        ({"penalty_alpha": 0.6, "top_k": 4}, {"do_sample": False}, ("penalty_alpha", "top_k")),
        (
            {"temperature": 0.7, "num_beams": 1},
            {"penalty_alpha": 0.6, "top_k": 4},
            ("temperature",),
        ),
        (
            {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
            {"num_beams": 1},
            ("diversity_penalty",),
        ),
        ({"num_beams": 4, "force_words": ["a"]}, {"prompt_lookup_num_tokens": 4}, ("force_words",)),
        ({"max_length": 20}, {"max_new_tokens": 7}, ("max_length",)),
        ({"bad_words_ids": [[4]]}, {"bad_words": ["a"]}, ("bad_words_ids",)),
    ],
)
def test_strategies_do_not_inherit_settings_of_others(stored, requested, gone):
    config = resolve(stored, requested)
    default = GenerationConfig()
    assert all(getattr(config, key) == getattr(default, key) for key in gone)


@pytest.mark.parametrize(
    "function", [Pipeline.generate, Pipeline.hypotheses, Pipeline.stream, trifold.generate]
)
def test_python_signatures_list_every_option(function):
    parameters = inspect.signature(function).parameters
    for name, field in GenerationConfig.model_fields.items():
        assert parameters[name].default == field.default
        assert f"{name}: {field.description}" in function.__doc__
    assert "draft" in parameters
