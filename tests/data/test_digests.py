from __future__ import annotations

import hashlib

from trifold.data import DataSettings
from trifold.data.digests import digests


def test_every_file_has_the_digest_of_its_bytes(tmp_path):
    for name in ("a.en", "a.de", "v.tsv", "t.tsv"):
        (tmp_path / name).write_bytes(name.encode())
    here = DataSettings(
        train=f"{tmp_path}/a.en,{tmp_path}/a.de", valid=f"{tmp_path}/v.tsv", test=f"{tmp_path}/t.tsv"
    )
    assert digests(here) == {
        str(tmp_path / name): hashlib.sha256(name.encode()).hexdigest() for name in ("a.en", "a.de", "v.tsv")
    }


def test_of_folders_and_patterns_every_file_counts(tmp_path):
    for name in ("1.txt", "2.txt", "3.jsonl"):
        (tmp_path / name).write_bytes(name.encode())
    assert len(digests(DataSettings(train=str(tmp_path)))) == 3
    assert len(digests(DataSettings(train=f"{tmp_path}/*.txt"))) == 2


def test_what_is_no_file_or_not_there_has_none(tmp_path):
    assert digests(DataSettings(train="embedded:smoke", valid="hub:a/b:valid")) == {}
    assert digests(DataSettings(train=str(tmp_path / "nowhere.tsv"), valid="-")) == {}
