"""Tables are read as a person reads them: no header is a row, no row is lost, and what is left out
is reported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.data import table_files

from trifold.data import DataSettings, Role, Rows, read_dialect, read_pairs, read_records
from trifold.data.roles import check_text
from trifold.data.tables import iter_file
from trifold.errors import DataError, SettingsError

ROLES = {
    "text": Role(("text", "review", "sentence"), check_text),
    "label": Role(("label", "sentiment", "class", "score"), lambda value, place: value),
}
ROWS = [("a, b", "x"), ("c; d", "y"), ("so so", "x")]


def read(folder: Path, content: str | bytes, name: str = "a.csv", **settings: Any) -> Rows:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_records(str(path), DataSettings.parse(settings, at="data"), ROLES)


def rows_of(records: Rows) -> list[tuple[str, str]]:
    return [*zip(records.columns["text"], records.columns["label"], strict=True)]


def table(*lines: str, sign: str = ",") -> str:
    """Lines with the texts and labels of ROWS in the place of `*`."""
    rows = [sign.join(f'"{cell}"' if sign in cell else cell for cell in row) for row in ROWS]
    wide = [
        each
        for line in lines
        for each in ([f"{row}{line[1:]}" for row in rows] if line[:1] == "*" else [line])
    ]
    return "\n".join(wide) + "\n"


# --- laws -----------------------------------------------------------------------------------------


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("form", ["well_formed", "odd"])
def test_the_rows_read_are_the_rows_written(tmp_path: Path, form: str) -> None:
    for seed in range(200):
        made = getattr(table_files, form)(seed)
        records = read(tmp_path, made.content, made.name, **made.settings)
        assert rows_of(records) == made.rows, f"seed {seed}: {records.report}"


def test_a_well_formed_table_adds_nothing_to_the_report(tmp_path: Path) -> None:
    for seed in range(100):
        made = table_files.well_formed(seed)
        report = read(tmp_path, made.content, made.name, **made.settings).report
        assert not report.skipped
        assert ";" not in str(report).partition("; not used")[0]


# --- headers --------------------------------------------------------------------------------------

HEADERS = {
    "a second header": (table("text,label", "*", "text,label", "*"), 2, "1 repeated header (skipped)"),
    "a second header after a blank line": (table("text,label", "*", "", "text,label", "*"), 2, "1 repeated header"),
    "a second header with a mark": (table("text,label", "*", "\ufefftext,label", "*"), 2, "1 inner byte order mark"),
    "a second header in other letters": (table("text,label", "*", "Text, Label", "*"), 2, "1 repeated header"),
    "three headers": (table("text,label", "*", "text,label", "*", "text,label", "*"), 3, "2 repeated headers"),
    "headers of the user": (table("satz,urteil", "*", "satz,urteil", "*"), 2, "text 'satz', label 'urteil'"),
    "sep=,": (table("sep=,", "text,label", "*"), 1, "line 1 skipped: 'sep=,'"),
    "sep=, in quotes": (table('"sep=,"', "text,label", "*"), 1, "line 1 skipped: '\"sep=,\"'"),
    "sep=, twice": (table("sep=,", "text,label", "*", "sep=,", "text,label", "*"), 2, "1 repeated header"),
    "a title": (table("Reviews", "text,label", "*"), 1, "line 1 skipped: 'Reviews'"),
    "a padded title": (table("Reviews,", "text,label", "*"), 1, "line 1 skipped: 'Reviews'"),
    "two titles": (table("Reviews", "of 2026", "", "text,label", "*"), 1, "line 2 skipped: 'of 2026'"),
    "facts above a blank line": (table("By,Ann", "On,Monday", "", "text,label", "*"), 1, "line 1 skipped: 'By Ann'"),
    "a comment": (table("# of 2026", "text,label", "*"), 1, "line 1 skipped: '# of 2026'"),
    "a trailing column": (table("text,label,", "*,"), 1, "without empty columns at the end"),
    "trailing columns": (table("text,label,,,", "*,,,"), 1, "without empty columns at the end"),
    "a trailing column of the header": (table("text,label,", "*"), 1, "without empty columns at the end"),
    "a trailing column of the rows": (table("text,label", "*,"), 1, "without empty columns at the end"),
    "a column without a name": (table("text,label,", "*,note"), 1, "header: text 'text', label 'label'"),
    "an index of pandas": (table("text,label,Unnamed: 0", "*,7"), 1, "not used: Unnamed: 0"),
    "two marks": ("\ufeff\ufeff" + table("text,label", "*"), 1, "1 inner byte order mark (skipped)"),
}  # fmt: skip


@pytest.mark.parametrize("case", HEADERS)
def test_what_surrounds_the_rows_is_skipped_and_reported(tmp_path: Path, case: str) -> None:
    content, times, report = HEADERS[case]
    header = {"header": True} if "satz" in content else {}
    records = read(tmp_path, content, **header)
    assert rows_of(records) == ROWS * times
    assert report in str(records.report)


def test_joined_files_may_have_their_columns_in_another_order(tmp_path: Path) -> None:
    records = read(tmp_path, "text,label\na,x\nlabel,text\ny,b\n")
    assert rows_of(records) == [("a", "x"), ("b", "y")]


@pytest.mark.parametrize("word", ["text", "label"])
def test_the_name_of_a_column_may_occur_in_it(tmp_path: Path, word: str) -> None:
    rows = [("text", "x"), ("b", "label"), ("c", "x"), ("d", "label")]
    records = read(tmp_path, "text,label\n" + "".join(f"{a},{b}\n" for a, b in rows))
    assert rows_of(records) == rows


def test_a_class_in_the_first_row_is_no_header(tmp_path: Path) -> None:
    rows = [("english text", "english"), ("ein Text", "german"), ("more of it", "english")]
    records = read(tmp_path, "".join(f"{a},{b}\n" for a, b in rows))
    assert rows_of(records) == rows


def test_a_trailing_empty_column_without_a_header(tmp_path: Path) -> None:
    records = read(tmp_path, table("*,"))
    assert rows_of(records) == ROWS
    assert str(records.report).endswith(
        "no header: text '0', label '1'; without empty columns at the end"
    )


def test_row_names_of_r_have_no_name_in_the_header(tmp_path: Path) -> None:
    records = read(tmp_path, '"text"\t"label"\n"1"\t"a"\t"x"\n"2"\t"b"\t"y"\n', "a.tsv")
    assert rows_of(records) == [("a", "x"), ("b", "y")]


def test_pairs_are_read_from_joined_files(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("source;target\na, b;x\nsource;target\nc;y\n", "utf-8")
    pairs = read_pairs(str(path), DataSettings())
    assert [*zip(pairs.sources, pairs.targets, strict=True)] == [("a, b", "x"), ("c", "y")]
    assert str(pairs.report) == (
        "a.csv: 2 pairs, 1 repeated header (skipped), header: source 'source', target 'target'; separated by ';'"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,label\na,x\nreview,sentiment\nb,y\n", r"a\.csv:3: 'review, sentiment' looks like .* name joined files in a list"),
        ("a,x\nb,y\ntext,label\nc,x\n", r"a\.csv:3: 'text, label' looks like a header .* remove the rows above it"),
        ("text,label,\na,x,\nb, c,y\n", r"a\.csv:3: 3 columns where the first row has 2"),
        ("text,label\na,x\nTotal: 1\n", r"a\.csv:3: 1 column where the first row has 2"),
        ("text,label\ra,x\rb,y\r", r"a\.csv:1: the lines end in carriage returns, .* `tr '\\r' '\\n'`"),
    ],
)  # fmt: skip
def test_what_has_two_readings_is_an_error(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path, content)


def test_rows_that_look_like_a_header_can_be_kept(tmp_path: Path) -> None:
    records = read(tmp_path, "text,label\na,x\nreview,sentiment\n", header=True)
    assert rows_of(records) == [("a", "x"), ("review", "sentiment")]


# --- delimiters -----------------------------------------------------------------------------------

DELIMITERS = {
    "semicolons": ("a.csv", ";", "separated by ';'"),
    "tabs": ("a.csv", "\t", "separated by tabs"),
    "bars": ("a.csv", "|", "separated by '|'"),
    "commas in .tsv": ("a.tsv", ",", "separated by ','"),
    "semicolons in .tsv": ("a.tsv", ";", "separated by ';'"),
}


@pytest.mark.parametrize("case", DELIMITERS)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_delimiters_are_detected_reported_and_known_to_others(
    tmp_path: Path, case: str, mark: str
) -> None:
    name, sign, report = DELIMITERS[case]
    records = read(tmp_path, mark + table(f"text{sign}label", "*", sign=sign), name)
    assert rows_of(records) == ROWS
    assert report in str(records.report)
    dialect = read_dialect(str(tmp_path / name), name[2:], DataSettings())
    assert dialect == (sign, True, bool(mark))


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ("a film;0,5\nb film;1,25\n", [("a film", "0,5"), ("b film", "1,25")]),
        ("a, b;x\nc;y\n", [("a, b", "x"), ("c", "y")]),
        ("a; b,x\nc,y\n", [("a; b", "x"), ("c", "y")]),
        ("a, b;x\nc, d;y\n", [("a, b", "x"), ("c, d", "y")]),
        ("a, x\nc, y\n", [("a", " x"), ("c", " y")]),
        ("a;b,x\nc;d,y\n", [("a;b", "x"), ("c;d", "y")]),
        ("text;score\na;0,5\nb;1,5\n", [("a", "0,5"), ("b", "1,5")]),
        ("sep=;\na, c;x\nb;y\n", [("a, c", "x"), ("b", "y")]),
        ("sep=,\ntext,label\na;b, x\nc;d, y\n", [("a;b", " x"), ("c;d", " y")]),
        ("text\tlabel\na, b\tx\n5\" c\ty\n", [("a, b", "x"), ('5" c', "y")]),
        ("text\tlabel\n\"a, b\"\tx\nc\ty\n", [("a, b", "x"), ("c", "y")]),
    ],
)  # fmt: skip
def test_all_rows_decide_about_the_delimiter(
    tmp_path: Path, content: str, rows: list[tuple[str, str]]
) -> None:
    assert rows_of(read(tmp_path, content)) == rows


def test_texts_of_a_single_column_are_not_divided(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for content in ("text\na; b\nc; d\n", "I came; I saw\nI left; I slept\n"):
        path.write_text(content, "utf-8")
        found = read_records(str(path), DataSettings(), {"text": ROLES["text"]})
        assert found.columns["text"] == content.removeprefix("text\n").splitlines()


@pytest.mark.parametrize(
    ("value", "sign"), [(":", ":"), ("tab", "\t"), ("\\t", "\t"), ("pipe", "|"), ("semicolon", ";")]
)
def test_the_delimiter_of_the_settings_is_used(tmp_path: Path, value: str, sign: str) -> None:
    records = read(tmp_path, f"text{sign}label\na,b{sign}x,y\n", delimiter=value)
    assert rows_of(records) == [("a,b", "x,y")]
    assert str(records.report) == "a.csv: 1 row, header: text 'text', label 'label'"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"delimiter": "||"}, r"data\.delimiter: expected one character or one of tab, .*'\|\|'"),
        ({"delimiter": ""}, r"data\.delimiter: expected one character"),
        ({"delimiter": "x"}, r"data\.delimiter: expected one character"),
        ({"delimiter": ";", "format": "jsonl"}, "jsonl has none"),
    ],
)
def test_invalid_delimiters(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read(tmp_path, table("text,label", "*"), **values)


# --- quotes of tables with tabs -------------------------------------------------------------------

QUOTED = {
    "doubled quotes": ('a ""b"" c', 'a "b" c'),
    "a tab": ("a\tb", "a\tb"),
    "a line end": ("a\nb", "a\nb"),
    "all": ('""a""\t\n', '"a"\t\n'),
}


@pytest.mark.parametrize("case", QUOTED)
def test_quotes_that_pandas_writes_enclose_fields(tmp_path: Path, case: str) -> None:
    field, text = QUOTED[case]
    filler = "plain\tx\n" * 300  # the first quote is far below the header
    records = read(tmp_path, f'text\tlabel\n{filler}"{field}"\ty\n', "a.tsv")
    assert rows_of(records)[-1] == (text, "y")
    assert len(records) == 301
    assert str(records.report).endswith("; fields in quotes")


def test_quotes_around_all_fields_enclose_them(tmp_path: Path) -> None:
    records = read(tmp_path, '"text"\t"label"\n"a"\t1\n"b"\t0.5\n', "a.tsv")
    assert rows_of(records) == [("a", "1"), ("b", "0.5")]


@pytest.mark.parametrize(
    "text", ['"all of it"', '"so" it is', '5" disk', '"', 'a ""b"" c', '"a" and "b"']
)
def test_other_quotes_are_part_of_the_text(tmp_path: Path, text: str) -> None:
    records = read(tmp_path, f"text\tlabel\nplain\tx\n{text}\ty\n", "a.tsv")
    assert rows_of(records) == [("plain", "x"), (text, "y")]


def test_quotes_of_two_lines_are_part_of_both(tmp_path: Path) -> None:
    rows = [('"Well,', "x"), ('so."', "y"), ("yes", "x")]
    records = read(tmp_path, "".join(f"{a}\t{b}\n" for a, b in rows), "a.tsv")
    assert rows_of(records) == rows


def test_the_delimiter_that_a_line_names_is_used_where_others_divide_evenly_too(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("sep=;\na, b;x\nc, d;y\n", encoding="utf-8")
    assert read_dialect(str(file), "csv", DataSettings()).delimiter == ";"
    assert [row for *_, row in iter_file(str(file), "csv", DataSettings())] == [
        {"0": "a, b", "1": "x"},
        {"0": "c, d", "1": "y"},
    ]
