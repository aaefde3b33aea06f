"""Documents are read unchanged and in order, and every dropped one is counted."""

from __future__ import annotations

import gzip
import json
import random
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from trifold.data import (
    DataSettings,
    Documents,
    read_documents,
    read_splits,
)
from trifold.data.documents import iter_blocks
from trifold.data.lines import WHOLE_FILE
from trifold.data.parquet import iter_parquet
from trifold.errors import DataError, SettingsError

PLAIN = DataSettings()
BLANK = DataSettings(documents="blank")
FILE = DataSettings(documents="file")


def written(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return str(path)


# --- what a document is ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a", "a.unheard-of"])
def test_lines_are_documents(tmp_path: Path, name: str) -> None:
    documents = read_documents(written(tmp_path, name, "one\r\n\n two \n\nthree"), PLAIN)
    assert documents.texts == ["one", " two ", "three"]
    assert str(documents.report) == f"{name}: 5 documents, 2 blank (dropped); 3 used, 13 characters"


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ("a\nb\n\nc\n", ["a\nb", "c"]),
        ("\n\n\na\r\n\r\n \t\r\nb", ["a", "b"]),
        ("a\n\u3000\nb\n", ["a", "b"]),
        ("a\u2028\n\u0085\nb", ["a\u2028", "b"]),
        ("a", ["a"]),
        (" a\n  b \n", [" a\n  b "]),
    ],
)
def test_blank_lines_separate_documents(tmp_path: Path, content: str, texts: list[str]) -> None:
    assert read_documents(written(tmp_path, "a.txt", content), BLANK).texts == texts


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a\n\nb\n", "a\n\nb\n"),
        ("a\r\nb", "a\nb"),
        ("\ufeffa\n", "a\n"),
        ("a\rb\u2028\u0085\x0c", "a\rb\u2028\u0085\x0c"),
    ],
)
def test_files_are_documents(tmp_path: Path, content: str, text: str) -> None:
    assert read_documents(written(tmp_path, "a.txt", content), FILE).texts == [text]


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6)


@hypothesis_settings(max_examples=50)
@given(lines=st.lists(TEXT, max_size=8))
def test_only_blanks_are_lost(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    content = "\n".join(["x", *lines])
    file = written(tmp_path_factory.getbasetemp(), "any.txt", content)

    def visible(texts: list[str]) -> str:
        return "".join("".join(texts).split())

    expected = "".join(content.replace("\r\n", "\n").split())
    for settings in (PLAIN, BLANK, FILE, DataSettings(blank="keep")):
        found = read_documents(file, settings)
        assert visible(found.texts) == expected
        assert len(found) == found.report.kept == found.report.documents - found.report.dropped
        assert found.report.characters == sum(map(len, found.texts))


# --- errors and counts ---------------------------------------------------------------------------


def test_duplicates_are_counted_and_can_be_dropped(tmp_path: Path) -> None:
    file = written(tmp_path, "a.txt", "a\nb\na\na\n")
    kept, dropped = (
        read_documents(file, PLAIN),
        read_documents(file, DataSettings(duplicates="drop")),
    )
    assert (kept.texts, kept.report.duplicates) == (["a", "b", "a", "a"], 2)
    assert dropped.texts == ["a", "b"]
    assert "2 repeated (dropped); 2 used" in str(dropped.report)


def test_unusual_separators_are_kept_and_counted(tmp_path: Path) -> None:
    documents = read_documents(written(tmp_path, "a.txt", "a\u2028b\nc\x85\nd\re\n"), PLAIN)
    assert len(documents) == 3
    assert "3 with unusual line breaks inside (kept)" in str(documents.report)


def test_a_block_needs_little_memory_beside_its_lines() -> None:
    tracemalloc.start()
    assert [len(text) for _, text in iter_blocks(["x"] * 100_000)] == [199_999]
    assert tracemalloc.get_traced_memory()[1] < 4_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("settings", [PLAIN, BLANK, FILE], ids=["line", "blank", "file"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"good\nb\xe9d\n", r"a\.txt:2:2: byte 0xe9 is not valid UTF-8"),
        (b"good\r\ngood\r\n\xed\xa0\x80", r"a\.txt:3:1: byte 0xed is not valid UTF-8"),
        (b"good\nno\0good\n", r"a\.txt:2:3: a NUL byte"),
        ("x\n".encode("utf-16"), "this is UTF-16 text"),
    ],
)
def test_invalid_text_names_the_place(
    tmp_path: Path, settings: DataSettings, content: bytes, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_documents(written(tmp_path, "a.txt", content), settings)


@pytest.mark.parametrize("settings", [PLAIN, BLANK, FILE], ids=["line", "blank", "file"])
@pytest.mark.parametrize("content", ["", " \n\n\t", "\ufeff", "\u3000\u2028"])
def test_blank_sources_are_an_error(tmp_path: Path, settings: DataSettings, content: str) -> None:
    with pytest.raises(DataError, match=r"a\.txt: no document is left"):
        read_documents(written(tmp_path, "a.txt", content), settings)


def test_the_limit_of_a_line_does_not_apply_to_files(tmp_path: Path) -> None:
    file = written(tmp_path, "a.txt", "x" * 50)
    with pytest.raises(DataError, match=r"longer than 40 bytes; .*data\.max_line_bytes"):
        read_documents(file, DataSettings(max_line_bytes=40))
    assert read_documents(file, DataSettings(max_line_bytes=40, documents="file")).texts == [
        "x" * 50
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format": "jsonl", "documents": "blank"}, "each row of jsonl is a document"),
        ({"cache": "x", "duplicates": "drop"}, "keeps all text in memory"),
        ({"documents": "paragraph"}, "data.documents: .*'line', 'blank' or 'file'"),
        ({"cut": "middle"}, "data.cut: "),
        ({"holdout": 1.0}, "a share lies between 0 and 1"),
        ({"holdout": 2.5}, "a share lies between 0 and 1"),
        ({"feild": "x"}, "did you mean 'field'"),
    ],
)
def test_invalid_settings(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        DataSettings.parse(values, "data")


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "a.csv",
            {},
            r"a\.csv is not raw text according to its suffix; name it \.txt .*data\.format",
        ),
        ("a.json.gz", {}, "name it .* .jsonl if each"),
        ("a.txt", {"format": "tsv"}, "tsv holds rows"),
        (
            "a.jsonl",
            {"documents": "blank"},
            "blank applies to plain text, but in .*a.jsonl each row",
        ),
    ],
)
def test_invalid_sources(tmp_path: Path, name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read_documents(written(tmp_path, name, '{"text": "a"}\n'), DataSettings(**settings))


def test_a_missing_table_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.tsv: no such file"):
        read_documents(str(tmp_path / "a.tsv"), DataSettings())


# --- files ----------------------------------------------------------------------------------------


def test_a_folder_means_its_text_files(tmp_path: Path) -> None:
    names = [
        "b.txt",
        "a/z.txt.gz",
        "a/y.jsonl",
        "c.gz",
        "note.md",
        "a/picture.png",
        ".hidden.txt",
        ".git/x.txt",
    ]
    random.Random(0).shuffle(names)
    for name in names:
        written(tmp_path, name, f'{{"text": "{name}"}}' if name.endswith("jsonl") else name)
    documents = read_documents(str(tmp_path), PLAIN)
    assert documents.texts == ["a/y.jsonl", "a/z.txt.gz", "b.txt", "c.gz"]
    assert documents.report.files == 4
    assert "files of other kinds skipped: 1 .md, 1 .png" in str(documents.report)


def test_patterns_and_lists(tmp_path: Path) -> None:
    for name in ("a/2.py", "a/1.py", "3.py", "b[1].txt"):
        written(tmp_path, name, name)
    where = str(tmp_path)
    assert read_documents(f"{where}/**/*.py", PLAIN).texts == ["3.py", "a/1.py", "a/2.py"]
    assert read_documents([f"{where}/3.py", where], PLAIN).texts == ["3.py", "b[1].txt"]
    assert read_documents(f"{where}/a/2.py, {where}/*.py,{where}/a/*.py", PLAIN).texts == [
        "a/2.py",
        "3.py",
        "a/1.py",
    ]
    assert read_documents(f"{where}/b[1].txt", PLAIN).texts == [
        "b[1].txt"
    ]  # an existing file is not a pattern


def test_one_blank_file_of_several_is_allowed(tmp_path: Path) -> None:
    written(tmp_path, "a.txt", ""), written(tmp_path, "b.txt", "b")
    assert read_documents(str(tmp_path), PLAIN).texts == ["b"]
    assert read_documents(str(tmp_path), FILE).report.blank_dropped == 1


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("{}/none/*.txt", DataError, "matches no file"),
        ("{}/none.txt", DataError, "no such file"),
        ("{}/none.parquet", DataError, "no such file|pyarrow"),
        ("{}", DataError, r"no text file in this folder \(\.txt, .*each also \.gz or \.zst\)"),
        ("", SettingsError, "names no file"),
        ("a.txt,,b.txt", SettingsError, "names no file"),
    ],
)
def test_missing_files(tmp_path: Path, source: str, error: type[Exception], message: str) -> None:
    written(tmp_path, "x.md", "x")
    with pytest.raises(error, match=message):
        read_documents(source.format(tmp_path), PLAIN)


def test_circular_links_are_not_followed(tmp_path: Path) -> None:
    written(tmp_path, "a/a.txt", "a")
    (tmp_path / "a" / "b").symlink_to(tmp_path)
    assert read_documents(str(tmp_path), PLAIN).texts == ["a"]


# --- tables ---------------------------------------------------------------------------------------


def test_jsonl_field(tmp_path: Path) -> None:
    rows = [{"text": "a\nb", "meta": {"body": "x"}}, {"text": "c", "meta": {"body": "y\u2028"}}]
    file = written(tmp_path, "a.jsonl.gz", "\n".join(json.dumps(row) for row in rows) + "\n\n")
    assert read_documents(file, PLAIN).texts == ["a\nb", "c"]
    assert read_documents(file, DataSettings(field="meta.body")).texts == ["x", "y\u2028"]
    with pytest.raises(
        DataError, match=r"a\.jsonl\.gz:1: no value 'body'; found: text, meta; set data\.field"
    ):
        read_documents(file, DataSettings(field="body"))


def test_a_null_text_is_a_blank_document(tmp_path: Path) -> None:
    documents = read_documents(
        written(tmp_path, "a.jsonl", '{"text": "a"}\n{"text": null}\n{"text": "b"}\n'), PLAIN
    )
    assert documents.texts == ["a", "b"]
    assert documents.report.blank_dropped == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"text": 3}', "is a value of type int"),
        ('{"text": "\\ud800"}', "unpaired surrogate"),
        ('{"text": "\\u0000"}', "NUL"),
        ('["a"]', "a JSON list, expected an object"),
        ('{"text": "a"', r"a\.jsonl:2:13: not valid JSON"),
    ],
)
def test_jsonl_rows_without_text(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(DataError, match=rf"a\.jsonl:2.*{message}|{message}"):
        read_documents(written(tmp_path, "a.jsonl", f'{{"text": "a"}}\n{row}\n'), PLAIN)


def test_parquet_field(tmp_path: Path) -> None:
    why = "pyarrow is not installed: `make setup` installs it"
    arrow, parquet = (
        pytest.importorskip(name, reason=why) for name in ("pyarrow", "pyarrow.parquet")
    )
    rows = {"text": ["a\nb", "", "c"], "other": [1, 2, 3], "meta": [{"body": t} for t in "xyz"]}
    parquet.write_table(arrow.table(rows), tmp_path / "a.parquet", row_group_size=2)
    file = str(tmp_path / "a.parquet")
    documents = read_documents(file, PLAIN)
    assert documents.texts == ["a\nb", "c"]
    assert documents.report.blank_dropped == 1
    assert read_documents(file, DataSettings(field="meta.body")).texts == ["x", "y", "z"]
    with pytest.raises(
        DataError, match=r"a\.parquet, row 1: no value 'body'; found: text, other, meta"
    ):
        read_documents(file, DataSettings(field="body"))
    with pytest.raises(DataError, match="not a readable Parquet file"):
        read_documents(written(tmp_path, "b.parquet", "no"), PLAIN)


def test_two_parquet_columns_of_one_name_are_an_error(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    columns = [arrow.array(["a"]), arrow.array(["b"])]
    table = arrow.Table.from_arrays(columns, names=["text", "text"])
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: two columns are named 'text'; rename one"):
        [*iter_parquet(str(tmp_path / "a.parquet"), "", WHOLE_FILE)]


def test_parquet_needs_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match=r'need the `pyarrow` library; .*"datasets>='):
        read_documents(written(tmp_path, "a.parquet", "x"), PLAIN)


def test_hub_and_embedded_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(name: str, config: str | None, split: str) -> list[dict[str, str]]:
        return [{"text": f"{name} {config} {split}"}, {"text": " "}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    documents = read_documents("hub:owner/books@en:train[:1%]", PLAIN)
    assert documents.texts == ["owner/books en train[:1%]"]
    assert documents.report.blank_dropped == 1
    numbers = read_documents("embedded:smoke", DataSettings(field="source"), split="valid")
    assert numbers.texts[0] == "twenty three"
    with pytest.raises(SettingsError, match="not of the form hub:NAME:SPLIT"):
        read_documents("hub:books", PLAIN)


# --- held-out text --------------------------------------------------------------------------------


@given(
    texts=st.lists(TEXT, min_size=2, max_size=12),
    count=st.one_of(st.integers(1, 12), st.floats(0.01, 0.99)),
    seed=st.integers(0, 9),
)
def test_holding_out_keeps_every_document_once(
    texts: list[str], count: int | float, seed: int
) -> None:
    numbered = Documents.of([f"{number} {text}" for number, text in enumerate(texts)], "corpus")
    expected = count if isinstance(count, int) else max(1, round(count * len(texts)))
    if expected >= len(texts):
        with pytest.raises(DataError, match="leave nothing to train on"):
            numbered.hold_out(count, seed)
        return
    train, held = numbered.hold_out(count, seed)
    assert len(held) == expected
    assert sorted(train.texts + held.texts) == sorted(numbered.texts)
    for part in (train, held):
        numbers = [int(text.split(maxsplit=1)[0]) for text in part.texts]
        assert numbers == sorted(numbers)


@given(text=st.text("ab \n", min_size=1, max_size=60), share=st.floats(0.01, 0.99))
def test_the_end_of_a_single_document_is_held_out(text: str, share: float) -> None:
    cut = int(len(text) * (1 - share))
    if not text[:cut].strip() or not text[cut:].strip():
        with pytest.raises(DataError, match="leaves a part blank"):
            Documents.of([text], "one").hold_out(share, 1)
        return
    train, held = Documents.of([text], "one").hold_out(share, 1)
    assert (train.texts, held.texts) == ([text[:cut]], [text[cut:]])


def test_a_single_document_needs_a_share(tmp_path: Path) -> None:
    file = written(tmp_path, "a.txt", "to be or not to be")
    with pytest.raises(
        DataError, match=r"a single document; hold out a share of it \(data\.holdout=0\.1\)"
    ):
        read_documents(file, PLAIN).hold_out(5, seed=0)
    train, valid, _ = read_splits(DataSettings(train=file, holdout=0.5), read=read_documents)
    assert (train.texts, valid.texts) == (["to be or "], ["not to be"])


def test_tinyshakespeare_has_the_usual_split(data_folder: Path) -> None:
    """nanoGPT trains on the first nine tenths, 1,003,854 characters, and validates on 111,540."""
    file = data_folder / "tinyshakespeare" / "input.txt.gz"
    splits = read_splits(
        DataSettings(train=str(file), documents="file", holdout=0.1), read=read_documents
    )
    assert [len(part.texts[0]) for part in splits[:2]] == [1_003_854, 111_540]
    speeches = read_documents(str(file), BLANK)
    assert len(speeches) == 7222
