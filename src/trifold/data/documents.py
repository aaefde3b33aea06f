"""Raw text: from the sources of a recipe to documents and a report of what was dropped.

A document is the unit of raw text: a line, a block between blank lines, a file, or a row of a
table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple, Self

from trifold.data.datasets import iter_dataset
from trifold.data.files import FORMATS, find_files, is_dataset
from trifold.data.formats import FILE_FORMATS, NumberedRow, formats_holding
from trifold.data.holdout import HoldOut
from trifold.data.lines import (
    WHOLE_FILE,
    FileRange,
    check_readable,
    inner_suffix,
    iter_lines,
    read_text,
)
from trifold.data.pairs import read_pairs
from trifold.data.parquet import iter_parquet
from trifold.data.reports import DocumentReport, name_of_files, skipped_files
from trifold.data.roles import check_text, value_at
from trifold.data.rows import INNER_BREAK, Rows
from trifold.data.settings import DataSettings
from trifold.data.tables import read_objects
from trifold.errors import DataError, SettingsError, join_or


class FilePart(NamedTuple):
    """A file of kind text, jsonl or parquet, or a range of it that can be read on its own."""

    file: str
    kind: str
    range: FileRange = WHOLE_FILE


class Documents(Rows):
    """Raw text: rows with the role `text` only, numbered from 1.

    They differ from other rows in that the report counts characters, and that a single document can
    be split.
    """

    report: DocumentReport

    def __init__(self, texts: list[str], report: DocumentReport) -> None:
        super().__init__({"text": texts}, range(1, len(texts) + 1), report, ["text"])

    @classmethod
    def of(cls, texts: list[str], name: str) -> Self:
        """Documents from texts in memory."""
        characters = sum(map(len, texts))
        return cls(texts, DocumentReport(name, documents=len(texts), characters=characters))

    def select(self, indices: list[int], name: str) -> Self:
        return self.of([self.texts[i] for i in indices], name)

    def hold_out(self, count: HoldOut, seed: int) -> tuple[Self, Self]:
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
                "(data.holdout=0.1), or set data.documents"
            )
        cut = int(len(text) * (1 - count))
        if not text[:cut].strip() or not text[cut:].strip():
            raise DataError(
                f"data.holdout: {count} of {len(text):,} characters leaves a part blank"
            )
        train = self.of([text[:cut]], name)
        train.report = self.report  # keeps the counts of dropped documents
        return train, self.of([text[cut:]], f"the end of {name}")


class Splits(NamedTuple):
    """The data of an experiment, as `Rows` or what `read` of `read_splits` returns; `valid` and
    `test` are None if the settings name none. Without validation rows, `valid` is empty if folds
    choose the steps.
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

    read: `read_pairs`, `read_documents` or a function that calls `read_records`. Raises
    SettingsError if there is no training data.
    """
    if settings.train is None:
        raise SettingsError(
            "data.train: no training data is named; set it to files, hub:… or embedded:…"
        )

    def read_split(split: str) -> Any:
        source = getattr(settings, split)
        return None if source is None else read(source, settings, split)

    splits = Splits(*map(read_split, Splits._fields))
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
    if settings.folds is not None:
        return splits._replace(valid=splits.train.select([], "no rows"))
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
    report, texts = open_documents(source, settings, split)
    documents = Documents(list(filter_documents(texts, settings, report)), report)
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
            "each row is a document; leave data.documents out"
        )
    notes = skipped_files(skipped)
    return DocumentReport(name_of_files(files), files=len(files), notes=notes), parts


def filter_documents(
    texts: Iterable[str], settings: DataSettings, report: DocumentReport
) -> Iterator[str]:
    """Iterate over the documents that the settings keep, and count all of them in `report`."""
    # With a cache, the text may be so large that its digests do not fit into memory.
    counts_duplicates = settings.cache is None
    seen = set[bytes]()
    for text in texts:
        report.documents += 1
        is_blank = not text or text.isspace()
        if is_blank and report.count_blank(settings):
            continue
        if counts_duplicates:
            digest = hashlib.blake2b(text.encode("utf-8"), digest_size=16).digest()
            if digest in seen and report.count_duplicate(settings):
                continue
            seen.add(digest)
        report.inner_breaks += INNER_BREAK.search(text) is not None
        report.characters += len(text)
        yield text


def _file_kind(file: str, settings: DataSettings) -> str:
    """The format of a file of raw text. Raises SettingsError for another one."""
    formats = formats_holding("documents")
    if settings.format in formats:
        return settings.format
    if settings.format != "auto":
        raise SettingsError(
            f"data.format: {settings.format} holds rows; raw text is {join_or(formats)}"
        )
    suffix = inner_suffix(file)
    kind = FORMATS.get(suffix, "text")
    if "documents" not in FILE_FORMATS[kind].holds or suffix == ".json":
        check_readable(file, settings.max_line_bytes)
        raise SettingsError(
            f"data: {file} is not raw text according to its suffix; name it .txt to read its "
            "lines as they are or .jsonl if each is an object, or set data.format"
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
    if settings.documents == "blank":
        return (text for _, text in iter_blocks(lines))
    return lines


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
        if text is None:  # as an empty cell of a table
            text = ""
        yield check_text(text, f"{place}: {settings.field!r}")
