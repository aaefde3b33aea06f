"""Messages are printable and short, whatever names and values of files they contain."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import trifold
from trifold.errors import CheckpointError, SettingsError, UsageError, printable, wrapped
from trifold.recipe import load_recipe


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[2J\x9b31m", r"\x1b[2J\x9b31m"),
        ("a\r\x7f\x00b\x85\u2028c", r"a\r\x7f\x00b\x85\u2028c"),
        ("\u202eright to left", r"\u202eright to left"),
        ("\ud800", r"\ud800"),
        (
            "a\u200bb\u200ec\u061cd\u2060\ufeff\U000e0041",
            r"a\u200bb\u200ec\u061cd\u2060\ufeff\U000e0041",
        ),
        ("a\tb\nc é 日 👩‍💻 می‌خواهم \\x1b", "a\tb\nc é 日 👩‍💻 می‌خواهم \\x1b"),
    ],
)
def test_control_characters_are_escaped_and_other_text_is_unchanged(
    text: str, expected: str
) -> None:
    assert printable(text) == expected
    assert printable(expected) == expected


def test_long_lines_lose_their_middle_and_long_messages_their_end() -> None:
    short = printable("file: " + "x" * 100_000 + "; remedy")
    assert len(short) <= 2_000 and short.startswith("file: xxx") and short.endswith("xxx; remedy")
    assert printable(short) == short
    many = printable("\n".join(map(str, range(5_000))))
    assert many.splitlines()[:2] == ["0", "1"] and many.splitlines()[19:] == ["  and 4,981 more"]
    assert printable(many) == many


def test_thousands_of_unknown_keys_are_a_short_error() -> None:
    with pytest.raises(SettingsError, match=r"\n  and 9,981 more$") as caught:
        load_recipe("smoke", {"train": {f"{number}": 1 for number in range(10_000)}})
    assert (
        len(str(caught.value)) < 3_000 and str(caught.value).count("known keys: accumulate, ") == 1
    )


def test_lines_are_wrapped_between_words_but_not_in_commands() -> None:
    command, path = (
        "`trifold resume 'runs/of this week/en-de' train.steps=3000`",
        "/data/" + "x" * 90,
    )
    text = f"error: {path}: no such file, so nothing was read; continue with {command} or leave it - {'a ' * 60}b"
    lines = wrapped(text, 40).split("\n")
    assert " ".join(line.strip() for line in lines) == text
    assert all(len(line) <= 40 or line.strip() in (command, f"error: {path}:") for line in lines)
    assert [line[:4].isspace() for line in lines] == [False, *[True] * (len(lines) - 1)]
    assert wrapped("  a  b\n\n\x1bc", 40) == "  a  b\n\n\\x1bc"


@pytest.mark.parametrize("kind", [CheckpointError, SettingsError])
def test_every_error_is_printable(kind: type[Exception]) -> None:
    assert str(kind("evil\x1b[2J")) == r"evil\x1b[2J"


# Options of torchrun, git and uv, and of commands that a message shows as a whole.
OTHERS = {
    "--python",
    "--folds",
    "--nproc-per-node",
    "--nnodes",
    "--always",
    "--dirty",
    "--trust-pickle",
    "--task",
    "--pair",
    "--context",
    "--choices",
    "--roles",
    "--part",
}


@pytest.mark.slow
def test_errors_outside_the_command_line_name_python_arguments() -> None:
    package, found = Path(trifold.__file__).parent, set()
    for path in package.rglob("*.py"):
        if package / "cli" in path.parents or path.name in ("errors.py", "__main__.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(re.findall(r"--[a-z][a-z-]*[a-z]\b(?!-)", str(UsageError(node.value))))
    assert found == OTHERS
