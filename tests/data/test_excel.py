"""A workbook is read as the CSV file of its first sheet."""

from __future__ import annotations

import csv
import sys
import zipfile
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from trifold.data import excel, read_pairs
from trifold.data.excel import iter_sheet
from trifold.data.records import read_records
from trifold.data.roles import Role, check_text
from trifold.data.settings import DataSettings
from trifold.errors import DataError

ROLES = {
    "text": Role(("text", "review"), check_text),
    "label": Role(("label",), check_text, identifies=False),
}
SHEETS = {
    "a header": [["Review", "Label"], ["a film", "good"], ["no film", "bad"]],
    "a title": [["Films of 2024"], [], ["id", "review", "label"], ["1", "a", "b"], ["2", "c", "d"]],
    "blank rows": [["review", "label"], [], ["a", "b"], [], [], ["c", "d"], [None, None]],
    "no header": [["a film is good", "x"], ["a film is bad", "y"], ["one, two", "x"]],
    "an empty cell at the end": [["label", "review", "note"], ["a", "b"], ["c", "d", "e"]],
    "quotes and lines": [["review", "label"], ['"so"\nlala', "a,b"], [" x ", "é"]],
}


@pytest.fixture
def workbook(tmp_path):
    """Write a workbook of these rows."""
    library = pytest.importorskip("openpyxl")

    def write(rows, *others, name="a.xlsx"):
        book = library.Workbook()
        for row in rows:
            book.active.append(row)
        for title in others:
            book.create_sheet(title).append(["text", "other"])
        book.save(tmp_path / name)
        return str(tmp_path / name)

    return write


@pytest.mark.parametrize("name", SHEETS)
def test_rows_are_those_of_the_csv_file(name, workbook, tmp_path):
    rows = SHEETS[name]
    width = max(map(len, rows))
    with (tmp_path / "a.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        for row in rows:
            if any(row):
                writer.writerow([*row, *[""] * (width - len(row))])
            elif row != rows[-1]:
                file.write("\n")
    settings = DataSettings.parse({})
    expected = read_records(str(tmp_path / "a.csv"), settings, ROLES)
    found = read_records(workbook(rows), settings, ROLES)
    assert found.columns == expected.columns and len(found)
    assert str(found.report).replace(".xlsx", ".csv") == str(expected.report)


def test_cells_are_texts(workbook):
    row = [1, 1.0, 0.1, True, None, "x", datetime(2024, 2, 3), datetime(2024, 2, 3, 4, 5), "=1+1"]
    file = workbook([row, ["end"]], "notes")
    notes = []
    (_, cells), last = iter_sheet(file, notes)
    assert cells == "1|1|0.1|TRUE||x|2024-02-03|2024-02-03 04:05:00".split("|")  # no stored value
    assert (last, notes) == ((2, ["end"]), ["sheet 'Sheet' of 2"])


def test_pairs_and_folders_of_workbooks_are_read(workbook, tmp_path):
    for name in ("a.xlsx", "b.XLSX"):
        workbook([["source", "target"], ["a", f"{name}"]], name=name)
    (tmp_path / "~$a.xlsx").write_bytes(b"of an open workbook")
    pairs = read_pairs(str(tmp_path), DataSettings.parse({}))
    assert (pairs.sources, pairs.targets) == (["a", "a"], ["a.xlsx", "b.XLSX"])


def test_a_row_that_is_longer_than_the_first_ones_is_named(workbook):
    file = workbook([["review", "label"], *[["a", f"{n % 3}"] for n in range(250)], [1, 2, 3]])
    with pytest.raises(DataError, match=r"a\.xlsx:252: 3 columns where the first row has 2"):
        read_records(file, DataSettings.parse({}), ROLES)


def _rewrite(file, changes):
    """Replace parts of a workbook."""
    with zipfile.ZipFile(file) as old:
        parts = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
        for name, content in (parts | changes).items():
            new.writestr(name, content)


def _entities():
    """A billion letters, each entity ten times the one before."""
    entities = [b'<!ENTITY a "%s">' % (b"a" * 10)]
    for before, name in pairwise(b"abcdefghij"):
        entities.append(b'<!ENTITY %c "%s">' % (name, b"&%c;" % before * 10))
    return b"<!DOCTYPE x [%s]>" % b"".join(entities)


SHEET = "xl/worksheets/sheet1.xml"


def test_the_stated_size_of_a_sheet_is_not_trusted(workbook):
    file = workbook([["review", "label"], ["a", "b"]])
    with zipfile.ZipFile(file) as archive:
        sheet = archive.read(SHEET)
    _rewrite(file, {SHEET: sheet.replace(b'<dimension ref="A1:B2"', b'<dimension ref="A1"')})
    assert [cells for _, cells in iter_sheet(file, [])] == [["review", "label"], ["a", "b"]]


HOSTILE = {
    "no archive": (None, "not a readable Excel workbook (File is not a zip file); open it"),
    "no sheet": ({"xl/workbook.xml": b"<workbook/>"}, "not a readable Excel workbook"),
    "no XML": ({SHEET: b"<sheetData><row>"}, "not a readable Excel workbook"),
    "a bomb": ({"xl/sharedStrings.xml": b" " * 2_000_000}, "unpacks to 2,0"),
    "a far row": (
        {
            SHEET: b'<worksheet xmlns="http://schemas.openxmlformats.org/'
            b'spreadsheetml/2006/main"><sheetData><row r="99999999999"><c r="A99999999999"><v>1</v>'
            b"</c></row></sheetData></worksheet>"
        },
        "the first sheet is empty",
    ),
    "entities": (
        {SHEET: _entities() + b'<sheetData><row><c t="str"><v>&j;</v></c></row></sheetData>'},
        "not a readable Excel workbook",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_workbooks_are_rejected(name, workbook, monkeypatch):
    file = workbook([["text", "label"], ["a", "b"]])
    changes, message = HOSTILE[name]
    monkeypatch.setattr(excel, "MAX_BYTES", 1_000_000)
    if changes is None:
        Path(file).write_bytes(b"PK\3\4 and no more")
    else:
        _rewrite(file, changes)
    with pytest.raises(DataError) as caught:
        read_records(file, DataSettings.parse({}), ROLES)
    assert f"a.xlsx: {message}" in str(caught.value)


def test_without_openpyxl_the_command_that_installs_it_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.xlsx").write_bytes(b"PK\3\4")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(
        DataError,
        match=r"need the `openpyxl` library; install it with `.* install "
        r'"openpyxl.*, or save it as CSV in UTF-8',
    ):
        read_records(str(tmp_path / "a.xlsx"), DataSettings.parse({}), ROLES)
