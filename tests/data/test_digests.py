from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from tests.data.caches import corpus_of, opened

from trifold.data.digests import FileDigest, digests, files_of, known_to_caches


@pytest.fixture
def opened_files(monkeypatch):
    """The names of all files that are read from here on."""
    names, real = [], Path.open

    def watched(self, *arguments, **named):
        names.append(self.name)
        return real(self, *arguments, **named)

    monkeypatch.setattr(Path, "open", watched)
    return names


def known(found: dict[str, FileDigest]) -> dict[tuple[str, int, int], str]:
    return {(name, each.size, each.mtime_ns): each.sha256 for name, each in found.items()}


def test_every_file_has_the_digest_of_its_bytes(tmp_path):
    names = [str(tmp_path / name) for name in ("a.en", "a.de")]
    for name in names:
        Path(name).write_bytes(name.encode())
    found = digests(files_of(",".join(names)))
    assert list(found) == names
    for name, each in found.items():
        about = Path(name).stat()
        assert each == (about.st_size, about.st_mtime_ns, hashlib.sha256(name.encode()).hexdigest())


def test_of_folders_and_patterns_every_file_counts_in_the_order_of_reading(tmp_path):
    for name in ("2.txt", "1.txt", "3.jsonl"):
        (tmp_path / name).write_bytes(name.encode())
    assert [Path(name).name for name in digests(files_of(str(tmp_path)))] == ["1.txt", "2.txt", "3.jsonl"]
    assert [Path(name).name for name in digests(files_of(f"{tmp_path}/*.txt"))] == ["1.txt", "2.txt"]


def test_what_is_no_file_or_not_there_has_none(tmp_path):
    for source in (None, "embedded:smoke", "hub:a/b:valid", "-", str(tmp_path / "nowhere.tsv")):
        assert digests(files_of(source)) == {}


def test_only_files_whose_size_or_time_has_moved_are_read_again(tmp_path, opened_files):
    names = [str(tmp_path / name) for name in ("same", "longer", "touched", "changed")]
    for name in names:
        Path(name).write_bytes(b"12345678")
    before = digests(names)
    Path(names[1]).write_bytes(b"123456789")
    os.utime(names[2], ns=(1, 1))
    Path(names[3]).write_bytes(b"12345679")
    os.utime(names[3], ns=(2, 2))
    opened_files.clear()
    after = digests(names, known(before))
    assert opened_files == ["longer", "touched", "changed"]
    same = [before[name].sha256 == after[name].sha256 for name in names]
    assert same == [True, False, True, False]


def test_a_corpus_that_was_made_into_a_cache_is_known_without_reading_it(tmp_path, opened_files):
    corpus = corpus_of(tmp_path)
    opened(corpus, tmp_path)
    opened_files.clear()
    found = digests([str(corpus)], known_to_caches(str(tmp_path / "cache")))
    assert "corpus.txt" not in opened_files
    assert found == digests([str(corpus)]) and "corpus.txt" in opened_files


def test_caches_that_are_not_there_or_damaged_know_nothing(tmp_path):
    assert known_to_caches(None) == known_to_caches(str(tmp_path / "nowhere")) == {}
    for number, text in enumerate(("{", "[]", '{"sources": 5}', '{"sources": [{"file": "a"}]}', "")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "manifest.json").write_text(text, encoding="utf-8")
    assert known_to_caches(str(tmp_path)) == {}
