"""Files of other programs are named, with what to do."""

from __future__ import annotations

import gzip
import pickle
import sqlite3

import pytest

from trifold.data.foreign import FOREIGN_FORMATS, FORMAT_OF
from trifold.data.lines import read_text
from trifold.data.records import read_records
from trifold.data.roles import Role, check_text
from trifold.data.settings import DataSettings
from trifold.errors import DataError, SettingsError

CELL = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0\0"
PACKED = b"PK\3\4\x14\0\x08\0"
# Name -> content, and the message.
FILES = {
    "a.xls": (
        CELL,
        "a spreadsheet and no text; save it as CSV in UTF-8 in the program that made it",
    ),
    "a.ods": (PACKED, "a spreadsheet and no text; save it as CSV"),
    "a.numbers": (PACKED, "a spreadsheet and no text; save it as CSV"),
    "a.docx": (
        PACKED,
        "a document of a word processor and no text; save it as plain text in UTF-8",
    ),
    "a.rtf": (
        b"{\\rtf1\\ansi x}\n",
        "a document of a word processor and no text; save it as plain text",
    ),
    "a.pptx": (PACKED, "a presentation and no text; export its text"),
    "a.pdf": (b"%PDF-1.4\n", "a PDF document and no text; extract its text, as with `pdftotext"),
    "a.epub": (PACKED, "an electronic book and no text; convert it to plain text"),
    "a.pkl": (pickle.dumps({"a": 1}), "a pickle, which can run code, and no text; write its"),
    "a.RData": (
        gzip.compress(b"RDX3\nX\n\0"),
        "a file of R and no text; write it as CSV in R: `write.csv",
    ),
    "a.sav": (
        b"$FL2@(#) SPSS DATA FILE",
        "a file of a statistics program and no text; save it as CSV",
    ),
    "a.dta": (b"<stata_dta><header>", "a file of a statistics program and no text; save it as CSV"),
    "a.sqlite": (
        b"SQLite format 3\0\x10",
        "a database and no text; export a table as CSV, as with `sqlite3",
    ),
    "a.feather": (b"ARROW1\0\0", "a table of columns and no text; write it as Parquet"),
    "a.npy": (b"\x93NUMPY\1\0", "a file of arrays and no text; write its texts as CSV"),
    "a.safetensors": (
        b"\x40\0\0\0\0\0\0\0{",
        "a file of weights and no text; name a text or a table",
    ),
    "a.tar.gz": (
        gzip.compress(b"a.csv\0\0\0"),
        "an archive or a compressed file and no text; unpack it",
    ),
    "a.csv.bz2": (b"BZh91AY&SY\xf0", "an archive or a compressed file and no text; unpack it"),
    "a.png": (
        b"\x89PNG\r\n\x1a\n",
        "a picture and no text; name a folder of pictures with `trifold train",
    ),
    "a.mp3": (b"ID3\3\0\0", "a recording and no text; name its transcript"),
    # The first bytes tell it if the suffix does not.
    "a.csv": (b"SQLite format 3\0\x10", "a database and no text; export"),
    "pdf": (b"%PDF-1.4\n", "a PDF document and no text"),
    "a.txt": (b"PAR1\x15\4\x15", "a Parquet file and no text; end its name with .parquet"),
    "b.tsv": (b"\x89HDF\r\n\x1a\n\0", "a file of arrays"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_program_is_named(name, tmp_path):
    content, message = FILES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_text(tmp_path / name)
    assert str(caught.value).startswith(f"{tmp_path / name}: is {message}")
    roles = {"text": Role(("text",), check_text)}
    with pytest.raises((DataError, SettingsError)) as caught:
        read_records(str(tmp_path / name), DataSettings.parse({}), roles)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["notes.key", "a.db", "a.bin", "a.mat", "orc.txt", "a.pdf"])
def test_a_text_is_read_whatever_its_name(name, tmp_path):
    (tmp_path / name).write_text("ORC and BZh and GIF8 and RDX3 and %PDF\n", encoding="utf-8")
    assert read_text(tmp_path / name).startswith("ORC and")


def test_each_suffix_has_one_meaning():
    assert len(FORMAT_OF) == sum(len(one.suffixes.split()) for one in FOREIGN_FORMATS)


def test_a_database_begins_as_the_table_says(tmp_path):
    with sqlite3.connect(tmp_path / "a.txt") as database:
        database.execute("create table a (b)")
    database.close()
    with pytest.raises(DataError, match="a database and no text; export"):
        read_text(tmp_path / "a.txt")
