"""Rows of TSV, CSV, JSON lines and Parquet files, and of datasets of the Hugging Face hub.

A reader of pairs yields (line number, source, target). A blank line yields two empty texts, so that blank rows are
counted in one place.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from trifold.data.lines import FileRange, expand_path
from trifold.data.settings import DataSettings
from trifold.errors import DataError, SettingsError

NumberedPairs: TypeAlias = Iterator[tuple[int, str, str]]

# A quoted field may contain commas, line ends and doubled quotes. The loop is unrolled to avoid backtracking.
_CSV_FIELD = re.compile(r'(?:"([^"]*(?:""[^"]*)*)"|([^",]*))(,|\Z)')
_HUB_SOURCE = re.compile(r"hub:(?P<name>[^@:]+)(?:@(?P<config>[^:]+))?:(?P<split>.+)")
_PARQUET_BATCH_ROWS = 1024  # rows in memory at once


def read_tsv(lines: Iterable[str], name: str, settings: DataSettings) -> NumberedPairs:
    """Read columns separated by tabs, without quoting."""
    records = ((number, line.split("\t")) for number, line in enumerate(lines, start=1))
    return _select_columns(records, name, settings)


def read_csv(lines: Iterable[str], name: str, settings: DataSettings) -> NumberedPairs:
    r"""Read CSV (RFC 4180): commas, double quotes, and line ends inside quotes, which become `\n`."""
    return _select_columns(_csv_records(lines, name, settings.max_line_bytes), name, settings)


def read_jsonl(lines: Iterable[str], name: str, settings: DataSettings) -> NumberedPairs:
    """Read one JSON object per line."""
    for number, row in read_objects(lines, name):
        place = f"{name}:{number}"
        if row is None:
            yield number, "", ""
        else:
            yield number, text_at(row, settings.source, place), text_at(row, settings.target, place)


PAIR_READERS: dict[str, Callable[[Iterable[str], str, DataSettings], NumberedPairs]] = {
    "tsv": read_tsv,
    "csv": read_csv,
    "jsonl": read_jsonl,
}


def read_objects(
    lines: Iterable[str], name: str, first_line: int = 1
) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """The number of each line and its JSON object, None for a blank line."""
    for number, line in enumerate(lines, start=first_line):
        if not line.strip():
            yield number, None
            continue
        place = f"{name}:{number}"
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
        yield number, row


def text_at(
    row: Mapping[str, Any], key: str | int, place: str, setting: str = "data.source and data.target"
) -> str:
    """The text under `key`; `translation.en` also means row["translation"]["en"].

    Raises DataError if it is missing, not a string, or contains a NUL character or an unpaired surrogate.
    """
    value: Any = row
    for part in [key] if key in row else str(key).split("."):
        if not isinstance(value, Mapping) or part not in value:
            known = ", ".join(map(str, value)) if isinstance(value, Mapping) else "none"
            raise DataError(f"{place}: no value {key!r}; found: {known}; set {setting}")
        value = value[part]
    if not isinstance(value, str):
        kind = "null" if value is None else f"a value of type {type(value).__name__}"
        raise DataError(f"{place}: {key!r} is {kind}, expected text")
    if "\0" in value:
        raise DataError(f"{place}: {key!r} contains a NUL character; remove it")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise DataError(f"{place}: {key!r} contains an unpaired surrogate, which is not a character")
    return value


def _select_columns(
    records: Iterable[tuple[int, list[str]]], name: str, settings: DataSettings
) -> NumberedPairs:
    """Select the two columns. Every record must have as many columns as the first."""
    columns: tuple[int, int] | None = None
    width = 0
    for number, record in records:
        if record == [""]:
            yield number, "", ""
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
        yield number, record[columns[0]], record[columns[1]]


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


def iter_parquet(file: str, field: str, part: FileRange) -> Iterator[tuple[int, Mapping[str, Any]]]:
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
                yield number, row
    except Exception as error:  # the library raises many unrelated classes
        raise _parquet_error(file, error) from None


def _open_parquet(file: str) -> Any:
    try:
        library = importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        remedy = 'install it with `pip install "trifold[datasets]"`'
        raise DataError(f"{file}: Parquet files need the `pyarrow` library; {remedy}") from None
    try:
        return library.ParquetFile(expand_path(file))
    except FileNotFoundError:
        raise DataError(f"{file}: no such file; check the path") from None
    except Exception as error:
        raise _parquet_error(file, error) from None


def _parquet_error(file: str, error: Exception) -> DataError:
    reason = str(error).partition("\n")[0]
    return DataError(f"{file}: not a readable Parquet file ({reason}); copy or download it again")


# --- datasets of the hub ----------------------------------------------------------------------------------


def iter_hub(source: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows of `hub:NAME@CONFIG:SPLIT` with their place for messages; code from the hub is never executed.

    Raises SettingsError for another form, DataError if `datasets` is not installed or cannot load the dataset.
    """
    if not (match := _HUB_SOURCE.fullmatch(source)):
        raise SettingsError(f"data: {source!r} is not of the form hub:NAME:SPLIT or hub:NAME@CONFIG:SPLIT")
    try:
        datasets = importlib.import_module("datasets")
    except ModuleNotFoundError:
        remedy = 'install it with `pip install "trifold[datasets]"`'
        raise DataError(f"{source}: hub datasets need the `datasets` library; {remedy}") from None
    try:
        rows = iter(datasets.load_dataset(match["name"], match["config"], split=match["split"]))
    except Exception as error:  # the library raises many unrelated classes, network errors among them
        reason = str(error).partition("\n")[0]
        remedy = "check name, configuration, split and network, or give files instead"
        raise DataError(f"{source}: cannot be loaded ({type(error).__name__}: {reason}); {remedy}") from error
    for number, row in enumerate(rows, start=1):
        yield f"{source}, row {number}", row
