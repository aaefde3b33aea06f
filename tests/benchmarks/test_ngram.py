"""The 5-gram model that masked models are compared with."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from tests.benchmarks.scripts import load

ngram = load("pretrain", "ngram")


@pytest.fixture(scope="module")
def text():
    rng = random.Random(1)
    follows = {word: [rng.randrange(2, 14) for _ in range(3)] for word in range(14)}
    sentences = []
    for _ in range(300):
        word, sentence = rng.randrange(2, 14), []
        for _ in range(rng.randrange(1, 9)):
            sentence.append(word)
            word = rng.choice(follows[word])
        sentences.append(sentence)
    return sentences


def reference_model(text, order, discount, vocabulary):
    """The same model with dictionaries of tuples."""
    padded = [[0] * (order - 1) + sentence + [1] for sentence in text]
    counts = {
        order: Counter(tuple(s[e - order : e]) for s in padded for e in range(order, len(s) + 1))
    }
    for size in range(order - 1, 0, -1):
        counts[size] = Counter(gram[1:] for gram in counts[size + 1])

    def p(word, history):
        value = 1 / vocabulary
        for size in range(1, order + 1):
            context = tuple(history[len(history) - size + 1 :])
            after = {
                gram[-1]: count for gram, count in counts[size].items() if gram[:-1] == context
            }
            total = sum(after.values())
            if total:
                value = (
                    max(after.get(word, 0) - discount, 0) + discount * len(after) * value
                ) / total
        return value

    return p


@pytest.mark.parametrize("order", [2, 3, 5])
def test_probabilities_follow_the_formula(text, order):
    model = ngram.KneserNey(text[:60], 14, order)
    expected = reference_model(text[:60], order, 0.75, 14)
    words = np.arange(1, 14)
    for history in ([0] * (order - 1), text[0][: order - 1], [13] * (order - 1)):
        history = ([0] * order + list(history))[-(order - 1) :]
        got = model.probabilities(np.array(history), words)
        assert got == pytest.approx([expected(word, history) for word in words], abs=1e-9)
        total = got.sum() + model.probabilities(np.array(history), np.array([0])).sum()
        assert total == pytest.approx(1, abs=1e-9)


def test_gaps_are_filled_with_training_text():
    model = ngram.KneserNey([[2, 3, 4, 5, 6, 7]] * 4 + [[8, 9, 4, 10, 11]] * 4, 12)
    words = np.arange(2, 12)
    assert model.fill([2, 3, 4], [6, 7], [words]) == [5]
    assert model.fill([8, 9, 4], [11], [words]) == [10]
    assert model.fill([2, 3], [6, 7], [words, words]) == [4, 5]
    assert model.fill([8], [11], [words, words, words]) == [9, 4, 10]
    assert model.fill([], [4, 5], [words, words]) == [2, 3]
    assert model.fill([2, 3, 4], [6, 7], [np.array([8, 9])]) in ([8], [9])  # only allowed words
