"""What holds for every verb: help, exit codes, streams."""

from __future__ import annotations

import errno
import io
import os
import shlex
import subprocess
import sys

import pytest
import typer

from trifold import __version__
from trifold.cli import VERBS, _app, main
from trifold.errors import CheckpointError, DataError, SettingsError, TrifoldError, UsageError

EXAMPLES = [(name, example) for name, (verb, _) in VERBS.items() for example in verb.EXAMPLES]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_with_examples(trifold, verb):
    done = trifold(verb, "--help")
    assert done.code == 0
    assert 2 <= len(VERBS[verb][0].EXAMPLES) <= 4
    assert all(example in done.out for example in VERBS[verb][0].EXAMPLES)


@pytest.mark.parametrize(("verb", "example"), EXAMPLES, ids=[example for _, example in EXAMPLES])
def test_every_example_is_a_command_line_that_parses(verb, example):
    words = shlex.split(example.partition(" < ")[0])
    assert words[:2] == ["trifold", verb]
    command = typer.main.get_command(_app()).commands[verb]
    command.make_context(verb, words[2:])


def test_help_names_every_verb_and_what_it_is_for(trifold):
    done = trifold("--help")
    assert done.code == 0
    for verb, (_, about) in VERBS.items():
        assert any(line.split() == [verb, *about.split()] for line in done.out.splitlines())


def test_the_version_is_a_result(trifold):
    assert trifold("--version") == (0, f"trifold {__version__}\n", "")


WRONG = {
    (): "Usage",
    ("trian", "smoke"): "train",
    ("train",): "RECIPE",
    ("train", "smoke", "--resume", "always"): "auto",
    ("generate", "x", "y", "--num-beams", "many"): "--num-beams",
    ("generate", "x", "y", "--nun-beams", "2"): "--num-beams",
    ("show", "transformer-base", "--length", "0"): "--length",
    ("look", "x"): "TEXT",
    ("train", "no-such-recipe"): "list them with: trifold recipes",
    ("train", "smoke", "train.stesp=3"): "steps",
    ("train", "smoke", "train.steps=many"): "train.steps",
    ("train", "smoke", "train.steps"): "key=value",
}


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_wrong_usage_is_code_2_and_says_what_would_be_right(trifold, arguments):
    done = trifold(*arguments)
    assert (done.code, done.out) == (2, "")
    assert WRONG[arguments] in done.err
    assert not arguments or done.err.startswith("error: ")


RAISED = [
    (TrifoldError("no luck"), 1, "error: no luck\n"),
    (DataError("a.txt:3: bad"), 1, "error: a.txt:3: bad\n"),
    (CheckpointError("broken"), 1, "error: broken\n"),
    (UsageError("not so"), 2, "error: not so\n"),
    (SettingsError("a: wrong\nb: wrong"), 2, "error: a: wrong\nerror: b: wrong\n"),
    (
        OSError(errno.ENOSPC, "No space left on device", "model.bin"),
        1,
        "error: model.bin: No space left on device\n",
    ),
    (PermissionError(errno.EACCES, "Permission denied", "runs"), 1, "error: runs: Permission denied\n"),
    (KeyboardInterrupt(), 130, ""),
    (typer.Exit(143), 143, ""),
]


@pytest.mark.parametrize(("error", "code", "said"), RAISED, ids=[repr(error) for error, _, _ in RAISED])
def test_the_table_of_exit_codes(trifold, monkeypatch, error, code, said):
    def fail():
        raise error

    monkeypatch.setattr("trifold.recipe.recipe_names", fail)
    assert trifold("recipes") == (code, "", said)


def test_a_mistake_of_our_own_keeps_its_traceback(trifold, monkeypatch):
    monkeypatch.setattr("trifold.recipe.recipe_names", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trifold("recipes")


def test_output_is_utf8_whatever_the_locale_says(monkeypatch):
    monkeypatch.setattr("trifold.recipe.recipe_names", lambda: {"été": "≥ 3 ✓"})
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", newline="\r\n")
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["recipes", "--json"]) == 0
    assert stream.buffer.getvalue() == '[{"name": "été", "description": "≥ 3 ✓"}]\n'.encode()


@pytest.mark.skipif(os.name == "nt", reason="pipes close differently there")
def test_a_reader_that_goes_away_is_no_noise():
    code = "import sys; from trifold.cli import main; sys.exit(main(['--help']))"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")
