"""Pairs stay aligned, and every dropped row is counted."""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from trifold.data import DataSettings, Rows, embedded, read_pairs, read_splits
from trifold.errors import DataError, SettingsError

PLAIN = DataSettings()


def two_files(folder: Path, left: bytes, right: bytes) -> list[str]:
    (folder / "a.en").write_bytes(left)
    (folder / "a.de").write_bytes(right)
    return [str(folder / "a.en"), str(folder / "a.de")]


def table(folder: Path, name: str, content: str) -> str:
    path = folder / name
    raw = content.encode()
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return str(path)


def as_list(pairs: Rows) -> list[tuple[str, str]]:
    return list(zip(pairs.sources, pairs.targets, strict=True))


# --- two files ------------------------------------------------------------------------------------


def test_two_files_given_as_a_list_or_with_a_comma(tmp_path: Path) -> None:
    files = two_files(tmp_path, b"a\nb\n", b"x\r\ny\r\n")
    pairs = read_pairs(files, PLAIN)
    assert as_list(pairs) == [("a", "x"), ("b", "y")]
    assert as_list(read_pairs(",".join(files), PLAIN)) == as_list(pairs)
    assert pairs.lines == [1, 2]
    assert str(pairs.report) == "a.en + a.de: 2 pairs"


@pytest.mark.parametrize(
    ("left", "right", "counts"), [(3, 5, "3.*5"), (5, 3, "5.*3"), (1, 2000, "1.*2,000")]
)
def test_different_lengths_are_an_error_that_names_both(
    tmp_path: Path, left: int, right: int, counts: str
) -> None:
    files = two_files(tmp_path, b"a\n" * left, b"x\n" * right)
    with pytest.raises(
        DataError, match=rf"a\.en has {counts.replace('.*', r' lines, but .*a.de has ')}; line n"
    ):
        read_pairs(files, PLAIN)


@pytest.mark.parametrize(
    "separator", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r"]
)
def test_unusual_separators_do_not_misalign(tmp_path: Path, separator: str) -> None:
    left = f"one\ntwo{separator}two\nthree\n".encode()
    pairs = read_pairs(two_files(tmp_path, left, b"1\n2\n3\n"), PLAIN)
    assert as_list(pairs) == [("one", "1"), (f"two{separator}two", "2"), ("three", "3")]
    assert pairs.report.inner_breaks == 1
    assert "1 with unusual line breaks inside (kept)" in str(pairs.report)


@pytest.mark.parametrize("nothing", ["", "\t", "\u3000 ", "\u2028"])
@pytest.mark.parametrize("side", [0, 1])
def test_a_blank_side_drops_the_pair(tmp_path: Path, nothing: str, side: int) -> None:
    texts = [["a", "b", "c"], ["x", "y", "z"]]
    texts[side][1] = nothing
    files = two_files(tmp_path, *("\n".join(lines).encode() + b"\n" for lines in texts))
    pairs = read_pairs(files, PLAIN)
    assert as_list(pairs) == [("a", "x"), ("c", "z")]
    assert pairs.lines == [1, 3]
    assert str(pairs.report) == "a.en + a.de: 3 pairs, 1 with a blank side (dropped); 2 used"
    kept = read_pairs(files, DataSettings(blank="keep"))
    assert as_list(kept) == list(zip(*texts, strict=True))
    assert "1 with a blank side (kept)" in str(kept.report)


def test_blank_lines_in_both_files_do_not_misalign(tmp_path: Path) -> None:
    pairs = read_pairs(two_files(tmp_path, b"a\n\nc\nd\n", b"x\ny\n\nz\n"), PLAIN)
    assert as_list(pairs) == [("a", "x"), ("d", "z")]
    assert pairs.report.blank_dropped == 2


def test_only_blank_pairs_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no pair is left \(2 read, 2 blank\)"):
        read_pairs(two_files(tmp_path, b"\n\n", b"a\nb\n"), PLAIN)


def test_duplicates_are_counted_and_can_be_dropped(tmp_path: Path) -> None:
    files = two_files(tmp_path, b"a\nb\na\na\n", b"x\ny\nx\nz\n")
    kept, dropped = read_pairs(files, PLAIN), read_pairs(files, DataSettings(duplicates="drop"))
    assert (len(kept), kept.report.duplicates) == (4, 1)
    assert as_list(dropped) == [("a", "x"), ("b", "y"), ("a", "z")]
    assert str(dropped.report) == "a.en + a.de: 4 pairs, 1 repeated (dropped); 3 used"


TEXTS = st.lists(
    st.tuples(*[st.sampled_from(["", " ", "a", "b", "a\u2028", "\x85", "ü"])] * 2), min_size=1
)


@settings(max_examples=50)
@given(
    rows=TEXTS,
    blank=st.sampled_from(["drop", "keep"]),
    duplicates=st.sampled_from(["drop", "keep"]),
)
def test_counts_add_up(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str]],
    blank: Any,
    duplicates: Any,
) -> None:
    folder = tmp_path_factory.getbasetemp()
    files = two_files(
        folder,
        *("".join(f"{text}\n" for text in side).encode() for side in zip(*rows, strict=True)),
    )
    expected = [row for row in rows if blank == "keep" or (row[0].strip() and row[1].strip())]
    blanks = len(rows) - len(expected)
    repeated = len(expected) - len(set(expected))
    if duplicates == "drop":
        expected = list(dict.fromkeys(expected))
    if not expected:
        return
    pairs = read_pairs(files, DataSettings(blank=blank, duplicates=duplicates))
    report = pairs.report
    assert as_list(pairs) == expected
    assert [rows[line - 1] for line in pairs.lines] == expected
    assert (report.rows, report.kept, report.blank_dropped) == (len(rows), len(expected), blanks)
    assert report.duplicates == repeated


# --- one table ------------------------------------------------------------------------------------

TABLES = {
    "plain.tsv": ('a\tx\nb, "c"\ty\'\n', {}),
    "header.tsv": ('source\ttarget\na\tx\nb, "c"\ty\'\n', {}),
    "names.tsv.gz": ('de\tid\ten\nx\t1\ta\ny\'\t2\tb, "c"\n', {"source": "en", "target": "de"}),
    "numbers.tsv": ('0.5\ta\tx\n0.7\tb, "c"\ty\'\n', {"source": "1", "target": 2}),
    "forced.tsv": ('en\tde\na\tx\nb, "c"\ty\'\n', {"source": 0, "target": 1, "header": True}),
    "plain.csv": ('a,x\n"b, ""c""",y\'\n', {}),
    "crlf.csv": ('source,target\r\na,x\r\n"b, ""c""","y\'"\r\n', {}),
    "bom.csv.gz": ('\ufefftarget,source\nx,a\ny\',"b, ""c"""\n', {}),
    "flat.jsonl": (
        '{"source": "a", "target": "x"}\n{"source": "b, \\"c\\"", "target": "y\'"}\n',
        {},
    ),
    "nested.jsonl.gz": (
        '{"translation": {"en": "a", "de": "x"}}\n{"translation": {"en": "b, \\"c\\"", "de": "y\'"}}\n',
        {"source": "translation.en", "target": "translation.de"},
    ),
    "dotted.jsonl": (
        '{"a.b": "a", "c": "x"}\n{"a.b": "b, \\"c\\"", "c": "y\'"}\n',
        {"source": "a.b", "target": "c"},
    ),
    "unnamed": ('a\tx\nb, "c"\ty\'\n', {"format": "tsv"}),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_give_the_same_pairs(tmp_path: Path, name: str) -> None:
    content, settings = TABLES[name]
    pairs = read_pairs(table(tmp_path, name, content), DataSettings(**settings))  # type: ignore[arg-type]
    assert as_list(pairs) == [("a", "x"), ('b, "c"', "y'")]


ROWS = [("Ein Hund bellt laut.", "A dog barks."), ("Ein Hund schläft.", "A dog sleeps.")]
HEADERS = {
    "german,english": {}, "src_text,tgt_text": {}, "de,en": {}, "Source sentence,Translation": {},
    "question,answer": {"source": 0, "target": "1"}, "SOURCE,TARGET": {}, "en_US,de-DE": {}, "Kommentar,Klasse": {},
    "foo,bar": {"source": 0, "target": 1, "header": True},
}  # fmt: skip
FIRST_ROWS = {  # of data
    "dog,hund": {}, "Text,Ein Hund schläft.": {}, "no,is": {}, "text,text": {}, "label one two three,text": {},
    "german,english": {"header": False}, "english,A dog barks.": {}, "2 texts,label": {},
    "the score,der Punktestand": {}, "label,etikett": {}, "i speak english,ich spreche englisch": {}, "title,titel": {},
}  # fmt: skip


@pytest.mark.parametrize("first", HEADERS)
def test_names_of_columns_are_a_header(tmp_path: Path, first: str) -> None:
    content = "\n".join([first, *map(",".join, ROWS)]) + "\n"
    pairs = read_pairs(table(tmp_path, "a.csv", content), DataSettings(**HEADERS[first]))  # type: ignore[arg-type]
    assert as_list(pairs) == ROWS
    source, target = first.split(",")
    assert str(pairs.report) == f"a.csv: 2 pairs, header: source {source!r}, target {target!r}"


@pytest.mark.parametrize("first", FIRST_ROWS)
def test_other_first_rows_are_data(tmp_path: Path, first: str) -> None:
    content = "\n".join([first, *map(",".join, ROWS)]) + "\n"
    pairs = read_pairs(table(tmp_path, "a.csv", content), DataSettings(**FIRST_ROWS[first]))  # type: ignore[arg-type]
    source, target = first.split(",")
    assert as_list(pairs) == [(source, target), *ROWS]
    assert str(pairs.report) == "a.csv: 3 pairs, no header"


def test_a_label_is_not_a_header_if_it_occurs_again(tmp_path: Path) -> None:
    rows = [("question", "How many"), ("statement", "It is"), ("question", "Where")]
    pairs = read_pairs(table(tmp_path, "a.csv", "\n".join(map(",".join, rows)) + "\n"), PLAIN)
    assert as_list(pairs) == rows


@pytest.mark.parametrize(("first", "rows"), [("label,text", [1, 0]), ("text,label", [0, 1])])
def test_a_column_of_labels_is_the_target(tmp_path: Path, first: str, rows: list[int]) -> None:
    content = f"{first}\n" + "good,some words\nbad,other words\n"
    pairs = read_pairs(table(tmp_path, "a.csv", content), PLAIN)
    expected = [("good", "some words"), ("bad", "other words")]
    assert as_list(pairs) == [(pair[rows[0]], pair[rows[1]]) for pair in expected]
    assert str(pairs.report).endswith("header: source 'text', target 'label'")


OTHERS = {
    "id,text,label": (1, 2), "label,label_text,text": (2, 0), "Class,Title,Review": (2, 0),
    "sentence,source_url,topic,score": (0, 2),
}  # fmt: skip


@pytest.mark.parametrize("names", OTHERS)
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_text_and_a_label_are_chosen_among_other_columns(
    tmp_path: Path, names: str, kind: str
) -> None:
    keys, (source, target) = names.split(","), OTHERS[names]
    rows = [[f"{key} {number}" for key in keys] for number in range(2)]
    lines = [names, *map(",".join, rows)]
    if kind == "jsonl":
        lines = [json.dumps(dict(zip(keys, row, strict=True))) for row in rows]
    pairs = read_pairs(table(tmp_path, f"a.{kind}", "\n".join(lines) + "\n"), PLAIN)
    assert as_list(pairs) == [(row[source], row[target]) for row in rows]
    assert str(pairs.report).endswith(f"source {keys[source]!r}, target {keys[target]!r}")


@pytest.mark.parametrize(
    "names", ["sentence1,sentence2,label", "id,question,answer", "id,text,source"]
)
def test_columns_without_a_text_and_a_label_must_be_named(tmp_path: Path, names: str) -> None:
    path = table(tmp_path, "a.csv", f"{names}\n1,2,3\n")
    with pytest.raises(DataError, match=r"no column '\w+'; its first row is"):
        read_pairs(path, PLAIN)


def test_chosen_labels_of_objects_may_be_numbers(tmp_path: Path) -> None:
    rows = '{"text": "a", "label": 0}\n{"text": "b", "label": 1}\n'
    assert as_list(read_pairs(table(tmp_path, "a.jsonl", rows), PLAIN)) == [("a", "0"), ("b", "1")]


def test_keys_that_differ_in_case_and_space_are_one(tmp_path: Path) -> None:
    rows = [{"Source": "a", "target": "b"}, {"source ": "c", "Target": "d", "id": 1}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    pairs = read_pairs(str(tmp_path / "a.jsonl"), DataSettings())
    assert (pairs.sources, pairs.targets) == (["a", "c"], ["b", "d"])
    assert "'source ' read as 'Source'; 'Target' read as 'target'" in str(pairs.report)


def test_pairs_of_a_parquet_file(tmp_path: Path) -> None:
    arrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    path = tmp_path / "a.parquet"
    parquet.write_table(
        arrow.table({"id": [1, 2], "source": ["a", "b"], "target": ["x", "y"]}), path
    )
    assert as_list(read_pairs(str(path), PLAIN)) == [("a", "x"), ("b", "y")]


def test_quoted_csv_fields_may_contain_line_ends(tmp_path: Path) -> None:
    path = table(tmp_path, "a.csv", 'source,target\n"a\nb",x\r\n\n"c\r","y\u2028"\n')
    pairs = read_pairs(path, PLAIN)
    assert as_list(pairs) == [("a\nb", "x"), ("c\r", "y\u2028")]
    assert pairs.lines == [2, 5]
    assert pairs.report.blank_dropped == 1


@given(
    st.lists(
        st.lists(st.text('a",\n \r', max_size=6), min_size=2, max_size=2), min_size=1, max_size=5
    )
)
def test_any_quoted_csv_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]
) -> None:
    rows = [[re.sub("\r+\n", "\n", text).rstrip("\r") for text in row] for row in rows]
    quoted = "".join(
        ",".join('"' + text.replace('"', '""') + '"' for text in row) + "\n" for row in rows
    )
    path = table(tmp_path_factory.getbasetemp(), "any.csv", quoted)
    pairs = read_pairs(path, DataSettings(source=0, target=1, header=False, blank="keep"))
    assert [list(pair) for pair in zip(pairs.sources, pairs.targets, strict=True)] == rows


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "a\tx\nb\ty\tz\n", r"a\.tsv:2: 3 columns where the first row has 2"),
        ("a.tsv", "a\tx\nb\n", r"a\.tsv:2: 1 column"),
        (
            "a.tsv",
            "en\tde\tid\na\tx\t1\n",
            r"a\.tsv:1: no column 'source'; its first row is \['en', 'de', 'id'\]",
        ),
        ("a.tsv", "only\n", r"a\.tsv:1: no column 'source'"),
        (
            "a.csv",
            "text;label\nso, bad\nso, good\n",
            r"a\.csv:2: 1 column where the first row has 2",
        ),
        ("a.tsv", "text;note\n", r"a\.tsv:1: no column .*';' does not .*; set data\.delimiter"),
        ("a.csv", 'a,x\n"b,y\nc,z\n', r"a\.csv:2: a quote is opened and not closed"),
        ("a.csv", 'a,x\nb"b"b,y\n', r"a\.csv:2: a quote in the wrong place near character 1"),
        ("a.csv", 'a,x\n"b"b,y\n', r"a\.csv:2: a quote in the wrong place"),
        ("a.jsonl", '{"source": "a", "target": "x"}\n{oops}\n', r"a\.jsonl:2:2: not valid JSON"),
        ("a.jsonl", '["a", "x"]\n', r"a\.jsonl:1: a JSON list, expected an object"),
        (
            "a.jsonl",
            '{"source": "a", "traget": "x"}\n',
            r"a\.jsonl:1: no value 'target'; found: source, traget",
        ),
        (
            "a.jsonl",
            '{"source": "a", "target": null}\n',
            r"a\.jsonl: no pair is left \(1 read, 1 blank\)",
        ),
        (
            "a.jsonl",
            '{"source": "a", "target": 3}\n',
            r"a\.jsonl:1: 'target' is a value of type int",
        ),
        (
            "a.jsonl",
            '{"source": "\\u0000", "target": "x"}\n',
            r"a\.jsonl:1: 'source' contains a NUL",
        ),
        (
            "a.jsonl",
            '{"source": "\\ud800", "target": "x"}\n',
            r"a\.jsonl:1: 'source' contains an unpaired surrogate",
        ),
        ("a.jsonl", "[" * 100_000 + "\n", r"a\.jsonl:1: not readable JSON"),
        ("a.jsonl", '{"n": ' + "9" * 5000 + "}\n", r"a\.jsonl:1: not readable JSON"),
    ],
)
def test_malformed_tables_name_the_place(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_pairs(table(tmp_path, name, content), PLAIN)


def test_an_unclosed_quote_is_found_early(tmp_path: Path) -> None:
    path = table(tmp_path, "a.csv", 'a,"x\n' + "b,y\n" * 100_000)
    with pytest.raises(DataError, match=r"a\.csv:1: a quote is opened"):
        read_pairs(path, DataSettings(max_line_bytes=1000))


def test_many_quotes_take_linear_time(tmp_path: Path) -> None:
    path = table(
        tmp_path, "a.csv", '"' + '""' * 200_000 + 'x",y\n' + '"' + '""' * 200_000 + '" z,y\n'
    )
    with pytest.raises(DataError, match=r"a\.csv:2: a quote in the wrong place"):
        read_pairs(path, PLAIN)


# --- invalid sources ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        (__file__, {}, "one file of plain lines, but pairs have two sides"),
        ("a.en,b.de,c.fr", {}, "neither one table"),
        ("a.en,", {}, "neither one table"),
        ([], {}, "neither one table"),
        (["a.tsv", "b.tsv"], {"format": "tsv"}, "two are given"),
        ("hub:wmt14", {}, "hub:NAME:SPLIT"),
        ("embedded:", {}, "embedded:NAME"),
    ],
)
def test_invalid_sources(source: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        read_pairs(source, DataSettings(**settings))
    assert caught.value.exit_code == 2


def test_a_file_name_with_a_comma_is_given_as_a_list(tmp_path: Path) -> None:
    assert len(read_pairs([table(tmp_path, "a,b.tsv", "a\tx\n")], PLAIN)) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"trian": "a,b"}, "data.trian: unknown key; did you mean 'train'"),
        ({"holdout": 5, "valid": "a,b"}, "holdout and valid contradict each other"),
        ({"holdout": -1}, "data.holdout: .*greater than or equal to 0"),
        ({"format": "xml"}, "data.format: .*'xml'"),
        ({"max_line_bytes": "many"}, "data.max_line_bytes: .*'many'"),
    ],
)
def test_invalid_settings_name_their_key(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        DataSettings.parse(values, at="data")


# --- splits, embedded text, the hub ---------------------------------------------------------------


def test_splits(tmp_path: Path) -> None:
    path = table(tmp_path, "a.tsv", "a\tx\nb\ty\n")
    splits = read_splits(DataSettings(train="embedded:smoke", test=path))
    assert splits.valid is None
    assert splits.test.sources == ["a", "b"]
    with pytest.raises(DataError, match=r"a\.tsv\.tsv: no such file"):
        read_splits(DataSettings(train=path, valid=path, test=f"{path}.tsv"))
    with pytest.raises(SettingsError, match=r"data\.train: no training data is named"):
        read_splits(DataSettings(test=path))


def test_holding_out_depends_on_the_seed(tmp_path: Path) -> None:
    path = table(tmp_path, "a.tsv", "".join(f"s{i}\tt{i}\n" for i in range(50)) + "\tblank\n")
    settings = DataSettings(train=path, holdout=10)
    train, valid, _ = read_splits(settings, seed=1)
    assert len(valid) == 10
    assert sorted(as_list(train) + as_list(valid)) == sorted((f"s{i}", f"t{i}") for i in range(50))
    assert train.lines == sorted(train.lines)
    assert train.report.blank_dropped == 1
    again, other = (read_splits(settings, seed).valid for seed in (1, 2))
    assert again.sources == valid.sources != other.sources
    with pytest.raises(DataError, match=r"data\.holdout: 50 pairs of 50 leave nothing"):
        read_pairs(path, PLAIN).hold_out(50, seed=0)


@pytest.mark.parametrize(
    "fold", ["fold:0/5", "fold:6/5", "fold:1/1", "fold:1", "2/5", "x", -1, 1.5]
)
def test_other_values_than_numbers_and_folds_are_rejected(fold: Any) -> None:
    with pytest.raises(
        SettingsError, match=r"holdout: .*(expected a number|a share lies|greater than)"
    ):
        DataSettings.parse({"train": "a.csv", "holdout": fold})


def test_embedded_smoke_splits_do_not_overlap() -> None:
    splits = [read_pairs("embedded:smoke", PLAIN, split) for split in ("train", "valid", "test")]
    assert [len(pairs) for pairs in splits] == [244, 28, 28]
    assert len({pair for pairs in splits for pair in as_list(pairs)}) == 300
    assert ("two hundred and forty seven", "2 4 7") in as_list(splits[2])
    known = {word for text in splits[0].sources for word in text.split()}
    assert known >= {
        word for pairs in splits[1:] for text in pairs.sources for word in text.split()
    }
    assert as_list(read_pairs("embedded:smoke:test", PLAIN)) == as_list(splits[2])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "embedded:smok",
            "no such embedded text; choose one of functions, phrasebook, smoke, translations",
        ),
        ("embedded:smoke:dev", "no such split"),
    ],
)
def test_unknown_embedded_text_lists_the_known(source: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_pairs(source, PLAIN)


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_the_words_of_a_pair_tell_nothing_about_whether_it_is_a_translation(split: str) -> None:
    rows = embedded.load_rows("translations", split)
    translations, others = (
        [(row["sentence1"], row["sentence2"]) for row in rows if row["label"] == label]
        for label in ("translation", "other")
    )
    book = embedded.load_rows("phrasebook", split)
    assert {french for _, french in translations} == {row["french"] for row in book}
    assert set(translations) <= {(row["english"], row["french"]) for row in book}
    assert set(translations).isdisjoint(others)
    for english_or_french in (0, 1):
        assert Counter(each[english_or_french] for each in translations) == Counter(
            each[english_or_french] for each in others
        )


def test_the_phrasebook_can_be_read_in_both_directions() -> None:
    pairs = read_pairs("embedded:phrasebook:test", PLAIN)
    reverse = read_pairs(
        "embedded:phrasebook:test", DataSettings(source="french", target="english")
    )
    assert (pairs.sources, pairs.targets) == (reverse.targets, reverse.sources)
    assert len(pairs) == 500


def test_the_hub_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r'hub:wmt14@de-en:train: .* install "datasets>='):
        read_pairs("hub:wmt14@de-en:train", PLAIN)


def test_hub_rows_are_read_by_dotted_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[tuple[str, str | None, str]] = []

    def load_dataset(name: str, config: str | None, split: str) -> list[dict[str, Any]]:
        requests.append((name, config, split))
        if name == "none":
            raise ConnectionError("no network\nsecond line")
        return [{"translation": {"de": "x", "en": "a"}}, {"translation": {"de": "", "en": "b"}}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    settings = DataSettings(source="translation.en", target="translation.de")
    pairs = read_pairs("hub:org/wmt14@de-en:train[:1%]", settings)
    assert as_list(pairs) == [("a", "x")]
    assert pairs.report.blank_dropped == 1
    with pytest.raises(
        DataError, match=r"hub:none:test: cannot be loaded \(ConnectionError: no network\); check"
    ):
        read_pairs("hub:none:test", settings)
    assert requests == [("org/wmt14", "de-en", "train[:1%]"), ("none", None, "test")]
    with pytest.raises(DataError, match="row 1: no value 'source'; found: translation"):
        read_pairs("hub:org/wmt14:train", PLAIN)


def test_jsonl_texts_may_contain_separators(tmp_path: Path) -> None:
    rows = [{"source": f"s\u2028{i}\n", "target": f"t😀{i}"} for i in range(20)]
    content = "".join(json.dumps(row, ensure_ascii=i % 2 == 0) + "\n" for i, row in enumerate(rows))
    pairs = read_pairs(table(tmp_path, "a.jsonl", content), PLAIN)
    assert as_list(pairs) == [(row["source"], row["target"]) for row in rows]
