"""Labelled rows: values by role (text, label, …) from files, datasets of the hub and embedded text.

A task names its roles and the columns that hold them. Every format becomes an iterator of mappings,
whose columns are chosen by their names.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from itertools import chain
from textwrap import shorten
from typing import Any, ClassVar, Self

from trifold.data.conll import iter_conll, join_words
from trifold.data.files import FORMATS, SENTENCE_FORMATS, TABLE_FORMATS, find_files, is_dataset
from trifold.data.holdout import Traits, normalized
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
    object_keys,
    open_table,
    read_roles,
)
from trifold.errors import DataError, SettingsError

_READERS = {"conll": iter_conll, "squad": iter_squad}
# Suffix -> format of labelled rows; that of text has none.
RECORD_FORMATS = FORMATS | SENTENCE_FORMATS | {".json": "squad"}


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
        # Rows of one context stay together.
        identity = ["context"] if "context" in self.columns else self.identity
        parts = [[_comparable(value) for value in self.columns[role]] for role in identity]
        texts = [[*zip(*parts, strict=True)]] if parts else []
        labels = self.columns.get("label")
        return Traits(
            texts,
            groups=self.split_by.get("group"),
            label=None if labels is None else [_comparable(label) for label in labels],
            time=self.split_by.get("time"),
        )


def _comparable(value: Any) -> Hashable:
    """A text without differences of case and space; other values as text."""
    if isinstance(value, list):
        return tuple(map(_comparable, value))
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
    records.split_by = {
        role: records.columns.pop(role) for role in _SPLIT_ROLES if role in records.columns
    }
    return records


def _read_group(value: Any, place: str) -> str:
    if value is None or isinstance(value, list | dict):
        raise DataError(f"{place}: expected the name or the number of a group")
    return str(value).strip()


def _read_time(value: Any, place: str) -> float:
    """A number, or the seconds of a date as ISO 8601 writes it."""
    with suppress(ValueError, TypeError):
        return float(value)
    with suppress(ValueError, TypeError):
        moment = value if isinstance(value, date) else datetime.fromisoformat(value.strip())
        if not isinstance(moment, datetime):
            moment = datetime(moment.year, moment.month, moment.day)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    raise DataError(
        f"{place} is {value!r:.40}, expected a number or a date such as 2026-11-27 or "
        "2026-11-27T08:30"
    )


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
    if kind in _READERS:
        table = Table(_READERS[kind](file, settings), skipped)
    else:
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
    columns, is_table = dict[str, str](), table.has_columns
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
