"""The demo that completes functions, with a model too small to do it well."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

import trifold.train.loop  # noqa: F401 (it takes load_recipe as it is, before a fixture changes it)
from trifold.cli.demos import write
from trifold.data import embedded, stdlib
from trifold.data.stdlib import FunctionCheck
from trifold.recipe import load_recipe

TINY = {
    "model.d_model": 16, "model.n_layers": 1, "model.n_heads": 2, "model.d_ff": 32, "model.max_positions": 64,
    "tokenizer.vocab_size": 300, "batch.tokens": 512, "train.steps": 4, "train.warmup": 1, "train.validate_every": 2,
    "train.save_every": 4, "train.samples": 1, "train.log_every": 1, "train.device": "cpu",
    "generate.max_new_tokens": 8,
}  # fmt: skip


def a_library():
    """Rows as the real one gives them, a few."""
    texts = [f"def f{n}(a, b={n}):\n    return a + {n}" for n in range(60)]
    rows = [{"text": text, "signature": text.partition("\n")[0], "module": f"m{text}"} for text in texts]
    return {"train": rows[:40], "valid": rows[40:44], "test": rows[44:]}


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(
        "trifold.recipe.load_recipe", lambda name, more=(): load_recipe(name, TINY | dict(more))
    )
    monkeypatch.setattr(write, "ASKED", 6)
    monkeypatch.setitem(embedded.SOURCES, "functions", a_library)
    embedded.load_splits.cache_clear()
    yield
    embedded.load_splits.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_it_trains_completes_judges_and_says_what_to_do_next(trifold, tmp_path):
    folder = tmp_path / "demo"
    done = trifold("demo", "write", "--out", str(folder))
    assert done.code == 0, done.err
    for expected in (
        "6 functions",
        "signature",
        "do something",
        "nats per token",
        "and now:",
    ):
        assert expected in done.out
    assert f'trifold generate {folder} "def f' in done.out
    assert "functions completed: 6 of 6" in done.err


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_json_is_one_last_line_for_programs(trifold, tmp_path):
    done = trifold("demo", "write", "--out", str(tmp_path / "demo"), "--json")
    told = json.loads(done.out.splitlines()[-1])
    assert {*told} == {"seconds", "steps", "signatures", "gpt", "examples", "folder"}
    assert (told["steps"], told["signatures"], len(told["examples"])) == (4, 6, 6)
    assert 0 <= told["gpt"]["does_something"] <= told["gpt"]["parses"] <= 6
    pytest.importorskip("matplotlib")
    assert (tmp_path / "demo" / "completions.png").read_bytes().startswith(b"\x89PNG")


def test_where_python_has_no_sources_it_says_so_and_touches_nothing(trifold, monkeypatch, tmp_path):
    monkeypatch.setattr(stdlib, "library_folder", lambda: tmp_path / "nothing")
    embedded.load_splits.cache_clear()
    for which in ("write", "read"):
        done = trifold("demo", which, "--out", str(tmp_path / "demo"))
        assert (done.code, done.out) == (1, "")
        assert "error: " in done.err
        assert "use one from python.org" in done.err
        assert not (tmp_path / "demo").exists()
    embedded.load_splits.cache_clear()


def test_completions_are_counted():
    found = [
        write.judged("def f(a):", body) for body in ("\n    return a + 1", "\n    pass", "\n    return (", "")
    ]
    assert [one.check for one in found] == [
        FunctionCheck(True, True),
        FunctionCheck(True, False),
        *[FunctionCheck(False, False)] * 2,
    ]
    assert write.score(found, 2.5) == (2, 1, 2.5)
    assert found[0].text == "def f(a):\n    return a + 1"


def test_what_is_printed_can_be_typed(tmp_path):
    for name in ("plain", "two words", "it's"):
        for signature in ("def f(a, b='x'):", 'def f(a="$HOME", b="`"):', "def f(a='\\n', b='!'):"):
            commands = write._where(tmp_path / name, None, signature)
            said = [shlex.split(line) for line in commands if line.startswith("  trifold ")]
            assert {words[2] for words in said} == {str(tmp_path / name)}
            assert [words[3:4] for words in said if words[1] in ("generate", "look")] == [[signature]] * 2
    plain = write._where(Path("runs/demo-write"), None, "def f(a, b='x'):")
    assert "  trifold generate runs/demo-write \"def f(a, b='x'):\"" in plain


def test_the_scores_are_one_sentence():
    shown = write.scored(write.Score(80, 77, 2.9), 100)
    assert "100 functions, 80 parse and 77 do something" in shown
    assert "2.900 nats per token" in shown
