"""From a source, as a recipe names it, to pairs of sentences and a report of what happened on the way."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import PurePath
from typing import Any, NamedTuple

from trifold.data import embedded, hub
from trifold.data.compressed import ending
from trifold.data.lines import iter_lines
from trifold.data.settings import DataSettings, Source
from trifold.data.tables import READERS, Numbered, text_at
from trifold.errors import DataError, SettingsError

_SUFFIXES = {
    ".parquet": "parquet",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
# Signs that other programs take for the end of a line; here they are part of it.
INNER_BREAK = re.compile("[\r\v\f\x1c-\x1e\x85\u2028\u2029]")


class Row(NamedTuple):
    """One pair, and the line of the file (or the row of the dataset) it stands in, counted from 1."""

    source: str
    target: str
    line: int


@dataclass
class Fates:
    """What became of what was read, whatever it was: of `name`, so much was blank, seen before, or odd and kept."""

    name: str
    blank: int = 0
    blank_dropped: int = 0
    duplicates: int = 0  # equal to an earlier one
    duplicates_dropped: int = 0
    inner_breaks: int = 0  # with U+2028, a lone carriage return or the like within, kept as they are

    @property
    def dropped(self) -> int:
        """How many were read and are not used."""
        return self.blank_dropped + self.duplicates_dropped

    def notes(self, blank: str) -> list[str]:
        """A line's worth for each fate that befell any; `blank` says what a blank one is."""
        notes = [
            fate(self.blank, blank, self.blank_dropped),
            fate(self.duplicates, "seen before", self.duplicates_dropped),
            f"{self.inner_breaks:,} with unusual separators inside, kept" if self.inner_breaks else "",
        ]
        return list(filter(None, notes))


@dataclass
class Report(Fates):
    """What was read and what became of it: `pairs == kept + dropped`, always. Blank is a pair with a blank side."""

    pairs: int = 0

    @property
    def kept(self) -> int:
        """Pairs that are used."""
        return self.pairs - self.dropped

    def __str__(self) -> str:
        read = [f"{self.name}: {self.pairs:,} pairs", *self.notes("with a blank side")]
        return ", ".join(read) + (f"; {self.kept:,} used" if self.dropped else "")


def fate(count: int, what: str, dropped: int) -> str:
    """`3 blank (dropped)`, or nothing where there are none."""
    return f"{count:,} {what} ({'dropped' if dropped else 'kept'})" if count else ""


@dataclass
class Pairs:
    """Aligned lists: `sources[i]` and `targets[i]` stand in line `lines[i]`."""

    sources: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    report: Report = field(default_factory=lambda: Report("nothing"))

    def __len__(self) -> int:
        return len(self.lines)

    def select(self, indices: list[int], name: str) -> Pairs:
        """The pairs at `indices` as a set of their own, called `name`."""
        return Pairs(
            [self.sources[i] for i in indices],
            [self.targets[i] for i in indices],
            [self.lines[i] for i in indices],
            Report(name, pairs=len(indices)),
        )


class Splits(NamedTuple):
    """The data of one experiment; `valid` and `test` are None when the settings name none."""

    train: Pairs
    valid: Pairs | None
    test: Pairs | None


def read_splits(settings: DataSettings, seed: int = 0) -> Splits:
    """Read all that `settings` names; with `holdout`, validation pairs are taken out of train by `seed`."""
    if settings.train is None:
        raise SettingsError("data.train: no training data is named; set it to files, hub:… or embedded:…")
    train = read_pairs(settings.train, settings, split="train")
    valid = read_pairs(settings.valid, settings, split="valid") if settings.valid is not None else None
    test = read_pairs(settings.test, settings, split="test") if settings.test is not None else None
    if settings.holdout:
        train, valid = hold_out(train, settings.holdout, seed)
    return Splits(train, valid, test)


def hold_out(pairs: Pairs, rows: int | float, seed: int) -> tuple[Pairs, Pairs]:
    """Split off `rows` pairs, or that share of them: the last of a shuffle by `seed`.

    Both parts keep the order of the file. Raises DataError where nothing would be left.
    """
    name = pairs.report.name
    rest, held = held_out(len(pairs), rows, seed, "pairs")
    train = pairs.select(rest, name)
    train.report = pairs.report  # what was dropped on reading stays on record
    return train, pairs.select(held, f"held out of {name}")


def held_out(total: int, asked: int | float, seed: int, what: str) -> tuple[list[int], list[int]]:
    """Which of `total` things stay and which are held out, both in order; a float is a share, of one at least."""
    held = max(1, round(asked * total)) if isinstance(asked, float) else asked
    if held >= total:
        raise DataError(
            f"data.holdout: {held:,} {what} of {total:,} leave nothing to train on; hold out fewer"
        )
    order = list(range(total))
    random.Random(seed).shuffle(order)
    return sorted(order[: total - held]), sorted(order[total - held :])


def read_pairs(source: Source, settings: DataSettings, split: str = "train") -> Pairs:
    """Read every pair of `source` into memory, dropping what the settings say, each drop counted.

    `split` is the part taken of an embedded source that names none. Raises DataError for unreadable,
    misaligned or broken data and when nothing is left; SettingsError for a source that makes no sense.
    """
    name, rows = _open(source, settings, split)
    pairs = Pairs(report=Report(name))
    report, seen = pairs.report, set()
    for row in rows:
        report.pairs += 1
        pair = row.source, row.target
        if not row.source.strip() or not row.target.strip():
            report.blank += 1
            if settings.blank == "drop":
                report.blank_dropped += 1
                continue
        if pair in seen:
            report.duplicates += 1
            if settings.duplicates == "drop":
                report.duplicates_dropped += 1
                continue
        seen.add(pair)
        report.inner_breaks += bool(INNER_BREAK.search(row.source) or INNER_BREAK.search(row.target))
        pairs.sources.append(row.source)
        pairs.targets.append(row.target)
        pairs.lines.append(row.line)
    if not pairs:
        raise DataError(f"{name}: no pair is left ({report.pairs:,} read, {report.blank_dropped:,} blank)")
    return pairs


def iter_rows(source: Source, settings: DataSettings, split: str = "train") -> Iterator[Row]:
    """The rows of `source` one by one, nothing dropped, in memory bounded by the longest line."""
    return _open(source, settings, split)[1]


def _open(source: Source, settings: DataSettings, split: str) -> tuple[str, Iterator[Row]]:
    """A short name for the source, and its rows."""
    if isinstance(source, str):
        for prefix, opener in _OPENERS.items():
            if source.startswith(prefix):
                return source, opener(source, settings, split)
    files = _files(source)
    if len(files) == 2:
        return " + ".join(PurePath(file).name for file in files), _rows(_two_files(files, settings))
    kind = _table_format(files[0], settings)
    lines = iter_lines(files[0], settings.max_line_bytes)
    return PurePath(files[0]).name, _rows(READERS[kind](lines, files[0], settings))


def _rows(numbered: Numbered) -> Iterator[Row]:
    return (Row(source, target, number) for number, source, target in numbered)


def _files(source: Source) -> list[str]:
    files = source if isinstance(source, list) else (source or "").split(",")
    files = [file.strip() for file in files]
    if not 1 <= len(files) <= 2 or not all(files):
        raise SettingsError(
            f"data: {source!r} is neither one table (pairs.tsv) nor two files (train.en,train.de); "
            "names with a comma in them are given as a list"
        )
    return files


def _table_format(file: str, settings: DataSettings) -> str:
    kind = _SUFFIXES.get(ending(file), "text") if settings.format == "auto" else settings.format
    if kind == "parquet":
        raise SettingsError(
            f"data.format: parquet is read as raw text, not as pairs; give {file} as .jsonl, .csv or .tsv"
        )
    if kind == "text":
        raise SettingsError(
            f"data: {file} is one file of plain lines, but translation needs two sides; give two files "
            "(train.en,train.de), or a .tsv, .csv or .jsonl file, or say which it is with data.format"
        )
    return kind


def _two_files(files: list[str], settings: DataSettings) -> Numbered:
    if settings.format not in ("auto", "text"):
        raise SettingsError(
            f"data.format: {settings.format} is one file with both sides, but two files are given"
        )
    left, right = (iter_lines(file, settings.max_line_bytes) for file in files)
    for number, (source, target) in enumerate(zip_longest(left, right), start=1):
        if source is None or target is None:
            counts = [number - 1] * 2
            counts[0 if target is None else 1] += 1 + sum(1 for _ in (left if target is None else right))
            raise DataError(
                f"{files[0]} has {counts[0]:,} lines, but {files[1]} has {counts[1]:,}; "
                "line n of one must be the translation of line n of the other"
            )
        yield number, source, target


def _open_hub(source: str, settings: DataSettings, split: str) -> Iterator[Row]:
    return _named(hub.places(source), settings)


def _open_embedded(source: str, settings: DataSettings, split: str) -> Iterator[Row]:
    return _named(embedded.iter_rows(source, split), settings)


def _named(places: Iterator[tuple[str, Mapping[str, Any]]], settings: DataSettings) -> Iterator[Row]:
    for number, (place, row) in enumerate(places, start=1):
        yield Row(text_at(row, settings.source, place), text_at(row, settings.target, place), number)


_OPENERS: dict[str, Callable[[str, DataSettings, str], Iterator[Row]]] = {
    "hub:": _open_hub,
    "embedded:": _open_embedded,
}
