from __future__ import annotations

import os

import pytest

from trifold import disk


def test_replace_text_is_atomic(tmp_path, monkeypatch):
    def full(file):
        raise OSError(28, "No space left on device")

    path = tmp_path / "note.json"
    disk.replace_text(path, "old\n")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            disk.replace_text(path, "new\n")
    assert path.read_bytes() == b"old\n"
    assert [each.name for each in tmp_path.iterdir()] == ["note.json"]
    disk.replace_text(path, "né\n")
    assert path.read_bytes() == "né\n".encode()


def test_temporary_files_of_killed_processes_are_recognized_by_name(tmp_path):
    for name in (".recipe.yaml.123.tmp", ".mine.tmp", "a.1.tmp", ".recipe.yaml"):
        (tmp_path / name).touch()
    assert [path.name for path in disk.leftovers(tmp_path)] == [".recipe.yaml.123.tmp"]
