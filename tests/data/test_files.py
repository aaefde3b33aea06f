"""Digests of files, and of those that a token cache was built from."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from tests.data.caches import open_cache, write_corpus

from trifold.data import FileDigest, compute_digests, digests_in_caches, list_files


@pytest.fixture
def opened_files(monkeypatch):
    """The names of the files that are opened."""
    names = []
    original = os.open

    def recorded(path, *arguments, **named):
        names.append(Path(path).name)
        return original(path, *arguments, **named)

    monkeypatch.setattr(os, "open", recorded)
    return names


def known(found: dict[str, FileDigest]) -> dict[tuple[str, int, int], str]:
    return {(name, each.size, each.mtime_ns): each.sha256 for name, each in found.items()}


def test_digests_of_files(tmp_path):
    names = [str(tmp_path / name) for name in ("a.en", "a.de")]
    for name in names:
        Path(name).write_bytes(name.encode())
    found = compute_digests(list_files(",".join(names)))
    assert list(found) == names
    for name, each in found.items():
        status = Path(name).stat()
        assert each == (
            status.st_size,
            status.st_mtime_ns,
            hashlib.sha256(name.encode()).hexdigest(),
        )


def test_folders_and_patterns_are_expanded_in_order(tmp_path):
    for name in ("2.txt", "1.txt", "3.jsonl"):
        (tmp_path / name).write_bytes(name.encode())
    assert [Path(name).name for name in compute_digests(list_files(str(tmp_path)))] == [
        "1.txt",
        "2.txt",
        "3.jsonl",
    ]
    assert [Path(name).name for name in compute_digests(list_files(f"{tmp_path}/*.txt"))] == [
        "1.txt",
        "2.txt",
    ]


def test_missing_files_and_other_sources_have_no_digest(tmp_path):
    for source in (None, "embedded:smoke", "hub:a/b:valid", "-", str(tmp_path / "nowhere.tsv")):
        assert compute_digests(list_files(source)) == {}


def test_only_files_with_another_size_or_time_are_read(tmp_path, opened_files):
    names = [str(tmp_path / name) for name in ("same", "longer", "touched", "changed")]
    for name in names:
        Path(name).write_bytes(b"12345678")
    before = compute_digests(names)
    Path(names[1]).write_bytes(b"123456789")
    os.utime(names[2], ns=(1, 1))
    Path(names[3]).write_bytes(b"12345679")
    os.utime(names[3], ns=(2, 2))
    opened_files.clear()
    after = compute_digests(names, known(before))
    assert opened_files == ["longer", "touched", "changed"]
    same = [before[name].sha256 == after[name].sha256 for name in names]
    assert same == [True, False, True, False]


def test_the_source_of_a_cache_is_not_read(tmp_path, opened_files):
    corpus = write_corpus(tmp_path)
    open_cache(corpus, tmp_path)
    opened_files.clear()
    found = compute_digests([str(corpus)], digests_in_caches(str(tmp_path / "cache")))
    assert "corpus.txt" not in opened_files
    assert found == compute_digests([str(corpus)]) and "corpus.txt" in opened_files


def test_missing_and_damaged_caches_are_ignored(tmp_path):
    assert digests_in_caches(str(tmp_path / "nowhere")) == {}
    for number, text in enumerate(
        ("{", "[]", '{"sources": 5}', '{"sources": [{"file": "a"}]}', "")
    ):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "manifest.json").write_text(text, encoding="utf-8")
    assert digests_in_caches(str(tmp_path)) == {}
