"""Aligned pairs of texts: from the sources of a recipe to rows and a report of what was dropped."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import PurePath
from typing import Any, ClassVar, NamedTuple, Self

from trifold.data import embedded, frames, tables
from trifold.data.files import FORMATS, ROW_FORMATS, find_files, is_dataset
from trifold.data.formats import FILE_FORMATS
from trifold.data.holdout import HoldOut, Traits, divide, normalized
from trifold.data.lines import display_name, inner_suffix, iter_lines
from trifold.data.settings import DataSettings, Source
from trifold.data.tables import (
    LABELS,
    MISSING,
    TEXTS,
    NumberedRow,
    Role,
    check_text,
    is_missing,
)
from trifold.errors import DataError, SettingsError

_SIDES = {"source": Role(("source",), check_text), "target": Role(("target",), check_text)}
# Of a classification, whose labels may be integers.
_CLASSES = {
    "source": Role(TEXTS, check_text),
    "target": Role(
        LABELS,
        lambda value, place: (
            ""
            if is_missing(value)
            else check_text(str(value) if isinstance(value, int) else value, place)
        ),
    ),
}
_NAMES = frozenset(
    name for roles in (_SIDES, _CLASSES) for role in roles.values() for name in role.names
)
# Characters that other programs treat as line ends. Here they are part of the line.
INNER_BREAK = re.compile("[\r\v\f\x1c-\x1e\x85\u2028\u2029]")


class Row(NamedTuple):
    """A pair, and the number of its line in the file or of its row in the dataset, counted from
    1.
    """

    source: str
    target: str
    line: int


@dataclass
class ReadReport:
    """Counts of the rows of the source `name`: without a label, blank, duplicate, and with unusual
    line separators inside.
    """

    name: str
    blank: int = 0
    blank_dropped: int = 0
    duplicates: int = 0  # equal to an earlier row
    duplicates_dropped: int = 0
    inner_breaks: int = 0  # rows with U+2028, a lone carriage return or similar, which are kept
    moved: int = 0  # to the side of equal rows
    known: int = 0  # rows with a text of the training data
    missing: int = 0  # rows without a label, which are left out
    skipped: Counter[str] = field(default_factory=Counter)  # rows and characters that are no data

    noun: ClassVar[str]
    blank_name: ClassVar[str] = "blank"

    @property
    def dropped(self) -> int:
        """Rows that were read and are not used."""
        return self.missing + self.blank_dropped + self.duplicates_dropped

    def counts(self) -> list[str]:
        """The nonzero counts in words."""
        found = {
            "without a label (left out)": self.missing,
            f"{self.blank_name} ({'dropped' if self.blank_dropped else 'kept'})": self.blank,
            f"seen before ({'dropped' if self.duplicates_dropped else 'kept'})": self.duplicates,
            "with unusual separators inside, kept": self.inner_breaks,
            "moved, so that equal ones are on one side": self.moved,
            "also in the training data": self.known,
        }
        skipped = [f"{plural(count, what)} (skipped)" for what, count in self.skipped.items()]
        return [f"{count:,} {what}" for what, count in found.items() if count] + skipped

    def count_blank(self, settings: DataSettings) -> bool:
        """Count a blank row. Returns whether it is dropped."""
        self.blank += 1
        self.blank_dropped += settings.blank == "drop"
        return settings.blank == "drop"

    def count_duplicate(self, settings: DataSettings) -> bool:
        """Count a duplicate row. Returns whether it is dropped."""
        self.duplicates += 1
        self.duplicates_dropped += settings.duplicates == "drop"
        return settings.duplicates == "drop"


@dataclass
class Report(ReadReport):
    """The counts of a source of pairs: `pairs == kept + dropped`. A pair is blank if one of its
    sides is blank.

    header: of a table, whether the first row was taken for a header.
    """

    pairs: int = 0
    header: list[str] = field(default_factory=list)

    noun: ClassVar[str] = "pair"
    blank_name: ClassVar[str] = "with a blank side"

    @property
    def kept(self) -> int:
        """Pairs that are used."""
        return self.pairs - self.dropped

    def __str__(self) -> str:
        used = f"; {self.kept:,} used" if self.dropped else ""
        parts = [f"{self.name}: {plural(self.pairs, self.noun)}", *self.counts(), *self.header]
        return ", ".join(parts) + used


def plural(count: int, noun: str) -> str:
    """`1 pair` or `1,234 pairs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class Rows(Sized):
    """Rows in memory, which can be split."""

    report: ReadReport

    @abstractmethod
    def select(self, indices: list[int], name: str) -> Self:
        """The rows at `indices` as a new set called `name`."""

    @abstractmethod
    def traits(self) -> Traits:
        """What decides which rows are held out together."""

    def hold_out(self, count: HoldOut, seed: int) -> tuple[Self, Self]:
        """Split into training and held-out rows (`holdout.divide`), both in the order of the file.

        Raises DataError if no row would be left on a side.
        """
        division = divide(len(self), count, seed, f"{self.report.noun}s", self.traits())
        train = self.select(division.kept, self.report.name)
        train.report = self.report  # keeps the counts of dropped rows
        train.report.moved = division.moved
        held = self.select(division.held, f"held out of {self.report.name}")
        held.report.known = division.known
        return train, held

    def count_known(self, train: Rows) -> None:
        """Count the rows with a text of the training data in the report."""
        known = [{*keys} for keys in train.traits().texts]
        own = zip(*self.traits().texts, strict=True)
        self.report.known = sum(
            any(key in each for key, each in zip(row, known, strict=True)) for row in own
        )


@dataclass
class Pairs(Rows):
    """Aligned lists: line `lines[i]` of the source has `sources[i]` and `targets[i]`."""

    sources: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    report: Report = field(default_factory=lambda: Report("nothing"))

    def __len__(self) -> int:
        return len(self.lines)

    def select(self, indices: list[int], name: str) -> Pairs:
        sources, targets = ([side[i] for i in indices] for side in (self.sources, self.targets))
        return Pairs(
            sources, targets, [self.lines[i] for i in indices], Report(name, pairs=len(indices))
        )

    def traits(self) -> Traits:
        return Traits([[normalized(source) for source in self.sources]])


def read_pairs(source: Source, settings: DataSettings, split: str = "train") -> Pairs:
    """Read all pairs of `source` into memory and count the rows that the settings drop.

    `split` is the split of an embedded source that names none. Raises DataError if the data is
    unreadable, misaligned, malformed or has no usable pair; SettingsError if the source is invalid.
    """
    report, rows = open_pairs(source, settings, split)
    pairs = Pairs(report=report)
    for line, sides in filter_rows(((row.line, row[:2]) for row in rows), settings, report):
        pairs.sources.append(sides[0])
        pairs.targets.append(sides[1])
        pairs.lines.append(line)
    return pairs


def filter_rows(
    rows: Iterable[tuple[int, Sequence[Any]]],
    settings: DataSettings,
    report: Report,
    may_be_blank: Container[int] = (),
) -> Iterator[tuple[int, Sequence[Any]]]:
    """Iterate over the lines and values that the settings keep, and count all in `report`.

    may_be_blank: places of values that may be blank texts. Raises DataError at the end if no row is
    kept.
    """
    seen = set[tuple[str, ...]]()
    for line, values in rows:
        report.pairs += 1
        if any(value is MISSING for value in values):
            report.missing += 1
            continue
        texts = [value if isinstance(value, str) else repr(value) for value in values]
        is_blank = any(
            not text.strip() for place, text in enumerate(texts) if place not in may_be_blank
        )
        if is_blank and report.count_blank(settings):
            continue
        if (key := tuple(texts)) in seen and report.count_duplicate(settings):
            continue
        seen.add(key)
        report.inner_breaks += any(map(INNER_BREAK.search, texts))
        yield line, values
    if not report.kept:
        counts = f"{report.pairs:,} read, {report.blank_dropped:,} blank"
        counts += f", {report.missing:,} without a label" * bool(report.missing)
        raise DataError(f"{report.name}: no {report.noun} is left ({counts})")


def open_pairs(source: Source, settings: DataSettings, split: str) -> tuple[Report, Iterator[Row]]:
    """A report with a short name of the source, and its rows."""
    if is_dataset(source):
        report = Report(source)
        table, keys = open_dataset(source, split, report.skipped)
        return report, _rows_of_columns(table, settings, report, keys)
    files = _split_source(source)
    report = Report(" + ".join(PurePath(file).name for file in files))
    if len(files) == 2:
        return report, _read_aligned(files, settings)
    found, skipped = find_files(files, ROW_FORMATS)
    report.name = name_of_files(found)
    report.header += skipped_files(skipped)
    return report, chain.from_iterable(_read_table(file, settings, report) for file in found)


def name_of_files(files: Sequence[str]) -> str:
    """The name of several files in reports."""
    more = f" and {plural(len(files) - 1, 'more file')}" if len(files) > 1 else ""
    return PurePath(display_name(files[0])).name + more


def skipped_files(skipped: Counter[str]) -> list[str]:
    """The numbers of files of other kinds in folders as a phrase of a report, if there are any."""
    counts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(skipped.items()))
    return [f"files of other kinds skipped: {counts}"] if counts else []


def _read_table(file: str, settings: DataSettings, report: Report) -> Iterator[Row]:
    kind = _table_format(file, settings)
    table = tables.open_table(file, kind, settings, _NAMES, report.skipped)
    keys = tables.object_keys(file, kind, settings)
    return _rows_of_columns(table, settings, report, keys)


def iter_dataset(source: str, split: str) -> Iterator[NumberedRow]:
    """The rows of `hub:…`, `python:…` or `embedded:…`; `split` is the split of an embedded source
    that names none.
    """
    if source.startswith("hub:"):
        return tables.iter_hub(source)
    if source.startswith(frames.PREFIX):
        return frames.iter_frame(source)
    return embedded.iter_rows(source, split)


def open_dataset(
    source: str, split: str, skipped: Counter[str]
) -> tuple[tables.Table, tables.Keys]:
    """The rows of a dataset, and the keys of all rows if these may differ."""
    frame = source if isinstance(source, frames.Frame) else None
    has_columns = frame is not None and frame.is_table
    keys = tables.Keys() if frame is None or has_columns else tables.Keys.of(frame.rows())
    return tables.Table(iter_dataset(source, split), skipped, has_columns), keys


def _rows_of_columns(
    table: tables.Table, settings: DataSettings, report: Report, keys: tables.Keys
) -> Iterator[Row]:
    """The pair in each row; a blank line is two empty texts. keys: of all rows, if they differ."""
    roles = _SIDES
    columns = dict[str, str]()
    for number, place, row in table.rows:
        if row is None:
            yield Row("", "", number)
            continue
        row = keys.respell(row)
        if not columns:
            first = {**keys.names, **row}
            names = {name.strip().casefold() for name in first}
            if names.isdisjoint(_SIDES) and all(
                names.intersection(role.names) for role in _CLASSES.values()
            ):
                roles = _CLASSES
            is_table = table.has_columns
            columns = tables.choose_columns(first, roles, settings, place, is_table=is_table)
            chosen = "source {source!r:.40}, target {target!r:.40}".format(**columns)
            if is_table:
                chosen = f"header: {chosen}" if tables.has_header(row, settings) else "no header"
            notes = [*table.notes, *keys.notes(columns.values())]
            chosen = "; ".join([chosen, *notes])
            if (is_table or notes or roles is _CLASSES) and chosen not in report.header:
                report.header.append(chosen)
        source, target = tables.read_roles(row, roles, columns, place)
        yield Row(source, target, number)


def _split_source(source: Source) -> list[str]:
    files = source if isinstance(source, list) else (source or "").split(",")
    files = [file.strip() for file in files]
    if not 1 <= len(files) <= 2 or not all(files):
        raise SettingsError(
            f"data: {source!r} is neither one table (pairs.tsv) nor two files (train.en,train.de); "
            "give names that contain a comma as a list"
        )
    return files


def _table_format(file: str, settings: DataSettings) -> str:
    kind = FORMATS.get(inner_suffix(file), "text") if settings.format == "auto" else settings.format
    if kind != "text" and "pairs" not in FILE_FORMATS[kind].holds:
        raise SettingsError(
            f"data.format: {kind} holds no pairs; give {file} as .jsonl, .csv, .tsv or .parquet"
        )
    if kind == "text":
        next(
            iter_lines(file, settings.max_line_bytes), None
        )  # raises DataError if there is no such file
        raise SettingsError(
            f"data: {file} is one file of plain lines, but pairs have two sides; give two files "
            "(train.en,train.de) or a .tsv, .csv, .jsonl or .parquet file, or set data.format"
        )
    return kind


def _read_aligned(files: list[str], settings: DataSettings) -> Iterator[Row]:
    if settings.format not in ("auto", "text"):
        raise SettingsError(
            f"data.format: {settings.format} is one file with both sides; two are given"
        )
    left, right = (iter_lines(file, settings.max_line_bytes) for file in files)
    for number, (source, target) in enumerate(zip_longest(left, right), start=1):
        if source is None or target is None:
            counts = [number - 1] * 2
            counts[0 if target is None else 1] += 1 + sum(
                1 for _ in (left if target is None else right)
            )
            raise DataError(
                f"{files[0]} has {counts[0]:,} lines, but {files[1]} has {counts[1]:,}; "
                "line n of one must be the translation of line n of the other"
            )
        yield Row(source, target, number)
