from __future__ import annotations

import json
from pathlib import Path

import pytest

from trifold.errors import CheckpointError
from trifold.folders import named
from trifold.hub.files import replacing, write_json
from trifold.jsonfiles import read_json


def test_written_json_is_read_back(tmp_path: Path) -> None:
    values = {"b": [1, 2.5, None, True], "a": {"é": "\u2028"}, "n": -(2**53)}
    write_json(tmp_path / "x.json", values)
    assert read_json(named(tmp_path / "x.json")) == values
    assert list(json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))) == ["a", "b", "n"]


def test_a_failed_write_leaves_only_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})

    def half() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half", encoding="utf-8")
            raise OSError(28, "No space left on device")

    with pytest.raises(
        CheckpointError, match=r"x\.json: cannot be written \(No space left on device\)"
    ):
        half()
    assert read_json(named(path)) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]
