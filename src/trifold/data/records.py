"""Labelled rows: values by role (text, label, …) from files, datasets of the hub and embedded text.

A task names its roles and the columns that hold them. Every format becomes an iterator of mappings,
whose columns are chosen by their names.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain
from textwrap import shorten
from typing import Any

from trifold.data.conll import join_words
from trifold.data.datasets import open_dataset
from trifold.data.files import FORMATS, TABLE_FORMATS, find_files, is_dataset
from trifold.data.formats import suffixes_of
from trifold.data.holdout import normalized
from trifold.data.lines import check_readable, inner_suffix
from trifold.data.reports import RowReport, name_of_files, skipped_files
from trifold.data.roles import Role, Roles, choose_columns, is_missing, read_values
from trifold.data.rows import NumberedValues, Rows, collect_rows
from trifold.data.settings import DataSettings, Source
from trifold.data.squad import iter_squad
from trifold.data.tables import Keys, Table, has_header, object_keys, open_table
from trifold.errors import DataError, SettingsError

# Suffix -> format of labelled rows; that of text has none.
RECORD_FORMATS = FORMATS | suffixes_of("rows")


def read_records(
    source: Source,
    settings: DataSettings,
    roles: Roles,
    split: str = "train",
    plain: str | None = None,
) -> Rows:
    """Read all rows of `source` into memory and count those that the settings drop.

    The source is a table, JSONL, Parquet, CoNLL or SQuAD file, several of them, `hub:…` or
    `embedded:…`. split: the split of an embedded source that names none. plain: the format of a
    file with another suffix, if it has one. Raises DataError if the data is unreadable or malformed
    or has no usable row; SettingsError if a setting is invalid.
    """
    if split == "train" and settings.holdout:
        settings, roles = _with_split_roles(settings, roles)
    if is_dataset(source):
        report = RowReport(source)
        table, keys = open_dataset(source, split, report.skipped)
        numbered = _read_rows(table, settings, roles, report, keys)
    else:
        files, skipped = find_files(source or "", TABLE_FORMATS)
        report = RowReport(name_of_files(files), notes=skipped_files(skipped))
        numbered = chain.from_iterable(
            _read_file(file, settings, roles, report, plain) for file in files
        )
    rows = collect_rows(numbered, roles, settings, report)
    rows.split_by = _split_values(rows)
    return rows


# --- columns that decide on which side a row is held out ------------------------------------------


def _read_group(value: Any, place: str) -> str:
    """The name of a group, or its number, which pandas writes as 7.0 if another cell is empty."""
    if is_missing(value) or isinstance(value, list | dict):
        raise DataError(
            f"{place} is {value!r:.40}, expected the name or the number of a group; give the row "
            "a group of its own"
        )
    is_whole = isinstance(value, float) and value.is_integer()
    return normalized(str(int(value) if is_whole else value))


def _read_time(value: Any, place: str) -> float | datetime:
    """A number, or a date as ISO 8601 writes it, without a time zone in UTC."""
    with suppress(ValueError, TypeError):
        number = float(value)
        if math.isfinite(number):
            return number
    with suppress(ValueError):
        moment = datetime.fromisoformat(str(value).strip())
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    raise DataError(
        f"{place} is {value!r:.40}, expected a number or a date such as 2026-11-27 or "
        "2026-11-27T08:30"
    )


def _split_values(rows: Rows) -> dict[str, list[Any]]:
    """The columns of `data.group` and `data.time`, taken out of the rows; dates become seconds.

    Raises DataError for a blank row that is kept, and if numbers and dates are mixed.
    """
    columns = {role: rows.columns.pop(role) for role in _SPLIT_ROLES if role in rows.columns}
    for role, values in columns.items():
        for line, value in zip(rows.lines, values, strict=True):
            if value == "" or type(value) is not type(values[0]):
                problem = "numbers and dates are mixed" if value else "a blank row has none"
                raise DataError(
                    f"{rows.report.name}:{line}: data.{role}: {problem}; correct the row"
                )
    if isinstance(columns.get("time", [0.0])[0], datetime):
        columns["time"] = [moment.timestamp() for moment in columns["time"]]
    return columns


_SPLIT_ROLES = {
    "group": Role((), _read_group, identifies=False),
    "time": Role((), _read_time, identifies=False),
}


def _with_split_roles(settings: DataSettings, roles: Roles) -> tuple[DataSettings, Roles]:
    """The settings and roles, with the columns of `data.group` and `data.time`."""
    columns = {
        role: str(column)
        for role in _SPLIT_ROLES
        if (column := getattr(settings, role)) is not None
    }
    if not columns:
        return settings, roles
    update = {"columns": {**settings.columns, **columns}}
    more = {role: _SPLIT_ROLES[role] for role in columns}
    return settings.model_copy(update=update), {**roles, **more}


# --- files ----------------------------------------------------------------------------------------


def open_rows(
    file: str,
    settings: DataSettings,
    roles: Roles,
    skipped: Counter[str],
    plain: str | None = None,
) -> tuple[str, Table]:
    """The format of a file of labelled rows, and the rows.

    skipped: counts rows that are no data. roles: their names tell a header from a row. plain: the
    format of a file with a suffix of text.
    Raises SettingsError for a file of plain lines.
    """
    kind: str = settings.format
    if kind == "auto":
        kind = RECORD_FORMATS.get(inner_suffix(file), "text")
    if kind == "text" and plain is not None:
        kind = plain
    if kind == "text":
        check_readable(file, settings.max_line_bytes)
        raise SettingsError(
            f"data: {file} holds plain lines according to its suffix, but this task reads "
            "columns; give a .csv, .tsv, .jsonl or .parquet file, or set data.format"
        )
    names = {name for role in roles.values() for name in role.names}
    table = open_table(file, kind, settings, names, skipped)
    if "words" in roles and table.has_columns:
        table = join_words(table, settings)
    return kind, table


def keys_of_file(file: str, kind: str, settings: DataSettings) -> Keys:
    """The keys of all rows of JSON lines or a JSON array, as in `tables.object_keys`."""
    if kind == "squad":
        return Keys.of(row for _, _, row in iter_squad(file, settings) if row is not None)
    return object_keys(file, kind, settings)


def _read_file(
    file: str, settings: DataSettings, roles: Roles, report: RowReport, plain: str | None
) -> Iterator[NumberedValues]:
    kind, table = open_rows(file, settings, roles, report.skipped, plain)
    keys = keys_of_file(file, kind, settings)
    return _read_rows(table, settings, roles, report, keys)


def _column_name(row: Mapping[str, Any], column: str) -> str:
    """The name of a column for a report: in CoNLL its number, under which a row has it, too."""
    value = row.get(column)
    if isinstance(value, list):
        numbers = (key for key, other in row.items() if key.isdigit() and other is value)
        return next((f"column {number}" for number in numbers), f"{column!r:.40}")
    return f"{column!r:.40}"


def _read_rows(
    table: Table, settings: DataSettings, roles: Roles, report: RowReport, keys: Keys
) -> Iterator[NumberedValues]:
    """The values of each row; those of a blank line are empty texts."""

    def choose(row: Mapping[str, Any], place: str) -> tuple[Roles, dict[str, str]]:
        columns = choose_columns(row, roles, settings, place, is_table=table.has_columns)
        report.columns = columns
        chosen = ", ".join(
            f"{role} {_column_name(row, column)}" for role, column in columns.items()
        )
        if table.has_columns:
            header = "header" if has_header(row, settings) else "no header"
            chosen = f"{header}: {chosen}"
        note = "; ".join(
            [chosen, *_unused(row, columns), *table.notes, *keys.notes(columns.values())]
        )
        if note not in report.notes:
            report.notes.append(note)
        return roles, columns

    return read_values(table, keys, [""] * len(roles), choose)


def _unused(row: Mapping[str, Any], columns: Mapping[str, str]) -> list[str]:
    """The named columns without a role as a phrase of a report, if there are any."""
    used = columns.values()
    names = [name for name in row if name and name not in used and not name.isdigit()]
    return [f"not used: {shorten(', '.join(names), 40, placeholder=' …')}"] if names else []
