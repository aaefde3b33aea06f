"""One file that holds both sides of every pair: TSV, CSV and JSON lines.

Every reader is a generator of (line number, source, target). A blank line gives a pair of two empty sides,
so that whoever counts blank pairs counts it too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from trifold.data.settings import DataSettings
from trifold.errors import DataError

Numbered: TypeAlias = Iterator[tuple[int, str, str]]

# A quoted field may hold commas, line ends and doubled quotes. Unrolled, so that no text makes it backtrack.
_FIELD = re.compile(r'(?:"([^"]*(?:""[^"]*)*)"|([^",]*))(,|\Z)')


def read_tsv(lines: Iterable[str], name: str, settings: DataSettings) -> Numbered:
    """Columns between tabs, without any quoting."""
    records = ((number, line.split("\t")) for number, line in enumerate(lines, start=1))
    return _columns(records, name, settings)


def read_csv(lines: Iterable[str], name: str, settings: DataSettings) -> Numbered:
    r"""RFC 4180: commas, double quotes, and line ends inside quotes (which become `\n`)."""
    return _columns(_csv_records(lines, name, settings.max_line_bytes), name, settings)


def read_jsonl(lines: Iterable[str], name: str, settings: DataSettings) -> Numbered:
    """One JSON object a line."""
    for number, row in objects(lines, name):
        place = f"{name}:{number}"
        if row is None:
            yield number, "", ""
        else:
            yield number, text_at(row, settings.source, place), text_at(row, settings.target, place)


def objects(
    lines: Iterable[str], name: str, first_line: int = 1
) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """The number of each line and the JSON object in it, None where it is blank."""
    for number, line in enumerate(lines, start=first_line):
        if not line.strip():
            yield number, None
            continue
        place = f"{name}:{number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{place}:{error.colno}: not valid JSON ({error.msg}); one object a line"
            ) from None
        except (ValueError, RecursionError):
            raise DataError(f"{place}: not readable JSON (too deep, or a number too long)") from None
        if not isinstance(row, dict):
            raise DataError(f"{place}: a JSON {type(row).__name__}, expected an object with named values")
        yield number, row


READERS: dict[str, Callable[[Iterable[str], str, DataSettings], Numbered]] = {
    "tsv": read_tsv,
    "csv": read_csv,
    "jsonl": read_jsonl,
}


def text_at(
    row: Mapping[str, Any], key: str | int, place: str, setting: str = "data.source and data.target"
) -> str:
    """The text under `key`, where `translation.en` may also mean row["translation"]["en"].

    Raises DataError when it is missing, no text, or text that cannot be written as UTF-8.
    """
    value: Any = row
    for part in [key] if key in row else str(key).split("."):
        if not isinstance(value, Mapping) or part not in value:
            known = ", ".join(map(str, value)) if isinstance(value, Mapping) else "none"
            raise DataError(f"{place}: no value {key!r}; found: {known}; set {setting}")
        value = value[part]
    if not isinstance(value, str):
        raise DataError(f"{place}: {key!r} holds {_kind(value)}, expected text")
    if "\0" in value:
        raise DataError(f"{place}: {key!r} holds a NUL character; remove it")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise DataError(f"{place}: {key!r} holds half of a surrogate pair, which is no character")
    return value


def _kind(value: object) -> str:
    return "nothing (null)" if value is None else f"a value of type {type(value).__name__}"


def _columns(records: Iterable[tuple[int, list[str]]], name: str, settings: DataSettings) -> Numbered:
    """Pick the two columns; every record must have as many columns as the first."""
    places: tuple[int, int] | None = None
    width = 0
    for number, record in records:
        if record == [""]:
            yield number, "", ""
            continue
        if places is None:
            has_header, places = _find_columns(record, f"{name}:{number}", settings)
            width = len(record)
            if has_header:
                continue
        if len(record) != width:
            cause = "a stray tab, comma or quote?"
            raise DataError(
                f"{name}:{number}: {len(record)} columns where the first row has {width}; {cause}"
            )
        yield number, record[places[0]], record[places[1]]


def _find_columns(first: list[str], place: str, settings: DataSettings) -> tuple[bool, tuple[int, int]]:
    """Whether the first record is a header, and where the two columns are."""
    wanted = [str(settings.source), str(settings.target)]
    has_header = settings.header
    if has_header is None:
        has_header = any(column in first for column in wanted if not column.isdigit())
    names = list(first) if has_header else []
    if not has_header and wanted == ["source", "target"] and len(first) == 2:
        wanted = ["0", "1"]  # two columns without names: nothing else can be meant
    found = []
    for column in wanted:
        if column in names:
            found.append(names.index(column))
        elif column.isdigit() and int(column) < len(first):
            found.append(int(column))
        else:
            known = f"its first row is {first}" if len(first) < 20 else f"it has {len(first)} columns"
            remedy = "set data.source and data.target to names or numbers of columns (from 0)"
            raise DataError(f"{place}: no column {column!r}; {known}; {remedy}")
    return has_header, (found[0], found[1])


def _csv_records(lines: Iterable[str], name: str, limit: int) -> Iterator[tuple[int, list[str]]]:
    numbered = enumerate(lines, start=1)
    for number, record in numbered:
        parts, size, quotes = [record], len(record), record.count('"')
        while quotes % 2:  # inside quotes the record goes on over the line end
            _, part = next(numbered, (0, None))
            if part is None or size > limit:
                raise DataError(f"{name}:{number}: a quote is opened and not closed; close it, or use TSV")
            parts.append(part)
            size, quotes = size + len(part), quotes + part.count('"')
        yield number, _csv_fields("\n".join(parts), f"{name}:{number}")


def _csv_fields(record: str, place: str) -> list[str]:
    fields, position = [], 0
    while match := _FIELD.match(record, position):
        quoted, plain, end = match.groups()
        fields.append(plain if quoted is None else quoted.replace('""', '"'))
        if not end:
            return fields
        position = match.end()
    remedy = 'put the whole field in quotes and write "" for a quote in it'
    raise DataError(f"{place}: a quote in the wrong place near character {position + 1}; {remedy}")
