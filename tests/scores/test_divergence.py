from __future__ import annotations

import math

import numpy as np
import pytest

from trifold.errors import DataError
from trifold.scores.divergence import CosineScore, DivergenceScore


def columns(count):
    rng = np.random.default_rng(5)
    return rng.exponential(1, count), rng.random(count) < 0.8, *rng.exponential(2, (2, count))


def test_values_are_those_of_all_tokens():
    divergence, equal, ours, theirs = columns(50)
    score = DivergenceScore()
    score.add(divergence, equal, ours, theirs)
    values = score.values()
    error = 1.959964 * divergence.std(ddof=1) / math.sqrt(50)
    assert values["kl"] == pytest.approx(divergence.mean())
    assert values["kl_low"] == pytest.approx(divergence.mean() - error, rel=1e-6)
    assert values["kl_high"] == pytest.approx(divergence.mean() + error, rel=1e-6)
    assert values["kl_p99"] == np.quantile(divergence, 0.99)
    assert values["equal_top"] == pytest.approx(100 * equal.mean())
    assert values["perplexity"] == pytest.approx(math.exp(ours.mean()))
    assert values["perplexity_against"] == pytest.approx(math.exp(theirs.mean()))


def test_parts_give_the_values_of_the_whole():
    whole, parts = DivergenceScore(), DivergenceScore()
    every = columns(97)
    whole.add(*every)
    for start in range(0, 97, 10):
        parts.add(*(column[start : start + 10] for column in every))
    assert parts.values() == whole.values()


def test_a_single_token_has_an_interval_of_width_0():
    score = DivergenceScore()
    score.add([0.5], [True], [1.0], [1.0])
    assert score.values()["kl_low"] == score.values()["kl_high"] == 0.5


def test_nothing_has_no_values():
    assert DivergenceScore().values() == CosineScore().values() == {}


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(DataError, match=r"\(2,\)"):
        DivergenceScore().add([0.0, 1.0], [True], [1.0], [1.0])
    with pytest.raises(DataError, match="no cosine"):
        CosineScore().add([[1.0, 0.0]], [[1.0]])


def test_cosines():
    score = CosineScore()
    score.add([[1, 0], [1, 1]], [[2, 0], [0, 3]])
    score.add([[0, 0]], [[1, 0]])
    values = score.values()
    assert values["texts"] == 3
    assert values["cosine"] == pytest.approx((1 + math.sqrt(0.5)) / 3)
    assert values["cosine_minimum"] == 0
