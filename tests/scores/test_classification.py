"""Scores of classification."""

from __future__ import annotations

import numpy as np
import pytest

from trifold.scores.classification import accuracy, confusion_matrix, macro_f1


def test_scores_of_a_confusion_matrix():
    table = confusion_matrix(np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 0, 0]), 4)
    assert table.tolist() == [[2, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert accuracy(table) == pytest.approx(100 * 3 / 6)
    assert macro_f1(table) == pytest.approx(100 * (4 / 7 + 2 / 4 + 0) / 3)
