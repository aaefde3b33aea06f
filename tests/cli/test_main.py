"""All commands: help, exit codes, output streams."""

from __future__ import annotations

import errno
import io
import os
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer

from trifold import __version__, errors
from trifold.cli import COMMANDS, _app, main
from trifold.errors import CheckpointError, DataError, SettingsError, TrifoldError, UsageError

EXAMPLES = [
    (name, example)
    for name in COMMANDS
    for example in import_module(f"trifold.cli.{name}").EXAMPLES
]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_shows_examples_in_80_columns(trifold, command):
    done = trifold(command, "--help")
    examples = [example for name, example in EXAMPLES if name == command]
    assert done.code == 0 and 2 <= len(examples) <= 4
    assert all(example in done.out for example in examples)
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.parametrize(("name", "example"), EXAMPLES, ids=[example for _, example in EXAMPLES])
def test_every_example_parses(name, example):
    words = shlex.split(example.partition(" < ")[0])
    assert words[:2] == ["trifold", name]
    command = typer.main.get_command(_app(words[1:])).commands[name]
    command.make_context(name, words[2:])


def test_help_lists_every_command_in_80_columns(trifold):
    done = trifold("--help")
    assert done.code == 0
    for name, description in COMMANDS.items():
        assert any(line.split() == [name, *description.split()] for line in done.out.splitlines())
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_standard_output_on_a_full_disk_is_named():
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "trifold", "--version"]
        done = subprocess.run(
            command, check=False, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert (done.returncode, done.stderr) == (
        1,
        "error: standard output: No space left on device\n",
    )


NARROW = [
    ["recipes"],
    ["data"],
    ["data", "tatoeba_ende"],
    ["data", "multi31k"],
    ["doctor", "--no-speed"],
    ["show", "smoke"],
    ["show", "multi30k-en-de"],
    ["show", "bert-base"],
    ["show", "t5-base"],
    ["eval", "{run}"],
    ["compare", "{run}", "{run}"],
    ["runs", "{run}"],
    ["eval", "{run}", "--split", "valid", "--num-beams", "2"],
    ["generate", "{run}", "one", "--min-new-tokens", "90"],
    ["generate", "{run}", "one", "--num-beams", "2", "--num-return-sequences", "2", "--stream"],
    ["show", "no-such-model"],
    [
        "train",
        "smoke",
        "train.steps=4",
        "train.validate_every=2",
        "train.warmup=9",
        "--out",
        "{out}",
    ],
]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", NARROW, ids=" ".join)
def test_output_fits_80_columns_except_paths_and_user_data(
    trifold, run, tmp_path, monkeypatch, arguments
):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(errors, "COLUMNS", 80)
    done = trifold(*[word.format(run=run, out=tmp_path / "out") for word in arguments])
    lines = [*done.out.splitlines(), *done.err.splitlines()]
    assert lines
    assert [line for line in lines if len(line) > 80 and str(tmp_path.parent) not in line] == []


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"]])
def test_help_imports_nothing_slow(arguments):
    """The time itself is measured in tests/test_packaging.py."""
    code = (
        f"import sys; from trifold.cli import main; main({arguments}); "
        "print(sorted({'torch', 'numpy', 'matplotlib', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_version_option(trifold):
    assert trifold("--version") == (0, f"trifold {__version__}\n", "")


WRONG = {
    (): "Usage",
    ("trian", "smoke"): "Did you mean 'train'? See `trifold --help`",
    ("train",): "RECIPE",
    ("train", "smoke", "--resume", "always"): "auto",
    ("generate", "x", "y", "--num-beams", "many"): "--num-beams",
    ("generate", "x", "y", "--nun-beams", "2"): "--num-beams",
    ("show", "transformer-base", "--length", "0"): "--length",
    ("look", "x", "--json"): "TEXT",
    ("train", "no-such-recipe"): "list them with `trifold recipes`",
    ("train", "smoke", "train.stesp=3"): "steps",
    ("train", "smoke", "train.steps=many"): "train.steps",
    ("train", "smoke", "train.steps"): "key=value",
}


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_wrong_usage(trifold, arguments):
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
    (
        PermissionError(errno.EACCES, "Permission denied", "runs"),
        1,
        "error: runs: Permission denied\n",
    ),
    (KeyboardInterrupt(), 130, "stopped; begin again with `trifold recipes`\n"),
    (typer.Exit(143), 143, ""),
]


@pytest.mark.parametrize(
    ("error", "code", "message"), RAISED, ids=[repr(error) for error, _, _ in RAISED]
)
def test_the_table_of_exit_codes(trifold, monkeypatch, error, code, message):
    def fail():
        raise error

    monkeypatch.setattr("trifold.recipe.included_recipes", fail)
    assert trifold("recipes") == (code, "", message)


@pytest.mark.slow
def test_internal_error_keeps_its_traceback(trifold, monkeypatch):
    monkeypatch.setattr("trifold.recipe.included_recipes", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trifold("recipes")


@pytest.mark.parametrize("code", [None, "a message for standard error"])
def test_an_exit_of_a_library_keeps_its_code_and_message(trifold, monkeypatch, code):
    monkeypatch.setattr("trifold.recipe.included_recipes", lambda: sys.exit(code))
    with pytest.raises(SystemExit) as stopped:
        trifold("recipes")
    assert stopped.value.code == code


def test_output_is_utf8_in_any_locale(monkeypatch):
    recipe = {"data": {"train": "embedded:smoke"}, "description": "≥ 3 ✓"}
    monkeypatch.setattr("trifold.recipe.included_recipes", lambda: {"été": recipe})
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", newline="\r\n")
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["recipes", "--json"]) == 0
    assert (
        stream.buffer.getvalue()
        == '[{"name": "été", "missing": [], "description": "≥ 3 ✓", "group": "demos"}]\n'.encode()
    )


@pytest.mark.skipif(os.name == "nt", reason="pipes close differently there")
def test_broken_pipe_is_silent():
    code = "import sys; from trifold.cli import main; sys.exit(main(['--help']))"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")
