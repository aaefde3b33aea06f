"""Compiled code on disk is found by the content of its sources."""

from pathlib import Path

import pytest

from trifold.fast import sources


def test_a_change_of_any_source_changes_the_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "FOLDER", tmp_path)
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text("x = 1\n", "utf-8")
    before = sources.source_hash("first", "second")
    (tmp_path / "second.py").write_text("x = 2\n", "utf-8")
    assert sources.source_hash("first", "second") != before
    assert sources.source_hash("first") != before
    assert 0 < before < 2**63
