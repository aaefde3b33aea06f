"""Messages are printable and short, whatever names and values of files they contain."""

from __future__ import annotations

import pytest

from trifold.errors import CheckpointError, SettingsError, printable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[2J\x9b31m", r"\x1b[2J\x9b31m"),
        ("a\r\x7f\x00b\x85\u2028c", r"a\r\x7f\x00b\x85\u2028c"),
        ("\u202eright to left", r"\u202eright to left"),
        ("\ud800", r"\ud800"),
        ("a\tb\nc é 日 👩‍💻 می‌خواهم \\x1b", "a\tb\nc é 日 👩‍💻 می‌خواهم \\x1b"),
    ],
)
def test_control_characters_are_escaped_and_other_text_is_unchanged(text: str, expected: str) -> None:
    assert printable(text) == expected
    assert printable(expected) == expected


def test_long_lines_lose_their_middle_and_long_messages_their_end() -> None:
    short = printable("file: " + "x" * 100_000 + "; remedy")
    assert len(short) <= 2_000 and short.startswith("file: xxx") and short.endswith("xxx; remedy")
    assert printable(short) == short
    many = printable("\n".join(map(str, range(5_000)))).splitlines()
    assert many[:2] == ["0", "1"] and many[200:] == ["  and 4,800 more lines"]


@pytest.mark.parametrize("kind", [CheckpointError, SettingsError])
def test_every_error_is_printable(kind: type[Exception]) -> None:
    assert str(kind("evil\x1b[2J")) == r"evil\x1b[2J"
