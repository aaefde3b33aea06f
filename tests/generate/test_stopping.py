from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.generate.models import (
    LetterCodec,
    ScriptedModel,
    padded_batch,
    random_probabilities,
    tiny_model,
)

from trifold.generate import GenerationConfig, generate_tokens, output_limit, truncate_at_stop
from trifold.generate.stopping import StoppingCriteria
from trifold.generation_config import DEFAULT_MAX_NEW_TOKENS
from trifold.nn import Inputs, ModelConfig

PIECES = ("ab", "cabc", "bb", "", "jaaj")  # tokens 13 … 17
VOCABULARY = 18
SEARCHES = {
    "greedy": {},
    "samples": {"temperature": 2.0, "seed": 1, "num_return_sequences": 2},
    "beams": {"num_beams": 3, "num_return_sequences": 3},
    "diverse": {
        "num_beams": 4,
        "num_beam_groups": 2,
        "diversity_penalty": 0.5,
        "num_return_sequences": 4,
    },
    "forced": {"num_beams": 3, "force_words_ids": [[5]], "num_return_sequences": 3},
    "contrastive": {"penalty_alpha": 0.4, "top_k": 4},
    "look-up": {"prompt_lookup_num_tokens": 3},
}
stops = st.lists(st.text("abcj", min_size=1, max_size=4), min_size=1, max_size=3)


@pytest.mark.slow
@settings(max_examples=80)
@given(
    seed=st.integers(0, 10**6),
    search=st.sampled_from(list(SEARCHES)),
    strings=stops,
    rows=st.lists(st.lists(st.integers(3, 6), min_size=1, max_size=3), min_size=1, max_size=3),
)
def test_output_ends_with_the_token_that_completes_a_stop_string(seed, search, strings, rows):
    codec = LetterCodec(*PIECES)
    config = GenerationConfig(
        stop_strings=strings, max_new_tokens=12, min_new_tokens=12, **SEARCHES[search]
    )
    model = ScriptedModel(random_probabilities(seed, VOCABULARY), VOCABULARY)
    found = generate_tokens(model, padded_batch(rows), config, codec=codec)
    for output in (output for outputs in found for output in outputs):
        prefixes = codec.decode([output.tokens[:n] for n in range(len(output.tokens) + 1)])
        hits = [any(string in text for string in strings) for text in prefixes]
        assert not any(hits[:-1])
        if output.finish_reason == "length":
            assert len(output.tokens) == 12
            assert not hits[-1]
        else:
            assert hits[-1]


def test_greedy_stops_at_the_first_stop_string():
    """Compared with the truncated output of the same search without stop strings."""
    codec = LetterCodec(*PIECES)
    for seed in range(20):
        model = ScriptedModel(random_probabilities(seed, VOCABULARY), VOCABULARY)
        ((whole,),) = generate_tokens(
            model, padded_batch([[3]]), GenerationConfig(max_new_tokens=20)
        )
        texts = codec.decode([whole.tokens[:n] for n in range(len(whole.tokens) + 1)])
        for string in ("ab", "bc", "ja", "cab"):
            first = next((n for n, text in enumerate(texts) if string in text), None)
            config = GenerationConfig(max_new_tokens=20, stop_strings=[string])
            ((output,),) = generate_tokens(model, padded_batch([[3]]), config, codec=codec)
            assert output.tokens == whole.tokens[:first]


@given(st.lists(st.integers(3, 17), min_size=1, max_size=60), stops)
def test_stop_strings_are_found_in_the_decoded_tail(tokens, strings):
    codec = LetterCodec(*PIECES)
    ends = StoppingCriteria([2], strings, codec)
    for n in range(1, len(tokens) + 1):
        text = codec.decode([tokens[:n]])[0]
        here = any(string in text for string in strings)
        tail = ends._tail(tokens[:n])
        assert any(string in tail for string in strings) == here
        if here:
            break


def test_the_tail_stays_short():
    class Counting:
        def encode(self, texts):
            raise NotImplementedError

        def decode(self, ids):
            longest.append(max(map(len, ids)))
            return ["x" * len(row) for row in ids]

    longest: list[int] = []
    StoppingCriteria([2], ["stop"], Counting())._tail([3] * 10_000)
    assert max(longest) < 20


def test_text_ends_before_the_first_stop_string():
    assert truncate_at_stop("one two three", ["three", "two"]) == "one "
    assert truncate_at_stop("one", ["two"]) == "one"
    assert truncate_at_stop("one", []) == "one"


def test_forced_end_has_finish_reason_length():
    model = ScriptedModel(lambda source, prefix: [0, 0, 0.1, 0.9], 4)
    for beams in (1, 2):
        config = GenerationConfig(
            max_new_tokens=5, forced_eos_token_id=2, num_beams=beams, early_stopping="never"
        )
        ((output,),) = generate_tokens(model, padded_batch([[3]]), config)
        assert (output.tokens, output.finish_reason) == ([3] * 4, "length")


# --- length limit ---------------------------------------------------------------------------------

sizes = st.integers(1, 300)
requested = st.sampled_from(["max_new_tokens", "max_length", None])


@given(st.sampled_from(["decoder", "encoder-decoder"]), sizes, sizes, requested, sizes)
def test_limit_is_the_minimum_of_setting_and_positions_and_names_its_source(
    shape, positions, length, option, value
):
    length = min(length, positions)
    model = ModelConfig(shape=shape, max_positions=positions)
    found = output_limit(GenerationConfig.parse({option: value} if option else {}), model, length)
    prompt = length if shape == "decoder" else 1
    available = positions + 1 - prompt  # the last token is generated, but never read
    default = DEFAULT_MAX_NEW_TOKENS + (length if shape == "encoder-decoder" else 0)
    limit = {"max_new_tokens": value, "max_length": value - prompt, None: default}[option]
    assert found.tokens == min(available, limit)
    assert found.source == (
        "positions" if available < limit else "requested" if option else "default"
    )


def test_positions_are_those_of_the_decoder():
    model = ModelConfig(shape="encoder-decoder", max_positions=9, max_decoder_positions=5)
    assert output_limit(GenerationConfig(), model, 3) == (5, "positions")


@pytest.mark.parametrize("shape", ["decoder", "encoder-decoder"])
def test_searches_respect_the_limit(shape):
    model = tiny_model(shape, max_positions=12)
    limits = (
        {},
        {"max_new_tokens": 3},
        {"max_length": 9},
        {"num_beams": 2},
        {"max_new_tokens": 100},
    )
    for requested in limits:
        config = GenerationConfig.parse(requested | {"bad_words_ids": [[model.config.eos_id]]})
        for size in (1, 5, 8):
            (found,) = generate_tokens(model, Inputs(torch.full((1, size), 5)), config)
            assert found[0].finish_reason == "length"
            assert len(found[0].tokens) == output_limit(config, model.config, size).tokens
