"""What is there is not replaced unless told: every command that writes results."""

from __future__ import annotations

import pytest

from trifold import pipeline

FILE = "the file exists; name another file, or add --overwrite to replace it"
FOLDER = "the folder exists and is not empty; name another folder, or add --overwrite to replace"
# Command -> what is there, and the message.
TAKEN = {
    "generate {run} one --out a.txt": ("a.txt", FILE),
    "predict {run} one --task embed --out a.txt": ("a.txt", FILE),
    "predict {run} rows.csv --task embed --out a.csv": ("a.csv", FILE),
    "eval {run} --out a.txt": ("a.txt", FILE),
    "look {run} one --out a.html": ("a.html", FILE),
    "look {run} one --out a.svg": ("a.svg", FILE),
    "look {run} one --kind cross": ("attention.png", FILE),
    "look {run} --roles pairs.tsv --out a.html": ("a.html", FILE),
    "convert {run} new": ("new/config.json", FOLDER),
}


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("text\none\n", encoding="utf-8")
    (tmp_path / "pairs.tsv").write_text("one\t1\n", encoding="utf-8")
    return tmp_path


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("command", TAKEN)
def test_results_are_replaced_only_if_told(command, trifold, run, here, monkeypatch):
    target, message = TAKEN[command]
    if "look" in command and not target.endswith(".html"):
        pytest.importorskip("matplotlib")
    words = command.format(run=run).split()
    taken = here / target
    taken.parent.mkdir(exist_ok=True)
    taken.write_bytes(b"mine")
    before = files(here)
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "load", lambda *_, **__: pytest.fail("a model is loaded"))
        done = trifold(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {target.removesuffix('/config.json')}: {message}")
    assert files(here) == before
    done = trifold(*words, "--overwrite")
    assert done.code == 0, done.err
    assert taken.read_bytes() not in (b"mine", b"")


def test_a_model_is_looked_for_after_the_target(trifold, here):
    """A model of the hub is not downloaded for nothing."""
    (here / "new").mkdir()
    (here / "new" / "a.txt").touch()
    assert f"new: {FOLDER}" in " ".join(trifold("convert", "no/model", "new").err.split())


def test_what_holds_nothing_is_no_result(trifold, run, here):
    """`mktemp` makes an empty file, and `-` and devices are no files."""
    (here / "a.txt").touch()
    for out in ("a.txt", "/dev/null", "-"):
        assert trifold("generate", str(run), "one", "--out", out).code == 0
    assert not (here / "-").exists()
    (here / "new").mkdir()
    assert trifold("convert", str(run), "new").code == 0
