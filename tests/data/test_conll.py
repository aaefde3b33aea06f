"""Sentences in columns: their words and tags, and errors with their lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trifold.data import DataSettings, Role, Rows, read_records
from trifold.errors import DataError

ROLES = {name: Role((name,), lambda value, place: value) for name in ("words", "tags")}


def read(folder: Path, content: str, **settings: Any) -> Rows:
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


@pytest.mark.parametrize("sign", [" ", "\t"])
@pytest.mark.parametrize("word", ["#id", "#newdoc", "#newpar", "#id-card", "#NLProc", "#"])
@pytest.mark.parametrize("place", [0, 1])
def test_a_word_with_a_tag_is_no_comment(tmp_path: Path, sign: str, word: str, place: int) -> None:
    lines = [f"a{sign}O", f"b{sign}O"]
    lines.insert(place, f"{word}{sign}B-X")
    records = read(tmp_path, "\n".join(lines) + "\n")
    words = ["a", "b"]
    words.insert(place, word)
    assert records.columns["words"] == [words]
    assert records.columns["tags"][0][place] == "B-X"


@pytest.mark.parametrize(
    "comment",
    "#newdoc|#newdoc id = n1|# newpar id = p|# id 7f-1 domain=en|# id 7\tdomain=en|#id 7|#text = a b|"
    "# text_en = a b|# This file is free.|# About news:|###MEDLINE:95369245|#\thttp://x.org [2009]".split(
        "|"
    ),
)
@pytest.mark.parametrize("sign", [" ", "\t"])
@pytest.mark.parametrize("width", [2, 4])
def test_a_comment_has_no_column_of_tags(
    tmp_path: Path, comment: str, sign: str, width: int
) -> None:
    words = [sign.join([word, *["X"] * (width - 2), "O"]) for word in "ab"]
    content = "\n".join([comment, *words, "", comment, *words]) + "\n"
    if (comment, width, sign) == ("# id 7f-1 domain=en", 4, " "):
        content = content.replace(comment, f"{comment} x")
    assert read(tmp_path, content).columns["words"] == [["a", "b"]] * 2


def test_every_line_with_a_sign_is_a_comment_of_universal_dependencies(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    path.write_text("# sent_id=5\n#a b\n# a b c d\n1\ta\t_\tX\n", "utf-8")
    assert read_records(str(path), DataSettings(), ROLES).columns["words"] == [["a"]]


def test_universal_dependencies_give_words_and_parts_of_speech(tmp_path: Path) -> None:
    rows = ["1-2\tvámonos\t_\t_", "1\tvamos\tir\tVERB", "2\tnos\tnosotros\tPRON", "2.1\tx\tx\tX"]
    path = tmp_path / "es.conllu"
    path.write_text("# sent_id = 1\n" + "".join(row + "\t_" * 6 + "\n" for row in rows), "utf-8")
    found = read_records(str(path), DataSettings(), ROLES)
    assert found.columns == {"words": [["vamos", "nos"]], "tags": [["VERB", "PRON"]]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a O\nb\n", r"a\.conll:2: 1 column, but the first line has 2"),
        ("a O\n\nb O O\n", r"a\.conll:3: 3 columns, but the first line has 2"),
        ("word\n", r"a\.conll:1: 1 column, but a word and its tag are required"),
        ("a\tO\nb\t\n", r"a\.conll:2: an empty column"),
        ("\n\n", r"no row is left"),
        ("-DOCSTART- O\n", r"no row is left"),
    ],
)
def test_invalid_lines_name_the_place(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path, content)


# --- tables with one word per row -----------------------------------------------------------------

TABLE_ROLES = {
    "words": Role(("words", "tokens", "word", "token"), lambda value, place: value),
    "tags": Role(("tags", "labels", "tag", "label"), lambda value, place: value, identifies=False),
}
KAGGLE = (
    "Sentence #,Word,POS,Tag\nSentence: 1,Thousands,NNS,O\n,of,IN,O\n,London,NNP,B-geo\n"
    'Sentence: 2,Iran,NNP,B-gpe\n,"""",``,O\n,",",",",O\n'
)
EXPECTED = [["Thousands", "of", "London"], ["Iran", '"', ","]]
WORD_TABLES = {
    "ner.csv": KAGGLE,
    "index.csv": "".join(
        f"{number or ''},{line}\n" for number, line in enumerate(KAGGLE.splitlines())
    ),
    "dense.csv": "sentence_id,words,labels\n0,Thousands,O\n0,of,O\n0,London,B-geo\n"
    '1,Iran,B-gpe\n1,"""",O\n1,",",O\n',
    "semicolons.csv": "Sentence #;Word;Tag\n1;Thousands;O\n1;of;O\n1;London;B-geo\n"
    '2;Iran;B-gpe\n2;"""";O\n2;,;O\n',
    "raw.tsv": "Sentence #\tWord\tTag\n1\tThousands\tO\n1\tof\tO\n1\tLondon\tB-geo\n"
    '2\tIran\tB-gpe\n2\t"\tO\n2\t,\tO\n',
    "blank.csv": 'word,tag\nThousands,O\nof,O\nLondon,B-geo\n\nIran,B-gpe\n"""",O\n",",O\n,\n',
}


def read_table(folder: Path, name: str, content: str, **settings: Any) -> Rows:
    (folder / name).write_bytes(content.encode())
    return read_records(str(folder / name), DataSettings(**settings), TABLE_ROLES)


@pytest.mark.parametrize("name", WORD_TABLES)
def test_a_table_with_a_word_in_each_row_has_sentences(tmp_path: Path, name: str) -> None:
    records = read_table(tmp_path, name, WORD_TABLES[name])
    assert records.columns["words"] == EXPECTED
    assert records.columns["tags"] == [["O", "O", "B-geo"], ["B-gpe", "O", "O"]]
    assert records.lines == [2, 6 if name == "blank.csv" else 5]


def test_the_column_of_tags_of_a_table_of_words_can_be_chosen(tmp_path: Path) -> None:
    records = read_table(tmp_path, "a.csv", KAGGLE, columns={"tags": "POS"})
    assert records.columns["tags"] == [["NNS", "IN", "NNP"], ["NNP", "``", ","]]
    assert str(records.report) == (
        "a.csv: 2 rows, header: words 'Word', tags 'POS'; not used: Tag; sentences by 'Sentence #'"
    )


@pytest.mark.parametrize("cell", ["\"['a', 'b']\"", "a b"])
def test_a_table_with_a_sentence_in_each_row_is_not_joined(tmp_path: Path, cell: str) -> None:
    records = read_table(tmp_path, "a.csv", f"sentence,words,tags\n1,{cell},O\n2,{cell},O\n")
    assert records.columns["words"] == [cell.strip('"')] * 2


def test_a_table_of_words_without_sentences_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"a\.csv:2: 1,000 words without the end of a sentence; num"
    ):
        read_table(tmp_path, "a.csv", "word,tag\n" + "a,O\n" * 1001)


@pytest.mark.parametrize(
    ("split", "count", "tokens"), [("dev", 3250, 51362), ("test", 3453, 46435)]
)
def test_conll_2003_has_its_published_size(
    data_folder: Path, split: str, count: int, tokens: int
) -> None:
    settings = DataSettings(format="conll")
    records = read_records(str(data_folder / "conll2003" / f"{split}.txt"), settings, ROLES)
    assert (len(records), sum(map(len, records.columns["words"]))) == (count, tokens)
