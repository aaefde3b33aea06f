"""Sentences in columns: their words and tags, and errors with their lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trifold.data import DataSettings, Records, Role, read_records
from trifold.errors import DataError

ROLES = {name: Role((name,), lambda value, place: value) for name in ("words", "tags")}


def read(folder: Path, content: str, **settings: Any) -> Records:
    path = folder / "a.conll"
    path.write_bytes(content.encode())
    return read_records(str(path), DataSettings(**settings), ROLES)


@pytest.mark.parametrize("sign", [" ", "\t", "  ", " \t "])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_sentences_of_words_and_tags(tmp_path: Path, sign: str, end: str) -> None:
    lines = [
        "-DOCSTART- -X- O",
        "",
        "",
        "EU|NNP|B-ORG",
        "rejects|VBZ|O",
        "",
        " ",
        "# id 7",
        "# text = x",
        "a\xa0b|NN|O",
    ]
    records = read(tmp_path, end.join(lines).replace("|", sign))
    assert records.columns == {
        "words": [["EU", "rejects"], ["a\xa0b"]],
        "tags": [["B-ORG", "O"], ["O"]],
    }
    assert records.lines == [4, 10]
    chosen = read(tmp_path, end.join(lines).replace("|", sign), columns={"tags": 1})
    assert chosen.columns["tags"] == [["NNP", "VBZ"], ["NN"]]


def test_words_may_contain_spaces_if_tabs_separate_columns(tmp_path: Path) -> None:
    records = read(tmp_path, "New York\tB-LOC\n#\tO\n")
    assert records.columns == {"words": [["New York", "#"]], "tags": [["B-LOC", "O"]]}


def test_comments_of_published_files_are_skipped(tmp_path: Path) -> None:
    germeval = "#\thttp://de.example.org [2009-10-17]\n1\tBonn\tB-LOC\tO\n2\t#\tO\tO\n"
    assert read(tmp_path, germeval, columns={"words": 1, "tags": 2}).columns == {
        "words": [["Bonn", "#"]],
        "tags": [["B-LOC", "O"]],
    }
    assert read(tmp_path, "###MEDLINE:95369245\n\nIL-2\tB-DNA\n").columns["words"] == [["IL-2"]]


def test_universal_dependencies_give_words_and_parts_of_speech(tmp_path: Path) -> None:
    rows = ["1-2\tvámonos\t_\t_", "1\tvamos\tir\tVERB", "2\tnos\tnosotros\tPRON", "2.1\tx\tx\tX"]
    path = tmp_path / "es.conllu"
    path.write_text("# sent_id = 1\n" + "".join(row + "\t_" * 6 + "\n" for row in rows), "utf-8")
    found = read_records(str(path), DataSettings(), ROLES)
    assert found.columns == {"words": [["vamos", "nos"]], "tags": [["VERB", "PRON"]]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a O\nb\n", r"a\.conll:2: 1 columns, but the first line has 2"),
        ("a O\n\nb O O\n", r"a\.conll:3: 3 columns, but the first line has 2"),
        ("word\n", r"a\.conll:1: 1 columns, but a word and its tag are required"),
        ("a\tO\nb\t\n", r"a\.conll:2: an empty column"),
        ("\n\n", r"no row is left"),
        ("-DOCSTART- O\n", r"no row is left"),
    ],
)
def test_invalid_lines_name_the_place(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path, content)


@pytest.mark.parametrize(
    ("split", "count", "tokens"), [("dev", 3250, 51362), ("test", 3453, 46435)]
)
def test_conll_2003_has_its_published_size(
    data_folder: Path, split: str, count: int, tokens: int
) -> None:
    settings = DataSettings(format="conll")
    records = read_records(str(data_folder / "conll2003" / f"{split}.txt"), settings, ROLES)
    assert (len(records), sum(map(len, records.columns["words"]))) == (count, tokens)
