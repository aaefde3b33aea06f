"""Rows of TSV, CSV, JSON lines and Parquet files, and of datasets of the Hugging Face hub."""

import ast
import importlib
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, NamedTuple, Self, TypeAlias

from trifold.data.archives import open_stored, split_member
from trifold.data.dialects import (
    Dialect,
    csv_fields,
    csv_records,
    find_dialect,
    is_delimiter_line,
)
from trifold.data.formats import FILE_FORMATS
from trifold.data.headers import (
    COMPARED_ROWS,
    LABELS as LABELS,  # noqa: PLC0414 (used by tasks)
    TEXTS as TEXTS,  # noqa: PLC0414
    Header,
    find_header,
    has_known_names,
    plain_name,
    split_words,
)
from trifold.data.lines import STANDARD_INPUT, WHOLE_FILE, FileRange, expand_path, iter_lines
from trifold.data.settings import DataSettings
from trifold.errors import DataError, SettingsError

# The number of a line or row, its place for messages, and its columns; None for a blank line.
NumberedRow: TypeAlias = tuple[int, str, Mapping[str, Any] | None]

_HUB_SOURCE = re.compile(r"hub:(?P<name>[^@:]+)(?:@(?P<config>[^:]+))?:(?P<split>.+)")
_MARK = "\ufeff"  # of byte order
_PARQUET_BATCH_ROWS = 1024  # rows in memory at once


# The value of a role that a row needs and does not have: the row is left out and counted.
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING"})()
# How tables write that there is no value, besides an empty cell: pandas, databases and Excel.
_NO_VALUE = {"nan", "null", "<na>", "#n/a"}
# A list as Python writes it, with quoted texts or numbers; numpy writes no commas. Tuples and sets
# have quoted texts only, because names may be in parentheses.
_ITEM = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[-+]?[0-9][0-9.e+-]*"""
_TEXT = _ITEM.rpartition("|")[0]
_LISTS = {
    sign: re.compile(rf"\{sign}\s*(?:(?:{item})(?:(?:\s*,\s*|\s+)(?:{item}))*)?\s*,?\s*\{end}")
    for sign, item, end in (("[", _ITEM, "]"), ("(", _TEXT, ")"), ("{", _TEXT, "}"))
}


class Role(NamedTuple):
    """A part of a row. names: of columns that hold it, in lower case, best first.

    convert: makes the value of one from that of its column and its place. may_be_empty: whether an
    empty text is valid. identifies: whether rows with other values are different rows, which is not
    so of labels. absent: the value for a null of an optional role.
    """

    names: Sequence[str]
    convert: Callable[[Any, str], Any]
    required: bool = True
    may_be_empty: bool = False
    identifies: bool = True
    absent: Any = None


Roles: TypeAlias = Mapping[str, Role]


@dataclass
class Table:
    """The rows of a file.

    has_columns: whether the rows have the same columns in one order, as in a table. dialect: of a
    CSV or TSV file. notes: what is unusual in its form, in words. skipped: counts of
    rows and characters that are no data, complete when all rows are read.
    """

    rows: Iterator[NumberedRow]
    skipped: Counter[str]
    has_columns: bool = False
    dialect: Dialect | None = None
    notes: list[str] = field(default_factory=list)


def open_table(
    file: str,
    kind: str,
    settings: DataSettings,
    known: Container[str] = (),
    skipped: Counter[str] | None = None,
) -> Table:
    r"""Open a file of a kind that holds rows.

    The rows of a CSV or TSV file are by the names in its header, else by the numbers of the columns
    ("0", "1", …). Every record has as many columns as the first. CSV (RFC 4180): double quotes, and
    line ends inside quotes, which become `\n`. A line `sep=;`, titles above the header, empty
    columns at the end, and the headers of joined files are left out, and noted or counted.

    known: names of columns, in lower case, which indicate that a row is a header. skipped: counts
    to add to.
    """
    skipped = Counter() if skipped is None else skipped
    if FILE_FORMATS[kind].reader:
        return Table(FILE_FORMATS[kind].load_reader()(file, settings), skipped)
    if kind == "parquet":
        return Table(iter_parquet(file, "", WHOLE_FILE), skipped)
    lines = iter_lines(file, settings.max_line_bytes)
    if kind == "jsonl":
        return Table(read_objects(lines, file), skipped)
    first_lines = list(islice(lines, COMPARED_ROWS))
    _check_line_ends(first_lines, file)
    dialect = find_dialect(file, kind, first_lines, settings, known)
    notes = dialect.describe(kind) if settings.delimiter is None else []
    notes += [f"line 1 skipped: {line!r}" for line in first_lines[:1] if is_delimiter_line(line)]
    records = _read_records(chain(first_lines, lines), file, dialect, settings, skipped)
    first = list(islice(records, COMPARED_ROWS))
    header = find_header([cells for _, cells in first], settings, known)
    notes += [
        f"line {first[place][0]} skipped: {' '.join(first[place][1]).strip()!r:.60}"
        for place in sorted(header.skipped)[:-1]
        if first[place][1] != [""]
    ]
    notes += ["without empty columns at the end"] * header.is_padded
    below = (record for place, record in enumerate(first) if place not in header.skipped)
    found = known if settings.header is None else ()
    rows = _name_cells(chain(below, records), file, header, found, skipped)
    return Table(rows, skipped, has_columns=True, dialect=dialect, notes=notes)


def iter_file(
    file: str, kind: str, settings: DataSettings, known: Container[str] = ()
) -> Iterator[NumberedRow]:
    """The rows of a file, as in `open_table`."""
    return open_table(file, kind, settings, known).rows


def read_dialect(
    file: str, kind: str, settings: DataSettings, known: Container[str] = ()
) -> Dialect:
    """How a file of kind `csv` or `tsv` is written; see `open_table`."""
    lines = list(islice(iter_lines(file, settings.max_line_bytes), COMPARED_ROWS))
    return find_dialect(file, kind, lines, settings, known)


def _check_line_ends(lines: Sequence[str], file: str) -> None:
    """Raises DataError for a table whose lines end in carriage returns, so that it is one line."""
    if len(lines) == 1 and "\r" in re.sub('"[^"]*"', "", lines[0]).rstrip("\r"):
        remedy = r"convert it with `tr '\r' '\n'`"
        raise DataError(f"{file}:1: the lines end in carriage returns, as of old Macs; {remedy}")


def _read_records(
    lines: Iterable[str],
    file: str,
    dialect: Dialect,
    settings: DataSettings,
    skipped: Counter[str],
) -> Iterator[tuple[int, list[str]]]:
    """The cells of each record, without the byte order marks and the lines `sep=;` of joined
    files.
    """
    records = (
        csv_records(lines, file, settings.max_line_bytes)
        if dialect.has_quotes
        else enumerate(lines, start=1)
    )
    names_delimiter = False
    for number, record in records:
        if record.startswith(_MARK):
            record = record.lstrip(_MARK)
            skipped["inner byte order mark"] += 1
        if (number == 1 or names_delimiter) and is_delimiter_line(record):
            names_delimiter = True
            continue
        if dialect.has_quotes:
            yield number, csv_fields(record, dialect.delimiter, f"{file}:{number}")
        else:
            yield number, record.split(dialect.delimiter)


def _name_cells(
    records: Iterable[tuple[int, list[str]]],
    file: str,
    header: Header,
    known: Container[str],
    skipped: Counter[str],
) -> Iterator[NumberedRow]:
    """The cells of each record by the names of their columns, without the headers of joined
    files.
    """
    width = header.width
    names = list(map(plain_name, header.names))
    keys = list(_unique_keys(header.names or [str(column) for column in range(width)]))
    by_name = dict(zip(names, keys, strict=True)) if names else {}
    for number, cells in records:
        place = f"{file}:{number}"
        if cells == [""]:
            yield number, place, None
            continue
        if header.is_padded and not any(cells[width:]):
            cells = cells[:width]
        if len(names) > 1 and plain_name(cells[0]) in by_name:
            found = list(map(plain_name, cells))
            if sorted(found) == sorted(names):
                skipped["repeated header"] += 1
                # Its columns may be in another order.
                keys = [by_name[name] for name in found] if len(by_name) == width else keys
                continue
        if has_known_names(cells, known):
            raise _second_header(place, cells, is_first=not names)
        if len(cells) != width:
            raise DataError(
                f"{place}: {len(cells)} columns where the first row has {width}; "
                "a stray tab, comma or quote?"
            )
        yield number, place, dict(zip(keys, cells, strict=True))


def _unique_keys(names: Sequence[str]) -> Iterator[str]:
    """The names, and the number of the column where a name occurs again."""
    return (str(column) if name in names[:column] else name for column, name in enumerate(names))


def _second_header(place: str, cells: Sequence[str], *, is_first: bool) -> DataError:
    remedy = (
        "remove the rows above it, or set data.header=false"
        if is_first
        else "name joined files in a list, or set data.header=true"
    )
    return DataError(
        f"{place}: {', '.join(cells)!r:.60} looks like a header below other rows; {remedy} if it "
        "is a row"
    )


class Keys(NamedTuple):
    """The keys of all rows, of which a row may lack some.

    names: in the order of their first use. spelling: keys that differ from an earlier one in case
    and outer space only, and stand in no row beside it -> the earlier one, which replaces them.
    """

    names: Mapping[str, None] = MappingProxyType({})
    spelling: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def of(cls, rows: Iterable[Iterable[str]]) -> Self:
        """The keys of these rows."""
        rows = dict.fromkeys(map(tuple, rows))
        names = dict[str, None]()
        spelling = dict[str, str]()
        earlier = dict[str, str]()
        for key in dict.fromkeys(chain.from_iterable(rows)):
            name = earlier.setdefault(plain_name(key), key)
            if name == key or any(name in row and key in row for row in rows):
                names[key] = None
            else:
                spelling[key] = name
        return cls(names, spelling)

    def respell(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """The row with the earlier spelling of its keys."""
        if not self.spelling:
            return row
        return {self.spelling.get(key, key): value for key, value in row.items()}

    def notes(self, columns: Collection[str]) -> list[str]:
        """The other spellings of these columns as phrases of a report."""
        found = self.spelling.items()
        return [f"{key!r:.40} read as {name!r:.40}" for key, name in found if name in columns]


def object_keys(file: str, kind: str, settings: DataSettings) -> Keys:
    """The keys of all objects of a JSONL file, because a row may lack some. None for other kinds,
    whose rows have the same columns, and for standard input, which is read once.
    """
    if kind != "jsonl" or file == STANDARD_INPUT:
        return Keys()
    rows = read_objects(iter_lines(file, settings.max_line_bytes), file)
    return Keys.of(row for _, _, row in rows if row is not None)


def read_objects(lines: Iterable[str], name: str, first_line: int = 1) -> Iterator[NumberedRow]:
    """The JSON object of each line."""
    for number, line in enumerate(lines, start=first_line):
        place = f"{name}:{number}"
        if not line.strip():
            yield number, place, None
            continue
        row = parse_json(line, name, number, "write one object per line")
        if not isinstance(row, dict):
            raise DataError(
                f"{place}: a JSON {type(row).__name__}, expected an object with named values"
            )
        yield number, place, row


def parse_json(text: str, name: str, line: int, remedy: str) -> Any:
    """The value in a text that begins at this line of a file. Raises DataError if it is not
    JSON.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"{name}:{line + error.lineno - 1}:{error.colno}"
        raise DataError(f"{place}: not valid JSON ({error.msg}); {remedy}") from None
    except (ValueError, RecursionError):
        raise DataError(
            f"{name}:{line}: not readable JSON (nested too deeply, or a number too long)"
        ) from None


def has_header(row: Mapping[str, Any], settings: DataSettings) -> bool:
    """Whether a row of a table is by the names of a header, and not by the numbers of the
    columns.
    """
    return bool(settings.header) or [*row] != [str(column) for column in range(len(row))]


def choose_columns(
    row: Mapping[str, Any], roles: Roles, settings: DataSettings, place: str, *, is_table: bool
) -> dict[str, str]:
    """The column of each role: the one in the settings; else the first of its names; else, in a
    table, the only rest.

    An optional role may have none. Raises DataError if a column is missing in a table; in an
    object, `value_at` does. Raises SettingsError for a role in the settings that is not one of
    `roles`.
    """
    keys = list(row)
    chosen = dict[str, str]()
    requested = _requested_columns(roles, settings)
    for role, column in requested.items():
        if column is not None:
            is_number = (
                is_table and column not in keys and column.isdigit() and int(column) < len(keys)
            )
            chosen[role] = keys[int(column)] if is_number else column
    names = {key.strip().casefold(): key for key in keys if key not in chosen.values()}
    for role, (known, *_) in roles.items():
        if role not in requested and (
            found := next((name for name in known if name in names), None)
        ):
            chosen[role] = names.pop(found)
    missing = [role for role, each in roles.items() if each.required and role not in chosen]
    rest = [key for key in keys if key not in chosen.values()]
    is_split = len(keys) > 1 or not re.fullmatch(r"\w+([;\t|]\w+)+", str(*row.values()))
    if is_table and len(rest) == len(missing) and is_split:
        rest.sort(
            key=lambda key: not {*LABELS}.isdisjoint(split_words(key.casefold()))
        )  # labels last
        chosen |= zip(missing, rest, strict=True)
    chosen = {**{role: role for role in missing}, **chosen}
    for role, key in chosen.items():
        if is_table and key not in keys:
            raise _missing_column(row, key, place, _setting(role))
    return {role: chosen[role] for role in roles if role in chosen}


def _requested_columns(roles: Roles, settings: DataSettings) -> dict[str, str | None]:
    requested: dict[str, str | None] = {}
    for role, value in settings.columns.items():
        if role not in roles:
            known = ", ".join(roles)
            raise SettingsError(
                f"data.columns.{role}: this task reads no {role!r}; it reads {known}"
            )
        requested[role] = None if value is None else str(value)
        if value is None and roles[role].required:
            raise SettingsError(
                f"data.columns.{role}: this task needs a column; name it, or remove the key"
            )
    for value, default, role in (
        (settings.source, "source", "text"),
        (settings.target, "target", "label"),
    ):
        role = role if role in roles else default
        if value != default and role not in roles:
            raise SettingsError(
                f"data.{default}: this task reads no {default!r}; set "
                f"data.columns.{next(iter(roles))}"
            )
        if value != default:
            requested.setdefault(role, str(value))
    return requested


def _setting(role: str) -> str:
    """The settings that name the column of a role."""
    return "data.source and data.target" if role in ("source", "target") else f"data.columns.{role}"


def _missing_column(row: Mapping[str, Any], column: str, place: str, setting: str) -> DataError:
    is_header = "0" not in row
    first = [*row] if is_header else [*row.values()]
    known = f"its first row is {first}" if len(first) < 20 else f"it has {len(first)} columns"
    remedy = f"set {setting} to names or numbers of columns (from 0)"
    if len(first) == 1 and (sign := re.search("[;\t|,]", first[0])):
        remedy = f"{sign[0]!r} does not separate columns here; set data.delimiter"
    place = re.sub(r":\d+$", ":1", place) if is_header else place
    return DataError(f"{place}: no column {column!r}; {known}; {remedy}")


def value_at(row: Mapping[str, Any], key: str, place: str, setting: str) -> Any:
    """The value under `key`; `translation.en` also means row["translation"]["en"].

    Raises DataError, which names the `setting`, if it is missing.
    """
    value: Any = row
    for part in [key] if key in row else key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            known = ", ".join(map(str, value) if isinstance(value, Mapping) else ()) or "none"
            raise DataError(f"{place}: no value {key!r}; found: {known}; set {setting}")
        value = value[part]
    return value


def read_roles(
    row: Mapping[str, Any], roles: Roles, columns: Mapping[str, str], place: str
) -> list[Any]:
    """The value of each role; None for one without a column, and for an optional one that the row
    lacks; `absent` for an optional one that is null.
    """
    values: list[Any] = []
    for role, (_, convert, required, *_, absent) in roles.items():
        key = columns.get(role)
        is_there = key is not None and row.get(key, row.get(key.partition(".")[0])) is not None
        if key is None:
            values.append(None)
        elif not (required or is_there):
            values.append(absent if key in row else None)
        else:
            values.append(convert(value_at(row, key, place, _setting(role)), f"{place}: {key!r}"))
    return values


def read_values(
    table: Table,
    keys: Keys,
    blank: list[str],
    choose: Callable[[Mapping[str, Any], str], tuple[Roles, dict[str, str]]],
) -> Iterator[tuple[int, Sequence[Any]]]:
    """The number of each row, and its values by role; `blank` for a blank line.

    keys: of all rows, if they differ. choose: the roles and their columns, from the first row, with
    the keys of all, and its place.
    """
    roles: Roles = {}
    columns = dict[str, str]()
    for number, place, row in table.rows:
        if row is None:
            yield number, blank
            continue
        row = keys.respell(row)
        if not columns:
            roles, columns = choose({**keys.names, **row}, place)
        yield number, read_roles(row, roles, columns, place)


def is_missing(value: Any) -> bool:
    """Whether a value says that there is none: null, NaN, or a text that is blank or one of
    _NO_VALUE.
    """
    if isinstance(value, str):
        return not value.strip() or value.strip().casefold() in _NO_VALUE
    return value is None or value != value  # NaN


def list_in(text: str) -> list[Any] | None:
    """The list that a text writes as JSON, Python, pandas or numpy do; None if it writes none."""
    if text == "set()":
        return []
    if text.startswith("["):
        with suppress(ValueError, RecursionError):
            found: list[Any] = json.loads(text)
            return found
    if text[:1] not in _LISTS or not _LISTS[text[0]].fullmatch(text):
        return None
    with suppress(ValueError, SyntaxError):
        return [ast.literal_eval(item) for item in re.findall(_ITEM, text)]
    return None


def check_text(value: Any, place: str) -> str:
    """The value. Raises DataError if it is not a string, or contains a NUL character or an unpaired
    surrogate.
    """
    if not isinstance(value, str):
        kind = "null" if value is None else f"a value of type {type(value).__name__}"
        raise DataError(f"{place} is {kind}, expected text")
    if "\0" in value:
        raise DataError(f"{place} contains a NUL character; remove it")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise DataError(f"{place} contains an unpaired surrogate, which is not a character")
    return value


# --- Parquet --------------------------------------------------------------------------------------


def count_row_groups(file: str) -> int:
    """The number of row groups of a Parquet file. Raises DataError if it cannot be read."""
    return int(_open_parquet(file).num_row_groups)


def iter_parquet(file: str, field: str, part: FileRange) -> Iterator[NumberedRow]:
    """The rows of some row groups, numbered from 1 within the file, with the column of `field`.
    Classes that the library `datasets` has numbered have their names.

    Raises DataError if pyarrow is not installed or the file is damaged.
    """
    table = _open_parquet(file)
    row_groups = range(part.start, table.num_row_groups if part.stop is None else part.stop)
    number = sum(table.metadata.row_group(group).num_rows for group in range(part.start))
    columns = [
        name for name in table.schema_arrow.names if name in (field, field.partition(".")[0])
    ]
    names = _names_in_metadata(table.schema_arrow.metadata or {})
    try:
        # If the column is missing, all are read, so that the error can list them.
        batches = table.iter_batches(
            _PARQUET_BATCH_ROWS, row_groups=[*row_groups], columns=columns or None
        )
        for batch in batches:
            for row in batch.to_pylist():
                number += 1
                yield number, f"{file}, row {number}", _with_names(row, names)
    except Exception as error:  # the library raises many unrelated classes
        raise _parquet_error(file, error) from None


def _open_parquet(file: str) -> Any:
    library = _import_library(
        "pyarrow.parquet", f"{file}: Parquet files need the `pyarrow` library"
    )
    path = expand_path(file)
    try:
        if split_member(path) is None:
            return library.ParquetFile(path)
        with open_stored(path) as member:
            return library.ParquetFile(BytesIO(member.read()))
    except FileNotFoundError:
        raise DataError(f"{file}: no such file; check the path") from None
    except DataError:
        raise
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


# --- datasets of the hub --------------------------------------------------------------------------


def iter_hub(source: str) -> Iterator[NumberedRow]:
    """The rows of `hub:NAME@CONFIG:SPLIT`; code from the hub is never executed.

    Raises SettingsError for another form, DataError if `datasets` is not installed or cannot load
    the dataset.
    """
    if not (match := _HUB_SOURCE.fullmatch(source)):
        raise SettingsError(
            f"data: {source!r} is not of the form hub:NAME:SPLIT or hub:NAME@CONFIG:SPLIT"
        )
    datasets = _import_library("datasets", f"{source}: hub datasets need the `datasets` library")
    try:
        rows = datasets.load_dataset(match["name"], match["config"], split=match["split"])
    except (
        Exception
    ) as error:  # the library raises many unrelated classes, network errors among them
        reason = str(error).partition("\n")[0]
        remedy = "check name, configuration, split and network, or give files instead"
        raise DataError(
            f"{source}: cannot be loaded ({type(error).__name__}: {reason}); {remedy}"
        ) from error
    for number, row in enumerate(named_rows(rows), start=1):
        yield number, f"{source}, row {number}", row


def named_rows(dataset: Any) -> Iterator[Mapping[str, Any]]:
    """The rows of a dataset of the library `datasets`, with the names of classes."""
    features = (getattr(dataset, "features", None) or {}).items()
    found = {key: getattr(getattr(each, "feature", each), "names", None) for key, each in features}
    names = {key: each for key, each in found.items() if each}
    for row in dataset:
        yield _with_names(row, names)


# --- classes that are given by number -------------------------------------------------------------


def _names_in_metadata(metadata: Mapping[bytes, bytes]) -> dict[str, Sequence[str]]:
    """The names of the classes in each column, from the metadata that the library `datasets` writes
    into Parquet files.
    """
    with suppress(ValueError, LookupError, TypeError, AttributeError):
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        found = {key: _names_of_feature(feature) for key, feature in features.items()}
        return {key: names for key, names in found.items() if names}
    return {}


def _names_of_feature(feature: Any) -> Sequence[str] | None:
    """The names of a ClassLabel, or of a list of them, which has one of two forms."""
    if isinstance(feature, list) and feature:
        return _names_of_feature(feature[0])
    kind = feature.get("_type") if isinstance(feature, Mapping) else None
    if kind == "ClassLabel":
        return [str(name) for name in feature.get("names") or ()]
    return None if kind is None else _names_of_feature(feature.get("feature"))


def _with_names(row: Mapping[str, Any], names: Mapping[str, Sequence[str]]) -> Mapping[str, Any]:
    """The row with the names of its classes. A negative number, which stands for no class, is
    None.
    """
    return {**row, **{key: _class_names(row[key], names[key]) for key in names if key in row}}


def _class_names(value: Any, names: Sequence[str]) -> Any:
    if isinstance(value, list):
        return [_class_names(each, names) for each in value]
    if not isinstance(value, int) or value >= len(names):
        return value
    return names[value] if value >= 0 else None
