"""The demo with a smaller recipe in its place; the real one is trained by `make demo`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import trifold.train.loop  # noqa: F401 (it takes load_recipe as it is, before a fixture changes it)
from trifold.cli import demo
from trifold.cli.demos import MARKER, abbreviate, clear_folder, spread
from trifold.errors import UsageError
from trifold.recipe import load_recipe
from trifold.train.run_folder import RunFolder

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    def small(name, overrides=()):
        assert name == "demo"
        return load_recipe(
            "smoke", {"train.steps": 3, "generate.max_new_tokens": 8, **dict(overrides)}
        )

    monkeypatch.setattr("trifold.recipe.load_recipe", small)


def test_trains_and_prints_examples_and_next_commands(trifold, tmp_path):
    folder = tmp_path / "demo"
    done = trifold("demo", "--out", str(folder))
    assert done.code == 0
    for expected in (
        "source",
        "reference",
        "output",
        "exact match",
        "BLEU",
        "tok:13a",
        str(folder),
    ):
        assert expected in done.out
    assert f'trifold generate {folder} "I love dogs."' in done.out
    assert len([line for line in done.out.splitlines() if line.endswith(("✓", "✗"))]) == 12


def test_json_is_the_last_line(trifold, tmp_path):
    folder = tmp_path / "demo"
    done = trifold("demo", "--out", str(folder), "--json", "--minutes", "5")
    report = json.loads(done.out.splitlines()[-1])
    assert {*report} == {
        "seconds",
        "steps",
        "exact_match",
        "bleu",
        "signature",
        "examples",
        "folder",
    }
    assert (report["steps"], report["folder"]) == (3, str(folder))
    assert {*report["examples"][0]} == {"source", "reference", "ours"}


def test_the_picture_is_in_the_run_folder(trifold, tmp_path):
    pytest.importorskip("matplotlib")
    trifold("demo", "--out", str(tmp_path / "demo"))
    assert (tmp_path / "demo" / "attention.png").read_bytes().startswith(b"\x89PNG")


def test_demo_without_matplotlib(trifold, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = trifold("demo", "--out", str(tmp_path / "demo"))
    assert done.code == 0
    assert done.err.count("install it with") == 1


def test_own_folder_is_replaced(tmp_path):
    clear_folder(tmp_path / "demo")
    (tmp_path / "demo" / "old").touch()
    clear_folder(tmp_path / "demo")
    assert [path.name for path in (tmp_path / "demo").iterdir()] == [MARKER]


def test_foreign_folder_is_not_replaced(trifold, tmp_path):
    (tmp_path / "precious").write_text("mine", encoding="utf-8")
    done = trifold("demo", "--out", str(tmp_path))
    assert (done.code, done.out) == (2, "")
    assert "choose another" in done.err
    assert (tmp_path / "precious").read_text("utf-8") == "mine"


def test_file_is_not_replaced(tmp_path):
    (tmp_path / "demo").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="demo"):
        clear_folder(tmp_path / "demo")
    assert (tmp_path / "demo").is_file()


@pytest.mark.parametrize("how", ["a link", "here"])
def test_link_or_current_folder_is_emptied(how, tmp_path, monkeypatch):
    real = tmp_path / "real"
    clear_folder(real)
    (real / "checkpoints" / "old").mkdir(parents=True)
    (real / "file").touch()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").touch()
    (real / "link").symlink_to(tmp_path / "mine", target_is_directory=True)
    if how == "a link":
        folder = tmp_path / "demo"
        folder.symlink_to(real, target_is_directory=True)
    else:
        monkeypatch.chdir(real)
        folder = Path()
    clear_folder(folder)
    assert [path.name for path in real.iterdir()] == [MARKER]
    assert (tmp_path / "demo").is_symlink() == (how == "a link")
    assert (tmp_path / "mine" / "precious").is_file()


@pytest.mark.parametrize("inner", [".", "pretraining"])
def test_folder_of_a_running_demo_is_kept(inner, trifold, tmp_path):
    folder = tmp_path / "demo"
    clear_folder(folder)
    (folder / "old").write_text("mine", encoding="utf-8")
    at_work = RunFolder(folder / inner)
    at_work.open(resume=True)
    done = trifold("demo", "--out", str(folder))
    assert (done.code, done.out) == (2, "")
    assert "another process is using this run" in done.err
    assert (folder / "old").read_text("utf-8") == "mine"
    at_work.close()
    clear_folder(folder)
    assert [path.name for path in folder.iterdir()] == [MARKER]


@pytest.mark.parametrize("rest", [["translate"], ["read"], ["write"]])
def test_invalid_minutes_leave_the_folder_unchanged(rest, trifold, monkeypatch, tmp_path):
    monkeypatch.setattr("trifold.recipe.load_recipe", load_recipe)
    monkeypatch.setattr("trifold.data.embedded.load_rows", lambda name, split: [])
    clear_folder(tmp_path / "demo")
    (tmp_path / "demo" / "old").touch()
    done = trifold("demo", *rest, "--minutes", "0", "--out", str(tmp_path / "demo"))
    assert done.code != 0
    assert "train.minutes" in done.err
    assert (tmp_path / "demo" / "old").is_file()


@pytest.mark.parametrize(("rows", "count"), [(0, 3), (2, 3), (3, 3), (500, 12)])
def test_spread_covers_the_list(rows, count):
    shown = spread(list(range(rows)), count)
    assert len(shown) == min(rows, count)
    assert shown == sorted(set(shown))
    assert rows <= count or shown[-1] >= rows * (count - 1) // count


# --- which one ------------------------------------------------------------------------------------


def answering(monkeypatch, *answers):
    """A person at a terminal who types these lines."""
    lines = iter(answers)

    def typed():
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(demo, "_is_terminal", lambda: True)
    monkeypatch.setattr("builtins.input", typed)


@pytest.mark.parametrize(
    ("answers", "chosen"),
    [
        ([""], "translate"),
        ([], "translate"),
        (["2"], "write"),
        ([" Read "], "read"),
        (["w"], "write"),
        (["sing", "0", "3"], "read"),
    ],
)
def test_demo_asks_on_a_terminal(answers, chosen, monkeypatch, capsys):
    answering(monkeypatch, *answers)
    assert demo.ask() == chosen
    report = capsys.readouterr()
    assert report.out == ""
    assert all(name in report.err for name in demo.DEMOS)


def test_end_of_input_selects_the_default_demo(trifold, monkeypatch, tmp_path):
    answering(monkeypatch, "")
    done = trifold("demo", "--out", str(tmp_path / "demo"))
    assert done.code == 0
    assert "BLEU" in done.out
    assert "Which one?" in done.err


@pytest.mark.parametrize("words", [["translate"], ["--json"]])
def test_demo_does_not_ask_when_named_or_piped(words, trifold, monkeypatch, tmp_path):
    answering(monkeypatch)
    monkeypatch.setattr(demo, "ask", lambda: pytest.fail("requested"))
    assert trifold("demo", *words, "--out", str(tmp_path / "demo")).code == 0


def test_unknown_demo_is_wrong_usage(trifold, tmp_path):
    done = trifold("demo", "sing", "--out", str(tmp_path / "demo"))
    assert done.code == 2
    assert "translate" in done.err
    assert not (tmp_path / "demo").exists()


def test_help_lists_the_demos(trifold):
    done = trifold("demo", "--help")
    for expected in (
        "translate  English",
        "write      Python functions",
        "read       translations",
        "trifold demo write",
    ):
        assert expected in done.out
    assert "runs/demo-read" in "".join(done.out.split())  # lines may end after a hyphen


def test_abbreviate():
    assert abbreviate("a\n  b\tc", 20) == "a b c"
    assert abbreviate("word " * 20, 20) == "word word word …"
