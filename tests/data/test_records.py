"""Labelled rows: every format gives the same rows, and the columns of the roles are found by their
names.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from trifold.data import DataSettings, Role, Rows, parquet, read_records, read_splits
from trifold.data.frames import Frame
from trifold.data.roles import check_text
from trifold.errors import DataError, SettingsError

PLAIN = DataSettings()
ROLES = {
    "text": Role(("sentence1", "#1 string", "question", "text", "sentence", "review"), check_text),
    "pair": Role(("sentence2", "#2 string", "sentence"), check_text, required=False),
    "label": Role(("label", "quality", "score"), lambda value, place: value),
}
SIDES = {"text": Role(("source",), check_text), "label": Role(("target",), check_text)}
ROWS = [("so good, so\nfine", "5"), ('the "worst"', "1"), ("Grüße 😀", "3")]


def write(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    raw = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return str(path)


def read(path: Any, roles: Any = ROLES, **values: Any) -> Rows:
    return read_records(path, DataSettings(**values), roles)


def as_csv(header: list[str], rows: list[tuple[str, ...]]) -> str:
    csv.writer(out := io.StringIO(), lineterminator="\n").writerows([header, *rows])
    return out.getvalue()


# --- formats --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet", "bom.csv", "a.csv.gz"])
def test_every_format_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    objects = [{"id": n, "text": text, "label": label} for n, (text, label) in enumerate(ROWS)]
    path = tmp_path / name
    if name == "a.parquet":
        arrow, parquet = (pytest.importorskip(each) for each in ("pyarrow", "pyarrow.parquet"))
        parquet.write_table(arrow.Table.from_pylist(objects), path)
    elif name == "a.jsonl":
        write(tmp_path, name, "".join(json.dumps(row) + "\n" for row in objects))
    else:
        table = as_csv(["id", "text", "label"], [(str(n), *row) for n, row in enumerate(ROWS)])
        write(tmp_path, name, "\ufeff" * (name == "bom.csv") + table)
    records = read(str(path))
    assert [*zip(records.columns["text"], records.columns["label"], strict=True)] == ROWS
    assert records.columns["pair"] == [None] * 3
    assert str(records.report).endswith("text 'text', label 'label'; not used: id")


@given(
    st.lists(
        st.tuples(*[st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1)] * 2),
        min_size=1,
    )
)
def test_a_table_is_read_back_with_its_duplicates_and_blanks(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    path = write(tmp_path_factory.getbasetemp(), "any.csv", as_csv(["text", "label"], rows))
    records = read(path, header=True, blank="keep")
    assert [*zip(records.columns["text"], records.columns["label"], strict=True)] == rows
    assert records.report.duplicates == len(rows) - len(set(rows))


def test_several_files_are_read_in_order(tmp_path: Path) -> None:
    files = [write(tmp_path, f"{n}.tsv", f"text\tlabel\nsome {n}\tx\n") for n in range(3)]
    records = read(files)
    assert records.columns["text"] == ["some 0", "some 1", "some 2"]
    assert records.lines == [2, 2, 2]
    assert (
        str(records.report) == "0.tsv and 2 more files: 3 rows, header: text 'text', label 'label'"
    )
    assert read(str(tmp_path / "*.tsv")).columns == records.columns


def test_an_embedded_source_has_splits() -> None:
    valid = read_records("embedded:smoke", PLAIN, SIDES, "valid")
    assert len(valid) == 28
    assert valid.columns["label"][0] == "2 3"


# --- columns --------------------------------------------------------------------------------------

CHOICES: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "names": ("id,sentence1,sentence2,label", {}, {"text": 1, "pair": 2, "label": 3}),
    "case and signs": (
        "Quality,#1 ID,#2 ID,#1 String,#2 String",
        {},
        {"text": 3, "pair": 4, "label": 0},
    ),
    "a name of two roles": ("question,sentence,label", {}, {"text": 0, "pair": 1, "label": 2}),
    "the same name alone": ("sentence,label", {}, {"text": 0, "label": 1}),
    "the only other column": ("review,topic", {}, {"text": 0, "label": 1}),
    "label and text": ("label,question", {}, {"text": 1, "label": 0}),
    "settings": ("a,b,c", {"columns": {"text": "b", "label": 2}}, {"text": 1, "label": 2}),
    "one setting": ("text,other,label", {"columns": {"label": "other"}}, {"text": 0, "label": 1}),
    "no pair": ("sentence1,sentence2,label", {"columns": {"pair": None}}, {"text": 0, "label": 2}),
    "source and target": ("a,b,c", {"source": "c", "target": 0}, {"text": 2, "label": 0}),
    "twice": ("text,text,label", {"header": True}, {"text": 0, "label": 2}),
}


@pytest.mark.parametrize("case", CHOICES)
@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_the_columns_of_roles_are_found(tmp_path: Path, case: str, kind: str) -> None:
    header, settings, expected = CHOICES[case]
    sign = "," if kind == "csv" else "\t"
    rows = [
        [f"value {row} {column}" for column in range(header.count(",") + 1)] for row in range(2)
    ]
    content = "\n".join([header.replace(",", sign), *map(sign.join, rows)]) + "\n"
    records = read(write(tmp_path, f"a.{kind}", content), **settings)
    for role in ROLES:
        found = [row[expected[role]] if role in expected else None for row in rows]
        assert records.columns[role] == found
    assert "header: " in str(records.report)


def test_a_table_without_a_header_has_numbered_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "7,so good,1\n8,so bad,0\n")
    records = read(path, columns={"text": 1, "label": "2"})
    assert (records.columns["text"], records.lines) == (["so good", "so bad"], [1, 2])
    assert str(records.report) == "a.csv: 2 rows, no header: text '1', label '2'"
    assert read(write(tmp_path, "b.csv", "so good,1\nso bad,0\n")).columns["label"] == ["1", "0"]


def test_keys_of_objects_may_be_dotted_and_absent(tmp_path: Path) -> None:
    rows = [{"a": {"en": "x"}, "b": {"en": "y"}, "label": 3}, {"a": {"en": "z"}, "label": [1, 2]}]
    path = write(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    records = read(path, columns={"text": "a.en", "pair": "b.en"})
    assert records.columns == {"text": ["x", "z"], "pair": ["y", None], "label": [3, [1, 2]]}


# --- counts and errors ----------------------------------------------------------------------------


def test_empty_texts_and_duplicates_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", "text\tlabel\ngood\t1\n \t0\ngood\t1\n\nbad\t\n")
    records = read(path, duplicates="drop")
    assert records.columns["text"] == ["good"]
    assert str(records.report) == (
        "a.tsv: 5 rows, 3 with an empty text or label (dropped), 1 repeated (dropped), header: text 'text', "
        "label 'label'; 1 used"
    )
    optional = {**ROLES, "label": ROLES["label"]._replace(may_be_empty=True)}
    assert read(path, optional).columns["text"] == ["good", "good", "bad"]


def test_columns_are_those_of_all_objects(tmp_path: Path) -> None:
    """Not those of the first row, which may lack a column."""
    roles = {**ROLES, "score": Role(("score",), lambda value, place: value, required=False)}
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y", "score": 0.0}]
    path = write(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    records = read(path, roles)
    assert records.columns["score"] == [None, 0.0]
    assert "score 'score'" in str(records.report)
    write(tmp_path, "a.jsonl", json.dumps({"text": "a"}) + "\n" + json.dumps(rows[1]) + "\n")
    with pytest.raises(DataError, match=r"a\.jsonl:1: no value 'label'; found: text"):
        read(path, roles)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "memory"])
def test_keys_of_all_objects_decide_in_every_form(tmp_path: Path, name: str) -> None:
    """A JSON array and a list in memory are read as JSON lines are."""
    roles = {**ROLES, "score": Role(("score",), lambda value, place: value, required=False)}
    rows = [
        {"label": "w", "text": "o"},
        {"text": "a", "label": "x", "score": 0.0},
        {"Score": 1.5, "text ": "b", "label": "y"},
    ]
    source: Any = Frame("train", rows)
    if name != "memory":
        lines = [*map(json.dumps, rows)]
        source = write(
            tmp_path, name, "\n".join(lines) if name == "a.jsonl" else f"[{','.join(lines)}]"
        )
    records = read(source, roles)
    assert records.columns == {
        "text": ["o", "a", "b"], "pair": [None] * 3, "label": ["w", "x", "y"], "score": [None, 0.0, 1.5]
    }  # fmt: skip
    report = str(records.report)
    assert "'Score' read as 'score'" in report and "'text ' read as 'text'" in report


def test_keys_that_stand_in_one_row_are_different(tmp_path: Path) -> None:
    rows = [{"text": "a", "Text": "b", "label": "x"}, {"Text": "c", "label": "y"}]
    path = write(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=r"a\.jsonl:\d: no value 'text'"):
        read(path, columns={"text": "text"})
    records = read(path, columns={"text": "Text"})
    assert records.columns["text"] == ["b", "c"]
    assert "read as" not in str(records.report)


def test_an_empty_object_is_no_row(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{}\n{"text": "a", "label": "x"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:1: no value 'text'; found: none; set"):
        read(path)


def test_held_out_rows_are_disjoint_and_depend_on_the_seed(tmp_path: Path) -> None:
    path = write(
        tmp_path, "a.tsv", "text\tlabel\n" + "".join(f"text {n}\t{n % 2}\n" for n in range(50))
    )
    settings = DataSettings(train=path, holdout=10)
    splits = [
        read_splits(settings, seed, lambda *each: read_records(*each[:2], ROLES, each[2]))
        for seed in (1, 1, 2)
    ]
    train, valid, _ = splits[0]
    assert (len(train), len(valid)) == (40, 10)
    assert len({*train.columns["text"], *valid.columns["text"]}) == 50
    assert valid.columns == splits[1].valid.columns != splits[2].valid.columns
    assert valid.columns["text"] == [f"text {line - 2}" for line in valid.lines]


@pytest.mark.parametrize("count", [3, 0.3, "fold:1/3"])
def test_rows_of_one_context_are_in_one_part(tmp_path: Path, count: Any) -> None:
    roles = {name: Role((name,), check_text) for name in ("question", "context")}
    rows = [{"question": f"q{n}", "context": f"c{n // 4}"} for n in range(40)]
    path = write(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    splits = [read_records(path, PLAIN, roles).hold_out(count, seed) for seed in (1, 2)]
    for rest, held in splits:
        assert {*rest.columns["context"]}.isdisjoint(held.columns["context"])
        assert sorted(rest.lines + held.lines) == [*range(1, 41)] and held.lines
        assert len(held) == (4 if count == 3 else 12 if count == 0.3 else 16)
    assert splits[0][1].lines != splits[1][1].lines


def test_class_numbers_of_hub_datasets_become_names(monkeypatch: pytest.MonkeyPatch) -> None:
    class Feature:
        def __init__(self, **values: Any) -> None:
            self.__dict__.update(values)

    class Dataset(list[Any]):
        features = {  # noqa: RUF012
            "text": Feature(dtype="string"),
            "label": Feature(names=["bad", "good"]),
            "tags": Feature(feature=Feature(names=["O", "B-PER"])),
        }

    rows = [{"text": "a", "label": 1, "tags": [0, 1]}, {"text": "b", "label": -1, "tags": [1, 1]}]
    library = Feature(load_dataset=lambda *names, split: Dataset(rows))
    monkeypatch.setitem(sys.modules, "datasets", library)
    roles = {name: Role((name,), lambda value, place: value) for name in ("text", "label", "tags")}
    columns = read_records("hub:any:train", PLAIN, roles).columns
    assert columns == {
        "text": ["a", "b"],
        "label": ["good", None],
        "tags": [["O", "B-PER"], ["B-PER", "B-PER"]],
    }


CLASSES = {"num_classes": 2, "names": ["neg", "pos"], "_type": "ClassLabel"}
TAGS = {"names": ["O", "B-PER"], "_type": "ClassLabel"}
NUMBERED = {
    "text": ["a", "b", "c"],
    "label": [1, 0, -1],
    "tags": [[0, 1], [], [0, -100]],
    "n": [1, 0, 1],
}


@pytest.fixture
def read_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The columns of NUMBERED in a Parquet file with this metadata, which pyarrow is not needed for."""
    rows = [
        dict(zip(NUMBERED, values, strict=True)) for values in zip(*NUMBERED.values(), strict=True)
    ]

    def read_with(metadata: Any) -> Any:
        content = None if metadata is None else {b"huggingface": json.dumps(metadata).encode()}
        table = SimpleNamespace(
            num_row_groups=1,
            metadata=SimpleNamespace(row_group=lambda _: SimpleNamespace(num_rows=3)),
            schema_arrow=SimpleNamespace(names=[*NUMBERED], metadata=content),
            iter_batches=lambda *_, **options: [SimpleNamespace(to_pylist=lambda: rows)],
        )
        monkeypatch.setattr(parquet, "_open_parquet", lambda file: table)
        (tmp_path / "a.parquet").touch()
        roles = {name: Role((name,), lambda value, place: value) for name in NUMBERED}
        return read(str(tmp_path / "a.parquet"), roles).columns

    return read_with


@pytest.mark.parametrize(
    "tags",
    [
        {"feature": TAGS, "_type": "Sequence"},
        {"feature": TAGS, "length": -1, "_type": "List"},
        [TAGS],
    ],
)
def test_class_numbers_of_parquet_files_become_names(read_parquet: Any, tags: Any) -> None:
    """As the library `datasets` describes them in the metadata of its files."""
    features = {"text": {"dtype": "string", "_type": "Value"}, "label": CLASSES, "tags": tags}
    assert read_parquet({"info": {"features": features}}) == NUMBERED | {
        "label": ["pos", "neg", None],
        "tags": [["O", "B-PER"], [], ["O", None]],
    }


@pytest.mark.parametrize("metadata", [None, {}, {"info": None}, {"info": {"features": [3]}}])
def test_class_numbers_without_names_are_kept(read_parquet: Any, metadata: Any) -> None:
    assert read_parquet(metadata) == NUMBERED


@pytest.mark.parametrize(
    ("name", "content", "settings", "message"),
    [
        ("a.tsv", "text;note\n", {}, r"a\.tsv:1: no column .*';' does not .*; set data\.delimiter"),
        ("a.csv", "id,text,topic,note\n1,a,b,c\n", {}, r"a\.csv:1: no column 'label'; .* set data\.columns\.label"),
        ("a.csv", "id,body,stars\n1,a,b\n", {}, r"no column 'text'; .* set data\.columns\.text and data\.columns\.label to"),
        ("a.csv", "id,label\n1,a\n", {}, r"no column 'text'; .* set data\.columns\.text"),
        ("a.csv", "text,id\na,1\n", {}, r"no column 'label'; .* set data\.columns\.label"),
        ("a.csv", "text,label\n", {}, r"a\.csv: no row is left \(0 read"),
        ("a.csv", 'text,label\n"a,b\n', {}, r"a\.csv:2: a quote is opened and not closed"),
        ("a.csv", 'text,label\na "b" c,1\n', {}, r"a\.csv:2: a quote in the wrong place"),
        ("a.csv", "text,label\na,b,1\n", {}, r"a\.csv:2: 3 columns where the first row has 2"),
        ("a.csv", "Text,label\na,b\n", {"columns": {"text": "txt"}}, r"no column 'txt'; did you mean 'Text'\?"),
        ("a.csv", "Body,Mark\na,b\n", {"columns": {"label": "Makr"}, "header": True}, r"no column 'Makr'; did you mean 'Mark'\?"),
        ("a.csv", "Body,label\na,b\n", {"columns": {"text": "body"}}, r"no column 'body'; did you mean 'Body'\?"),
        ("a.csv", "text,label\na,b\n", {"columns": {"label": 7}}, r"a\.csv:1: no column '7'"),
        ("a.csv", "text,label\n ,1\n", {}, r"no row is left \(1 read, 1 blank\)"),
        ("a.csv", b"text,label\n\xff,1\n", {}, r"a\.csv:2:1: byte 0xff is not valid UTF-8"),
        ("a.csv", b"\xff\xfet\x00", {}, "this is UTF-16"),
        ("a.jsonl", '{"text": "a", "class": 1}\n', {}, r"a\.jsonl:1: no value 'label'; found: text, class; set data.c"),
        ("a.jsonl", '{"text": 3, "label": 1}\n', {}, r"a\.jsonl:1: 'text' is a value of type int, expected text"),
        ("a.jsonl", '{"text": null, "label": 1}\n', {}, r"a\.jsonl: no row is left \(1 read, 1 blank\)"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}\n', {}, r"a\.jsonl:2: no value 'label'"),
        ("a.parquet", "text", {}, r"a\.parquet: not a readable Parquet file"),
    ],
)  # fmt: skip
def test_invalid_rows_name_the_place(
    tmp_path: Path, name: str, content: Any, settings: Any, message: str
) -> None:
    if name == "a.parquet":
        pytest.importorskip("pyarrow.parquet")
    with pytest.raises(DataError, match=message):
        read(write(tmp_path, name, content), **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"columns": {"lable": "x"}}, r"data\.columns\.lable: .* reads text, pair, label"),
        ({"columns": {"text": None}}, r"data\.columns\.text: this task needs a column"),
        ({}, "holds plain lines"),
    ],
)
def test_invalid_settings_name_their_key(tmp_path: Path, settings: Any, message: str) -> None:
    path = write(tmp_path, "a.tsv" if settings else "a.txt", "text\tlabel\na\tb\n")
    with pytest.raises(SettingsError, match=message):
        read(path, **settings)


@pytest.mark.parametrize(
    ("folder", "count"), [("mrpc/val.tsv", 500), ("stsb/dev.tsv", 1500), ("sst2/dev.tsv", 872)]
)
def test_public_datasets_need_no_settings(data_folder: Path, folder: str, count: int) -> None:
    records = read_records(str(data_folder / folder), PLAIN, ROLES)
    assert len(records) == count
    assert (records.columns["pair"][0] is None) == folder.startswith("sst2")
    assert len(set(records.columns["label"])) < 300


def test_an_array_of_objects_gives_the_rows_of_json_lines(tmp_path: Path) -> None:
    rows = [{"text": f"text {n}\nof two lines", "label": n} for n in range(3)]
    lines = read(write(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
    array = read(write(tmp_path, "a.json", json.dumps(rows, indent=1)))
    assert (array.columns, array.lines) == (lines.columns, lines.lines)
    with pytest.raises(DataError, match=r"a\.json, row 2: no value 'label'"):
        read(write(tmp_path, "a.json", json.dumps([*rows[:1], {"text": "a"}])))


def test_the_name_of_an_index_is_empty(tmp_path: Path) -> None:
    records = read(write(tmp_path, "a.csv", ",text,label\n0,a,x\n1,b,y\n"))
    assert (records.columns["text"], records.columns["label"]) == (["a", "b"], ["x", "y"])
