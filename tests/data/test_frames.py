"""Data of Python programs: every kind of object gives the rows of the same file."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trifold.data import DataSettings, Rows, read_documents, read_pairs, read_records
from trifold.data.frames import Frame, data_overrides, digest_rows, is_frame, name_frames
from trifold.data.roles import Role, check_text
from trifold.errors import DataError, SettingsError, UsageError
from trifold.recipe import load_recipe

PLAIN = DataSettings()
ROLES = {
    "text": Role(("text",), check_text),
    "label": Role(("label",), lambda value, place: str(value)),
}
NAMES = ["id", "text", "label"]
ROWS = [(1, "good, food", "good"), (2, "", "bad"), (3, "bad food", "bad"), (4, "fine", "good")]


class NAType:
    """The missing value of pandas, which has no truth value."""

    def __ne__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise TypeError

    __hash__ = None  # type: ignore[assignment]


class Pandas:
    """What a frame of pandas has; its columns are attributes too."""

    def __init__(self, columns: list[Any], rows: list[tuple[Any, ...]]) -> None:
        self.columns, self._rows = columns, rows
        self.features = self.collect = np.array([1, 2])  # columns of these names

    def __bool__(self) -> bool:
        raise ValueError("the truth value of a frame is ambiguous")

    def __iter__(self) -> Iterator[Any]:
        return iter(self.columns)

    def itertuples(self, index: bool = True, name: str | None = "Pandas") -> Iterator[Any]:
        assert index is False and name is None
        return iter(self._rows)


class Polars:
    """What a frame of Polars has."""

    def __init__(self, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
        self.columns, self._rows = columns, rows

    def iter_rows(self) -> Iterator[Any]:
        return iter(self._rows)


class LazyFrame:
    """A lazy frame of Polars."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def collect(self) -> Polars:
        return Polars(*self.parts)


class Table:
    """What a table of pyarrow has."""

    column_names: Any = None

    def __init__(self, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
        self.column_names, self._rows = columns, rows

    def to_pylist(self) -> list[dict[str, Any]]:
        return [dict(zip(self.column_names, row, strict=True)) for row in self._rows]


class Dataset:
    """What a dataset of the library `datasets` has."""

    column_names: Any = None
    features: Any = None

    def __init__(self, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
        self.column_names, self._rows = columns, rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(zip(self.column_names, row, strict=True)) for row in self._rows)


def rows_of(columns: list[str], rows: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in rows]


def columns_of(columns: list[str], rows: list[tuple[Any, ...]]) -> dict[str, list[Any]]:
    return dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))


TABLES: dict[str, Any] = {
    "pandas": Pandas,
    "Polars": Polars,
    "lazy": LazyFrame,
    "pyarrow": Table,
    "dict of columns": columns_of,
}
OBJECTS: dict[str, Any] = {
    "list of dicts": rows_of,
    "generator": lambda *parts: (row for row in rows_of(*parts)),
    "dataset": Dataset,
}
KINDS = TABLES | OBJECTS


def read(data: Any, **settings: Any) -> Rows:
    return read_records(Frame("train", data), DataSettings(**settings), ROLES)


def save(path: Path, columns: list[str], rows: list[tuple[Any, ...]]) -> str:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return str(path)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_rows_of_the_file(kind: str, tmp_path: Path) -> None:
    ours = read(KINDS[kind](NAMES, ROWS))
    theirs = read_records(save(tmp_path / "a.csv", NAMES, ROWS), PLAIN, ROLES)
    assert ours.columns == theirs.columns
    expected = str(theirs.report).replace("a.csv", "python:train")
    expected = expected if kind in TABLES else expected.replace("header: ", "")
    assert str(ours.report) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_the_digest_is_that_of_the_values(kind: str) -> None:
    def digest(rows: list[tuple[Any, ...]]) -> tuple[int, str]:
        return digest_rows(Frame("train", KINDS[kind](NAMES, rows)).rows())

    assert digest(ROWS) == digest_rows(rows_of(NAMES, ROWS))
    assert digest(ROWS)[0] == 4
    changed = [ROWS[:-1], ROWS[::-1], [*ROWS[:-1], (4, "fine", "bad")]]
    assert len({digest(rows) for rows in [ROWS, *changed]}) == 4


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("missing", [None, math.nan, NAType()])
def test_what_a_table_lacks_is_an_empty_text(kind: str, missing: Any) -> None:
    found = read(TABLES[kind](["text", "label"], [("a", "x"), (missing, "y"), ("c", "z")]))
    assert found.columns["text"] == ["a", "c"]
    assert found.report.blank == 1


@pytest.mark.parametrize("kind", TABLES)
def test_the_columns_of_a_table_may_have_other_names(kind: str) -> None:
    found = read(TABLES[kind](["headline", "kind"], [("a", "x"), ("b", "y")]))
    assert (found.columns["text"], found.columns["label"]) == (["a", "b"], ["x", "y"])
    with pytest.raises(DataError, match=r"python:train, row 1: no column 'text'.*data\.columns"):
        read(TABLES[kind](["a", "b", "c"], [("a", "x", "1")]))


def test_columns_may_be_numbers() -> None:
    found = read(Pandas([0, 1], [("a", "x"), ("b", "y")]))
    assert found.columns["text"] == ["a", "b"]
    assert read(Pandas([0, 1], [("x", "a")]), columns={"text": 1, "label": 0}).columns["text"] == [
        "a"
    ]


def test_values_of_libraries_become_values_of_python() -> None:
    values = [np.int64(3), np.float32(0.5), np.str_("x"), np.bool_(True), np.array([1, 2])]
    values += [Decimal("1.5"), Path("a/b"), {"a": np.int8(1)}, date(2026, 1, 2), float("nan")]
    (row,) = Frame("train", [dict(enumerate(values))]).rows()
    expected = [3, 0.5, "x", True, [1, 2], "1.5", str(Path("a/b")), {"a": 1}, date(2026, 1, 2)]
    assert row == {str(n): value for n, value in enumerate([*expected, None])}
    assert [*map(type, row.values())] == [*map(type, [*expected, None])]
    count, _ = digest_rows([row | {"at": datetime(2026, 1, 2), "raw": b"\0"}])
    assert count == 1


def test_the_keys_of_all_rows_of_objects_are_known() -> None:
    rows = [{"text": "a"}, {"text": "b", "label": "x"}]
    with pytest.raises(DataError, match=r"python:train, row 1: no value 'label'"):
        read(rows)
    optional = ROLES | {"label": ROLES["label"]._replace(required=False)}
    found = read_records(Frame("train", rows), PLAIN, optional)
    assert found.columns["label"] == [None, "x"]


def test_classes_of_a_dataset_have_their_names() -> None:
    data = Dataset(["text", "label"], [("a", 1), ("b", 0)])
    data.features = {"label": SimpleNamespace(names=["bad", "good"])}
    assert read(data).columns["label"] == ["good", "bad"]


def test_pairs_and_documents_may_be_in_memory() -> None:
    pairs = read_pairs(Frame("train", Polars(["en", "de"], [("one", "eins")])), PLAIN)
    assert (pairs.sources, pairs.targets) == (["one"], ["eins"])
    texts = ["one", None, "two"]
    for data in (iter(texts), Pandas(["text"], [(text,) for text in texts])):
        documents = read_documents(Frame("train", data), PLAIN)
        assert (documents.texts, documents.report.blank) == (["one", "two"], 1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (5, "a value of type int; give a data frame"),
        ([("a", "x")], r"python:train, row 1: a value of type tuple; a row is a dict"),
        (Pandas(["text", "label", "text"], []), "two columns are called 'text'"),
        ({"text": ["a"], "label": ["x", "y"]}, "different numbers of rows: text 1, label 2"),
        ([], r"python:train: no row is left \(0 read, 0 blank\)"),
    ],
)
def test_other_objects_are_rejected(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(data)


def test_a_name_without_its_data_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"python:train: .* trifold\.resume\(…, data=…\)"):
        read_records("python:train", PLAIN, ROLES)


# --- in a recipe ----------------------------------------------------------------------------------


def test_a_recipe_keeps_the_data_and_writes_its_name() -> None:
    frame = Pandas(NAMES, ROWS)
    recipe = load_recipe("classify", data_overrides(frame))
    assert isinstance(recipe.data.train, Frame) and recipe.data.train.data is frame
    assert recipe.data.holdout == 0.1
    assert "train: python:train\n" in recipe.resolved()
    assert json.loads(json.dumps(recipe.model_dump()))["data"]["train"] == "python:train"
    again = recipe.parse(recipe.model_dump())
    assert isinstance(again.data.train, Frame)


def test_a_frame_gets_the_defaults_of_its_file(tmp_path: Path) -> None:
    rows = [(n, f"word {n}, " * (n % 90), "ab"[n % 2]) for n in range(2000)]
    recipes = [
        load_recipe("classify", data_overrides(data))
        for data in (save(tmp_path / "a.csv", NAMES, rows), Pandas(NAMES, rows))
    ]
    one, other = (recipe.model_dump(exclude={"data": {"train"}}) for recipe in recipes)
    assert one == other
    assert one["train"]["steps"] > 100


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (None, {}),
        ("a.csv", {"train": "a.csv", "valid": None, "test": None}),
        (["a.en", "a.de"], {"train": ["a.en", "a.de"], "valid": None, "test": None}),
        (Path("a.csv"), {"train": "a.csv", "valid": None, "test": None}),
        (
            {"train": "a.csv", "validation": "b.csv"},
            {"train": "a.csv", "valid": "b.csv", "test": None, "holdout": 0},
        ),
        ({"train": "a", "holdout": 5}, {"train": "a", "valid": None, "test": None, "holdout": 5}),
        ({"holdout": 0.2}, {"holdout": 0.2}),
    ],
)
def test_data_names_splits_and_other_keys(data: Any, expected: dict[str, Any]) -> None:
    found = {key: name_frames(key, value) for key, value in data_overrides(data).items()}
    assert found == {f"data.{key}": value for key, value in expected.items()}


def test_columns_are_no_splits() -> None:
    columns = {"source": ["one"], "target": ["eins"]}
    assert data_overrides(columns) == {
        "data.train": columns,
        "data.valid": None,
        "data.test": None,
    }
    with pytest.raises(SettingsError, match=r"data\.unsupervised: unknown key"):
        load_recipe("classify", data_overrides({"train": "a.csv", "unsupervised": "b.csv"}))


def test_frames_are_found_in_groups_of_keys() -> None:
    rows = [{"source": "a", "target": "b"}]
    group = {"x": {"train": rows, "valid": rows, "input": "{source}"}}
    found = name_frames("task.parts", group)
    assert [str(found["x"][split]) for split in ("train", "valid")] == [
        "python:task.parts.x.train",
        "python:task.parts.x.valid",
    ]
    assert name_frames("pretrain", {"train": {"steps": 5}}) == {"train": {"steps": 5}}


def test_what_is_a_frame() -> None:
    assert all(is_frame(make(NAMES, ROWS)) for kind, make in KINDS.items() if kind != "generator")
    for other in ("text", ["a", "b"], [], np.array(["a"]), 5, None):
        assert not is_frame(other)
