"""Zip archives: a member is read as the file that it was; nothing is written."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import pytest

from trifold.data import DataSettings, read_documents, read_pairs, read_records
from trifold.data.archives import open_stored, split_member
from trifold.data.corpus import survey
from trifold.data.files import TABLE_FORMATS, compute_digests, list_files
from trifold.data.roles import Role, check_text
from trifold.errors import DataError, SettingsError

PLAIN = DataSettings()
ROLES = {"text": Role(("text",), check_text), "label": Role(("label",), check_text)}
CSV = "text,label\ngood food,good\nbad food,bad\n"
MEMBERS = {"a.csv": CSV, "b.csv": CSV.replace("food", "wine"), "readme.md": "no table"}


def pack(path: Path, members: dict[str, str | bytes]) -> str:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return str(path)


def unpack(archive: str, folder: Path) -> str:
    zipfile.ZipFile(archive).extractall(folder)
    return str(folder)


def test_an_archive_of_tables_is_read_as_its_folder(tmp_path):
    archive = pack(tmp_path / "reviews.zip", MEMBERS)
    folder = unpack(archive, tmp_path / "reviews")
    packed, plain = (read_records(source, PLAIN, ROLES) for source in (archive, folder))
    assert packed.columns == plain.columns
    assert packed.columns["text"] == ["good food", "bad food", "good wine", "bad wine"]
    assert str(packed.report) == str(plain.report)
    assert str(packed.report).startswith(
        "a.csv and 1 more file: 4 rows, files of other kinds skipped: 1 .md, header: text"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["reviews", "reviews.zip"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", CSV),
        ("a.csv.gz", gzip.compress(CSV.encode(), mtime=0)),
        ("a.tsv", CSV.replace(",", "\t")),
        ("a.jsonl", '{"text": "good food", "label": "good"}\n{"text": "bad food", "label": "bad"}'),
    ],
)
def test_every_format_is_read_from_an_archive(name, content, tmp_path):
    archive = pack(tmp_path / "a.zip", {f"data/{name}": content, "__MACOSX/data/._a.csv": "\0"})
    for source in (archive, f"{archive}/data", f"{archive}/data/{name}", f"{tmp_path}/*.zip"):
        assert read_records(source, PLAIN, ROLES).columns["label"] == ["good", "bad"]


def test_errors_name_the_member(tmp_path):
    archive = pack(tmp_path / "a.zip", {"in/a.csv": "text,label\none\n"})
    with pytest.raises(DataError, match=r"a\.zip/in/a\.csv:2: 1 column where the first row has 2"):
        read_records(archive, PLAIN, ROLES)
    with pytest.raises(DataError, match=r"a\.zip/none\.csv: no such file"):
        read_records(f"{archive}/none.csv", PLAIN, ROLES)


def test_pairs_and_documents_are_read_from_an_archive(tmp_path):
    archive = pack(tmp_path / "a.zip", {"a.en": "one\ntwo\n", "a.de": "eins\nzwei\n"})
    pairs = read_pairs(f"{archive}/a.en,{archive}/a.de", PLAIN)
    assert (pairs.sources, pairs.targets) == (["one", "two"], ["eins", "zwei"])
    table = pack(tmp_path / "b.zip", {"x/pairs.tsv": "source\ttarget\none\teins\n"})
    assert read_pairs(table, PLAIN).targets == ["eins"]
    texts = pack(tmp_path / "c.zip", {"b.txt": "two\n", "a.txt": "one\n", ".c.txt": "three\n"})
    assert read_documents(texts, PLAIN).texts == ["one", "two"]


@pytest.mark.parametrize("names", [("train.csv", "test.csv"), ("train/a.csv", "dev/a.csv")])
def test_several_splits_are_not_mixed(names, tmp_path):
    archive = pack(tmp_path / "a.zip", dict.fromkeys(names, CSV))
    folder = unpack(archive, tmp_path / "a")
    for source in (archive, folder):
        with pytest.raises(DataError, match=f"splits .*, train; .* such as {source}/train"):
            read_records(source, PLAIN, ROLES)
        assert len(read_records(f"{source}/{names[0]}", PLAIN, ROLES)) == 2
    tests = pack(tmp_path / "b.zip", {"test1.csv": CSV, "latest.csv": CSV, "training.csv": CSV})
    assert len(read_records(tests, PLAIN, ROLES)) == 6


def encrypted(path: Path) -> str:
    raw = bytearray(Path(pack(path, {"a.csv": CSV})).read_bytes())
    for sign, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.index(sign) + offset] |= 1
    path.write_bytes(raw)
    return str(path)


def damaged(path: Path) -> str:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.csv", CSV)
    path.write_bytes(path.read_bytes().replace(b"good food", b"evil food"))
    return str(path)


def no_archive(path: Path) -> str:
    path.write_text("text", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (encrypted, r"a\.zip/a\.csv: is encrypted"),
        (damaged, r"a\.zip: not a readable zip archive \(Bad CRC"),
        (no_archive, r"a\.zip: not a readable zip archive"),
        (lambda path: pack(path, {"a.md": CSV}), r"a\.zip: no table in this archive \(\.jsonl"),
    ],
)
def test_a_bad_archive_is_named(make, message, tmp_path):
    with pytest.raises(DataError, match=message):
        read_records(make(tmp_path / "a.zip"), PLAIN, ROLES)


def test_the_digest_of_an_archive_is_one(tmp_path):
    archive = pack(tmp_path / "a.zip", MEMBERS)
    files = list_files(archive, TABLE_FORMATS)
    assert files == [f"{archive}/a.csv", f"{archive}/b.csv"]
    assert list(compute_digests(files)) == [archive]


def test_a_folder_may_be_called_like_an_archive(tmp_path):
    folder = tmp_path / "a.zip"
    folder.mkdir()
    (folder / "a.csv").write_text(CSV, encoding="utf-8")
    assert split_member(folder / "a.csv") is None
    with open_stored(folder / "a.csv") as file:
        assert file.read() == CSV.encode()
    assert len(read_records(str(folder), PLAIN, ROLES)) == 2


def test_a_cache_has_no_ranges_of_an_archive(tmp_path):
    archive = pack(tmp_path / "a.zip", {"a.txt": "one\n"})
    with pytest.raises(SettingsError, match=r"data\.cache: .*a\.zip/a\.txt is in an archive"):
        survey(archive, PLAIN)
