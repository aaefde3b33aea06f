"""Rows of TSV, CSV, JSON lines and Parquet files, and of datasets of the Hugging Face hub."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from trifold.data.lines import FileRange, expand_path
from trifold.data.settings import DataSettings
from trifold.errors import DataError, SettingsError

# The number of a line or row, its place for messages, and its columns; None for a blank line.
NumberedRow: TypeAlias = tuple[int, str, Mapping[str, Any] | None]

# A quoted field may contain commas, line ends and doubled quotes. The loop is unrolled to avoid backtracking.
_CSV_FIELD = re.compile(r'(?:"([^"]*(?:""[^"]*)*)"|([^",]*))(,|\Z)')
_HUB_SOURCE = re.compile(r"hub:(?P<name>[^@:]+)(?:@(?P<config>[^:]+))?:(?P<split>.+)")
_PARQUET_BATCH_ROWS = 1024  # rows in memory at once


class Row(NamedTuple):
    """A pair, and the number of its line in the file or of its row in the dataset, counted from 1."""

    source: str
    target: str
    line: int


def read_objects(lines: Iterable[str], name: str, first_line: int = 1) -> Iterator[NumberedRow]:
    """The JSON object of each line."""
    for number, line in enumerate(lines, start=first_line):
        place = f"{name}:{number}"
        if not line.strip():
            yield number, place, None
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{place}:{error.colno}: not valid JSON ({error.msg}); write one object per line"
            ) from None
        except (ValueError, RecursionError):
            raise DataError(f"{place}: not readable JSON (nested too deeply, or a number too long)") from None
        if not isinstance(row, dict):
            raise DataError(f"{place}: a JSON {type(row).__name__}, expected an object with named values")
        yield number, place, row


def read_columns(lines: Iterable[str], name: str, kind: str, settings: DataSettings) -> Iterator[Row]:
    r"""Two columns of a table; a blank line is two empty texts. Every record must have as many columns as the first.

    kind: `tsv` (separated by tabs, without quoting) or `csv` (RFC 4180: commas, double quotes, and line ends inside
    quotes, which become `\n`).
    """
    if kind == "csv":
        records = _csv_records(lines, name, settings.max_line_bytes)
    else:
        records = ((number, line.split("\t")) for number, line in enumerate(lines, start=1))
    columns: tuple[int, int] | None = None
    width = 0
    for number, record in records:
        if record == [""]:
            yield Row("", "", number)
            continue
        if columns is None:
            has_header, columns = _find_columns(record, f"{name}:{number}", settings)
            width = len(record)
            if has_header:
                continue
        if len(record) != width:
            raise DataError(
                f"{name}:{number}: {len(record)} columns where the first row has {width}; "
                "a stray tab, comma or quote?"
            )
        yield Row(record[columns[0]], record[columns[1]], number)


def _find_columns(first: list[str], place: str, settings: DataSettings) -> tuple[bool, tuple[int, int]]:
    """Whether the first record is a header, and the indices of the two columns."""
    requested = [str(settings.source), str(settings.target)]
    has_header = settings.header
    if has_header is None:
        has_header = any(column in first for column in requested if not column.isdigit())
    names = list(first) if has_header else []
    if not has_header and requested == ["source", "target"] and len(first) == 2:
        requested = ["0", "1"]  # the only two columns, without names
    found = []
    for column in requested:
        if column in names:
            found.append(names.index(column))
        elif column.isdigit() and int(column) < len(first):
            found.append(int(column))
        else:
            known = f"its first row is {first}" if len(first) < 20 else f"it has {len(first)} columns"
            remedy = "set data.source and data.target to names or numbers of columns (from 0)"
            raise DataError(f"{place}: no column {column!r}; {known}; {remedy}")
    return has_header, (found[0], found[1])


# The csv module is not used: even in strict mode it accepts a quote inside an unquoted field, it rejects a lone
# carriage return, and it reads an unclosed quote to the end of the file before it reports the line of that end.
def _csv_records(lines: Iterable[str], name: str, max_bytes: int) -> Iterator[tuple[int, list[str]]]:
    numbered = enumerate(lines, start=1)
    for number, record in numbered:
        parts, size, quotes = [record], len(record), record.count('"')
        while quotes % 2:  # an open quote continues the record on the next line
            _, part = next(numbered, (0, None))
            if part is None or size > max_bytes:
                raise DataError(f"{name}:{number}: a quote is opened and not closed; close it, or use TSV")
            parts.append(part)
            size, quotes = size + len(part), quotes + part.count('"')
        yield number, _csv_fields("\n".join(parts), f"{name}:{number}")


def _csv_fields(record: str, place: str) -> list[str]:
    fields, position = [], 0
    while match := _CSV_FIELD.match(record, position):
        quoted, plain, end = match.groups()
        fields.append(plain if quoted is None else quoted.replace('""', '"'))
        if not end:
            return fields
        position = match.end()
    remedy = 'put the whole field in quotes and write "" for a quote in it'
    raise DataError(f"{place}: a quote in the wrong place near character {position + 1}; {remedy}")


# --- Parquet --------------------------------------------------------------------------------------------


def count_row_groups(file: str) -> int:
    """The number of row groups of a Parquet file. Raises DataError if it cannot be read."""
    return int(_open_parquet(file).num_row_groups)


def iter_parquet(file: str, field: str, part: FileRange) -> Iterator[NumberedRow]:
    """The rows of some row groups, numbered from 1 within the file, with the column of `field`.

    Raises DataError if pyarrow is not installed or the file is damaged.
    """
    table = _open_parquet(file)
    row_groups = range(part.start, table.num_row_groups if part.stop is None else part.stop)
    number = sum(table.metadata.row_group(group).num_rows for group in range(part.start))
    columns = [name for name in table.schema_arrow.names if name in (field, field.partition(".")[0])]
    try:
        # If the column is missing, all are read, so that the error can list them.
        for batch in table.iter_batches(
            _PARQUET_BATCH_ROWS, row_groups=list(row_groups), columns=columns or None
        ):
            for row in batch.to_pylist():
                number += 1
                yield number, f"{file}, row {number}", row
    except Exception as error:  # the library raises many unrelated classes
        raise _parquet_error(file, error) from None


def _open_parquet(file: str) -> Any:
    library = _import_library("pyarrow.parquet", f"{file}: Parquet files need the `pyarrow` library")
    try:
        return library.ParquetFile(expand_path(file))
    except FileNotFoundError:
        raise DataError(f"{file}: no such file; check the path") from None
    except Exception as error:
        raise _parquet_error(file, error) from None


def _parquet_error(file: str, error: Exception) -> DataError:
    reason = str(error).partition("\n")[0]
    return DataError(f"{file}: not a readable Parquet file ({reason}); copy or download it again")


def _import_library(name: str, need: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise DataError(f'{need}; install it with `pip install "trifold[datasets]"`') from None


# --- datasets of the hub ----------------------------------------------------------------------------------


def iter_hub(source: str) -> Iterator[NumberedRow]:
    """The rows of `hub:NAME@CONFIG:SPLIT`; code from the hub is never executed.

    Raises SettingsError for another form, DataError if `datasets` is not installed or cannot load the dataset.
    """
    if not (match := _HUB_SOURCE.fullmatch(source)):
        raise SettingsError(f"data: {source!r} is not of the form hub:NAME:SPLIT or hub:NAME@CONFIG:SPLIT")
    datasets = _import_library("datasets", f"{source}: hub datasets need the `datasets` library")
    try:
        rows = iter(datasets.load_dataset(match["name"], match["config"], split=match["split"]))
    except Exception as error:  # the library raises many unrelated classes, network errors among them
        reason = str(error).partition("\n")[0]
        remedy = "check name, configuration, split and network, or give files instead"
        raise DataError(f"{source}: cannot be loaded ({type(error).__name__}: {reason}); {remedy}") from error
    for number, row in enumerate(rows, start=1):
        yield number, f"{source}, row {number}", row
