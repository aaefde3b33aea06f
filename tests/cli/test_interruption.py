"""Ctrl-C ends every command with 130, and a last line that names the command to go on with."""

from __future__ import annotations

import time

import pytest

from trifold.cli.interruption import MAX_COMMAND
from trifold.cli.progress import byte_progress, count_progress, waiting_progress

LONG = "word " * (MAX_COMMAND // 5)
# Command line, what is interrupted, and the last line.
CASES = [
    ("eval runs/a", "eval.find_recipe", "stopped; begin again with `trifold eval runs/a`"),
    (
        "generate runs/a - --out b.txt",
        "generate.load_pipeline",
        "stopped; begin again with `trifold generate runs/a - --out b.txt` and the same input",
    ),
    (
        "generate runs/a {long}",
        "generate.load_pipeline",
        "stopped; begin again with the same command",
    ),
    (
        "predict runs/a it's",
        "predict.find_recipe",
        "stopped; begin again with `trifold predict runs/a 'it'\"'\"'s'`",
    ),
    (
        "study {here}/study.yaml --out {here}/runs",
        "study._train_runs",
        "stopped; continue with `trifold study {here}/study.yaml --out {here}/runs`",
    ),
    (
        "train smoke --out {here}/a --seeds 2",
        "train.changes_by_run",
        "stopped immediately; continue with `trifold train smoke --out {here}/a --seeds 2`",
    ),
    ("runs {here}", "runs.find_runs", "stopped; begin again with `trifold runs {here}`"),
    ("show demo", "show.find_subject", "stopped; begin again with `trifold show demo`"),
]
STUDY = """recipe: shakespeare-char-tiny
sizes: {a: {d_model: 16}, b: {d_model: 32}, c: {d_model: 48}}
tokens: [100_000, 200_000, 300_000]
warmup: 0.06
"""


def interrupt(*_args, **_options):
    raise KeyboardInterrupt


@pytest.mark.parametrize(("command", "place", "line"), CASES, ids=[case[1] for case in CASES])
def test_the_last_line_names_the_command(trifold, tmp_path, monkeypatch, command, place, line):
    (tmp_path / "study.yaml").write_text(STUDY, encoding="utf-8")
    monkeypatch.setattr(f"trifold.cli.{place}", interrupt)
    words = [word.format(here=tmp_path, long=LONG) for word in command.split()]
    done = trifold(*words)
    assert done.code == 130
    assert "Traceback" not in done.err
    text = " ".join(done.err.split())
    assert text.endswith(line.format(here=tmp_path))


@pytest.mark.slow
def test_a_table_of_predictions_is_continued(trifold, run, tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("text\none\n", encoding="utf-8")
    monkeypatch.setattr("trifold.cli.table_output.count_progress", interrupt)
    words = ("predict", str(run), str(tmp_path / "a.csv"), "--out", str(tmp_path / "b.csv"))
    done = trifold(*words)
    assert done.code == 130
    text = " ".join(done.err.split())
    assert text.endswith(f"stopped; continue with `trifold {' '.join(words)}`")


def test_lines_of_progress_are_a_few_seconds_apart_and_then_a_minute(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr("trifold.cli.progress.time.monotonic", lambda: now)
    with count_progress("texts", 200) as advance:
        for now in range(200):  # noqa: B007 - read by the clock
            advance(1)
        for now in range(200, 400):  # noqa: B007
            advance(0)  # blank texts
    lines = capsys.readouterr().err.splitlines()
    counts = [int(line.split()[1]) - 1 for line in lines]
    assert counts == [*range(5, 61, 5), 120, 180, 199]


def test_work_that_does_not_report_prints_the_time(monkeypatch, capsys):
    monkeypatch.setattr("trifold.cli.progress.INTERVAL", 0.01)
    monkeypatch.setattr("trifold.cli.progress.WATCH", 0.01)
    with waiting_progress("reading"):
        time.sleep(0.1)
    lines = capsys.readouterr().err.splitlines()
    time.sleep(0.03)
    assert lines[0] == "reading, 0 seconds so far" and len(lines) > 1
    assert capsys.readouterr().err == ""  # the thread has ended


def test_progress_of_bytes_names_the_total_if_it_is_known(monkeypatch, capsys):
    monkeypatch.setattr("trifold.cli.progress.INTERVAL", 0.0)
    for total in (None, 4_000_000):
        with byte_progress("writing") as advance:
            advance(total, 1_000_000)
    assert capsys.readouterr().err == "writing: 1.0 MB\nwriting: 1.0 MB of 4.0 MB\n"
