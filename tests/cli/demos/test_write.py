"""The demo that completes functions, with a tiny model."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

import trifold.train.loop  # noqa: F401 (it takes load_recipe as it is, before a fixture changes it)
from trifold.cli.demos import write
from trifold.data import embedded, stdlib
from trifold.data.stdlib import FunctionCheck
from trifold.generate import GenerationConfig
from trifold.recipe import load_recipe

TINY = {
    "model.d_model": 16, "model.n_layers": 1, "model.n_heads": 2, "model.d_ff": 32, "model.max_positions": 64,
    "tokenizer.vocab_size": 300, "batch.tokens": 512, "train.steps": 4, "train.warmup": 1, "train.validate_every": 2,
    "train.save_every": 4, "train.samples": 1, "train.log_every": 1, "train.device": "cpu",
    "generate.max_new_tokens": 8,
}  # fmt: skip


def a_library():
    """A few rows in the format of the real source."""
    texts = [f"def f{n}(a, b={n}):\n    return a + {n}" for n in range(60)]
    rows = [
        {"text": text, "signature": text.partition("\n")[0], "module": f"m{text}"} for text in texts
    ]
    return {"train": rows[:40], "valid": rows[40:44], "test": rows[44:]}


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(
        "trifold.recipe.load_recipe", lambda name, more=(): load_recipe(name, TINY | dict(more))
    )
    monkeypatch.setattr(write, "SIGNATURES", 6)
    monkeypatch.setitem(embedded.SOURCES, "functions", a_library)
    embedded.load_splits.cache_clear()
    yield
    embedded.load_splits.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_trains_completes_and_prints_the_next_commands(trifold, tmp_path):
    folder = tmp_path / "demo"
    done = trifold("demo", "write", "--out", str(folder))
    assert done.code == 0, done.err
    for expected in (
        "6 functions",
        "signature",
        "do something",
        "nats per token",
        "try it:",
    ):
        assert expected in done.out
    assert f'trifold generate {folder} "def f' in done.out
    assert "functions completed: 6 of 6" in done.err


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_json_is_the_last_line(trifold, tmp_path):
    done = trifold("demo", "write", "--out", str(tmp_path / "demo"), "--json")
    report = json.loads(done.out.splitlines()[-1])
    assert {*report} == {"seconds", "steps", "signatures", "gpt", "examples", "folder"}
    assert (report["steps"], report["signatures"], len(report["examples"])) == (4, 6, 6)
    assert 0 <= report["gpt"]["does_something"] <= report["gpt"]["parses"] <= 6
    pytest.importorskip("matplotlib")
    assert (tmp_path / "demo" / "completions.png").read_bytes().startswith(b"\x89PNG")


def test_missing_sources_are_reported_before_anything_is_written(trifold, monkeypatch, tmp_path):
    monkeypatch.setattr(stdlib, "library_folder", lambda: tmp_path / "nothing")
    embedded.load_splits.cache_clear()
    done = trifold("demo", "write", "--out", str(tmp_path / "demo"))
    assert (done.code, done.out) == (1, "")
    assert "error: " in done.err
    assert "use one from python.org" in done.err
    assert not (tmp_path / "demo").exists()
    embedded.load_splits.cache_clear()


class Echo:
    """A pipeline whose output for a signature is given."""

    def __init__(self, bodies):
        self.bodies, self.writer = bodies, self

    def hypotheses(self, signatures, *, on_done, **settings):
        on_done(len(signatures))
        return [[SimpleNamespace(tokens=index)] for index in range(len(signatures))]

    def decode(self, tokens):
        return [self.bodies[index] for index in tokens]


def test_completions_are_checked():
    bodies = ["\n    return a + 1", "\n    pass", "\n    return (", ""]
    found = write.complete(Echo(bodies), ["def f(a):"] * 4, GenerationConfig())
    assert [one.check for one in found] == [
        FunctionCheck(True, True),
        FunctionCheck(True, False),
        *[FunctionCheck(False, False)] * 2,
    ]
    assert found[0].text == "def f(a):\n    return a + 1"


def test_printed_commands_can_be_typed(tmp_path):
    for name in ("plain", "two words", "it's"):
        for signature in ("def f(a, b='x'):", 'def f(a="$HOME", b="`"):', "def f(a='\\n', b='!'):"):
            words = [shlex.split(line) for line in write.next_commands(tmp_path / name, signature)]
            assert {each[2] for each in words} == {str(tmp_path / name)}
            assert [each[3:4] for each in words if each[1] in ("generate", "look")] == [
                [signature]
            ] * 2
    plain = write.next_commands(Path("runs/demo-write"), "def f(a, b='x'):")
    assert "trifold generate runs/demo-write \"def f(a, b='x'):\"" in plain
