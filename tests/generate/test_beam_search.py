from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.generate.models import ScriptedModel, padded_batch, random_probabilities

from trifold.errors import TrifoldError, UsageError
from trifold.generate import GenerationConfig, Hypothesis, beam_search, generate_tokens
from trifold.generate.decoding import LENGTH_PENALTIES, DecodingState, SearchSetup
from trifold.generate.processors import processor
from trifold.generate.sampling import greedy
from trifold.generate.stopping import StoppingCriteria
from trifold.generate.token_search import token_search
from trifold.nn import Inputs

pytestmark = pytest.mark.slow

PAD, END, A, B = 0, 2, 3, 4


def divisor(config: GenerationConfig, length: int) -> float:
    return LENGTH_PENALTIES[config.length_penalty_form](length, config.length_penalty)


def reference_beam_search(
    probabilities_of, source: tuple, config: GenerationConfig, limit: int
) -> list[Hypothesis]:
    """One sentence, prefixes as tuples, one group after the other, everything recomputed."""
    groups = config.num_beam_groups or 1
    beams = config.num_beams // groups
    live: list[list[tuple[float, tuple]]] = [[(0.0, ())] for _ in range(groups)]
    done: list[list[Hypothesis]] = [[] for _ in live]
    for length in range(1, limit + 1):
        chosen: list[int] = []
        for group, prefixes in enumerate(live):
            longer = [
                (
                    score + math.log(p) - (config.diversity_penalty or 0) * chosen.count(token),
                    (*prefix, token),
                )
                for score, prefix in prefixes
                for token, p in enumerate(probabilities_of(source, prefix))
                if p > 0
            ]
            longer = sorted(longer, reverse=True)[: 2 * beams]
            for score, prefix in longer[:beams]:
                if prefix[-1] == END:
                    done[group].append(
                        Hypothesis(list(prefix[:-1]), score / divisor(config, length), "stop")
                    )
                elif length == limit:
                    done[group].append(
                        Hypothesis(list(prefix), score / divisor(config, length), "length")
                    )
            done[group] = sorted(done[group], key=lambda output: -output.score)[:beams]
            running = [each for each in longer if each[1][-1] != END][:beams]
            chosen += [prefix[-1] for _, prefix in running]
            running = running if length < limit else []
            if running and len(done[group]) == beams:
                reach = (
                    limit
                    if config.early_stopping == "never" and config.length_penalty > 0
                    else length
                )
                best = running[0][0] / divisor(config, reach)
                if config.early_stopping is True or best <= done[group][-1].score:
                    running = []
            live[group] = running
    return sorted((output for group in done for output in group), key=lambda output: -output.score)


def assert_same(
    found: list[Hypothesis], expected: list[Hypothesis], tolerance: float = 1e-4
) -> None:
    assert [(o.tokens, o.finish_reason) for o in found] == [
        (o.tokens, o.finish_reason) for o in expected
    ]
    for one, other in zip(found, expected, strict=True):
        assert abs(one.score - other.score) < tolerance


def late_winner_probabilities(source, prefix):
    """B is less likely than A as a first token, and more likely as a whole output."""
    return {
        (): [0, 0, 0.1, 0.5, 0.4, 0],
        (A,): [0, 0, 0.4, 0.2, 0.2, 0.2],
        (B,): [0, 0, 0.9, 0.1, 0, 0],
    }.get(prefix, [0, 0, 1, 0, 0, 0])


def test_beam_search_finds_a_better_output_than_greedy():
    model, inputs = ScriptedModel(late_winner_probabilities, 6), padded_batch([[A]])
    ((greedy,),) = generate_tokens(model, inputs, GenerationConfig(length_penalty=0.0))
    assert (greedy.tokens, greedy.finish_reason) == ([A], "stop")
    assert greedy.score == pytest.approx(math.log(0.5 * 0.4))
    config = GenerationConfig(num_beams=2, length_penalty=0.0, num_return_sequences=2)
    ((best, second),) = generate_tokens(model, inputs, config)
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
def test_length_penalties_by_hand(form, alpha, short, long):
    """n counts the end: the empty output has n = 1, [B] has n = 2."""
    penalty = {"length_penalty": alpha, "length_penalty_form": form}
    config = GenerationConfig(
        num_beams=8, num_return_sequences=8, early_stopping="never", **penalty
    )
    (outputs,) = generate_tokens(
        ScriptedModel(late_winner_probabilities, 6), padded_batch([[A]]), config
    )
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
def test_early_stopping_never_continues_for_longer_outputs(early_stopping, best, log):
    """After two tokens two outputs are finished, with better scores than the live one; it wins with
    n = 4.
    """

    def probabilities_of(source, prefix):
        return {
            (): [0, 0, 0.5, 0.45, 0.05, 0],
            (A,): [0, 0, 0.6, 0, 0.39, 0.01],
            (A, B): [0, 0, 0, 0, 1, 0],
        }.get(prefix, [0, 0, 1, 0, 0, 0])

    config = GenerationConfig(num_beams=2, early_stopping=early_stopping)
    ((output,),) = generate_tokens(ScriptedModel(probabilities_of, 6), padded_batch([[A]]), config)
    assert output.tokens == best
    assert output.score == pytest.approx(log)


searches = st.fixed_dictionaries(
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
@given(seed=st.integers(0, 10**6), search=searches, rows=sources, vocabulary=st.integers(5, 9))
def test_beam_search_equals_the_reference_implementation(seed, search, rows, vocabulary):
    probabilities_of = random_probabilities(seed, vocabulary)
    config = GenerationConfig(**search, num_return_sequences=search["num_beams"])
    found = generate_tokens(ScriptedModel(probabilities_of, vocabulary), padded_batch(rows), config)
    for outputs, row in zip(found, rows, strict=True):
        assert_same(
            outputs,
            reference_beam_search(probabilities_of, tuple(row), config, search["max_new_tokens"]),
        )
        scores = [output.score for output in outputs]
        assert scores == sorted(scores, reverse=True)
        assert len({(*o.tokens, o.finish_reason) for o in outputs}) == len(outputs)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    rows=st.lists(st.lists(st.integers(3, 6), min_size=1, max_size=4), min_size=1, max_size=4),
    shape=st.sampled_from([(2, 1), (2, 2), (3, 1), (3, 2), (2, 3)]),
    penalty=st.sampled_from([0.3, 1.0, 4.0]),
    early_stopping=st.sampled_from([True, False, "never"]),
    limit=st.integers(1, 6),
)
def test_diverse_search_equals_the_reference_implementation(
    seed, rows, shape, penalty, early_stopping, limit
):
    groups, beams = shape
    probabilities_of = random_probabilities(seed, 8)
    config = GenerationConfig(
        num_beams=groups * beams, num_beam_groups=groups, diversity_penalty=penalty,
        early_stopping=early_stopping, max_new_tokens=limit, num_return_sequences=groups * beams,
    )  # fmt: skip
    found = generate_tokens(ScriptedModel(probabilities_of, 8), padded_batch(rows), config)
    for outputs, row in zip(found, rows, strict=True):
        assert_same(outputs, reference_beam_search(probabilities_of, tuple(row), config, limit))


def test_high_diversity_penalty_separates_the_groups():
    model = ScriptedModel(lambda source, prefix: [0, 0, 0.05, 0.6, 0.2, 0.15], 6)
    config = GenerationConfig(
        num_beams=3,
        num_beam_groups=3,
        diversity_penalty=9.0,
        num_return_sequences=3,
        max_new_tokens=1,
    )
    (outputs,) = generate_tokens(model, padded_batch([[3]]), config)
    assert [output.tokens for output in outputs] == [[3], [4], [5]]


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    ends=st.sampled_from([[2, 5], [2, 5, 6], [4]]),
    beams=st.integers(1, 4),
)
def test_any_of_several_ids_may_end(seed, ends, beams):
    probabilities_of = random_probabilities(seed, 8)
    config = GenerationConfig(
        num_beams=beams, eos_token_id=ends, max_new_tokens=5, num_return_sequences=beams
    )
    (outputs,) = generate_tokens(ScriptedModel(probabilities_of, 8), padded_batch([[3]]), config)
    for output in outputs:
        prefixes = [tuple(output.tokens[:n]) for n in range(len(output.tokens))]
        log = sum(
            math.log(probabilities_of((3,), p)[t])
            for p, t in zip(prefixes, output.tokens, strict=True)
        )
        assert not set(output.tokens) & set(ends)
        if output.finish_reason == "stop":
            last = [math.log(probabilities_of((3,), tuple(output.tokens))[end]) for end in ends]
            length = len(output.tokens) + 1
            assert any(
                output.score == pytest.approx((log + end) / length, abs=1e-4) for end in last
            )
        else:
            assert output.score == pytest.approx(log / 5, abs=1e-4)
            assert len(output.tokens) == 5


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    search=searches,
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
def test_beam_search_with_processors_equals_the_reference(seed, search, rows, requested):
    """The expected probabilities are not renormalized: a ban makes no other token more likely."""
    probabilities_of, vocabulary = random_probabilities(seed, 7), 7

    def changed(source, prefix):
        probabilities = list(probabilities_of(source, prefix))
        for token, p in enumerate(probabilities):
            read, count = (1, *prefix), prefix.count(token)
            text, size = (*read, token), requested.get("no_repeat_ngram_size", 99)
            grams = [read[n : n + size] for n in range(len(read) - size + 1)]
            banned = [tuple(phrase) for phrase in requested.get("bad_words_ids", ())]
            is_banned = (
                text[-size:] in grams
                or any(text[-len(phrase) :] == phrase for phrase in banned)
                or (token == END and len(prefix) < requested.get("min_new_tokens", 0))
            )
            p = p ** requested.get("repetition_penalty", 1.0) if token in read else p
            p *= math.exp(-requested.get("presence_penalty", 0.0) * (count > 0))
            p *= math.exp(-requested.get("frequency_penalty", 0.0) * count)
            probabilities[token] = 0.0 if is_banned else p
        return (
            probabilities
            if any(probabilities)
            else [float(token == END) for token in range(vocabulary)]
        )

    search = search | {
        "max_new_tokens": max(search["max_new_tokens"], requested.get("min_new_tokens", 0))
    }
    config = GenerationConfig(**search, **requested, num_return_sequences=search["num_beams"])
    found = generate_tokens(ScriptedModel(probabilities_of, vocabulary), padded_batch(rows), config)
    for outputs, row in zip(found, rows, strict=True):
        assert_same(
            outputs, reference_beam_search(changed, tuple(row), config, search["max_new_tokens"])
        )


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6), alpha=st.sampled_from([0.0, 0.6, 1.0, 1.7]), limit=st.integers(1, 4)
)
def test_full_width_beam_search_finds_the_global_optimum(seed, alpha, limit):
    vocabulary = 6
    probabilities_of = random_probabilities(seed, vocabulary)
    config = GenerationConfig(
        num_beams=vocabulary**limit,
        length_penalty=alpha,
        early_stopping="never",
        max_new_tokens=limit,
    )

    def all_outputs():
        tokens = [token for token in range(1, vocabulary) if token != END]
        for length in range(1, limit + 1):
            ends = [END] if length < limit else range(1, vocabulary)
            for *body, end in itertools.product(*[tokens] * (length - 1), ends):
                output = (*body, end)
                logs = [
                    math.log(probabilities_of((3, 4), output[:n])[token])
                    for n, token in enumerate(output)
                ]
                yield sum(logs) / length**alpha, list(body if end == END else output)

    score, tokens = max(all_outputs())
    ((best,),) = generate_tokens(
        ScriptedModel(probabilities_of, vocabulary), padded_batch([[3, 4]]), config
    )
    assert best.tokens == tokens
    assert best.score == pytest.approx(score, abs=1e-4)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), rows=sources, alpha=st.sampled_from([0.0, 1.0]))
def test_greedy_is_a_beam_of_one(seed, rows, alpha):
    model = ScriptedModel(random_probabilities(seed, 7), 7)
    config = GenerationConfig(max_new_tokens=6, length_penalty=alpha)
    setup = SearchSetup(config, processor(config, model.config), StoppingCriteria([END]))
    inputs = padded_batch(rows)
    beams = beam_search.beam_search(DecodingState(model, inputs, config), setup)
    ended: dict[int, Hypothesis] = {}
    for step in token_search(DecodingState(model, inputs, config), setup, greedy):
        ended |= step.ended
    outputs = [ended[row] for row in range(len(rows))]
    for (beam,), single in zip(beams, outputs, strict=True):
        assert_same([beam], [single])
    assert generate_tokens(model, inputs, config) == [[output] for output in outputs]


@pytest.mark.parametrize("beams", [1, 2])
def test_end_token_at_the_limit_has_finish_reason_stop(beams):
    def probabilities_of(source, prefix):
        return [0, 0, 0.9, 0.1] if len(prefix) == source[0] else [0, 0, 0, 1.0]

    config = GenerationConfig(num_beams=beams, max_new_tokens=4)
    outputs = generate_tokens(ScriptedModel(probabilities_of, 4), padded_batch([[3], [4]]), config)
    assert [(o.tokens, o.finish_reason) for (o,) in outputs] == [
        ([3] * 3, "stop"),
        ([3] * 4, "length"),
    ]


@pytest.mark.parametrize("beams", [1, 3])
def test_default_limit_is_the_source_length_plus_fifty(beams):
    model = ScriptedModel(lambda source, prefix: [0, 0, 0, 0.6, 0.4], 5)
    rows = [[3], [4] * 9, [4] * 5]
    outputs = generate_tokens(model, padded_batch(rows), GenerationConfig(num_beams=beams))
    assert [len(output.tokens) for (output,) in outputs] == [51, 59, 55]
    assert {output.finish_reason for (output,) in outputs} == {"length"}


@pytest.mark.parametrize("beams", [1, 3])
def test_the_limit_is_the_number_of_positions(beams):
    """With 8 positions the decoder reads the start token and 7 tokens, and generates an eighth."""
    model = ScriptedModel(lambda source, prefix: [0, 0, 0, 0.6, 0.4], 5, max_positions=8)
    ((output,),) = generate_tokens(model, padded_batch([[3]]), GenerationConfig(num_beams=beams))
    assert (output.tokens, output.finish_reason) == ([3] * 8, "length")


@pytest.mark.parametrize("beams", [1, 2])
def test_finished_sentences_leave_the_batch(beams):
    def probabilities_of(source, prefix):
        return [0, 0, 1.0, 0] if len(prefix) >= len(source) else [0, 0, 0, 1.0]

    model, inputs = ScriptedModel(probabilities_of, 4), padded_batch([[3] * 4, [3], [3] * 2])
    steps: list[tuple[int, int]] = []
    config = GenerationConfig(num_beams=beams)
    generate_tokens(model, inputs, config, on_step=lambda *step: steps.append(step))
    assert steps == [(1, 3), (2, 2), (3, 1), (4, 1), (5, 0)]


def test_fewer_outputs_if_fewer_exist():
    config = GenerationConfig(num_beams=8, num_return_sequences=8, max_new_tokens=1)
    (outputs,) = generate_tokens(
        ScriptedModel(late_winner_probabilities, 6), padded_batch([[A]]), config
    )
    assert [output.tokens for output in outputs] == [[A], [B], []]


@pytest.mark.parametrize("beams", [1, 3])
def test_nan_scores_are_refused(beams):
    model = ScriptedModel(lambda source, prefix: [0.5, 0, 0.5, float("nan")], 4)
    with pytest.raises(TrifoldError, match="NaN scores"):
        generate_tokens(model, padded_batch([[3]]), GenerationConfig(num_beams=beams))


def test_no_rows_give_no_outputs():
    model = ScriptedModel(late_winner_probabilities, 6)
    empty = Inputs(torch.zeros(0, 4, dtype=torch.long))
    assert generate_tokens(model, empty, GenerationConfig(num_beams=3)) == []


def test_numbers_must_match_the_rows():
    with pytest.raises(UsageError, match="1 entries for 2 rows"):
        generate_tokens(
            ScriptedModel(late_winner_probabilities, 6),
            padded_batch([[A], [B]]),
            GenerationConfig(),
            numbers=[0],
        )


@given(
    seed=st.integers(0, 10**6),
    vocabulary=st.integers(30, 90),
    beams=st.integers(1, 4),
    dead=st.booleans(),
    count=st.integers(1, 8),
)
def test_chunked_top_k_equals_full_top_k(seed, vocabulary, beams, dead, count):
    generator = torch.Generator().manual_seed(seed)
    log_probs = torch.randn(3, beams, vocabulary, generator=generator)
    log_probs[:, :, 5:20] = float("-inf")
    scores = torch.randn(3, beams, generator=generator)
    if dead:
        scores[:, 1:] = float("-inf")
    whole = beam_search.best_continuations(log_probs, scores, count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beam_search, "CHUNK", 3)
        patch.setattr(beam_search, "LARGE", 0)
        found = beam_search.best_continuations(log_probs, scores, count)
    for ours, expected in zip(found, whole, strict=True):
        assert torch.equal(ours, expected)
    rows = torch.arange(3)[:, None]
    assert torch.equal(log_probs[rows, found[1], found[2]] + scores.gather(1, found[1]), found[0])


def test_chunked_top_k_copies_no_log_probabilities():
    log_probs = torch.randn(2, 4, 50257)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        beam_search.best_continuations(log_probs, torch.zeros(2, 4), 8)
    assert max(each.self_cpu_memory_usage for each in profile.key_averages()) < log_probs.nbytes / 4
