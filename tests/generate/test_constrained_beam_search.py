from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings, strategies as st

from trifold.errors import UsageError
from trifold.generate import GenerationConfig, generate_tokens
from trifold.generate.constrained_beam_search import PhraseConstraints

pytestmark = pytest.mark.slow

END = 2
phrase = st.lists(st.integers(3, 7), min_size=1, max_size=3)
wishes = st.lists(phrase | st.lists(phrase, min_size=1, max_size=3), min_size=1, max_size=3)


def holds(tokens, phrase) -> bool:
    return any(tokens[i : i + len(phrase)] == list(phrase) for i in range(len(tokens)))


def alternatives(wish) -> list[list[int]]:
    return [wish] if isinstance(wish[0], int) else wish


def granted(tokens, wished) -> bool:
    return all(any(holds(tokens, phrase) for phrase in alternatives(wish)) for wish in wished)


def log_p(probabilities_of, source, tokens) -> float:
    return sum(math.log(probabilities_of(source, tuple(tokens[:n]))[token]) for n, token in enumerate(tokens))


@settings(max_examples=120)
@given(
    seed=st.integers(0, 10**6),
    wished=wishes,
    rows=st.lists(st.lists(st.integers(3, 6), min_size=1, max_size=4), min_size=1, max_size=3),
    beams=st.integers(2, 6),
    early_stopping=st.sampled_from([True, False, "never"]),
    spare=st.integers(0, 4),
)
def test_every_output_contains_every_phrase(kit, seed, wished, rows, beams, early_stopping, spare):
    probabilities_of = kit.random_says(seed, 8)
    limit = PhraseConstraints(wished).missing(PhraseConstraints(wished).start) + spare
    config = GenerationConfig(
        num_beams=beams, num_return_sequences=beams, force_words_ids=wished, max_new_tokens=limit,
        early_stopping=early_stopping, length_penalty=0.0,
    )  # fmt: skip
    found = generate_tokens(kit.Scripted(probabilities_of, 8), kit.batch(rows), config)
    for outputs, row in zip(found, rows, strict=True):
        assert outputs
        assert len({(*o.tokens, o.finish_reason) for o in outputs}) == len(outputs)
        for output in outputs:
            assert granted(output.tokens, wished)
            message = [*output.tokens, END] if output.finish_reason == "stop" else output.tokens
            assert output.score == pytest.approx(log_p(probabilities_of, tuple(row), message), abs=1e-3)
        (alone,) = generate_tokens(kit.Scripted(probabilities_of, 8), kit.batch([row]), config)
        assert [o.tokens for o in alone] == [o.tokens for o in outputs]


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10**6),
    wished=st.sampled_from([[[3]], [[3, 4]], [[4], [3]], [[[3, 3], [5]]], [[3, 4], [4, 3]], [[3, 3, 4]]]),
    limit=st.integers(3, 4),
)
def test_full_width_constrained_search_finds_the_global_optimum(kit, seed, wished, limit):
    probabilities_of = kit.random_says(seed, 6)
    config = GenerationConfig(
        num_beams=300,
        force_words_ids=wished,
        max_new_tokens=limit,
        early_stopping="never",
        length_penalty=1.0,
    )
    if PhraseConstraints(wished).missing(PhraseConstraints(wished).start) > limit:
        with pytest.raises(UsageError, match="the forced words need"):
            generate_tokens(kit.Scripted(probabilities_of, 6), kit.batch([[3]]), config)
        return

    def everything():
        for length in range(1, limit + 1):
            for body in itertools.product([1, 3, 4, 5], repeat=length - 1):
                for end in [END] if length < limit else [1, 2, 3, 4, 5]:
                    tokens = [*body] if end == END else [*body, end]
                    if granted(tokens, wished):
                        yield log_p(probabilities_of, (3,), [*body, end]) / length, tokens

    score, tokens = max(everything())
    ((best,),) = generate_tokens(kit.Scripted(probabilities_of, 6), kit.batch([[3]]), config)
    assert best.tokens == tokens
    assert best.score == pytest.approx(score, abs=1e-4)


@given(wishes, st.lists(st.integers(3, 7), max_size=12))
def test_constraints_track_the_phrases_of_a_text(wished, text):
    machine = PhraseConstraints(wished)
    state = machine.start
    for n, token in enumerate(text, start=1):
        before, advances = machine.missing(state), machine.advances(state)
        if before:
            assert any(machine.missing(machine.after(state, each)) < before for each in advances)
            one_by_one = machine._missing_without_overlap
            assert any(one_by_one(machine.after(state, each)) < one_by_one(state) for each in advances)
        state = machine.after(state, token)
        assert (machine.missing(state) == 0) == granted(text[:n], wished)


@given(wishes, st.lists(st.integers(3, 7), max_size=3))
def test_missing_is_the_shortest_completion(wished, text):
    machine = PhraseConstraints(wished)
    state = machine.start
    for token in text:
        state = machine.after(state, token)
    shortest = machine.missing(state)
    assert shortest <= machine._missing_without_overlap(state)
    if shortest <= 4:
        ways = itertools.product(range(3, 8), repeat=max(shortest - 1, 0))
        shorter = any(granted_after(machine, state, way) for way in ways)
        assert not shorter or shortest == 0
        assert any(
            granted_after(machine, state, way) for way in itertools.product(range(3, 8), repeat=shortest)
        )


def granted_after(machine, state, tokens) -> bool:
    for token in tokens:
        state = machine.after(state, token)
    return all(progress is None for progress in state)


def test_forced_phrases_take_precedence_over_bans(kit):
    model = kit.Scripted(kit.random_says(4, 8), 8)
    config = GenerationConfig(
        num_beams=3,
        force_words_ids=[[5, 5, 5]],
        no_repeat_ngram_size=1,
        bad_words_ids=[[5, 6]],
        max_new_tokens=6,
    )
    ((output,),) = generate_tokens(model, kit.batch([[3]]), config)
    assert holds(output.tokens, [5, 5, 5])


def test_impossible_constraints_are_refused(kit):
    model = kit.Scripted(kit.random_says(4, 8), 8)
    with pytest.raises(UsageError, match=r"row 0 may get 3 tokens, and the forced words need 4"):
        generate_tokens(
            model,
            kit.batch([[3]]),
            GenerationConfig(num_beams=2, max_new_tokens=3, force_words_ids=[[4, 5], [6, 7]]),
        )
    with pytest.raises(UsageError, match=r"contains 2, which ends an output"):
        generate_tokens(model, kit.batch([[3]]), GenerationConfig(num_beams=2, force_words_ids=[[4, 2]]))


def test_words_as_text(kit):
    model, codec = kit.Scripted(kit.random_says(4, 14), 14), kit.Letters()
    requested = {"num_beams": 3, "max_new_tokens": 8, "num_return_sequences": 3}
    config = GenerationConfig(force_words=["bad", "c"], bad_words=["e", "fg"], **requested)
    (outputs,) = generate_tokens(model, kit.batch([[3]]), config, codec=codec)
    for text in codec.decode([output.tokens for output in outputs]):
        assert "bad" in text and "c" in text
        assert "e" not in text and "fg" not in text
    with pytest.raises(UsageError, match="bad_words is text: pass the tokenizer too"):
        generate_tokens(model, kit.batch([[3]]), config)
    config = GenerationConfig(force_words=[" "], num_beams=2)
    with pytest.raises(UsageError, match="' ' has no tokens"):
        generate_tokens(model, kit.batch([[3]]), config, codec=codec)
