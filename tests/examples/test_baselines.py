"""The baselines of the demos against their formulas."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from examples.naive_bayes import ALPHAS, NaiveBayes, select
from examples.trigram import Trigram
from hypothesis import given, settings, strategies as st

SIZE = 6
documents = st.lists(
    st.lists(st.integers(0, SIZE - 1), min_size=2, max_size=9), min_size=1, max_size=6
)
histories = st.lists(st.integers(0, SIZE - 1), max_size=2)
texts = st.lists(st.sampled_from("abcd"), max_size=6).map(" ".join)
labelled = st.lists(st.tuples(texts, st.sampled_from("xyz")), min_size=1, max_size=8)


def interpolated(documents, history, word):
    if history is None:
        return 1 / SIZE
    following = [
        ids[i]
        for ids in documents
        for i in range(max(1, len(history)), len(ids))
        if ids[i - len(history) : i] == history
    ]
    shorter = interpolated(documents, history[1:] if history else None, word)
    distinct = len(set(following))
    return (
        (following.count(word) + distinct * shorter) / (len(following) + distinct)
        if following
        else shorter
    )


@given(documents, histories)
def test_trigram_probabilities_follow_the_formula(documents, history):
    found = Trigram(documents, SIZE).probabilities(history)
    assert found == pytest.approx([interpolated(documents, history, word) for word in range(SIZE)])
    assert found.sum() == pytest.approx(1)


@given(documents, documents)
@settings(max_examples=20)
def test_trigram_loss_is_the_mean_over_predicted_tokens(documents, held_out):
    model = Trigram(documents, SIZE)
    losses = [
        -math.log(model.probabilities(ids[:i])[ids[i]])
        for ids in held_out
        for i in range(1, len(ids))
    ]
    assert model.loss(held_out) == pytest.approx(sum(losses) / len(losses))


def test_trigram_samples_stop_at_the_end_token_or_the_limit():
    model = Trigram([[0, 1, 2, 3, 4, 5]] * 50, SIZE)
    options = {"end": 5, "temperature": 0.1, "top_k": 3, "rng": np.random.default_rng(1)}
    assert model.sample([0], max_new_tokens=20, **options) == [1, 2, 3, 4]
    assert model.sample([0, 1], max_new_tokens=2, **options) == [2, 3]


@given(labelled, texts, st.sampled_from([1.0, 0.5, 0.125]), st.booleans())
def test_naive_bayes_follows_the_formula(rows, text, alpha, pairs):
    def features(text):
        words = text.split()
        return words + [" ".join(pair) for pair in pairwise(words)] * pairs

    vocabulary = {word for text, _ in rows for word in features(text)}

    def probability(label):
        own = [word for text, given in rows if given == label for word in features(text)]
        prior = Fraction(sum(given == label for _, given in rows), len(rows))
        total = len(own) + Fraction(alpha) * len(vocabulary)
        known = [word for word in features(text) if word in vocabulary]
        return prior * prod((own.count(word) + Fraction(alpha)) / total for word in known)

    model = NaiveBayes(*zip(*rows, strict=True), alpha=alpha, pairs=pairs)
    assert probability(model.predict(text)) == max(probability(label) for _, label in rows)


@given(labelled, labelled)
@settings(max_examples=20)
def test_the_model_with_the_best_validation_accuracy_is_selected(train, valid):
    train, valid = (list(zip(*rows, strict=True)) for rows in (train, valid))
    models = [
        NaiveBayes(*train, alpha=alpha, pairs=pairs) for alpha in ALPHAS for pairs in (False, True)
    ]
    assert select(*train, *valid).accuracy(*valid) == max(
        model.accuracy(*valid) for model in models
    )
