"""Diverse beams against the obvious way of writing them; beams of one group are in ../test_search.py."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings, strategies as st

from trifold.generate import GenerationConfig, Hypothesis, generate_tokens

END = 2


def reference_diverse_search(
    probabilities_of, source: tuple, config: GenerationConfig, limit: int
) -> list[Hypothesis]:
    """One sentence, prefixes as tuples, one group after the other at each length."""
    beams = config.num_beams // config.num_beam_groups
    live = [[(0.0, ())] for _ in range(config.num_beam_groups)]
    done: list[list[Hypothesis]] = [[] for _ in live]
    for length in range(1, limit + 1):
        taken: list[int] = []
        for group, beginnings in enumerate(live):
            longer = [
                (score + math.log(p) - config.diversity_penalty * taken.count(token), (*prefix, token))
                for score, prefix in beginnings
                for token, p in enumerate(probabilities_of(source, prefix))
                if p > 0
            ]
            longer = sorted(longer, reverse=True)[: 2 * beams]
            for score, prefix in longer[:beams]:
                if prefix[-1] == END:
                    done[group].append(Hypothesis(list(prefix[:-1]), score / length, "stop"))
                elif length == limit:
                    done[group].append(Hypothesis(list(prefix), score / length, "length"))
            done[group] = sorted(done[group], key=lambda output: -output.score)[:beams]
            going = [each for each in longer if each[1][-1] != END][:beams]
            taken += [prefix[-1] for _, prefix in going]
            going = going if length < limit else []
            if going and len(done[group]) == beams:
                best = going[0][0] / (limit if config.early_stopping == "never" else length)
                if config.early_stopping is True or best <= done[group][-1].score:
                    going = []
            live[group] = going
    return sorted((output for group in done for output in group), key=lambda output: -output.score)


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
    kit, seed, rows, shape, penalty, early_stopping, limit
):
    groups, beams = shape
    probabilities_of = kit.random_says(seed, 8)
    config = GenerationConfig(
        num_beams=groups * beams, num_beam_groups=groups, diversity_penalty=penalty,
        early_stopping=early_stopping, max_new_tokens=limit, num_return_sequences=groups * beams,
    )  # fmt: skip
    found = generate_tokens(kit.Scripted(probabilities_of, 8), kit.batch(rows), config)
    for outputs, row in zip(found, rows, strict=True):
        expected = reference_diverse_search(probabilities_of, tuple(row), config, limit)
        assert [(o.tokens, o.finish_reason) for o in outputs] == [
            (o.tokens, o.finish_reason) for o in expected
        ]
        assert [o.score for o in outputs] == pytest.approx([o.score for o in expected], abs=1e-4)


def test_high_diversity_penalty_separates_the_groups(kit):
    model = kit.Scripted(lambda source, prefix: [0, 0, 0.05, 0.6, 0.2, 0.15], 6)
    config = GenerationConfig(
        num_beams=3, num_beam_groups=3, diversity_penalty=9.0, num_return_sequences=3, max_new_tokens=1
    )
    (outputs,) = generate_tokens(model, kit.batch([[3]]), config)
    assert [output.tokens for output in outputs] == [[3], [4], [5]]


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), ends=st.sampled_from([[2, 5], [2, 5, 6], [4]]), beams=st.integers(1, 4))
def test_any_of_several_ids_may_end(kit, seed, ends, beams):
    """The same as a model whose ends are one token with the sum of their probabilities, except which one it was."""
    probabilities_of = kit.random_says(seed, 8)
    config = GenerationConfig(
        num_beams=beams, eos_token_id=ends, max_new_tokens=5, num_return_sequences=beams
    )
    (outputs,) = generate_tokens(kit.Scripted(probabilities_of, 8), kit.batch([[3]]), config)
    for output in outputs:
        assert not set(output.tokens) & set(ends)
        log = sum(
            math.log(probabilities_of((3,), tuple(output.tokens[:n]))[token])
            for n, token in enumerate(output.tokens)
        )
        if output.finish_reason == "stop":
            last = [math.log(probabilities_of((3,), tuple(output.tokens))[end]) for end in ends]
            length = len(output.tokens) + 1
            assert any(output.score == pytest.approx((log + end) / length, abs=1e-4) for end in last)
        else:
            assert output.score == pytest.approx(log / 5, abs=1e-4)
            assert len(output.tokens) == 5
