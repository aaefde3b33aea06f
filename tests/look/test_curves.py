"""Curves are what the run wrote; a running mean is one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trifold.look import curves, figures

numbers = st.lists(st.floats(-100, 100), min_size=1, max_size=30)


def test_a_curve_is_one_key_of_the_metrics(tmp_path):
    lines = [{"step": 1, "train/loss": 3.0}, {"step": 2, "valid/loss": 2.5}, {"step": 3, "train/loss": 2.0}]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert curves.curve(tmp_path, "train/loss") == ([1, 3], [3.0, 2.0])
    assert curves.curve(tmp_path, "valid/accuracy") == ([], [])


@given(numbers)
def test_a_running_mean_stays_between_what_there_was(values):
    for place, mean in enumerate(curves.smooth(values)):
        seen = values[: place + 1]
        assert min(seen) - 1e-9 <= mean <= max(seen) + 1e-9


@given(st.floats(-100, 100), st.integers(1, 20))
def test_of_one_value_the_mean_is_that(value, count):
    assert curves.smooth([value] * count) == pytest.approx([value] * count)


def test_the_drawings_say_what_they_were_given():
    pytest.importorskip("matplotlib")
    left, right = figures.new_figure(6, 3).subplots(1, 2)
    curves.draw_confusion(left, np.array([[3, 0], [1, 2]]), ["a", "b"])
    assert sorted(text.get_text() for text in left.texts) == ["1", "2", "3"]
    curves.draw_bars(right, {"mine": 80.0, "theirs": 20.0}, "mine")
    assert [bar.get_width() for bar in right.patches] == [80.0, 20.0]
