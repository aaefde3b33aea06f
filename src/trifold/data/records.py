"""Labelled rows: values by role (text, label, …) from files, datasets of the hub and embedded text.

A task names its roles and the columns that hold them. Every format becomes an iterator of mappings,
whose columns are chosen by their names.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from textwrap import shorten
from typing import Any, ClassVar, Self

import numpy as np

from trifold.data.conll import join_words
from trifold.data.files import FORMATS, TABLE_FORMATS, find_files, is_dataset
from trifold.data.formats import suffixes_of
from trifold.data.holdout import Traits, normalized, strata_of
from trifold.data.lines import inner_suffix, iter_lines
from trifold.data.pairs import (
    Report,
    Rows,
    filter_rows,
    name_of_files,
    open_dataset,
    skipped_files,
)
from trifold.data.settings import DataSettings, Source
from trifold.data.squad import iter_squad
from trifold.data.tables import (
    Keys,
    Role,
    Roles,
    Table,
    choose_columns,
    has_header,
    is_missing,
    object_keys,
    open_table,
    read_roles,
)
from trifold.errors import DataError, SettingsError

# Suffix -> format of labelled rows; that of text has none.
RECORD_FORMATS = FORMATS | suffixes_of("rows")


@dataclass
class RecordReport(Report):
    """The counts of a source of labelled rows, in `pairs`. A row is blank if a text or a label that
    it needs is blank.

    header: the columns of the roles, as text. columns: the same by role.
    """

    columns: dict[str, str] = field(default_factory=dict)

    noun: ClassVar[str] = "row"
    blank_name: ClassVar[str] = "with an empty text or label"


@dataclass
class Records(Rows):
    """Labelled rows: row i is on line `lines[i]` and has the value `columns[role][i]` for each
    role.

    The values of an optional role that the source does not have are None. identity: the roles by
    which rows are equal. split_by: the values of `data.group` and `data.time`.
    """

    columns: dict[str, list[Any]]
    lines: list[int] = field(default_factory=list)
    report: RecordReport = field(default_factory=lambda: RecordReport("nothing"))
    identity: Sequence[str] = ()
    split_by: dict[str, list[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.lines)

    def select(self, indices: list[int], name: str) -> Self:
        columns, split_by = (
            {role: [values[i] for i in indices] for role, values in each.items()}
            for each in (self.columns, self.split_by)
        )
        lines = [self.lines[i] for i in indices]
        report = RecordReport(name, pairs=len(indices))
        return type(self)(columns, lines, report, self.identity, split_by)

    def traits(self) -> Traits:
        # Rows of one context stay together, and those whose texts are in another order.
        identity = ["context"] if "context" in self.columns else self.identity
        columns = [self.columns[role] for role in identity]
        parts = [[*map(_comparable, each)] for each in columns if any(x is not None for x in each)]
        texts = parts if len(parts) < 2 else [[*map(frozenset, zip(*parts, strict=True))]]
        labels = self.columns.get("label", self.columns.get("tags"))
        return Traits(
            texts,
            groups=self.split_by.get("group"),
            label=None if labels is None else strata_of(labels),
            time=self.split_by.get("time"),
        )


def _comparable(value: Any) -> Hashable:
    """A text without differences that do not change what is read (`normalized`); the digest of
    an image; other values as text.
    """
    if isinstance(value, list):
        return tuple(map(_comparable, value))
    if isinstance(value, np.ndarray):
        return hashlib.blake2b(value.tobytes(), digest_size=16).digest()
    return normalized(value) if isinstance(value, str) else repr(value)


def read_records(
    source: Source,
    settings: DataSettings,
    roles: Roles,
    split: str = "train",
    plain: str | None = None,
) -> Records:
    """Read all rows of `source` into memory and count those that the settings drop.

    The source is a table, JSONL, Parquet, CoNLL or SQuAD file, several of them, `hub:…` or
    `embedded:…`. split: the split of an embedded source that names none. plain: the format of a
    file with another suffix, if it has one. Raises DataError if the data is unreadable or malformed
    or has no usable row; SettingsError if a setting is invalid.
    """
    if split == "train" and settings.holdout:
        settings, roles = _with_split_roles(settings, roles)
    if is_dataset(source):
        report = RecordReport(source)
        table, keys = open_dataset(source, split, report.skipped)
        found = _read_rows(table, settings, roles, report, keys)
    else:
        files, skipped = find_files(source or "", TABLE_FORMATS)
        report = RecordReport(name_of_files(files), header=skipped_files(skipped))
        found = chain.from_iterable(
            _read_file(file, settings, roles, report, plain) for file in files
        )
    identity = [role for role, each in roles.items() if each.identifies]
    records = Records({role: [] for role in roles}, report=report, identity=identity)
    may_be_blank = [place for place, role in enumerate(roles.values()) if role.may_be_empty]
    for line, values in filter_rows(found, settings, report, may_be_blank):
        for column, value in zip(records.columns.values(), values, strict=True):
            column.append(value)
        records.lines.append(line)
    records.split_by = _split_values(records)
    return records


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


def _split_values(records: Records) -> dict[str, list[Any]]:
    """The columns of `data.group` and `data.time`, taken out of the rows; dates become seconds.

    Raises DataError for a blank row that is kept, and if numbers and dates are mixed.
    """
    found = {role: records.columns.pop(role) for role in _SPLIT_ROLES if role in records.columns}
    for role, values in found.items():
        for line, value in zip(records.lines, values, strict=True):
            if value == "" or type(value) is not type(values[0]):
                what = "numbers and dates are mixed" if value else "a blank row has none"
                raise DataError(
                    f"{records.report.name}:{line}: data.{role}: {what}; correct the row"
                )
    if isinstance(found.get("time", [0.0])[0], datetime):
        found["time"] = [moment.timestamp() for moment in found["time"]]
    return found


# Columns of a row that decide on which side it is held out.
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
        next(
            iter_lines(file, settings.max_line_bytes), None
        )  # raises DataError if there is no such file
        raise SettingsError(
            f"data: {file} holds plain lines according to its suffix, but this task reads "
            "columns; give a .csv, .tsv, "
            ".jsonl or .parquet file, or set data.format"
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
    file: str, settings: DataSettings, roles: Roles, report: RecordReport, plain: str | None
) -> Iterator[tuple[int, list[Any]]]:
    kind, table = open_rows(file, settings, roles, report.skipped, plain)
    keys = keys_of_file(file, kind, settings)
    return _read_rows(table, settings, roles, report, keys)


def _read_rows(
    table: Table,
    settings: DataSettings,
    roles: Roles,
    report: RecordReport,
    keys: Keys,
) -> Iterator[tuple[int, list[Any]]]:
    """The values of each row; those of a blank line are empty texts. keys: of all rows, if they
    differ.
    """
    columns = dict[str, str]()
    is_table = table.has_columns
    for number, place, row in table.rows:
        if row is None:
            yield number, [""] * len(roles)
            continue
        row = keys.respell(row)
        if not columns:
            first = {**keys.names, **row}
            columns = choose_columns(first, roles, settings, place, is_table=is_table)
            chosen = ", ".join(f"{role} {column!r:.40}" for role, column in columns.items())
            report.columns = columns
            header = "header: " if has_header(first, settings) else "no header: "
            line = f"{header if is_table else ''}{chosen}"
            unused = [
                key for key in first if key not in columns.values() and key and not key.isdigit()
            ]
            line += (
                f"; not used: {shorten(', '.join(unused), 40, placeholder=' …')}" if unused else ""
            )
            line = "; ".join([line, *table.notes, *keys.notes(columns.values())])
            if line not in report.header:
                report.header.append(line)
        yield number, read_roles(row, roles, columns, place)
