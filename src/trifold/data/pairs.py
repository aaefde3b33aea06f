"""Aligned pairs of texts: from the sources of a recipe to rows and a report of what was dropped."""

from collections.abc import Iterator, Mapping
from itertools import chain, zip_longest
from pathlib import PurePath
from typing import Any

from trifold.data.datasets import open_dataset
from trifold.data.files import FORMATS, ROW_FORMATS, find_files, is_dataset
from trifold.data.formats import FILE_FORMATS, list_suffixes
from trifold.data.headers import LABELS, TEXTS
from trifold.data.lines import check_first_lines, check_readable, inner_suffix, iter_lines
from trifold.data.reports import RowReport, name_of_files, skipped_files
from trifold.data.roles import (
    Role,
    Roles,
    check_class,
    check_text,
    choose_columns,
    is_missing,
    read_values,
)
from trifold.data.rows import NumberedValues, Rows, collect_rows
from trifold.data.settings import DataSettings, Source
from trifold.data.tables import Keys, Table, has_header, object_keys, open_table
from trifold.errors import DataError, SettingsError


def _read_class(value: Any, place: str) -> str:
    """The name of a class, which may be an integer; an empty text for a value that says none."""
    if is_missing(value):
        return ""
    return check_class(value, place)


_SIDES = {
    "source": Role(("source",), check_text),
    "target": Role(("target",), check_text, identifies=False),
}
# The sides of a classification.
_CLASSES = {
    "source": Role(TEXTS, check_text),
    "target": Role(LABELS, _read_class, identifies=False),
}
_NAMES = frozenset(
    name for roles in (_SIDES, _CLASSES) for role in roles.values() for name in role.names
)


def read_pairs(source: Source, settings: DataSettings, split: str = "train") -> Rows:
    """Read all pairs of `source` into memory, as rows with the roles `source` and `target`, and
    count the rows that the settings drop.

    `split` is the split of an embedded source that names none. Raises DataError if the data is
    unreadable, misaligned, malformed or has no usable pair; SettingsError if the source is invalid.
    """
    report, pairs = open_pairs(source, settings, split)
    return collect_rows(pairs, _SIDES, settings, report)


def open_pairs(
    source: Source, settings: DataSettings, split: str
) -> tuple[RowReport, Iterator[NumberedValues]]:
    """A report with a short name of the source, and source and target of its rows."""
    if is_dataset(source):
        report = _pair_report(source)
        table, keys = open_dataset(source, split, report.skipped)
        return report, _read_sides(table, settings, report, keys)
    files = _split_source(source)
    if len(files) == 2:
        report = _pair_report(" + ".join(PurePath(file).name for file in files))
        return report, _read_aligned(files, settings)
    tables, skipped = find_files(files, ROW_FORMATS)
    report = _pair_report(name_of_files(tables))
    report.notes += skipped_files(skipped)
    return report, chain.from_iterable(_read_table(file, settings, report) for file in tables)


def _pair_report(name: str) -> RowReport:
    return RowReport(name, noun="pair", blank_name="with a blank side")


def _split_source(source: Source) -> list[str]:
    files = source if isinstance(source, list) else (source or "").split(",")
    files = [file.strip() for file in files]
    if not 1 <= len(files) <= 2 or not all(files):
        raise SettingsError(
            f"data: {source!r} is neither one table (pairs.tsv) nor two files (train.en,train.de); "
            "give names that contain a comma as a list"
        )
    return files


# --- one table ------------------------------------------------------------------------------------


def _read_table(file: str, settings: DataSettings, report: RowReport) -> Iterator[NumberedValues]:
    kind = _table_format(file, settings)
    table = open_table(file, kind, settings, _NAMES, report.skipped)
    return _read_sides(table, settings, report, object_keys(file, kind, settings))


def _table_format(file: str, settings: DataSettings) -> str:
    """The format of a file that holds pairs. Raises SettingsError for another one."""
    kind: str = settings.format
    if kind == "auto":
        kind = FORMATS.get(inner_suffix(file), "text")
    if kind == "text":
        check_readable(file, settings.max_line_bytes)
        raise SettingsError(
            f"data: {file} is one file of plain lines, but pairs have two sides; give two files "
            f"(train.en,train.de) or a {list_suffixes('pairs')} file, or set data.format"
        )
    if "pairs" not in FILE_FORMATS[kind].holds:
        raise SettingsError(
            f"data.format: {kind} holds no pairs; give {file} as .jsonl, .csv, .tsv or .parquet"
        )
    return kind


def _read_sides(
    table: Table, settings: DataSettings, report: RowReport, keys: Keys
) -> Iterator[NumberedValues]:
    """Source and target of each row; a blank line is two empty texts."""

    def choose(row: Mapping[str, Any], place: str) -> tuple[Roles, dict[str, str]]:
        roles = _roles_of(row)
        is_table = table.has_columns
        columns = choose_columns(row, roles, settings, place, is_table=is_table)
        chosen = f"source {columns['source']!r:.40}, target {columns['target']!r:.40}"
        if is_table:
            chosen = f"header: {chosen}" if has_header(row, settings) else "no header"
        unusual = [*table.notes, *keys.notes(columns.values())]
        note = "; ".join([chosen, *unusual])
        is_reported = is_table or unusual or roles is _CLASSES
        if is_reported and note not in report.notes:
            report.notes.append(note)
        return roles, columns

    return read_values(table, keys, ["", ""], choose)


def _roles_of(row: Mapping[str, Any]) -> Roles:
    """The roles whose names the columns have: source and target, unless only text and label."""
    names = {name.strip().casefold() for name in row}
    has_classes = all(names.intersection(role.names) for role in _CLASSES.values())
    return _CLASSES if has_classes and names.isdisjoint(_SIDES) else _SIDES


# --- two files ------------------------------------------------------------------------------------


def _read_aligned(files: list[str], settings: DataSettings) -> Iterator[NumberedValues]:
    """The lines of two files. Raises DataError if one has more than the other."""
    if settings.format not in ("auto", "text"):
        raise SettingsError(
            f"data.format: {settings.format} is one file with both sides; two are given"
        )
    left, right = (
        check_first_lines(iter_lines(file, settings.max_line_bytes), file) for file in files
    )
    for number, (source, target) in enumerate(zip_longest(left, right), start=1):
        if source is None:
            raise _misaligned(files, number - 1, number + _count(right))
        if target is None:
            raise _misaligned(files, number + _count(left), number - 1)
        yield number, (source, target)


def _count(lines: Iterator[str]) -> int:
    return sum(1 for _ in lines)


def _misaligned(files: list[str], left: int, right: int) -> DataError:
    return DataError(
        f"{files[0]} has {left:,} lines, but {files[1]} has {right:,}; "
        "line n of one must be the translation of line n of the other"
    )
