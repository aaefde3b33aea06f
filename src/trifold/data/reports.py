"""Reports of what was read from a source: how many rows, how many are dropped, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from trifold.data.lines import display_name
from trifold.data.settings import DataSettings
from trifold.errors import plural


@dataclass
class ReadReport:
    """Counts of the rows of the source `name`: without a label, blank, duplicate, and with unusual
    line separators inside; `total == kept + dropped`.

    notes: what else is reported, such as the columns that were chosen. columns: those of the roles.
    noun: what a row is called. blank_name: the words for rows that count as blank.
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
    notes: list[str] = field(default_factory=list)
    columns: dict[str, str] = field(default_factory=dict)
    noun: str = "row"
    blank_name: str = "blank"

    @property
    def total(self) -> int:
        """Rows that were read."""
        raise NotImplementedError

    @property
    def dropped(self) -> int:
        """Rows that were read and are not used."""
        return self.missing + self.blank_dropped + self.duplicates_dropped

    @property
    def kept(self) -> int:
        """Rows that are used."""
        return self.total - self.dropped

    def counts(self) -> list[str]:
        """The nonzero counts in words."""
        counted = {
            "without a label (left out)": self.missing,
            f"{self.blank_name} ({_kept_or_dropped(self.blank_dropped)})": self.blank,
            f"repeated ({_kept_or_dropped(self.duplicates_dropped)})": self.duplicates,
            "with unusual line breaks inside (kept)": self.inner_breaks,
            "moved between training and validation, so that equal ones stay together": self.moved,
            "also in the training data": self.known,
        }
        skipped = [f"{plural(count, what)} (skipped)" for what, count in self.skipped.items()]
        return [f"{count:,} {what}" for what, count in counted.items() if count] + skipped

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

    def __str__(self) -> str:
        parts = [f"{self.name}: {plural(self.total, self.noun)}", *self.counts(), *self.notes]
        used = f"; {self.kept:,} used" if self.dropped else ""
        return ", ".join(parts) + used


@dataclass
class RowReport(ReadReport):
    """The counts of a source of pairs or labelled rows. A row is blank if a text or a label that it
    needs is blank.
    """

    rows: int = 0
    blank_name: str = "with an empty text or label"

    @property
    def total(self) -> int:
        return self.rows


@dataclass
class DocumentReport(ReadReport):
    """The counts of a source of raw text. A blank document is empty or white space. The numbers are
    stored in token caches under the names that they have here.
    """

    files: int = 0
    documents: int = 0
    characters: int = 0  # of the documents that are kept
    noun: str = "document"

    @property
    def total(self) -> int:
        return self.documents

    def __str__(self) -> str:
        return f"{super().__str__()}, {plural(self.characters, 'character')}"


def _kept_or_dropped(dropped: int) -> str:
    return "dropped" if dropped else "kept"


def name_of_files(files: Sequence[str]) -> str:
    """The name of several files in reports."""
    first = PurePath(display_name(files[0])).name
    if len(files) == 1:
        return first
    return f"{first} and {plural(len(files) - 1, 'more file')}"


def skipped_files(skipped: Counter[str]) -> list[str]:
    """The numbers of files of other kinds in folders as a phrase of a report, if there are any."""
    if not skipped:
        return []
    counts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(skipped.items()))
    return [f"files of other kinds skipped: {counts}"]
