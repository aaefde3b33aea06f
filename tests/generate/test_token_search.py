from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.generate.models import ScriptedModel, padded_batch, varied_model

from trifold.errors import DataError, TrifoldError
from trifold.generate import GenerationConfig, generate_tokens
from trifold.generate.sampling import greedy
from trifold.nn import Inputs

END, VOCABULARY, WIDTH = 2, 8, 5
TABLE = np.random.default_rng(1).normal(size=(VOCABULARY, WIDTH))


def hidden_state(seed, source, prefix):
    return np.random.default_rng([seed, *source, 10_000, *prefix]).normal(size=WIDTH)


def probabilities(hidden):
    logits = TABLE @ hidden
    logits[0] = -np.inf
    return np.exp(logits) / np.exp(logits).sum()


class HiddenModel(ScriptedModel):
    """A model with scripted hidden states, whose logits are a fixed matrix times them."""

    def __init__(self, seed):
        super().__init__(
            lambda source, prefix: np.exp(hidden_state(seed, source, prefix)), VOCABULARY
        )

    def lm_head(self, hidden):
        return (hidden.double() @ torch.from_numpy(TABLE).T).float()


def reference_search(seed, source, alpha, k, limit):
    """The algorithm of Su et al. 2022."""
    text, states, score = [], [hidden_state(seed, source, ())], 0.0
    while True:
        probability_of = probabilities(states[-1])
        best = None
        for token in sorted(range(VOCABULARY), key=lambda token: -probability_of[token])[:k]:
            if probability_of[token] == 0:
                continue
            hidden = hidden_state(seed, source, (*text, token))
            similarity = max(
                h @ hidden / np.linalg.norm(h) / np.linalg.norm(hidden) for h in states
            )
            value = (1 - alpha) * probability_of[token] - alpha * similarity
            if best is None or value > best[0]:
                best = value, token, hidden
        _, token, hidden = best
        score += np.log(probability_of[token])
        text.append(token)
        states.append(hidden)
        if token == END:
            return text[:-1], score / len(text), "stop"
        if len(text) == limit:
            return text, score / len(text), "length"


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    rows=st.lists(st.lists(st.integers(3, 6), min_size=1, max_size=4), min_size=1, max_size=4),
    alpha=st.sampled_from([0.2, 0.6, 1.0]),
    k=st.integers(2, 9),
    limit=st.integers(1, 7),
)
def test_contrastive_search_equals_the_reference_implementation(seed, rows, alpha, k, limit):
    config = GenerationConfig(penalty_alpha=alpha, top_k=k, max_new_tokens=limit)
    found = generate_tokens(HiddenModel(seed), padded_batch(rows), config)
    for (output,), row in zip(found, rows, strict=True):
        tokens, score, reason = reference_search(seed, tuple(row), alpha, k, limit)
        assert (output.tokens, output.finish_reason) == (tokens, reason)
        assert output.score == pytest.approx(score, abs=1e-4)


def test_contrastive_search_differs_from_greedy():
    model, inputs = varied_model("decoder"), padded_batch([[5, 6, 7], [9]])
    greedy = generate_tokens(model, inputs, GenerationConfig(max_new_tokens=12))
    other = generate_tokens(
        model, inputs, GenerationConfig(max_new_tokens=12, penalty_alpha=0.8, top_k=6)
    )
    assert [o.tokens for (o,) in greedy] != [o.tokens for (o,) in other]


def test_contrastive_search_needs_positions_for_its_candidates():
    model = varied_model("decoder", max_positions=8)
    config = GenerationConfig(penalty_alpha=0.5, top_k=3, min_new_tokens=9)
    ((output,),) = generate_tokens(model, Inputs(torch.tensor([[5] * 6])), config)
    assert (len(output.tokens), output.finish_reason) == (2, "length")
    with pytest.raises(DataError, match=r"row 0 .* fills all 8 positions"):
        generate_tokens(model, Inputs(torch.tensor([[5] * 8])), config)


def test_scores_that_are_not_requested_are_nan_and_change_no_token():
    model = varied_model("decoder")
    inputs = padded_batch([[5, 6, 7], [8, 9]])
    for changes in ({}, {"do_sample": True, "seed": 3}, {"prompt_lookup_num_tokens": 2}):
        config = GenerationConfig(max_new_tokens=9, **changes)
        expected = generate_tokens(model, inputs, config)
        found = generate_tokens(model, inputs, config, has_scores=False)
        assert [of[0].tokens for of in found] == [of[0].tokens for of in expected]
        assert all(math.isnan(of[0].score) for of in found)
        assert not any(math.isnan(of[0].score) for of in expected)


def test_the_best_of_several_samples_needs_scores():
    model = varied_model("decoder")
    inputs = padded_batch([[5, 6, 7]])
    config = GenerationConfig(max_new_tokens=4, do_sample=True, seed=3, num_return_sequences=3)
    found = generate_tokens(model, inputs, config, has_scores=False)
    assert found == generate_tokens(model, inputs, config)


def test_greedy_decoding_takes_the_larger_of_two_logits_of_one_log_probability():
    logits = torch.zeros(1, 30_000)
    logits[0, :2] = torch.tensor([1.0, np.nextafter(np.float32(1), np.float32(2))])
    log_probs = logits.log_softmax(-1)
    assert log_probs[0, 0] == log_probs[0, 1]
    assert greedy(logits, torch.zeros(1), 0).tolist() == [1]
    assert greedy(logits.double(), torch.zeros(1), 0).tolist() == [1]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("requested", [{}, {"do_sample": True, "seed": 1}])
@pytest.mark.parametrize("has_scores", [True, False])
def test_logits_without_probabilities_are_refused(value, requested, has_scores):
    class DamagedModel(HiddenModel):
        def lm_head(self, hidden):
            logits = super().lm_head(hidden)
            logits[:, 5] = value
            return logits

    config = GenerationConfig(max_new_tokens=3, **requested)
    with pytest.raises(TrifoldError, match="NaN scores"):
        generate_tokens(DamagedModel(3), padded_batch([[4, 5]]), config, has_scores=has_scores)
