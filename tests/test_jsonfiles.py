"""Untrusted JSON files are rejected with their name and the problem."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from trifold.errors import CheckpointError
from trifold.folders import named
from trifold.jsonfiles import json_line, read_json


def test_numbers_that_json_does_not_have_are_null() -> None:
    values = {"a": [math.nan, 1.5], "b": {"c": -math.inf}, "é": math.inf}
    assert json_line(values) == '{"a": [null, 1.5], "b": {"c": null}, "é": null}'
    assert json_line({"é": 0.1}, ensure_ascii=True) == r'{"\u00e9": 0.1}'


def test_control_characters_are_escaped_in_json() -> None:
    text = "\x9b31m \u202e \u200b \x7f \U000e0041 é \n"
    line = json_line({"label": text})
    assert line == r'{"label": "\u009b31m \u202e \u200b \u007f \udb40\udc41 é \n"}'
    assert json.loads(line) == {"label": text}


HOSTILE = {
    "empty": (b"", "not JSON"),
    "truncated": (b'{"a": 1', "not JSON"),
    "not an object": (b"[1, 2]", "a list, not an object"),
    "a key twice": (b'{"a": 1, "a": 2}', "'a' occurs twice"),
    "a key twice, deep": (b'{"b": [{"a": 1, "a": 2}]}', "'a' occurs twice"),
    "NaN": (b'{"a": NaN}', "NaN is not a finite number"),
    "infinite": (b'{"a": -Infinity}', "not a finite number"),
    "overflowing": (b'{"a": 1e999}', "not a finite number"),
    "a long integer": (b'{"a": ' + b"9" * 5000 + b"}", "largest integer"),
    "a large integer": (b'{"a": 9007199254740993}', "largest integer"),
    "not UTF-8": (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
    "half of a character": (
        b'{"a": ["x\\ud800"]}',
        r"a string contains U\+D800, an unpaired surrogate",
    ),
    "half of a character in a key": (b'{"\\udfff": 1}', r"a string contains U\+DFFF"),
    "deep": (b'{"a":' * 100_000, "nested too deeply"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_json_is_rejected_with_its_file(case: str, tmp_path: Path) -> None:
    content, expected = HOSTILE[case]
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=expected) as caught:
        read_json(named(path))
    assert str(path) in str(caught.value)


def test_escaped_characters_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b'{"a": "\\u00e9 \\ud83d\\ude00 \\\\ud800"}')
    assert read_json(named(tmp_path / "config.json")) == {"a": "é 😀 \\ud800"}


def test_a_too_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(11 * 2**20)
    with pytest.raises(CheckpointError, match="too large"):
        read_json(named(path))


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        read_json(named(tmp_path / "config.json"))
