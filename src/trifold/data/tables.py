"""Rows of TSV, CSV, JSON lines and Parquet files, and of datasets of the Hugging Face hub."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, NamedTuple, TypeAlias

from trifold.data.lines import FileRange, expand_path
from trifold.data.settings import DataSettings
from trifold.errors import DataError, SettingsError

# The number of a line or row, its place for messages, and its columns; None for a blank line.
NumberedRow: TypeAlias = tuple[int, str, Mapping[str, Any] | None]

# A quoted field may contain commas, line ends and doubled quotes. The loop is unrolled to avoid backtracking.
_CSV_FIELD = re.compile(r'(?:"([^"]*(?:""[^"]*)*)"|([^",]*))(,|\Z)')
_HUB_SOURCE = re.compile(r"hub:(?P<name>[^@:]+)(?:@(?P<config>[^:]+))?:(?P<split>.+)")
# A first row is a header if each cell looks like a name, and two consist of such words or all are codes of languages.
_NAME = re.compile(r"#?\w+(?:[ .#-]\w+){0,2}")
_LABELS = "label labels class category sentiment topic intent genre rating stars score".split()  # best first
_TEXTS = "text sentence review comment tweet utterance message post content body article document".split()
_WORDS = {*_LABELS, *_TEXTS} | set(
    "answer completion context hypothesis id input klasse kommentar output premise prompt query question sentence1 "
    "sentence2 source src summary target tgt title translation trg arabic chinese czech danish deutsch dutch english "
    "englisch finnish français french german greek hindi hungarian italian japanese korean norwegian polish portuguese "
    "romanian russian spanish swedish turkish ukrainian".split()
)
_CODES = frozenset("ar bg cs da de el en es fi fr he hi hu ja ko nl pl pt ro ru sv th tr uk vi zh".split())
_COMPARED_ROWS = 200  # in which no name of a header occurs again
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


def read_columns(
    lines: Iterable[str],
    name: str,
    kind: str,
    settings: DataSettings,
    report: Callable[[str], None] = lambda line: None,
) -> Iterator[Row]:
    r"""Two columns of a table; a blank line is two empty texts. Every record must have as many columns as the first.

    kind: `tsv` (separated by tabs, without quoting) or `csv` (RFC 4180: commas, double quotes, and line ends inside
    quotes, which become `\n`). report: receives whether the first row was taken for a header.
    """
    if kind == "csv":
        records = _csv_records(lines, name, settings.max_line_bytes)
    else:
        records = ((number, line.split("\t")) for number, line in enumerate(lines, start=1))
    columns: tuple[int, int] | None = None
    width = 0
    compared = list(islice(records, _COMPARED_ROWS))
    for number, record in chain(compared, records):
        if record == [""]:
            yield Row("", "", number)
            continue
        if columns is None:
            names = _read_header(record, [row for _, row in compared], settings)
            columns = _find_columns(record, names, f"{name}:{number}", settings)
            width = len(record)
            source, target = (f"{record[column]!r:.40}" for column in columns)
            report(f"header: source {source}, target {target}" if names else "no header")
            if names:
                continue
        if len(record) != width:
            raise DataError(
                f"{name}:{number}: {len(record)} columns where the first row has {width}; "
                "a stray tab, comma or quote?"
            )
        yield Row(record[columns[0]], record[columns[1]], number)


def _read_header(first: list[str], rows: list[list[str]], settings: DataSettings) -> list[str]:
    """The first record if it is a header, else nothing; `rows` begin with it."""
    requested = {str(settings.source), str(settings.target)}
    if settings.header is not None or any(name in first for name in requested if not name.isdigit()):
        return [] if settings.header is False else first
    cells = [cell.strip().casefold() for cell in first]
    codes = {re.sub(r"[_-][a-z]{2,4}$", "", cell) for cell in cells}  # without regions: en_US, zh-Hant
    is_known = codes <= _CODES or sum(_WORDS.issuperset(_words(cell)) for cell in cells) > 1
    is_named = is_known and all(map(_NAME.fullmatch, cells)) and len(set(cells)) == len(cells)
    recurs = (a == b for row in rows for a, b in zip(first, row, strict=False) if row is not first)
    return first if is_named and not any(recurs) else []


def _words(cell: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", cell) or [cell]


def _find_columns(first: list[str], names: list[str], place: str, settings: DataSettings) -> tuple[int, int]:
    """The indices of the two columns. names: those of the header, if there is one."""
    requested = choose_columns(names, settings)
    if requested == ["source", "target"] and len(first) == 2 and not {*names}.intersection(requested):
        labels = [not {*_LABELS}.isdisjoint(_words(name.casefold())) for name in names]
        requested = ["1", "0"] if labels == [True, False] else ["0", "1"]  # the only two columns
    found = []
    for column in requested:
        if column in names:
            found.append(names.index(column))
        elif column.isdigit() and int(column) < len(first):
            found.append(int(column))
        else:
            known = f"its first row is {first}" if len(first) < 20 else f"it has {len(first)} columns"
            remedy = "set data.source and data.target to names or numbers of columns (from 0)"
            if len(first) == 1 and (sign := re.search("[;\t|]", first[0])):
                remedy = f"{sign[0]!r} does not separate columns; use commas, or tabs in a .tsv file"
            raise DataError(f"{place}: no column {column!r}; {known}; {remedy}")
    return found[0], found[1]


def choose_columns(names: Iterable[str], settings: DataSettings) -> list[str]:
    """The names or numbers of source and target in the settings.

    If no column has the default names, the first of `_TEXTS` and of `_LABELS` that are columns.
    """
    requested, known = (
        [str(settings.source), str(settings.target)],
        {name.strip().casefold(): name for name in names},
    )
    found = [next((known[word] for word in words if word in known), "") for words in (_TEXTS, _LABELS)]
    is_open = requested == ["source", "target"] and not known.keys() & requested
    return found if is_open and all(found) else requested


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
