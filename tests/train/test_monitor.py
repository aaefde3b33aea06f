from __future__ import annotations

import io
import json
import math
import signal

import pytest
from rich.console import Console
from tests.train.runs import lines_of, values_of

from trifold import errors
from trifold.train.metrics import MetricsLog
from trifold.train.monitor import (
    LiveView,
    PlainView,
    Snapshot,
    Validated,
    View,
    choose_view,
    clock_time,
    fold,
    validation_lines,
)
from trifold.train.run_folder import RunFolder


def snapshot(step, total=100):
    return Snapshot(step, total, 1, 2.5, 7e-4, 14_900.0, 65.0)


SAMPLES = [("I run.", "Je cours.", "Je cours."), ("Go.", "Va.", "Viens.")]
RESULT = Validated(50, 1.25, {"bleu": 41.2, "exact_match": 95.0}, True, SAMPLES)


def live():
    stream = io.StringIO()
    return LiveView(Console(file=stream, force_terminal=True, width=120)), stream


def plain():
    stream = io.StringIO()
    return PlainView(stream), stream


@pytest.mark.parametrize("make", [plain, live])
def test_views_show_position_loss_rate_speed_and_scores(make):
    view, stream = make()
    view.say("embedded:smoke: 244 pairs [bold]")
    view.begin(100, 10)
    view.step(snapshot(20))
    view.validated(RESULT)
    view.step(snapshot(100))
    view.end()
    text = stream.getvalue()
    position = ("[bold]", "20", "/100", "1:05")
    values = ("2.500", "7.00e-04", "14,900", "41.20", "exact match", "1.2500")
    assert [each for each in (*position, *values) if each not in text] == []
    if make is plain:
        assert all(character.isprintable() or character == "\n" for character in text)


def test_plain_view_limits_steps_by_time_but_shows_the_last_step_and_all_validations():
    now, stream = [0.0], io.StringIO()
    view = PlainView(stream, every=10.0, clock=lambda: now[0])
    view.begin(40)
    for step in range(1, 41):
        now[0] = float(step)
        view.step(snapshot(step, 40))
        if step % 20 == 0:
            view.validated(RESULT)
    lines = [line.split() for line in stream.getvalue().splitlines() if line.startswith("step")]
    steps = [int(position.partition("/")[0]) for _, position, *_ in lines if "/" in position]
    assert steps == [1, 11, 21, 31, 40]
    assert stream.getvalue().count("validation loss") == 2


def test_plain_view_announces_a_long_validation_once():
    now, stream = [0.0], io.StringIO()
    view = PlainView(stream, every=10.0, clock=lambda: now[0])
    for step, seconds in ((20, 5), (40, 25), (60, 9)):
        for _ in range(seconds):
            view.validating(step)
            now[0] += 1.0
        view.validated(RESULT)
    assert [line for line in stream.getvalue().splitlines() if "validating" in line] == [
        "step 40: validating …"
    ]


def test_live_view_shows_a_validation_until_it_ends():
    view, stream = live()
    view.begin(100)
    view.validating(20)
    view.end()
    assert "validating …" in stream.getvalue()


def test_sample_shows_the_reference_only_if_it_differs():
    first, same, other = validation_lines(RESULT)
    assert "best so far" in first
    assert same.count("Je cours.") == 1
    assert "Viens." in other
    assert "Va." in other
    _, empty = validation_lines(RESULT._replace(samples=[("Go.", "Va.", "")]))
    assert empty == "    Go.  →  (nothing)  (reference: Va.)"


def test_long_sample_has_a_line_for_each_text():
    texts = ("a" * 40, "b" * 40, "c" * 40)
    _, *lines = validation_lines(RESULT._replace(samples=[texts]))
    assert [line.split()[-1].rstrip(")") for line in lines] == [texts[0], texts[2], texts[1]]
    assert max(map(len, lines)) <= 80


def test_the_mark_of_a_long_right_sample_is_beside_the_output():
    _, *lines = validation_lines(RESULT._replace(samples=[("a" * 70, "good", "good")]))
    assert lines == [f"    {'a' * 70}", "      →  good  ✓"]


def test_sample_without_reference_shows_prompt_and_continuation_in_few_lines():
    result = Validated(8, 1.25, {"bits_per_byte": 2.38124}, False, [("To be", None, ",\nor not")])
    first, *lines = validation_lines(result)
    assert first == "step 8: validation loss 1.2500 · bits per byte 2.3812"
    assert lines == ["    To be", "      →  ,", "         or not"]
    long = result._replace(samples=[("a", None, "\n" * 50)])
    assert len(validation_lines(long)) < 10


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (" or not", "    To be  →   or not"),
        ("", "    To be  →  (ends at once)"),
        ("\n \n", "    To be  →  (only spaces and line breaks)"),
        ("x" * 80, f"    To be\n      →  {'x' * 80}"),
    ],
)
def test_a_mark_stands_between_prompt_and_continuation(output, shown):
    _, *lines = validation_lines(RESULT._replace(samples=[("To be", None, output)]))
    assert "\n".join(lines) == shown


def test_long_lines_are_folded_between_values():
    parts = [f"value {number}" for number in range(20)]
    lines = fold(parts)
    assert max(map(len, lines)) <= 80 and len(lines) == 3
    assert " ".join(line.strip() for line in lines) == " · ".join(parts)
    assert [line.endswith(" ·") for line in lines] == [True, True, False]
    assert fold(["x" * 90, "y"]) == ["x" * 90 + " ·", "    y"]
    assert fold(["x" * 60, "y" * 17]) == ["x" * 60 + " · " + "y" * 17]
    assert fold(["x" * 60, "y" * 16, "z"]) == ["x" * 60 + " ·", "    " + "y" * 16 + " · z"]


def test_messages_fit_the_width_of_the_view(monkeypatch):
    monkeypatch.setattr(errors, "COLUMNS", 80)
    view, stream = plain()
    view.say("word " * 60 + "x" * 200)
    *lines, last = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 80 and last.split() == ["x" * 200]
    view, stream = live()
    view.say("word " * 60 + "x" * 200)
    *lines, last = stream.getvalue().splitlines()
    assert 80 < max(map(len, lines)) <= 120 and last.split() == ["x" * 200]


def test_speed_names_the_tokens_of_the_task():
    stream = io.StringIO()
    view = PlainView(stream, every=0.0, clock=lambda: 0.0)
    view.step(snapshot(1))
    view.step(snapshot(2)._replace(token_name="target tokens"))
    first, second = stream.getvalue().splitlines()
    assert "14,900 tokens/s" in first
    assert "14,900 target tokens/s" in second


def test_views_accept_events_before_begin_and_the_base_view_prints_nothing(capfd):
    for view in (View(), LiveView(Console(file=io.StringIO())), PlainView(io.StringIO())):
        view.step(snapshot(1))
        view.end()
    view = View()
    view.say("x")
    view.begin(3)
    view.validated(RESULT)
    assert capfd.readouterr() == ("", "")


def test_plain_view_writes_to_stderr_without_a_terminal(capsys):
    view = choose_view()
    view.say("news")
    assert isinstance(view, PlainView)
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
def test_clock_time(seconds, text):
    assert clock_time(seconds) == text


# --- metrics.jsonl --------------------------------------------------------------------------------


def test_metrics_are_on_disk_as_soon_as_they_are_logged(tmp_path):
    log = MetricsLog(RunFolder(tmp_path), 0)
    log(4, {"train/loss": 1.5})
    assert json.loads((tmp_path / "metrics.jsonl").read_text("utf-8")) == {
        "step": 4,
        "train/loss": 1.5,
    }
    log.close()


@pytest.mark.slow
def test_metrics_have_a_line_per_logged_step_and_per_validation(run):
    folder = run(train__log_every=2).folder
    assert [step for step, _ in values_of(folder, "train/loss")] == [2, 4, 6, 8, 10, 12]
    assert [step for step, _ in values_of(folder, "valid/loss")] == [6, 12]
    lines = lines_of(folder)
    valid_line = next(line for line in lines if "valid/loss" in line)
    assert {"train/lr", "train/gradient_norm", "train/tokens_per_second", "seconds"} < lines[
        0
    ].keys()
    assert {"valid/bleu", "valid/chrf", "valid/exact_match"} < valid_line.keys()
    assert not any(math.isnan(value) for line in lines for value in line.values())


class Stopping(View):
    """Sends a signal during the validation at step 6."""

    def validating(self, step: int) -> None:
        if step == 6:
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.slow
def test_logged_loss_is_the_mean_since_the_last_line_also_across_an_interruption(run, tmp_path):
    settings = {"train__steps": 10, "train__validate_every": 3, "train__save_every": 10}
    single, whole = (
        run(name, train__log_every=n, **settings).folder for name, n in (("one", 1), ("four", 4))
    )
    cut = run("cut", view=Stopping(), train__log_every=4, **settings)
    assert (cut.steps, cut.stopped_by) == (6, "signal")
    run("cut", resume="auto", train__log_every=4, **settings)
    losses = [loss for _, loss in values_of(single, "train/loss")]
    means = {4: sum(losses[:4]) / 4, 8: sum(losses[4:8]) / 4}
    assert dict(values_of(whole, "train/loss")) == pytest.approx(means, rel=1e-12)
    assert values_of(tmp_path / "cut", "train/loss") == values_of(whole, "train/loss")


@pytest.mark.slow
def test_tensorboard_has_the_values_of_metrics_jsonl(finished_run):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(finished_run / "tensorboard"))
    events.Reload()
    for name in ("train/loss", "valid/loss", "valid/bleu"):
        shown, logged = events.Scalars(name), values_of(finished_run, name)
        assert [event.step for event in shown] == [step for step, _ in logged]
        assert [event.value for event in shown] == pytest.approx(
            [value for _, value in logged], rel=1e-6
        )


def test_a_message_after_the_end_is_below_the_progress_bar():
    view, stream = live()
    view.begin(100)
    view.step(snapshot(20))
    view.end()
    view.say("stopped at step 20; continue with `trifold resume r`")
    text = stream.getvalue()
    assert text.rindex("/100") < text.rindex("\r") < text.index("stopped at step 20")


def test_the_bar_shows_the_time_left_in_80_columns_and_leaves_room_for_control_c():
    stream = io.StringIO()
    view = LiveView(Console(file=stream, force_terminal=True, width=80, color_system=None))
    view.begin(1_000)
    view.step(snapshot(20, 1_000))
    view.validated(RESULT)  # after which the time left is shown again
    view.end()
    bar = stream.getvalue().rpartition("20/1000")[2].partition("\n")[0]
    assert "1:05 left" in bar
    assert len(f"step 20/1000{bar}".split("\x1b")[0].rstrip()) <= 77


def test_samples_of_the_live_view_are_wrapped_with_an_indent():
    stream = io.StringIO()
    view = LiveView(Console(file=stream, force_terminal=True, width=80, color_system=None))
    view.validated(RESULT._replace(samples=[("word " * 30, None, "")]))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert all(line.startswith("    ") for line in lines[1:])


def test_plain_view_writes_a_line_a_minute_after_the_first_minute():
    now, stream = [0.0], io.StringIO()
    view = PlainView(stream, every=10.0, clock=lambda: now[0])
    for second in range(301):
        now[0] = float(second)
        view.step(snapshot(second + 1, 10_000))
    steps = [int(line.split()[1].partition("/")[0]) for line in stream.getvalue().splitlines()]
    assert steps == [1, 11, 21, 31, 41, 51, 61, 121, 181, 241, 301]
