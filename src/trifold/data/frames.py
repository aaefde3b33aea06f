"""Data of a Python program: data frames, lists of dicts, datasets and columns, without importing
their libraries.

A recipe has the name of such data (`python:train`), which carries the object in memory.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from os import PathLike
from typing import Any, Self

from trifold.data.formats import NumberedRow
from trifold.data.hub_datasets import named_rows
from trifold.errors import DataError, UsageError

PREFIX = "python:"
SPLITS = {"train": "train", "valid": "valid", "validation": "valid", "test": "test"}
_SOURCE_KEY = re.compile(r"(.+\.)?(data|parts\.[^.]+)\.(train|valid|test)")
_PLAIN = (str, bool, int, float)
_MISSING = {"NAType", "NaTType"}  # types of missing values of pandas


class Frame(str):
    """The name of data in memory, with the object that has its rows.

    It equals the name in the recipe.yaml of its run.
    """

    data: Any
    is_table: bool

    def __new__(cls, key: str, data: Any) -> Self:
        self = super().__new__(cls, PREFIX + key)
        if _has(data, "collect"):  # a lazy frame
            data = data.collect()
        if isinstance(data, Iterator):  # the rows are read several times
            data = [*data]
        self.data = data
        self.is_table = _columns(self.data) is not None
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows as values of Python. What a table has no value for is an empty text, as in the
        CSV file of it; NaN in a dict is None.

        Raises DataError for a row that is no mapping.
        """
        empty = "" if self.is_table else None
        for number, row in enumerate(_iter_rows(self.data), start=1):
            plain = _plain(row)
            if plain is None or isinstance(plain, str):  # of a column of texts
                plain = {"text": plain or ""}
            if not isinstance(plain, dict):
                raise DataError(
                    f"{self}, row {number}: a value of type {type(row).__name__}; a row is a dict, "
                    "such as {'text': …, 'label': …}"
                )
            yield {key: empty if value is None else value for key, value in plain.items()}


def frame_of(source: str) -> Frame:
    """The data of a source `python:…`. Raises UsageError for the name alone, as read from a
    file.
    """
    if not isinstance(source, Frame):
        raise UsageError(
            f"{source}: the data of a Python program, which is not stored; give it again in "
            f"Python, as in trifold.resume(…, data=…), or name a file"
        )
    return source


def iter_frame(source: str) -> Iterator[NumberedRow]:
    """The rows of a source `python:…`."""
    for number, row in enumerate(frame_of(source).rows(), start=1):
        yield number, f"{source}, row {number}", row


def name_frames(key: str, value: Any) -> Any:
    """The value of a dotted key of a recipe, with names for the data in memory."""
    if not _SOURCE_KEY.fullmatch(key):
        if not isinstance(value, Mapping):
            return value
        return {name: name_frames(f"{key}.{name}", inner) for name, inner in value.items()}
    if isinstance(value, PathLike):
        return str(value)
    if isinstance(value, list | tuple) and all(isinstance(each, _PLAIN) for each in value):
        return [*value]  # names of files
    if value is None or isinstance(value, _PLAIN):
        return value
    return Frame(key.removeprefix("data."), value)


def data_overrides(data: Any) -> dict[str, Any]:
    """Dotted keys of a recipe for the argument `data` of a program: training data, or a mapping
    with `train`, maybe `valid` (`validation`) and `test`, and other keys of `data`.

    The splits of the recipe that it does not name are removed.
    """
    if data is None:
        return {}
    has_splits = isinstance(data, Mapping) and not SPLITS.keys().isdisjoint(data)
    if not isinstance(data, Mapping) or (not has_splits and _columns(data) is not None):
        data = {"train": data}
        has_splits = True
    given = {f"data.{SPLITS.get(key, key)}": value for key, value in data.items()}
    if not has_splits:
        return given
    overrides: dict[str, Any] = dict.fromkeys(f"data.{split}" for split in SPLITS.values())
    if given.get("data.valid") is not None:
        overrides["data.holdout"] = 0
    return overrides | given


def is_frame(value: Any) -> bool:
    """Whether a value is a table: a data frame, a dataset, columns, or a list of dicts."""
    if isinstance(value, list | tuple):
        return bool(value) and isinstance(value[0], Mapping)
    return _has(value, "column_names") or _has(value, "collect") or _columns(value) is not None


def plain_column(value: Any) -> Any:
    """A column of pyarrow as a list; other values as they are."""
    return value.to_pylist() if _has(value, "to_pylist") else value


def digest_rows(rows: Iterable[Mapping[str, Any] | None]) -> tuple[int, str]:
    """The number of rows, and the SHA-256 (hexadecimal) of their keys and values in order."""
    count = 0
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, default=_describe).encode() + b"\n")
        count += 1
    return count, digest.hexdigest()


def _has(value: Any, name: str) -> bool:
    """Whether the class has an attribute; that of a data frame may be a column."""
    return hasattr(type(value), name)


def _columns(data: Any) -> list[Any] | None:
    """The names of the columns of a table; None if the rows have keys of their own."""
    if isinstance(data, Mapping):
        are_columns = all(_has(value, "__len__") for value in data.values())
        are_cells = any(isinstance(value, str | Mapping) for value in data.values())
        if data and are_columns and not are_cells:
            return [*data]
        return None
    if _has(data, "iter_rows") or _has(data, "itertuples"):  # Polars, pandas
        return [*data.columns]
    if _has(data, "to_pylist") and _has(data, "column_names"):  # pyarrow
        return [*data.column_names]
    return None


def _iter_rows(data: Any) -> Iterator[Any]:
    if (columns := _columns(data)) is None:
        return _iter_objects(data)
    names = [str(name) for name in columns]
    if doubled := [name for place, name in enumerate(names) if name in names[:place]]:
        raise DataError(f"data: two columns are called {doubled[0]!r}; rename one of them")
    return (dict(zip(names, row, strict=True)) for row in _iter_tuples(data))


def _iter_objects(data: Any) -> Iterator[Any]:
    if _has(data, "features"):
        return named_rows(data)
    try:
        return iter(plain_column(data))
    except TypeError:
        raise DataError(
            f"data: a value of type {type(data).__name__}; give a data frame, a list of dicts, a "
            "dataset, or the name of a file"
        ) from None


def _iter_tuples(data: Any) -> Any:
    if _has(data, "iter_rows"):
        return data.iter_rows()
    if _has(data, "itertuples"):
        return data.itertuples(index=False, name=None)
    if _has(data, "to_pylist"):
        return (row.values() for row in data.to_pylist())
    sizes = {name: len(column) for name, column in data.items()}
    if len({*sizes.values()}) > 1:
        listed = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
        raise DataError(f"data: the columns have different numbers of rows: {listed}")
    return zip(*data.values(), strict=True)


def _plain(value: Any) -> Any:
    """The value without types of libraries; None for a missing one."""
    if value is None or type(value).__name__ in _MISSING:
        return None
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return None if math.isnan(value) else float(value)
    if isinstance(value, int | bytes | date):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    for convert in ("tolist", "to_list"):  # of arrays, tensors and series
        if _has(value, convert):
            return _plain(getattr(value, convert)())
    if _has(value, "tobytes"):  # an image
        return value
    return str(value)  # a decimal number


def _describe(value: Any) -> Any:
    """What a value that JSON does not have contributes to a digest."""
    if isinstance(value, date):
        return value.isoformat()
    content = value if isinstance(value, bytes) else value.tobytes()
    kind = [getattr(value, "mode", ""), *getattr(value, "size", ())]
    return [*kind, hashlib.sha256(content).hexdigest()]
