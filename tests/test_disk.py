from __future__ import annotations

import os
from pathlib import Path

import pytest

from trifold import disk
from trifold.errors import UsageError


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


def test_an_output_is_locked_by_every_name_of_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    real = tmp_path / "real"
    real.mkdir()
    (real / "out.csv").touch()
    (tmp_path / "link.csv").symlink_to(real / "out.csv")
    (tmp_path / "folder").symlink_to(real)
    (real / ".out.csv.lock").write_text("of a dead process", "utf-8")
    for name in ("link.csv", "folder/out.csv", "real/../real/out.csv", "real/out.csv"):
        with (
            disk.exclusive(real / "out.csv"),
            pytest.raises(UsageError, match="another process is writing it"),
            disk.exclusive(Path(name)),
        ):
            pass
    assert [path.name for path in real.iterdir()] == ["out.csv"]


def test_what_a_kill_left_of_an_output_is_removed(tmp_path):
    own = [".out.csv.7.tmp", ".out.csv.part.json.7.tmp"]
    others = [
        ".out.7.tmp",
        ".out.csv.gz.7.tmp",
        ".b.csv.7.tmp",
        "out.csv.part",
        "out.csv.part.json",
    ]
    for name in own + others:
        (tmp_path / name).touch()
    with disk.exclusive(tmp_path / "out.csv"):
        assert {path.name for path in tmp_path.iterdir()} == {*others, ".out.csv.lock"}
