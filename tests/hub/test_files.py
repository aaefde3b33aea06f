from __future__ import annotations

import json
from pathlib import Path

import pytest

from trifold.errors import CheckpointError
from trifold.hub.files import replacing, write_json
from trifold.jsonfiles import read_json

HOSTILE = {
    "empty": (b"", "not JSON"),
    "cut off": (b'{"a": 1', "not JSON"),
    "not an object": (b"[1, 2]", "a list, not an object"),
    "a key twice": (b'{"a": 1, "a": 2}', "'a' occurs twice"),
    "a key twice, deep": (b'{"b": [{"a": 1, "a": 2}]}', "'a' occurs twice"),
    "not a number": (b'{"a": NaN}', "NaN is not a finite number"),
    "infinite": (b'{"a": -Infinity}', "not a finite number"),
    "overflowing": (b'{"a": 1e999}', "not a finite number"),
    "a long integer": (b'{"a": ' + b"9" * 5000 + b"}", "largest integer"),
    "a large integer": (b'{"a": 9007199254740993}', "largest integer"),
    "not UTF-8": (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
    "deep": (b'{"a":' * 100_000, "nested too deeply"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_json_is_rejected_with_its_file(case: str, tmp_path: Path) -> None:
    content, expected = HOSTILE[case]
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=expected) as caught:
        read_json(path)
    assert str(path) in str(caught.value)


def test_a_large_file_is_not_even_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(11 * 2**20)
    with pytest.raises(CheckpointError, match="too large"):
        read_json(path)


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        read_json(tmp_path / "config.json")


def test_written_json_is_read_back(tmp_path: Path) -> None:
    values = {"b": [1, 2.5, None, True], "a": {"é": "\u2028"}, "n": -(2**53)}
    write_json(tmp_path / "x.json", values)
    assert read_json(tmp_path / "x.json") == values
    assert list(json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))) == ["a", "b", "n"]


def test_a_failed_write_leaves_only_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})

    def half() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half", encoding="utf-8")
            raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match=r"x\.json: cannot be written \(No space left on device\)"):
        half()
    assert read_json(path) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]
