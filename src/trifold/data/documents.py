"""Raw text: from the sources of a recipe to documents and a report of what was dropped.

A document is the unit of raw text: a line, a block between blank lines, a file, or a row of a
table.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, ClassVar, NamedTuple

from trifold.data.files import FORMATS, TEXT_FORMATS, find_files, is_dataset
from trifold.data.formats import FILE_FORMATS
from trifold.data.holdout import HoldOut, Traits, normalized
from trifold.data.lines import (
    WHOLE_FILE,
    FileRange,
    inner_suffix,
    iter_lines,
    read_text,
)
from trifold.data.pairs import (
    INNER_BREAK,
    ReadReport,
    Rows,
    iter_dataset,
    name_of_files,
    plural,
    read_pairs,
    skipped_files,
)
from trifold.data.settings import DataSettings
from trifold.data.tables import NumberedRow, check_text, iter_parquet, read_objects, value_at
from trifold.errors import DataError, SettingsError


class FilePart(NamedTuple):
    """A file of kind text, jsonl or parquet, or a range of it that can be read on its own."""

    file: str
    kind: str
    range: FileRange = WHOLE_FILE


@dataclass
class DocumentReport(ReadReport):
    """The counts of a source of raw text: `documents == kept + dropped`. A blank document is empty
    or white space.
    """

    noun: ClassVar[str] = "document"
    files: int = 0
    documents: int = 0
    characters: int = 0  # of the documents that are kept
    skipped_files: Counter[str] = field(
        default_factory=Counter
    )  # other files in folders, by suffix

    @property
    def kept(self) -> int:
        """Documents that are used."""
        return self.documents - self.dropped

    def __str__(self) -> str:
        counts = [f"{self.name}: {plural(self.documents, 'document')}", *self.counts()]
        counts += skipped_files(self.skipped_files)
        used = f"; {self.kept:,} used" if self.dropped else ""
        return f"{', '.join(counts)}{used}, {plural(self.characters, 'character')}"


@dataclass
class Documents(Rows):
    """Raw text, one entry per document."""

    texts: list[str] = field(default_factory=list)
    report: DocumentReport = field(default_factory=lambda: DocumentReport("nothing"))

    def __len__(self) -> int:
        return len(self.texts)

    def select(self, indices: list[int], name: str) -> Documents:
        return Documents.of([self.texts[i] for i in indices], name)

    @classmethod
    def of(cls, texts: list[str], name: str) -> Documents:
        """Documents from texts in memory."""
        report = DocumentReport(name, documents=len(texts), characters=sum(map(len, texts)))
        return cls(texts, report)

    def traits(self) -> Traits:
        return Traits([[normalized(text) for text in self.texts]])

    def hold_out(self, count: HoldOut, seed: int) -> tuple[Documents, Documents]:
        """As `Rows.hold_out`; a single document is split by characters, and the held-out share is
        its end.

        Raises DataError if no training text would be left, or if `count` is a number for a single
        document.
        """
        if len(self) != 1:
            return super().hold_out(count, seed)
        name = self.report.name
        text = self.texts[0]
        if not isinstance(count, float):
            raise DataError(
                f"data.holdout: {name} is a single document; hold out a share of it "
                "(data.holdout=0.1), or set "
                "data.documents"
            )
        cut = int(len(text) * (1 - count))
        if not text[:cut].strip() or not text[cut:].strip():
            raise DataError(
                f"data.holdout: {count} of {len(text):,} characters leaves a part blank"
            )
        train = Documents.of([text[:cut]], name)
        held = Documents.of([text[cut:]], f"the end of {name}")
        train.report = self.report  # keeps the counts of dropped documents
        return train, held


class Splits(NamedTuple):
    """The data of an experiment, `Pairs` or `Documents`; `valid` and `test` are None if the
    settings name none.
    """

    train: Any
    valid: Any
    test: Any


def read_splits(
    settings: DataSettings,
    seed: int = 0,
    read: Callable[[Any, DataSettings, str], Any] = read_pairs,
) -> Splits:
    """Read all data of the settings; with `holdout`, the validation data is taken out of the
    training data by `seed`.

    read: `read_pairs` or `read_documents`. Raises SettingsError if there is no training data.
    """
    if settings.train is None:
        raise SettingsError(
            "data.train: no training data is named; set it to files, hub:… or embedded:…"
        )
    sources = [(split, getattr(settings, split)) for split in Splits._fields]
    splits = Splits(
        *(None if source is None else read(source, settings, split) for split, source in sources)
    )
    if not settings.holdout:
        if splits.valid is not None and settings.valid != settings.train:
            splits.valid.count_known(splits.train)
        return splits
    traits = splits.train.traits()
    for key, values in (("group", traits.groups), ("time", traits.time)):
        if getattr(settings, key) is not None and values is None:
            raise SettingsError(
                f"data.{key}: only the rows of labelled tasks have it; leave it out"
            )
    train, valid = splits.train.hold_out(settings.holdout, seed)
    return Splits(train, valid, splits.test)


def read_documents(
    source: str | list[str], settings: DataSettings, split: str = "train"
) -> Documents:
    """Read all documents of `source` into memory and count those that the settings drop.

    `split` is the split of an embedded source that names none. Raises DataError if the text is
    missing, unreadable or malformed or has no usable document; SettingsError if the source is
    invalid.
    """
    report, found = open_documents(source, settings, split)
    documents = Documents(list(filter_documents(found, settings, report)), report)
    if not documents:
        counts = f"{report.documents:,} read, {report.blank:,} blank"
        raise DataError(f"{report.name}: no document is left ({counts})")
    return documents


def open_documents(
    source: str | list[str], settings: DataSettings, split: str
) -> tuple[DocumentReport, Iterator[str]]:
    """A report with the name of the source, and all its documents, in memory bounded by the
    longest.
    """
    if is_dataset(source):
        return DocumentReport(source), _fields(iter_dataset(source, split), settings)
    report, parts = find_parts(source, settings)
    return report, (document for part in parts for document in iter_part(part, settings))


def find_parts(
    source: str | list[str], settings: DataSettings
) -> tuple[DocumentReport, list[FilePart]]:
    """The files of a source as parts. Raises SettingsError if their kinds contradict the
    settings.
    """
    files, skipped = find_files(source)
    parts = [FilePart(file, _file_kind(file, settings)) for file in files]
    if settings.documents != "line" and all(part.kind != "text" for part in parts):
        raise SettingsError(
            f"data.documents: {settings.documents} applies to plain text, but in {files[0]} "
            "each row is a document; "
            "leave data.documents out"
        )
    return DocumentReport(name_of_files(files), files=len(files), skipped_files=skipped), parts


def filter_documents(
    texts: Iterable[str], settings: DataSettings, report: DocumentReport
) -> Iterator[str]:
    """Iterate over the documents that the settings keep, and count all of them in `report`."""
    # With a cache, the text may be so large that its digests do not fit into memory: duplicates are
    # not counted.
    seen: set[bytes] | None = None if settings.cache is not None else set()
    for text in texts:
        report.documents += 1
        if (not text or text.isspace()) and report.count_blank(settings):
            continue
        if seen is not None:
            digest = hashlib.blake2b(text.encode("utf-8"), digest_size=16).digest()
            if digest in seen and report.count_duplicate(settings):
                continue
            seen.add(digest)
        report.inner_breaks += INNER_BREAK.search(text) is not None
        report.characters += len(text)
        yield text


def _file_kind(file: str, settings: DataSettings) -> str:
    if settings.format not in ("auto", *TEXT_FORMATS.values()):
        raise SettingsError(
            f"data.format: {settings.format} holds rows; raw text is text, jsonl or parquet"
        )
    if settings.format != "auto":
        return settings.format
    suffix = inner_suffix(file)
    kind = FORMATS.get(suffix, "text")
    if "documents" not in FILE_FORMATS[kind].holds or suffix == ".json":
        next(
            iter_lines(file, settings.max_line_bytes), None
        )  # raises DataError if there is no such file
        raise SettingsError(
            f"data: {file} is not raw text according to its suffix; name it .txt to read its "
            "lines as they are or "
            ".jsonl if each is an object, or set data.format"
        )
    return kind


# --- documents of a file --------------------------------------------------------------------------


def iter_part(part: FilePart, settings: DataSettings) -> Iterator[str]:
    """All documents of a file, or of a range of it."""
    if part.kind == "parquet":
        return _fields(iter_parquet(part.file, settings.field, part.range), settings)
    if part.kind == "text" and settings.documents == "file":
        return map(read_text, [part.file])
    lines = iter_lines(part.file, settings.max_line_bytes, part=part.range, allow_empty=True)
    if part.kind == "jsonl":
        return _fields(read_objects(lines, part.file, part.range.first_line), settings)
    return (text for _, text in iter_blocks(lines)) if settings.documents == "blank" else lines


def iter_blocks(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Blocks of lines between blank lines, with the numbers of their first lines."""
    for is_blank, block in groupby(enumerate(lines, start=1), key=lambda line: not line[1].strip()):
        if not is_blank:
            number, first = next(block)
            yield number, "\n".join([first, *(line for _, line in block)])


def _fields(rows: Iterable[NumberedRow], settings: DataSettings) -> Iterator[str]:
    for _, place, row in rows:
        if row is None:
            yield ""
            continue
        text = value_at(row, settings.field, place, "data.field to the key of the text")
        yield check_text(text, f"{place}: {settings.field!r}")
