"""Paired bootstrap: laws of differences and intervals; the p-value of sacreBLEU."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from trifold.scores import SCORES
from trifold.scores.bleu import text_scorer
from trifold.scores.bootstrap import (
    Resampled,
    default_samples,
    mean_scorer,
    paired_bootstrap,
    score_intervals,
    sums_scorer,
)


def accuracy_scorer(correct):
    values = [{"correct": each, "count": 1} for each in correct]
    return sums_scorer(values, lambda sums: {"accuracy": sums["correct"] / sums["count"]})


@pytest.fixture
def answers():
    """Whether each of two systems is right, for 800 examples; they often agree."""
    rng = np.random.default_rng(3)
    a = rng.random(800) < 0.7
    return a, np.where(rng.random(800) < 0.6, a, rng.random(800) < 0.8)


def test_the_interval_of_a_score_agrees_with_the_closed_form(answers):
    right = answers[0]
    found = [
        score_intervals(Resampled(scorer, 800, "answers"), samples=4000)["accuracy"]
        for scorer in (accuracy_scorer(right), mean_scorer({"accuracy": right.tolist()}))
    ]
    error = right.std() / math.sqrt(800)
    assert found[0] == pytest.approx(found[1])
    expected = (right.mean() - 1.96 * error, right.mean() + 1.96 * error)
    assert found[0] == pytest.approx(expected, abs=0.3 * error)


def test_the_interval_agrees_with_the_closed_form_for_right_and_wrong_answers(answers):
    a, b = answers
    found = paired_bootstrap(accuracy_scorer(a), accuracy_scorer(b), 800, samples=4000)["accuracy"]
    differences = b.astype(float) - a
    mean, error = differences.mean(), differences.std() / math.sqrt(800)
    assert (found.a, found.b, found.difference) == pytest.approx((a.mean(), b.mean(), mean))
    assert (found.low, found.high) == pytest.approx(
        (mean - 1.96 * error, mean + 1.96 * error), abs=0.15 * error
    )
    one_sided = math.erfc(mean / error / math.sqrt(2)) / 2
    assert found.p_value == pytest.approx(one_sided, abs=0.01)


def test_lists_of_examples_are_resampled_with_the_sums(answers):
    scorers = [
        sums_scorer(
            [{"found": [np.array([each])], "one": 1} for each in correct],
            lambda sums: {"accuracy": np.concatenate(sums["found"]).mean(), "count": sums["one"]},
        )
        for correct in answers
    ]
    found = paired_bootstrap(*scorers, 800)
    assert found["accuracy"] == pytest.approx(
        paired_bootstrap(*map(accuracy_scorer, answers), 800)["accuracy"]
    )
    assert found["count"] == (800, 800, 0, 0, 0, 1)


def test_lists_that_are_not_of_arrays_are_left_out():
    values = [{"nll": n, "classes": [(n, np.arange(n))]} for n in (2.0, 5.0)]
    scorer = sums_scorer(values, lambda sums: {"nll": sums["nll"], "statistics": len(sums)})
    assert scorer(np.array([0, 1])) == {"nll": 7, "statistics": 1}


def test_swapping_the_systems_negates_the_difference(answers):
    a, b = map(accuracy_scorer, answers)
    one, other = paired_bootstrap(a, b, 800)["accuracy"], paired_bootstrap(b, a, 800)["accuracy"]
    assert (other.a, other.b, other.p_value) == (one.b, one.a, one.p_value)
    assert (other.difference, other.low, other.high) == pytest.approx(
        (-one.difference, -one.high, -one.low)
    )


def test_a_system_does_not_differ_from_itself(answers):
    a, _ = map(accuracy_scorer, answers)
    assert paired_bootstrap(a, a, 800)["accuracy"][2:] == (0, 0, 0, 1)


def test_the_seed_determines_the_result(answers):
    a, b = map(accuracy_scorer, answers)
    results = [paired_bootstrap(a, b, 800, seed=seed) for seed in (1, 1, 2)]
    assert results[0] == results[1] != results[2]


def make_texts(seed):
    """References, and the outputs of two systems that change words in them."""
    rng = random.Random(seed)
    references = [
        " ".join(rng.choices("a dog runs over the green grass , quickly".split(), k=9))
        for _ in range(60)
    ]

    def change(rate):
        return [
            " ".join(w if rng.random() > rate else rng.choice("xyz") for w in text.split())
            for text in references
        ]

    return references, change(0.3), change(0.32)


@pytest.mark.parametrize("seed", range(3))
def test_the_p_values_are_those_of_sacrebleu(seed):
    references, a, b = make_texts(seed)
    metrics = {"BLEU": BLEU(references=[references]), "chrF2": CHRF(references=[references])}
    _, expected = PairedTest([("a", a), ("b", b)], metrics, None, test_type="bs", n_samples=300)()
    for name, key in (("bleu", "BLEU"), ("chrf", "chrF2")):
        scorers = (text_scorer(name, texts, references) for texts in (a, b))
        found = paired_bootstrap(*scorers, 60, samples=300)[name]
        assert (found.a, found.b) == pytest.approx([result.score for result in expected[key]])
        assert found.p_value == expected[key][1].p_value


@pytest.mark.parametrize("name", SCORES)
def test_the_scorer_of_all_texts_is_the_score(name):
    references, a, _ = make_texts(5)
    a[:3] = references[:3]
    for options in ({}, {"lowercase": True}):
        value = text_scorer(name, a, references, **options)(np.arange(60))[name]
        assert value == pytest.approx(SCORES[name](a, references, **options).value)


@pytest.mark.parametrize(
    ("examples", "is_cheap", "samples"),
    [(10_000, True, 10_000), (10_001, True, 1_000), (2, False, 1_000)],
)
def test_cheap_scores_have_more_resamples(examples, is_cheap, samples):
    assert default_samples(examples, is_cheap=is_cheap) == samples
