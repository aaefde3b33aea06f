"""The table of `trifold runs`: names and settings that differ are shown whole, others once."""

from __future__ import annotations

import pytest

from trifold.cli.run_table import make_table, shared_ends, split_table
from trifold.cli.runs import RunFacts

LONG = "2026-11-reviews-transformer"
NAMES = {
    "short": (["a-1", "a-2"], ("", "")),
    "a beginning": ([f"{LONG}-lr-0.001", f"{LONG}-lr-0.0001"], (f"{LONG}-lr-", "")),
    "an end": ([f"a/{LONG}", f"b/{LONG}"], ("", f"/{LONG}")),
    "both": ([f"{LONG}-a-{LONG}", f"{LONG}-b-{LONG}"], (f"{LONG}-", f"-{LONG}")),
    "nothing": ([f"a-{LONG}", f"{LONG}-b"], ("", "")),
    "one is the beginning of the other": ([f"{LONG}-", f"{LONG}-b"], ("", "")),
    "one run": ([f"{LONG}-a"], ("", "")),
}


@pytest.mark.parametrize("case", NAMES)
def test_long_names_lose_what_all_have(case):
    names, expected = NAMES[case]
    assert shared_ends(names) == expected


def _facts(name, changed, recipe="demo", state="finished"):
    return RunFacts(name, state, recipe, changed, "accuracy", 75.5, 40, 40, 120.0)


def test_a_table_shows_what_differs_and_states_once_what_all_have():
    settings = [(0.001, 0.1), (0.001, 0.3), (0.003, 0.1)]
    runs = [
        _facts(
            f"{LONG}-{number}",
            {"train.learning_rate": rate, "model.dropout": dropout, "tokenizer.dropout": 0.0},
        )
        for number, (rate, dropout) in enumerate(settings)
    ]
    notes, (heading, *rows) = make_table(runs)
    assert notes == [
        f"runs are named {LONG}-…",
        "all have tokenizer.dropout=0.0",
        "all are of the recipe demo",
    ]
    assert heading == ("run", "changed", "best (step)", "min", "state")
    assert rows[1] == (
        "1", "train.learning_rate=0.001 model.dropout=0.3", "accuracy 75.50 (40)", "2.0", "finished"
    )  # fmt: skip


def test_damaged_runs_share_nothing_and_one_run_is_shown_as_it_is():
    one = _facts("a", {"train.steps": 4})
    damaged = _facts("b", {}, recipe="", state="damaged")
    for runs in ([one], [one, damaged]):
        notes, (heading, row, *_) = make_table(runs)
        assert not notes
        assert len(heading) == 6
        assert row[:3] == ("a", "demo", "train.steps=4")


def test_a_wide_table_has_the_settings_below_in_keys_that_can_be_pasted():
    settings = {"data.train": "reviews.csv", "data.columns.text": "review_body", "train.steps": 30}
    words = [f"{key}={value}" for key, value in settings.items()]
    rows = make_table([_facts("a", settings), _facts("b", {})]).rows
    assert split_table(rows, 200) == [rows]
    first, second = split_table(rows, 80)
    assert first == [(row[0], *row[2:]) for row in rows]
    assert second == [("run", "changed"), ("a", " ".join(words))]
    assert split_table(make_table([_facts("a" * 70, {}), _facts("b", {})]).rows, 80)[1:] == []


def test_values_can_be_pasted():
    changed = {
        "data.valid": None,
        "task.end": True,
        "model.heads": ["a", "b"],
        "train": {"steps": 3, "power": {}},
        "data.train": "ä b.csv",
    }
    cell = make_table([_facts("a", changed)]).rows[1][2]
    assert cell == (
        'data.valid=null task.end=true \'model.heads=["a", "b"]\' train.steps=3 '
        "'train.power={}' 'data.train=ä b.csv'"
    )


def test_settings_are_wrapped_between_words(trifold, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    settings = {f"data.columns.of_the_role_{letter}": "a_name" for letter in "abc"}
    monkeypatch.setattr(
        "trifold.cli.runs.describe_run", lambda path, name: _facts(name, settings | {"name": name})
    )
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.yaml").touch()
    out = trifold("runs", str(tmp_path)).out
    shared = [f"{key}={value}" for key, value in settings.items()]
    assert {*shared, "name=a", "name=b"} <= {*out.split()}


def test_every_row_is_whole_in_80_columns(trifold, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(
        "trifold.cli.runs.describe_run", lambda path, name: _facts(name, {"data.train": name})
    )
    names = [f"{LONG}-model-{letter}-data-of-november-version-{letter}" for letter in "abcde"]
    for name in names:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "recipe.yaml").touch()
    lines = trifold("runs", str(tmp_path)).out.splitlines()
    assert max(map(len, lines)) <= 80
    names_in_table = "".join(line.partition("   ")[0].strip() for line in lines)
    values_in_table = "".join(line.split("   ")[-1].strip() for line in lines)
    for name in names:
        assert name.removeprefix(f"{LONG}-model-") in names_in_table
        assert name.partition("-model-")[2] in values_in_table
