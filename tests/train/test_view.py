from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from trifold.train.monitor import (
    LiveView,
    Plain,
    Snapshot,
    Validated,
    View,
    choose_view,
    clock_time,
    validation_lines,
)


def shot(step, total=100):
    return Snapshot(step, total, 1, 2.5, 7e-4, 14_900.0, 65.0)


RESULT = Validated(
    50,
    1.25,
    {"bleu": 41.2, "exact_match": 95.0},
    True,
    [("I run.", "Je cours.", "Je cours."), ("Go.", "Va.", "Viens.")],
)


def told(view, stream):
    view.say("embedded:smoke: 244 pairs [bold]")
    view.begin(100, 10)
    view.step(shot(20))
    view.validated(RESULT)
    view.step(shot(100))
    view.end()
    return stream.getvalue()


def live():
    stream = io.StringIO()
    return LiveView(Console(file=stream, force_terminal=True, width=120)), stream


def plain():
    stream = io.StringIO()
    return Plain(stream), stream


@pytest.mark.parametrize("make", [plain, live])
def test_everything_that_matters_is_shown(make):
    text = told(*make())
    for expected in (
        "[bold]",
        "20",
        "/100",
        "2.500",
        "7.00e-04",
        "14,900",
        "1:05",
        "41.20",
        "exact match",
        "1.2500",
    ):
        assert expected in text


def test_plain_lines_have_no_control_characters():
    assert all(character.isprintable() or character == "\n" for character in told(*plain()))


def test_plain_shows_a_step_in_ten_seconds_but_the_last_one_and_validations_always():
    now, stream = [0.0], io.StringIO()
    view = Plain(stream, every=10.0, clock=lambda: now[0])
    view.begin(40)
    for step in range(1, 41):
        now[0] = float(step)
        view.step(shot(step, 40))
        if step % 20 == 0:
            view.validated(RESULT)
    lines = stream.getvalue().splitlines()
    steps = [
        int(line.split("/")[0].removeprefix("step "))
        for line in lines
        if line.startswith("step") and "/" in line.split()[1]
    ]
    assert steps == [1, 11, 21, 31, 40]
    assert sum("validation loss" in line for line in lines) == 2


def test_a_sample_shows_the_reference_only_where_it_differs():
    first, same, other = validation_lines(RESULT)
    assert "best so far" in first
    assert same.count("Je cours.") == 1
    assert "Viens." in other
    assert "Va." in other


def test_what_goes_on_from_a_prompt_is_shown_in_its_lines_and_has_no_verdict():
    written = Validated(8, 1.25, {"bits_per_byte": 2.38124}, False, [("To be", None, ",\nor not")])
    first, *lines = validation_lines(written)
    assert first == "step 8: validation loss 1.2500 · bits per byte 2.3812"
    assert [line.strip() for line in lines] == ["·", "To be,", "or not"]
    long = written._replace(samples=[("a", None, "\n" * 50)])
    assert len(validation_lines(long)) < 10


def test_speed_is_in_what_the_task_counts():
    now, stream = [0.0], io.StringIO()
    view = Plain(stream, every=0.0, clock=lambda: now[0])
    view.step(shot(1))
    view.step(shot(2)._replace(token_name="target tokens"))
    assert ["14,900 tokens/s" in line for line in stream.getvalue().splitlines()] == [True, False]
    assert "14,900 target tokens/s" in stream.getvalue()


def test_silent_and_unbegun_views_can_be_told_anything(capfd):
    for view in (View(), LiveView(Console(file=io.StringIO())), Plain(io.StringIO())):
        view.step(shot(1))
        view.end()
    view = View()
    view.say("x")
    view.begin(3)
    view.validated(RESULT)
    assert capfd.readouterr() == ("", "")


def test_plain_lines_go_to_standard_error_where_nobody_sits(capsys):
    view = choose_view()
    view.say("news")
    assert isinstance(view, Plain)
    assert capsys.readouterr() == ("", "news\n")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"),
        (59.6, "1:00"),
        (65, "1:05"),
        (7384, "2:03:04"),
        (-3, "0:00"),
        (math.inf, "?"),
        (math.nan, "?"),
    ],
)
def test_time_as_people_write_it(seconds, text):
    assert clock_time(seconds) == text
