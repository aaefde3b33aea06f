"""Invalid labelled data: training ends with one error that names place and remedy, before anything
is written.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from tests.command_line import check, run_command, write_files

pytestmark = pytest.mark.slow

TINY = (
    "model.d_model=16 model.n_heads=2 model.n_layers=1 model.d_ff=32 tokenizer.vocab_size=80 tokenizer.min_frequency=1 "
    "train.device=cpu train.precision=float32 train.steps=2 train.warmup=1 train.validate_every=2 train.save_every=2"
)


class Case(NamedTuple):
    """A task, the name and content of its training data, words of the message, more settings, and
    the exit code.
    """

    task: str
    name: str
    content: str | bytes
    words: tuple[str, ...]
    settings: str = ""
    code: int = 1
    valid: str | bytes | None = None


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def question(text: Any = "Rome", start: Any = 0, **more: Any) -> dict[str, Any]:
    answer = {"text": text, "answer_start": start}
    return {"id": "q1", "question": "Where?", "context": "Rome is old.", "answers": [answer]} | more


def squad(*entries: dict[str, Any]) -> str:
    paragraphs = [{"context": entry.pop("context"), "qas": [entry]} for entry in entries]
    return json.dumps({"data": [{"paragraphs": paragraphs}]})


GOOD = "text,label\na fine film,good\na dull film,bad\n"
BIO = "Ada B-PER\nruns O\n\nBen B-PER\nsleeps O\n"

TABLES = {
    "an empty file": Case("classify", "a.csv", "", ("a.csv: the file is empty",)),
    "a header only": Case("classify", "a.csv", "text,label\n", ("a.csv: no row is left (0 read",)),
    "another delimiter": Case(
        "classify",
        "a.csv",
        "text;label\na;good\nb;bad\n",
        ("a.csv:1: no column", "';' does not separate", "set data.delimiter"),
        "data.delimiter=comma",
    ),
    "a second header with other names": Case(
        "classify",
        "a.csv",
        GOOD + "sentence,class\nso so,bad\n",
        ("a.csv:4: 'sentence, class' looks like a header", "name joined files in a list"),
    ),
    "an unclosed quote": Case(
        "classify",
        "a.csv",
        'text,label\n"a,good\nb,bad\n',
        ("a.csv:2: a quote is opened and not closed", "close it"),
    ),
    "a quote inside a field": Case(
        "classify",
        "a.csv",
        'text,label\na "b" c,good\n',
        ("a.csv:2: a quote in the wrong place", "whole field in quotes"),
    ),
    "a comma without quotes": Case(
        "classify",
        "a.csv",
        "text,label\na, b,good\n",
        ("a.csv:2: 3 columns where the first row has 2", "a stray tab"),
    ),
    "a row with a missing column": Case(
        "classify", "a.tsv", "text\tlabel\na\n", ("a.tsv:2: 1 column where the first",)
    ),
    "UTF-16": Case(
        "classify", "a.csv", GOOD.encode("utf-16"), ("a.csv:1:1: this is UTF-16", "iconv -f UTF-16")
    ),
    "Latin-1": Case(
        "classify",
        "a.csv",
        GOOD.replace("fine", "schön").encode("latin-1"),
        ("a.csv:2:6: byte 0xf6", "iconv -f CP1252"),
    ),
    "a NUL byte": Case(
        "classify", "a.csv", GOOD.replace("fine", "\0"), ("a.csv:2:3: a NUL byte", "tr -d")
    ),
    "a huge field": Case(
        "classify",
        "a.csv",
        GOOD + "x" * 1_000_001 + ",good\n",
        ("a.csv:4: the line is longer than", "data.max_line_bytes"),
    ),
    "no column of labels": Case(
        "classify",
        "a.csv",
        "id,text,date,note\n1,a,b,c\n",
        ("a.csv:1: no column 'label'", "set data.columns.label"),
    ),
    "a header that names a column twice": Case(
        "classify",
        "a.csv",
        "text,label,label\na,x,y\nb,y,x\n",
        (
            "a.csv:1: columns 1 and 2 (from 0) are both named 'label'",
            "set data.header=true and data.columns",
        ),
    ),
    "a column that is missing": Case(
        "classify",
        "a.csv",
        GOOD,
        ("a.csv:1: no column 'stars'", "set data.columns.label"),
        "data.columns.label=stars",
    ),
    "an unknown part of a row": Case(
        "classify",
        "a.csv",
        GOOD,
        ("data.columns.lable", "it reads text, pair, label"),
        "data.columns.lable=x",
        2,
    ),
    "one label": Case(
        "classify",
        "a.csv",
        "text,label\na,x\nb,x\n",
        ("the only label is 'x'", "data.columns.label"),
    ),
    "swapped columns": Case(
        "classify",
        "a.csv",
        "text,label\nx,one fine day\nx,two\ny,three\n",
        ("columns are likely swapped", "data.columns.text"),
    ),
    "only blank texts": Case(
        "classify", "a.csv", "text,label\n ,good\n ,bad\n", ("no row is left (2 read, 2 blank)",)
    ),
    "a list of labels for one label": Case(
        "classify",
        "a.jsonl",
        lines({"text": "a", "label": ["x"]}, {"text": "b", "label": "y"}),
        ("a.jsonl:1: a list of labels", "model.problem_type=multi_label"),
        "model.problem_type=single_label_classification",
    ),
    "NaN as all scores but one": Case(
        "classify",
        "a.csv",
        "sentence1,sentence2,score\na,b,0.5\nc,d,nan\n",
        ("1 without a label (left out)", "a.csv: every number in 'score' is 0.5"),
        "model.problem_type=regression",
    ),
    "an infinite score": Case(
        "classify",
        "a.csv",
        "sentence1,sentence2,score\na,b,0.5\nc,d,1e999\n",
        ("a.csv:3: the label '1e999' is not",),
        "model.problem_type=regression",
    ),
    "a word as a score": Case(
        "classify",
        "a.csv",
        "text,score\na,0.5\nb,high\n",
        ("a.csv:3: the label 'high' is not a number", "data.columns"),
        "model.problem_type=regression",
    ),
    "pairs in one split only": Case(
        "classify",
        "a.csv",
        GOOD,
        ("valid.csv:2: a second text, unlike the training data", "data.columns.pair"),
        valid="sentence1,sentence2,label\na,b,good\nc,d,bad\n",
    ),
    "JSON that is no object": Case(
        "classify", "a.jsonl", '["a", "b"]\n', ("a.jsonl:1: a JSON list, expected an object",)
    ),
    "JSON cut off": Case(
        "classify",
        "a.jsonl",
        '{"text": "a",\n',
        ("a.jsonl:1:", "not valid JSON", "one object per line"),
    ),
    "JSON without the label": Case(
        "classify",
        "a.jsonl",
        lines({"text": "a", "label": "x"}, {"text": "b"}),
        ("a.jsonl:2: no value 'label'", "set data.c"),
    ),
    "a number as a text": Case(
        "classify",
        "a.jsonl",
        lines({"text": 5, "label": "x"}),
        ("a.jsonl:1: 'text' is a value of type int, expected text",),
    ),
    "null as a text": Case(
        "classify",
        "a.jsonl",
        lines({"text": None, "label": "x"}),
        ("a.jsonl: no row is left (1 read, 1 blank)",),
    ),
    "columns whose names differ by case": Case(
        "classify",
        "a.csv",
        "text,label,Label\na,x,y\nb,y,x\n",
        ("a.csv:1: columns 1 and 2 (from 0) are both named 'Label', without regard to case",),
    ),
    "two columns of scores": Case(
        "similarity",
        "a.csv",
        "sentence1,sentence2,score,score\na,b,0.5,0.1\nc,d,0.1,0.2\n",
        ("a.csv:1: columns 2 and 3 (from 0) are both named 'score'",),
    ),
    "JSON lines that end in carriage returns": Case(
        "classify",
        "a.jsonl",
        lines({"text": "a", "label": "x"}, {"text": "b", "label": "y"}).replace("\n", "\r"),
        ("a.jsonl:1: the lines end in carriage returns, as of old Macs; convert it with `tr",),
    ),
    "one validation sentence without blank lines": Case(
        "tag",
        "a.conll",
        BIO,
        ("valid.conll: one sentence of 120 words; put a blank line after each sentence",),
        valid="Ada B-PER\nruns O\n" * 60,
    ),
    "one tag for two words": Case(
        "tag",
        "a.jsonl",
        lines({"words": ["Ada", "runs"], "tags": ["O"]}),
        ("a.jsonl:1: 2 words and 1 tag; give each word one tag",),
    ),
    "references that are all empty": Case(
        "summarize",
        "a.jsonl",
        lines({"source": "a", "target": ["b"]}, {"source": "c", "target": ["", " "]}),
        ("a.jsonl:2: all 2 references are empty; write one, or remove the row",),
    ),
    "an object as a label": Case(
        "classify",
        "a.jsonl",
        lines({"text": "a", "label": {"name": "x", "id": 1}}),
        ("a.jsonl:1: 'label' is an object", "in data.columns: 'label.name', 'label.id'"),
    ),
    "a table of images": Case(
        "images",
        "a.csv",
        GOOD,
        ("a.csv: neither a folder nor an archive of images; name a folder",),
    ),
    "sentences without blank lines": Case(
        "tag",
        "a.conll",
        "Ada B-PER\nruns O\n" * 60,
        ("a.conll: one sentence of 120 words; put a blank line after each sentence",),
    ),
    "numbers as tags": Case(
        "tag",
        "a.jsonl",
        lines({"words": ["Ada", "runs"], "tags": [1, 0]}),
        ("a.jsonl:1: the tags are numbers without names; write names such as B-PER",),
    ),
    "an unpaired surrogate": Case(
        "classify",
        "a.jsonl",
        '{"text": "\\ud800", "label": "x"}\n',
        ("a.jsonl:1: 'text' contains an unpaired surrogate",),
    ),
    "plain text": Case(
        "classify", "a.txt", "a fine film\n", ("a.txt holds plain lines", "set data.format"), code=2
    ),
}

SPANS = {
    "an answer that is elsewhere": Case(
        "answer",
        "a.json",
        squad(question(start=3)),
        ("a.json, question 'q1'", "'Rome' is not at character 3", "correct answ"),
    ),
    "an answer that is not in the context": Case(
        "answer",
        "a.json",
        squad(question("Oslo")),
        ("question 'q1': the answer 'Oslo' is not at", "where 'Rome' stands"),
    ),
    "a start beyond the end": Case(
        "answer", "a.json", squad(question(start=99)), ("not at character 99",)
    ),
    "a negative start": Case(
        "answer", "a.json", squad(question(start=-1)), ("not at character -1",)
    ),
    "a start that is text": Case(
        "answer", "a.json", squad(question(start="0")), ("is '0', expected an integer",)
    ),
    "an id that occurs twice": Case(
        "answer", "a.json", squad(question(), question()), ("the id occurs twice",)
    ),
    "an answer to an impossible question": Case(
        "answer",
        "a.json",
        squad(question(is_impossible=True)),
        ("is_impossible is true, but it has 1 answers", "correct"),
    ),
    "an answer that is text": Case(
        "answer",
        "a.jsonl",
        lines(question(answers="Rome")),
        ("a.jsonl:1: 'answers' is 'Rome', expected a list of answers",),
    ),
    "starts of another number than texts": Case(
        "answer",
        "a.jsonl",
        lines(question(answers={"text": ["Rome"], "answer_start": []})),
        ("q1", "differ in length"),
    ),
    "another JSON form": Case(
        "answer", "a.json", '{"rows": []}', ("a.json: 'data' is not a list", "SQuAD files are")
    ),
    "tags of another number than words": Case(
        "tag",
        "a.jsonl",
        lines({"tokens": ["a", "b"], "tags": ["O"]}),
        ("a.jsonl:1: 2 words and 1 tag", "each word one tag"),
    ),
    "tags without a scheme": Case(
        "tag",
        "a.txt",
        "Ada PER\nruns O\n",
        ("a.txt:1: 'PER' is not a tag", "data.columns.tags, or task.best_by=accuracy"),
    ),
    "a missing column of tags": Case(
        "tag",
        "a.txt",
        "Ada B-PER\nruns\n",
        ("a.txt:2: 1 column, but the first line has 2", "separate columns by tabs"),
    ),
    "words without tags": Case(
        "tag", "a.txt", "Ada\nruns\n", ("a.txt:1: 1 column, but a word and its tag are required",)
    ),
    "one tag": Case(
        "tag", "a.txt", "Ada O\nruns O\n", ("a.txt: the only tag is 'O'", "data.columns.tags")
    ),
    "a blank word": Case(
        "tag",
        "a.jsonl",
        lines({"tokens": ["a", " "], "tags": ["O", "B-X"]}),
        ("'tokens'[1] is blank", "remove this word"),
    ),
    "a source in a table of words": Case(
        "tag",
        "a.txt",
        BIO,
        ("data.source: this task reads no 'source'; set data.columns.words",),
        "data.source=3",
        2,
    ),
}


@pytest.mark.parametrize("name", TABLES | SPANS)
def test_the_error_names_place_and_remedy_and_nothing_is_written(tmp_path, name):
    case = (TABLES | SPANS)[name]
    valid = f"valid.{case.name.rpartition('.')[2]}"
    contents = {case.name: case.content, valid: case.content if case.valid is None else case.valid}
    files = {
        name: raw if isinstance(raw, bytes) else raw.encode() for name, raw in contents.items()
    }
    write_files(tmp_path, files)
    data = [f"data.train={tmp_path / case.name}", f"data.valid={tmp_path / valid}"]
    run = tmp_path / "run"
    settings = [*TINY.split(), *case.settings.split()]
    done = run_command("train", case.task, *data, *settings, "--out", str(run))
    check(done._replace(err=done.err.replace("\n    ", " ")), case.code, case.words)
    assert len([line for line in done.err.splitlines() if line.startswith("error: ")]) == 1
    assert not run.exists()


# content of the training data -> a line of the report
REPORTED = {
    "semicolons": ("classify", "a.csv", GOOD.replace(",", ";"), "label 'label'; separated by ';'"),
    "quotes and line ends in fields": (
        "classify",
        "a.csv",
        'text,label\n"a ""fine""\nfilm",good\ndull,bad\n',
        "2 rows",
    ),
    "a byte order mark": (
        "classify",
        "a.csv",
        "\ufeff" + GOOD,
        "header: text 'text', label 'label'",
    ),
    "a text with two labels": (
        "classify",
        "a.csv",
        GOOD + "A  fine film,bad\n",
        "a.csv: 1 text with different labels (lines 2 and 4)",
    ),
    "a name that two columns have": (
        "translate",
        "a.csv",
        "source,target,source\na,b,c\nd,e,f\n",
        "columns 0 and 2 (from 0) are both named 'source'",
    ),
    "one sentence": (
        "tag",
        "a.txt",
        BIO.partition("\n\n")[0],
        "an epoch: 1 sentence, 4 tokens, 1 batch",
    ),
    "labels that training lacks": (
        "classify",
        "a.csv",
        GOOD,
        "valid.csv: 1 row with labels not seen in training, counted as wrong: odd",
    ),
    "invalid tags": (
        "tag",
        "a.txt",
        "Ada I-PER\nruns B-LOC\nto I-PER\n\nBen B-PER\nis I-PER\n",
        "2 I- or E- tags",
    ),
    "a tag that training lacks": (
        "tag",
        "a.txt",
        BIO,
        "valid.txt: 1 tag not seen in training, counted as wrong: B-GOD",
    ),
}


@pytest.mark.parametrize("name", REPORTED)
def test_unusual_but_valid_data_is_trained_on_and_reported(tmp_path, name):
    task, file, content, words = REPORTED[name]
    valid = f"valid.{file.rpartition('.')[2]}"
    more = ""
    if "lacks" in name:
        more = {"classify": "so so,odd\n", "tag": "\nThor B-GOD\n"}[task]
    write_files(tmp_path, {file: content.encode(), valid: (content + more).encode()})
    data = [f"data.train={tmp_path / file}", f"data.valid={tmp_path / valid}"]
    done = run_command("train", task, *data, *TINY.split(), "--out", str(tmp_path / "run"))
    assert done.code == 0, done.err
    assert words in done.err.replace("\n    ", " ")


def test_the_command_that_uses_a_model_of_pairs_has_a_second_text(tmp_path):
    pairs = "sentence1,sentence2,label\na dog,a cat,no\na dog,the dog,yes\n"
    for name, content, has_pair in (("pairs.csv", pairs, True), ("texts.csv", GOOD, False)):
        write_files(tmp_path, {name: content.encode()})
        data = [f"data.train={tmp_path / name}", f"data.valid={tmp_path / name}"]
        done = run_command(
            "train",
            "classify",
            *data,
            *TINY.split(),
            "--out",
            str(tmp_path / name.partition(".")[0]),
        )
        assert done.code == 0, done.err
        assert ("use it:" in done.out, '--pair "another text"' in done.out) == (True, has_pair)
