"""Rows of TSV, CSV, JSON lines and Parquet files, and of datasets of the Hugging Face hub."""

import importlib
import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import chain, islice
from typing import Any, NamedTuple, TypeAlias

from trifold.data.archives import open_stored, split_member
from trifold.data.lines import STANDARD_INPUT, WHOLE_FILE, FileRange, expand_path, iter_lines
from trifold.data.settings import DataSettings
from trifold.errors import DataError, SettingsError

# The number of a line or row, its place for messages, and its columns; None for a blank line.
NumberedRow: TypeAlias = tuple[int, str, Mapping[str, Any] | None]

# A quoted field may contain commas, line ends and doubled quotes. The loop is unrolled to avoid
# backtracking.
_CSV_FIELD = re.compile(r'(?:"([^"]*(?:""[^"]*)*)"|([^",]*))(,|\Z)')
_HUB_SOURCE = re.compile(r"hub:(?P<name>[^@:]+)(?:@(?P<config>[^:]+))?:(?P<split>.+)")
# A first row is a header if each cell looks like a name, and two consist of such words or all are
# codes of languages.
_NAME = re.compile(r"#?\w+(?:[ .#-]\w+){0,2}")
LABELS = (
    "label labels class category sentiment topic intent genre rating stars score".split()
)  # best first
TEXTS = (
    "text sentence review comment tweet utterance message post content body article document"
).split()
_WORDS = {*LABELS, *TEXTS} | set(
    "answer completion context hypothesis id input klasse kommentar output premise prompt query "
    "question sentence1 "
    "sentence2 source src summary target tgt title translation trg arabic chinese czech danish "
    "deutsch dutch english "
    "englisch finnish français french german greek hindi hungarian italian japanese korean "
    "norwegian polish portuguese "
    "romanian russian spanish swedish turkish ukrainian".split()
)
_CODES = frozenset(
    "ar bg cs da de el en es fi fr he hi hu ja ko nl pl pt ro ru sv th tr uk vi zh".split()
)
_COMPARED_ROWS = 200  # in which no name of a header occurs again
_PARQUET_BATCH_ROWS = 1024  # rows in memory at once


class Role(NamedTuple):
    """A part of a row. names: of columns that hold it, in lower case, best first.

    convert: makes the value of one from that of its column and its place. may_be_empty: whether an
    empty text is valid. identifies: whether rows with other values are different rows, which is not
    so of labels.
    """

    names: Sequence[str]
    convert: Callable[[Any, str], Any]
    required: bool = True
    may_be_empty: bool = False
    identifies: bool = True


Roles: TypeAlias = Mapping[str, Role]


def iter_file(
    file: str, kind: str, settings: DataSettings, known: Container[str] = ()
) -> Iterator[NumberedRow]:
    r"""The rows of a file of kind `tsv`, `csv`, `jsonl` or `parquet`.

    Those of a table are by the names in its header, else by the numbers of the columns ("0", "1",
    …). Every record must have as many columns as the first. TSV: separated by tabs, without
    quoting. CSV (RFC 4180): commas, double quotes, and line ends inside quotes, which become `\n`.

    known: names of columns, in lower case, which indicate that the first row of a table is its
    header.
    """
    if kind == "parquet":
        yield from iter_parquet(file, "", WHOLE_FILE)
        return
    lines = iter_lines(file, settings.max_line_bytes)
    if kind == "jsonl":
        yield from read_objects(lines, file)
        return
    if kind == "csv":
        found = csv_records(lines, file, settings.max_line_bytes)
        records = ((number, _csv_fields(record, f"{file}:{number}")) for number, record in found)
    else:
        records = ((number, line.split("\t")) for number, line in enumerate(lines, start=1))
    keys: list[str] = []
    compared = list(islice(records, _COMPARED_ROWS))
    for number, record in chain(compared, records):
        if record == [""]:
            yield number, f"{file}:{number}", None
            continue
        if not keys:
            names = _read_header(record, [row for _, row in compared], settings, known)
            keys = [
                str(column) if cell in names[:column] else cell for column, cell in enumerate(names)
            ]
            keys = keys or [str(column) for column in range(len(record))]
            if names:
                continue
        if len(record) != len(keys):
            raise DataError(
                f"{file}:{number}: {len(record)} columns where the first row has {len(keys)}; "
                "a stray tab, comma or quote?"
            )
        yield number, f"{file}:{number}", dict(zip(keys, record, strict=True))


def object_keys(file: str, kind: str, settings: DataSettings) -> dict[str, None]:
    """The keys of all objects of a JSONL file, in the order of their first use, because a row may
    lack some. Empty for other kinds, whose rows have the same columns, and for standard input,
    which is read once.
    """
    if kind != "jsonl" or file == STANDARD_INPUT:
        return {}
    rows = read_objects(iter_lines(file, settings.max_line_bytes), file)
    return dict.fromkeys(key for _, _, row in rows if row is not None for key in row)


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


def _read_header(
    first: list[str], rows: list[list[str]], settings: DataSettings, known: Container[str]
) -> list[str]:
    """The first record if it is a header, else nothing; `rows` begin with it."""
    requested = {
        str(name) for name in (settings.source, settings.target, *settings.columns.values())
    }
    if settings.header is not None or any(
        name in first for name in requested if not name.isdigit()
    ):
        return [] if settings.header is False else first
    cells = [cell.strip().casefold() for cell in first]
    codes = {
        re.sub(r"[_-][a-z]{2,4}$", "", cell) for cell in cells
    }  # without regions: en_US, zh-Hant
    usual = sum(cell in known or _WORDS.issuperset(_words(cell)) for cell in cells)
    is_known = codes <= _CODES or usual >= min(2, len(cells))
    # The first name may be empty: pandas writes it for an index.
    is_named = (
        is_known
        and all(map(_NAME.fullmatch, cells[not cells[0] :]))
        and len({*cells}) == len(cells)
    )
    recurs = (a == b for row in rows for a, b in zip(first, row, strict=False) if row is not first)
    return first if is_named and not any(recurs) else []


def has_header(row: Mapping[str, Any], settings: DataSettings) -> bool:
    """Whether a row of a table is by the names of a header, and not by the numbers of the
    columns.
    """
    return bool(settings.header) or [*row] != [str(column) for column in range(len(row))]


def _words(cell: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", cell) or [cell]


def choose_columns(
    row: Mapping[str, Any], roles: Roles, settings: DataSettings, place: str, *, is_table: bool
) -> dict[str, str]:
    """The column of each role: the one in the settings; else the first of its names; else, in a
    table, the only rest.

    An optional role may have none. Raises DataError if a column is missing in a table; in an
    object, `value_at` does. Raises SettingsError for a role in the settings that is not one of
    `roles`.
    """
    keys, chosen = list(row), dict[str, str]()
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
        rest.sort(key=lambda key: not {*LABELS}.isdisjoint(_words(key.casefold())))  # labels last
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
    if len(first) == 1 and (sign := re.search("[;\t|]", first[0])):
        remedy = f"{sign[0]!r} does not separate columns; use commas, or tabs in a .tsv file"
    place = re.sub(r":\d+$", ":1", place) if is_header else place
    return DataError(f"{place}: no column {column!r}; {known}; {remedy}")


def value_at(row: Mapping[str, Any], key: str, place: str, setting: str) -> Any:
    """The value under `key`; `translation.en` also means row["translation"]["en"].

    Raises DataError, which names the `setting`, if it is missing.
    """
    value: Any = row
    for part in [key] if key in row else key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            known = ", ".join(map(str, value)) if isinstance(value, Mapping) else "none"
            raise DataError(f"{place}: no value {key!r}; found: {known}; set {setting}")
        value = value[part]
    return value


def read_roles(
    row: Mapping[str, Any], roles: Roles, columns: Mapping[str, str], place: str
) -> list[Any]:
    """The value of each role; None for one without a column, and for an optional one that the row
    lacks.
    """
    values: list[Any] = []
    for role, (_, convert, required, *_) in roles.items():
        key = columns.get(role)
        is_there = key is not None and row.get(key, row.get(key.partition(".")[0])) is not None
        if key is None or not (required or is_there):
            values.append(None)
        else:
            values.append(convert(value_at(row, key, place, _setting(role)), f"{place}: {key!r}"))
    return values


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


# The csv module is not used: even in strict mode it accepts a quote inside an unquoted field, it
# rejects a lone carriage return, and it reads an unclosed quote to the end of the file before it
# reports the line of that end.
def csv_records(lines: Iterable[str], name: str, max_bytes: int) -> Iterator[tuple[int, str]]:
    """The records of CSV, of one or several lines, with the numbers of their first lines."""
    numbered = enumerate(lines, start=1)
    for number, record in numbered:
        parts, size, quotes = [record], len(record), record.count('"')
        while quotes % 2:  # an open quote continues the record on the next line
            _, part = next(numbered, (0, None))
            if part is None or size > max_bytes:
                raise DataError(
                    f"{name}:{number}: a quote is opened and not closed; close it, or use TSV"
                )
            parts.append(part)
            size, quotes = size + len(part), quotes + part.count('"')
        yield number, "\n".join(parts)


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


# --- Parquet --------------------------------------------------------------------------------------


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
    columns = [
        name for name in table.schema_arrow.names if name in (field, field.partition(".")[0])
    ]
    try:
        # If the column is missing, all are read, so that the error can list them.
        batches = table.iter_batches(
            _PARQUET_BATCH_ROWS, row_groups=[*row_groups], columns=columns or None
        )
        for batch in batches:
            for row in batch.to_pylist():
                number += 1
                yield number, f"{file}, row {number}", row
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
    names = {key: getattr(getattr(each, "feature", each), "names", None) for key, each in features}
    for row in dataset:
        yield {key: _class_names(value, names.get(key)) for key, value in row.items()}


def _class_names(value: Any, names: Sequence[str] | None) -> Any:
    """The names of classes that are given by number, or of a list of them; other values, such as
    -1, are kept.
    """
    if isinstance(value, list) and names:
        return [_class_names(each, names) for each in value]
    return names[value] if names and isinstance(value, int) and 0 <= value < len(names) else value
