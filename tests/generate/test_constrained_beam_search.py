from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings, strategies as st
from tests.generate.models import LetterCodec, ScriptedModel, padded_batch, random_probabilities

from trifold.errors import UsageError
from trifold.generate import GenerationConfig, generate_tokens
from trifold.generate.constrained_beam_search import PhraseConstraints

pytestmark = pytest.mark.slow

END = 2
phrase = st.lists(st.integers(3, 7), min_size=1, max_size=3)
constraints = st.lists(phrase | st.lists(phrase, min_size=1, max_size=3), min_size=1, max_size=3)


def contains(tokens, phrase) -> bool:
    return any(tokens[i : i + len(phrase)] == list(phrase) for i in range(len(tokens)))


def alternatives(constraint) -> list[list[int]]:
    return [constraint] if isinstance(constraint[0], int) else constraint


def satisfied(tokens, required) -> bool:
    return all(
        any(contains(tokens, phrase) for phrase in alternatives(constraint))
        for constraint in required
    )


def log_p(probabilities_of, source, tokens) -> float:
    return sum(
        math.log(probabilities_of(source, tuple(tokens[:n]))[token])
        for n, token in enumerate(tokens)
    )


@settings(max_examples=120)
@given(
    seed=st.integers(0, 10**6),
    required=constraints,
    rows=st.lists(st.lists(st.integers(3, 6), min_size=1, max_size=4), min_size=1, max_size=3),
    beams=st.integers(2, 6),
    early_stopping=st.sampled_from([True, False, "never"]),
    extra=st.integers(0, 4),
)
def test_every_output_contains_every_phrase(seed, required, rows, beams, early_stopping, extra):
    probabilities_of = random_probabilities(seed, 8)
    limit = PhraseConstraints(required).missing(PhraseConstraints(required).start) + extra
    config = GenerationConfig(
        num_beams=beams, num_return_sequences=beams, force_words_ids=required, max_new_tokens=limit,
        early_stopping=early_stopping, length_penalty=0.0,
    )  # fmt: skip
    found = generate_tokens(ScriptedModel(probabilities_of, 8), padded_batch(rows), config)
    for outputs, row in zip(found, rows, strict=True):
        assert outputs
        assert len({(*o.tokens, o.finish_reason) for o in outputs}) == len(outputs)
        for output in outputs:
            assert satisfied(output.tokens, required)
            message = [*output.tokens, END] if output.finish_reason == "stop" else output.tokens
            assert output.score == pytest.approx(
                log_p(probabilities_of, tuple(row), message), abs=1e-3
            )
        (alone,) = generate_tokens(ScriptedModel(probabilities_of, 8), padded_batch([row]), config)
        assert [o.tokens for o in alone] == [o.tokens for o in outputs]


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10**6),
    required=st.sampled_from(
        [[[3]], [[3, 4]], [[4], [3]], [[[3, 3], [5]]], [[3, 4], [4, 3]], [[3, 3, 4]]]
    ),
    limit=st.integers(3, 4),
)
def test_full_width_constrained_search_finds_the_global_optimum(seed, required, limit):
    probabilities_of = random_probabilities(seed, 6)
    config = GenerationConfig(
        num_beams=300,
        force_words_ids=required,
        max_new_tokens=limit,
        early_stopping="never",
        length_penalty=1.0,
    )
    if PhraseConstraints(required).missing(PhraseConstraints(required).start) > limit:
        with pytest.raises(UsageError, match="the forced words need"):
            generate_tokens(ScriptedModel(probabilities_of, 6), padded_batch([[3]]), config)
        return

    def all_outputs():
        for length in range(1, limit + 1):
            for body in itertools.product([1, 3, 4, 5], repeat=length - 1):
                for end in [END] if length < limit else [1, 2, 3, 4, 5]:
                    tokens = [*body] if end == END else [*body, end]
                    if satisfied(tokens, required):
                        yield log_p(probabilities_of, (3,), [*body, end]) / length, tokens

    score, tokens = max(all_outputs())
    ((best,),) = generate_tokens(ScriptedModel(probabilities_of, 6), padded_batch([[3]]), config)
    assert best.tokens == tokens
    assert best.score == pytest.approx(score, abs=1e-4)


@given(constraints, st.lists(st.integers(3, 7), max_size=12))
def test_constraints_track_the_phrases_of_a_text(required, text):
    automaton = PhraseConstraints(required)
    state = automaton.start
    for n, token in enumerate(text, start=1):
        before, advances = automaton.missing(state), automaton.advances(state)
        if before:
            assert any(
                automaton.missing(automaton.after(state, each)) < before for each in advances
            )
            one_by_one = automaton._missing_without_overlap
            assert any(
                one_by_one(automaton.after(state, each)) < one_by_one(state) for each in advances
            )
        state = automaton.after(state, token)
        assert (automaton.missing(state) == 0) == satisfied(text[:n], required)


@given(constraints, st.lists(st.integers(3, 7), max_size=3))
def test_missing_is_the_shortest_completion(required, text):
    automaton = PhraseConstraints(required)
    state = automaton.start
    for token in text:
        state = automaton.after(state, token)
    shortest = automaton.missing(state)
    assert shortest <= automaton._missing_without_overlap(state)
    if shortest <= 4:
        completions = itertools.product(range(3, 8), repeat=max(shortest - 1, 0))
        shorter = any(is_complete_after(automaton, state, completion) for completion in completions)
        assert not shorter or shortest == 0
        assert any(
            is_complete_after(automaton, state, completion)
            for completion in itertools.product(range(3, 8), repeat=shortest)
        )


def is_complete_after(automaton, state, tokens) -> bool:
    for token in tokens:
        state = automaton.after(state, token)
    return all(progress is None for progress in state)


def test_forced_phrases_take_precedence_over_bans():
    model = ScriptedModel(random_probabilities(4, 8), 8)
    config = GenerationConfig(
        num_beams=3,
        force_words_ids=[[5, 5, 5]],
        no_repeat_ngram_size=1,
        bad_words_ids=[[5, 6]],
        max_new_tokens=6,
    )
    ((output,),) = generate_tokens(model, padded_batch([[3]]), config)
    assert contains(output.tokens, [5, 5, 5])


def test_impossible_constraints_are_refused():
    model = ScriptedModel(random_probabilities(4, 8), 8)
    with pytest.raises(UsageError, match=r"row 0 may get 3 tokens, and the forced words need 4"):
        generate_tokens(
            model,
            padded_batch([[3]]),
            GenerationConfig(num_beams=2, max_new_tokens=3, force_words_ids=[[4, 5], [6, 7]]),
        )
    with pytest.raises(UsageError, match=r"contains 2, which ends an output"):
        generate_tokens(
            model, padded_batch([[3]]), GenerationConfig(num_beams=2, force_words_ids=[[4, 2]])
        )


def test_words_can_be_given_as_text():
    model, codec = ScriptedModel(random_probabilities(4, 14), 14), LetterCodec()
    requested = {"num_beams": 3, "max_new_tokens": 8, "num_return_sequences": 3}
    config = GenerationConfig(force_words=["bad", "c"], bad_words=["e", "fg"], **requested)
    (outputs,) = generate_tokens(model, padded_batch([[3]]), config, codec=codec)
    for text in codec.decode([output.tokens for output in outputs]):
        assert "bad" in text and "c" in text
        assert "e" not in text and "fg" not in text
    with pytest.raises(UsageError, match="bad_words is text: pass the tokenizer too"):
        generate_tokens(model, padded_batch([[3]]), config)
    config = GenerationConfig(force_words=[" "], num_beams=2)
    with pytest.raises(UsageError, match="' ' has no tokens"):
        generate_tokens(model, padded_batch([[3]]), config, codec=codec)
