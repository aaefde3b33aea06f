"""Banned text, compared with decoding every text followed by every token."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st
from tests.generate.test_stopping import PIECES, VOCABULARY, WAYS, stops
from tests.generate.test_streaming import CODECS

from trifold.errors import UsageError
from trifold.generate import GenerationConfig, generate_tokens
from trifold.generate.processors import BannedText


def holds(text: str, banned: list[str]) -> bool:
    return any(string in text for string in banned)


@settings(max_examples=60)
@given(
    st.sampled_from(list(CODECS)),
    st.lists(st.text("abnd é日🦜 ", min_size=1, max_size=4), min_size=1, max_size=3),
    st.text("abnd é日🦜 ", max_size=12),
    st.integers(0, 6),
)
def test_completions_of_banned_text_are_exact(name, banned, text, back):
    """Whatever the tokens: whole words, parts of them, single bytes of a character, with a space or without."""
    codec = CODECS[name]
    (ids,) = codec.encode([text])
    ids = ids[: max(0, len(ids) - back)]  # the text may end within a character
    while holds(codec.decode([ids])[0], banned):
        ids = ids[:-1]
    every = range(codec.vocab_size)
    wholes = codec.decode([[*ids, token] for token in every])
    expected = [token for token, whole in zip(every, wholes, strict=True) if holds(whole, banned)]
    rows, tokens = BannedText(banned, codec, codec.vocab_size).completions([ids, ids])
    assert rows == [0] * len(expected) + [1] * len(expected)
    assert tokens == expected * 2


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    way=st.sampled_from([way for way in WAYS if way != "forced"]),  # forced phrases take precedence
    banned=stops,
    rows=st.lists(st.lists(st.integers(3, 6), min_size=1, max_size=3), min_size=1, max_size=3),
)
def test_no_output_contains_a_banned_word(kit, seed, way, banned, rows):
    codec = kit.Letters(*PIECES)
    config = GenerationConfig(bad_words=banned, max_new_tokens=10, min_new_tokens=8, **WAYS[way])
    model = kit.Scripted(kit.random_says(seed, VOCABULARY), VOCABULARY)
    for outputs in generate_tokens(model, kit.batch(rows), config, codec=codec):
        for text in codec.decode([output.tokens for output in outputs]):
            assert not holds(text, banned)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), way=st.sampled_from(["greedy", "beams", "samples"]), banned=stops)
def test_banned_words_have_probability_zero(kit, seed, way, banned):
    """Token by token and score by score, and nothing else is forbidden."""
    codec, probabilities_of = kit.Letters(*PIECES), kit.random_says(seed, VOCABULARY)

    def without(source, prefix):
        texts = codec.decode([[*prefix, token] for token in range(VOCABULARY)])
        return [
            0.0 if holds(text, banned) else p
            for p, text in zip(probabilities_of(source, prefix), texts, strict=True)
        ]

    config = GenerationConfig(max_new_tokens=8, renormalize_logits=True, **WAYS[way])
    inputs = kit.batch([[3], [4, 5]])
    expected = generate_tokens(kit.Scripted(without, VOCABULARY), inputs, config)
    banning = config.model_copy(update={"bad_words": banned})
    found = generate_tokens(kit.Scripted(probabilities_of, VOCABULARY), inputs, banning, codec=codec)
    for outputs, others in zip(found, expected, strict=True):
        assert [o.tokens for o in outputs] == [o.tokens for o in others]
        assert [o.score for o in outputs] == pytest.approx([o.score for o in others], abs=1e-4)


def test_bans_within_words_across_words_and_of_spaces():
    codec = CODECS["byte level"]
    banned = BannedText(["nd", " ", "d a"], codec, codec.vocab_size)

    def after(text: str) -> set[str]:
        _, tokens = banned.completions(codec.encode([text]))
        return set(codec.decode([[token] for token in tokens]))

    assert "d" in after("an") and "d" not in after("ad")
    assert {" a", " an", " and", " "} <= after("x")
    assert "a" not in after("x")


def test_banning_every_word_ends_the_output_or_is_refused(kit):
    codec, model = kit.Letters(), kit.Scripted(lambda source, prefix: [0, 0, 0.1, 0.5, 0.4], 5)
    config = GenerationConfig(bad_words=["a", "b"], bad_words_ids=None, min_new_tokens=3)
    ((output,),) = generate_tokens(model, kit.batch([[3]]), config, codec=codec)
    assert (output.tokens, output.finish_reason) == ([], "stop")
    endless = kit.Scripted(model.probabilities_of, 5)
    endless.config = model.config.model_copy(update={"eos_id": 5})
    config = GenerationConfig(bad_words_ids=[[0], [1], [2], [3], [4]])
    with pytest.raises(UsageError, match="bad_words_ids forbid every token, and the model has no end token"):
        generate_tokens(endless, kit.batch([[3]]), config)


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        ({"bad_words_ids": [[3, 99]]}, "bad_words_ids: 99 is not a token id; the vocabulary has 18 tokens"),
        ({"force_words_ids": [[[3], [18]]], "num_beams": 2}, "force_words_ids: 18 is not a token id"),
        ({"forced_bos_token_id": 40}, "forced_bos_token_id: 40 is not a token id"),
        ({"forced_eos_token_id": [2, 40]}, "forced_eos_token_id: 40 is not a token id"),
        ({"bad_words": ["a"]}, "bad_words is text: pass the tokenizer too"),
        ({"stop_strings": ["."]}, "stop_strings is text: pass the tokenizer too"),
    ],
)
def test_wrong_ids_and_text_without_a_tokenizer_are_refused(kit, requested, message):
    model = kit.Scripted(kit.random_says(1, VOCABULARY), VOCABULARY)
    with pytest.raises(UsageError, match=message):
        generate_tokens(model, kit.batch([[3]]), GenerationConfig(**requested))


def test_end_id_outside_the_vocabulary_is_ignored(kit):
    model = kit.Scripted(kit.random_says(1, VOCABULARY), VOCABULARY)
    for beams in (1, 3):
        config = GenerationConfig(eos_token_id=[18, 40], max_new_tokens=5, min_new_tokens=2, num_beams=beams)
        ((output,),) = generate_tokens(model, kit.batch([[3]]), config)
        assert (len(output.tokens), output.finish_reason) == (5, "length")
