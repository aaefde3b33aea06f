"""Rows in memory, by role: the pairs, labelled rows and documents that training and scores read."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

import numpy as np

from trifold.data.holdout import HoldOut, Traits, divide, normalized, strata_of
from trifold.data.reports import ReadReport, RowReport
from trifold.data.roles import MISSING, Roles
from trifold.data.settings import DataSettings
from trifold.errors import DataError

# The number of a line or row, and its values in the order of the roles.
NumberedValues: TypeAlias = tuple[int, Sequence[Any]]
# Characters that other programs treat as line ends. Here they are part of the line.
INNER_BREAK = re.compile("[\r\v\f\x1c-\x1e\x85\u2028\u2029]")


@dataclass
class Rows:
    """Rows as columns: row i has the value `columns[role][i]` for each role, and is on line
    `lines[i]` of its source, as messages name it.

    A role is what a task reads of a row: source and target of a pair, text, label, image and so on.
    The values of an optional role that the source does not have are None. identity: the roles by
    which rows are equal. split_by: the values of `data.group` and `data.time`.
    """

    columns: dict[str, list[Any]]
    lines: Sequence[int]
    report: ReadReport = field(default_factory=lambda: RowReport("nothing"))
    identity: Sequence[str] = ()
    split_by: dict[str, list[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def sources(self) -> list[str]:
        """The column of the role `source`."""
        return self.columns["source"]

    @property
    def targets(self) -> list[str]:
        """The column of the role `target`."""
        return self.columns["target"]

    @property
    def texts(self) -> list[str]:
        """The column of the role `text`."""
        return self.columns["text"]

    def select(self, indices: list[int], name: str) -> Self:
        """The rows at `indices` as a new set called `name`."""
        columns = _select_rows(self.columns, indices)
        split_by = _select_rows(self.split_by, indices)
        lines = [self.lines[i] for i in indices]
        report = RowReport(
            name, rows=len(indices), noun=self.report.noun, blank_name=self.report.blank_name
        )
        return type(self)(columns, lines, report, self.identity, split_by)

    def traits(self) -> Traits:
        """What decides which rows are held out: see `Traits`."""
        # Questions about one context stay together.
        identity = ["context"] if "context" in self.columns else self.identity
        texts: list[list[Hashable]] = []
        for role in identity:
            values = self.columns[role]
            if any(value is not None for value in values):
                texts.append([*map(_comparable, values)])
        if len(texts) > 1:  # rows with the same texts in another order stay together
            texts = [[*map(frozenset, zip(*texts, strict=True))]]
        labels = self.columns.get("label", self.columns.get("tags"))
        return Traits(
            texts,
            groups=self.split_by.get("group"),
            label=None if labels is None else strata_of(labels),
            time=self.split_by.get("time"),
        )

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
        rows = zip(*self.traits().texts, strict=True)
        self.report.known = sum(
            any(key in keys for key, keys in zip(row, known, strict=True)) for row in rows
        )


def _select_rows(columns: dict[str, list[Any]], indices: list[int]) -> dict[str, list[Any]]:
    return {role: [values[i] for i in indices] for role, values in columns.items()}


def _comparable(value: Any) -> Hashable:
    """A text without differences that do not change what is read (`normalized`); the digest of
    an image; other values as text.
    """
    if isinstance(value, str):
        return normalized(value)
    if isinstance(value, list):
        return tuple(map(_comparable, value))
    if isinstance(value, np.ndarray):
        return hashlib.blake2b(value.tobytes(), digest_size=16).digest()
    return repr(value)


def collect_rows(
    numbered: Iterable[NumberedValues], roles: Roles, settings: DataSettings, report: RowReport
) -> Rows:
    """All rows that the settings keep. Counts the others in `report`.

    Raises DataError if no row is kept.
    """
    columns: dict[str, list[Any]] = {role: [] for role in roles}
    lines: list[int] = []
    may_be_blank = [index for index, role in enumerate(roles.values()) if role.may_be_empty]
    for line, values in filter_rows(numbered, settings, report, may_be_blank):
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
        lines.append(line)
    identity = [name for name, role in roles.items() if role.identifies]
    return Rows(columns, lines, report, identity)


def filter_rows(
    numbered: Iterable[NumberedValues],
    settings: DataSettings,
    report: RowReport,
    may_be_blank: Container[int] = (),
) -> Iterator[NumberedValues]:
    """Iterate over the lines and values that the settings keep, and count all in `report`.

    may_be_blank: indices of values that may be blank texts. Raises DataError at the end if no row
    is kept.
    """
    seen = set[tuple[str, ...]]()
    for line, values in numbered:
        report.rows += 1
        if any(value is MISSING for value in values):
            report.missing += 1
            continue
        texts = tuple(value if isinstance(value, str) else repr(value) for value in values)
        is_blank = any(
            not text.strip() for index, text in enumerate(texts) if index not in may_be_blank
        )
        if is_blank and report.count_blank(settings):
            continue
        if texts in seen and report.count_duplicate(settings):
            continue
        seen.add(texts)
        report.inner_breaks += any(map(INNER_BREAK.search, texts))
        yield line, values
    if not report.kept:
        counts = f"{report.rows:,} read, {report.blank_dropped:,} blank"
        if report.missing:
            counts += f", {report.missing:,} without a label"
        raise DataError(f"{report.name}: no {report.noun} is left ({counts})")
