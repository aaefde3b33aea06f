from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from trifold.errors import TrifoldError, UsageError
from trifold.generate import GenerationConfig, Hypothesis, generate_tokens
from trifold.generate.beam_search import beam_search
from trifold.generate.decoding import LENGTH_PENALTIES, DecodingState, SearchSetup
from trifold.generate.processors import processor
from trifold.generate.sampling import greedy
from trifold.generate.stopping import StoppingCriteria
from trifold.generate.token_search import token_search

pytestmark = pytest.mark.slow

PAD, END, A, B, C = 0, 2, 3, 4, 5


def divisor(config: GenerationConfig, length: int) -> float:
    return LENGTH_PENALTIES[config.length_penalty_form](length, config.length_penalty)


def reference_beam_search(
    probabilities_of, source: tuple, config: GenerationConfig, limit: int
) -> list[Hypothesis]:
    """One sentence, prefixes as tuples, everything recomputed: the oracle of the fast one."""
    live: list[tuple[float, tuple]] = [(0.0, ())]
    done: list[Hypothesis] = []
    for length in range(1, limit + 1):
        longer = []
        for score, prefix in live:
            for token, probability in enumerate(probabilities_of(source, prefix)):
                if probability > 0:
                    longer.append((score + math.log(probability), (*prefix, token)))
        longer.sort(reverse=True)
        longer = longer[: 2 * config.num_beams]
        for score, prefix in longer[: config.num_beams]:
            if prefix[-1] == END:
                done.append(Hypothesis(list(prefix[:-1]), score / divisor(config, length), "stop"))
            elif length == limit:
                done.append(Hypothesis(list(prefix), score / divisor(config, length), "length"))
        done = sorted(done, key=lambda output: -output.score)[: config.num_beams]
        live = [each for each in longer if each[1][-1] != END][: config.num_beams]
        if length == limit or not live:
            break
        if len(done) == config.num_beams:
            reach = limit if config.early_stopping == "never" and config.length_penalty > 0 else length
            if config.early_stopping is True or live[0][0] / divisor(config, reach) <= done[-1].score:
                break
    return done


def assert_same(found: list[Hypothesis], expected: list[Hypothesis], tolerance: float = 1e-4) -> None:
    assert [(o.tokens, o.finish_reason) for o in found] == [(o.tokens, o.finish_reason) for o in expected]
    for one, other in zip(found, expected, strict=True):
        assert abs(one.score - other.score) < tolerance


def garden_path(source, prefix):
    """B looks worse than A at first, and is better in the end."""
    return {
        (): [0, 0, 0.1, 0.5, 0.4, 0],
        (A,): [0, 0, 0.4, 0.2, 0.2, 0.2],
        (B,): [0, 0, 0.9, 0.1, 0, 0],
    }.get(prefix, [0, 0, 1, 0, 0, 0])


def test_beam_search_finds_a_better_output_than_greedy(kit):
    model, inputs = kit.Scripted(garden_path, 6), kit.batch([[A]])
    ((greedy,),) = generate_tokens(model, inputs, GenerationConfig(length_penalty=0.0))
    assert (greedy.tokens, greedy.finish_reason) == ([A], "stop")
    assert greedy.score == pytest.approx(math.log(0.5 * 0.4))
    ((best, second),) = generate_tokens(
        model, inputs, GenerationConfig(num_beams=2, length_penalty=0.0, num_return_sequences=2)
    )
    assert (best.tokens, second.tokens) == ([B], [A])
    assert best.score == pytest.approx(math.log(0.4 * 0.9))
    assert second.score == pytest.approx(math.log(0.5 * 0.4))


@pytest.mark.parametrize(
    ("form", "alpha", "short", "long"),
    [
        ("power", 0.0, math.log(0.1), math.log(0.36)),
        ("power", 1.0, math.log(0.1) / 1, math.log(0.36) / 2),
        ("power", 2.0, math.log(0.1) / 1, math.log(0.36) / 4),
        ("gnmt", 0.6, math.log(0.1) / 1, math.log(0.36) / (7 / 6) ** 0.6),
        ("gnmt", 2.0, math.log(0.1) / 1, math.log(0.36) * 36 / 49),
    ],
)
def test_length_penalties_by_hand(kit, form, alpha, short, long):
    """n counts the end: the empty output has n = 1, [B] has n = 2."""
    config = GenerationConfig(
        num_beams=8,
        num_return_sequences=8,
        length_penalty=alpha,
        length_penalty_form=form,
        early_stopping="never",
    )
    (outputs,) = generate_tokens(kit.Scripted(garden_path, 6), kit.batch([[A]]), config)
    scores = {tuple(output.tokens): output.score for output in outputs}
    assert scores[()] == pytest.approx(short)
    assert scores[B,] == pytest.approx(long)


@pytest.mark.parametrize(
    ("early_stopping", "best", "log"),
    [
        (True, [A], math.log(0.45 * 0.6) / 2),
        (False, [A], math.log(0.45 * 0.6) / 2),
        ("never", [A, B, B], math.log(0.45 * 0.39) / 4),
    ],
)
def test_early_stopping_never_waits_for_longer_outputs(kit, early_stopping, best, log):
    """After two tokens two outputs are finished, and the running one looks worse than both; it wins with n = 4."""

    def probabilities_of(source, prefix):
        return {
            (): [0, 0, 0.5, 0.45, 0.05, 0],
            (A,): [0, 0, 0.6, 0, 0.39, 0.01],
            (A, B): [0, 0, 0, 0, 1, 0],
        }.get(prefix, [0, 0, 1, 0, 0, 0])

    config = GenerationConfig(num_beams=2, early_stopping=early_stopping)
    ((output,),) = generate_tokens(kit.Scripted(probabilities_of, 6), kit.batch([[A]]), config)
    assert output.tokens == best
    assert output.score == pytest.approx(log)


ways = st.fixed_dictionaries(
    {
        "num_beams": st.integers(2, 5),
        "length_penalty": st.sampled_from([-0.5, 0.0, 0.6, 1.0, 2.0]),
        "length_penalty_form": st.sampled_from(["power", "gnmt"]),
        "early_stopping": st.sampled_from([True, False, "never"]),
        "max_new_tokens": st.integers(1, 7),
    }
)
sources = st.lists(st.lists(st.integers(3, 6), min_size=1, max_size=5), min_size=1, max_size=6)


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10**6), way=ways, rows=sources, vocabulary=st.integers(5, 9))
def test_beam_search_equals_the_reference_implementation(kit, seed, way, rows, vocabulary):
    probabilities_of = kit.random_says(seed, vocabulary)
    config = GenerationConfig(**way, num_return_sequences=way["num_beams"])
    found = generate_tokens(kit.Scripted(probabilities_of, vocabulary), kit.batch(rows), config)
    for outputs, row in zip(found, rows, strict=True):
        assert_same(
            outputs, reference_beam_search(probabilities_of, tuple(row), config, way["max_new_tokens"])
        )
        scores = [output.score for output in outputs]
        assert scores == sorted(scores, reverse=True)
        assert len({(*o.tokens, o.finish_reason) for o in outputs}) == len(outputs)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    way=ways,
    rows=sources,
    requested=st.fixed_dictionaries(
        {},
        optional={
            "repetition_penalty": st.sampled_from([0.7, 1.5]),
            "presence_penalty": st.sampled_from([-0.5, 0.8]),
            "frequency_penalty": st.sampled_from([0.3]),
            "no_repeat_ngram_size": st.integers(2, 3),
            "bad_words_ids": st.sampled_from([[[PAD], [4]], [[PAD], [3, 3], [4, 3]]]),
            "min_new_tokens": st.integers(0, 3),
        },
    ),
)
def test_beam_search_with_processors_equals_the_reference(kit, seed, way, rows, requested):
    """Nothing becomes likelier by what is forbidden: the table is changed by hand, and not made to sum to 1."""
    probabilities_of, vocabulary = kit.random_says(seed, 7), 7

    def changed(source, prefix):
        probabilities = list(probabilities_of(source, prefix))
        for token, p in enumerate(probabilities):
            before, written = (1, *prefix), prefix.count(token)
            text, size = (*before, token), requested.get("no_repeat_ngram_size", 99)
            grams = [before[n : n + size] for n in range(len(before) - size + 1)]
            banned = [tuple(phrase) for phrase in requested.get("bad_words_ids", ())]
            never = (
                text[-size:] in grams
                or any(text[-len(phrase) :] == phrase for phrase in banned)
                or (token == END and len(prefix) < requested.get("min_new_tokens", 0))
            )
            p = p ** requested.get("repetition_penalty", 1.0) if token in before else p
            p *= math.exp(-requested.get("presence_penalty", 0.0) * (written > 0))
            p *= math.exp(-requested.get("frequency_penalty", 0.0) * written)
            probabilities[token] = 0.0 if never else p
        return probabilities if any(probabilities) else [float(token == END) for token in range(vocabulary)]

    way = way | {"max_new_tokens": max(way["max_new_tokens"], requested.get("min_new_tokens", 0))}
    config = GenerationConfig(**way, **requested, num_return_sequences=way["num_beams"])
    found = generate_tokens(kit.Scripted(probabilities_of, vocabulary), kit.batch(rows), config)
    for outputs, row in zip(found, rows, strict=True):
        assert_same(outputs, reference_beam_search(changed, tuple(row), config, way["max_new_tokens"]))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), alpha=st.sampled_from([0.0, 0.6, 1.0, 1.7]), limit=st.integers(1, 4))
def test_full_width_beam_search_finds_the_global_optimum(kit, seed, alpha, limit):
    vocabulary = 6
    probabilities_of = kit.random_says(seed, vocabulary)
    config = GenerationConfig(
        num_beams=vocabulary**limit, length_penalty=alpha, early_stopping="never", max_new_tokens=limit
    )

    def everything():
        words = [token for token in range(1, vocabulary) if token != END]
        for length in range(1, limit + 1):
            ends = [END] if length < limit else range(1, vocabulary)
            for *body, end in itertools.product(*[words] * (length - 1), ends):
                whole = (*body, end)
                log = sum(
                    math.log(probabilities_of((3, 4), whole[:place])[token])
                    for place, token in enumerate(whole)
                )
                yield log / length**alpha, list(body if end == END else whole)

    score, tokens = max(everything())
    ((best,),) = generate_tokens(kit.Scripted(probabilities_of, vocabulary), kit.batch([[3, 4]]), config)
    assert best.tokens == tokens
    assert best.score == pytest.approx(score, abs=1e-4)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), rows=sources, alpha=st.sampled_from([0.0, 1.0]))
def test_greedy_is_a_beam_of_one(kit, seed, rows, alpha):
    model = kit.Scripted(kit.random_says(seed, 7), 7)
    config = GenerationConfig(max_new_tokens=6, length_penalty=alpha)
    setup = SearchSetup(config, processor(config, model.config), StoppingCriteria([END]))
    inputs = kit.batch(rows)
    beams = beam_search(DecodingState(model, inputs, config), setup)
    ended: dict[int, Hypothesis] = {}
    for step in token_search(DecodingState(model, inputs, config), setup, greedy):
        ended |= step.ended
    outputs = [ended[row] for row in range(len(rows))]
    for (beam,), single in zip(beams, outputs, strict=True):
        assert_same([beam], [single])
    assert generate_tokens(model, inputs, config) == [[output] for output in outputs]


@pytest.mark.parametrize("beams", [1, 2])
def test_end_token_at_the_limit_has_finish_reason_stop(kit, beams):
    def probabilities_of(source, prefix):
        return [0, 0, 0.9, 0.1] if len(prefix) == source[0] else [0, 0, 0, 1.0]

    config = GenerationConfig(num_beams=beams, max_new_tokens=4)
    outputs = generate_tokens(kit.Scripted(probabilities_of, 4), kit.batch([[3], [4]]), config)
    assert [(o.tokens, o.finish_reason) for (o,) in outputs] == [([3] * 3, "stop"), ([3] * 4, "length")]


@pytest.mark.parametrize("beams", [1, 3])
def test_default_limit_is_the_source_length_plus_fifty(kit, beams):
    model = kit.Scripted(lambda source, prefix: [0, 0, 0, 0.6, 0.4], 5)
    rows = [[3], [4] * 9, [4] * 5]
    outputs = generate_tokens(model, kit.batch(rows), GenerationConfig(num_beams=beams))
    assert [len(output.tokens) for (output,) in outputs] == [51, 59, 55]
    assert {output.finish_reason for (output,) in outputs} == {"length"}


@pytest.mark.parametrize("beams", [1, 3])
def test_limit_by_positions(kit, beams):
    """With 8 positions the decoder reads the start and 7 tokens, and says the eighth."""
    model = kit.Scripted(lambda source, prefix: [0, 0, 0, 0.6, 0.4], 5, max_positions=8)
    ((output,),) = generate_tokens(model, kit.batch([[3]]), GenerationConfig(num_beams=beams))
    assert (output.tokens, output.finish_reason) == ([3] * 8, "length")


def test_finished_sentences_leave_the_batch(kit):
    def probabilities_of(source, prefix):
        return [0, 0, 1.0, 0] if len(prefix) >= len(source) else [0, 0, 0, 1.0]

    steps: list[tuple[int, int]] = []
    rows = [[3] * 4, [3], [3] * 2]
    generate_tokens(
        kit.Scripted(probabilities_of, 4),
        kit.batch(rows),
        GenerationConfig(),
        on_step=lambda *step: steps.append(step),
    )
    assert steps == [(1, 3), (2, 2), (3, 1), (4, 1), (5, 0)]
    beam_steps: list[tuple[int, int]] = []
    generate_tokens(
        kit.Scripted(probabilities_of, 4),
        kit.batch(rows),
        GenerationConfig(num_beams=2),
        on_step=lambda *step: beam_steps.append(step),
    )
    assert beam_steps == steps


def test_fewer_outputs_if_fewer_exist(kit):
    config = GenerationConfig(num_beams=8, num_return_sequences=8, max_new_tokens=1)
    (outputs,) = generate_tokens(kit.Scripted(garden_path, 6), kit.batch([[A]]), config)
    assert [output.tokens for output in outputs] == [[A], [B], []]


@pytest.mark.parametrize("beams", [1, 3])
def test_nan_scores_are_refused(kit, beams):
    model = kit.Scripted(lambda source, prefix: [0.5, 0, 0.5, float("nan")], 4)
    with pytest.raises(TrifoldError, match="NaN scores"):
        generate_tokens(model, kit.batch([[3]]), GenerationConfig(num_beams=beams))


def test_no_rows_give_no_outputs(kit):
    model = kit.Scripted(garden_path, 6)
    nothing = kit.batch([])
    nothing.tokens = torch.zeros(0, 4, dtype=torch.long)
    nothing.attend = None
    assert generate_tokens(model, nothing, GenerationConfig(num_beams=3)) == []


def test_numbers_must_match_the_rows(kit):
    with pytest.raises(UsageError, match="1 entries for 2 rows"):
        generate_tokens(kit.Scripted(garden_path, 6), kit.batch([[A], [B]]), GenerationConfig(), numbers=[0])


@pytest.mark.parametrize("beams", [1, 4])
def test_processors_hold_in_every_search(kit, beams):
    model = kit.Scripted(kit.random_says(4, 9), 9)
    config = GenerationConfig(num_beams=beams, no_repeat_ngram_size=2, min_new_tokens=9, max_new_tokens=20)
    for outputs in generate_tokens(model, kit.batch([[3], [4, 5], [6] * 3]), config):
        for tokens in (output.tokens for output in outputs):
            pairs = list(itertools.pairwise(tokens))
            assert len(pairs) == len(set(pairs))
            assert len(tokens) >= 9
