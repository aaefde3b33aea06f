"""From a source of raw text, as a recipe names it, to documents and a report of what happened on the way.

A document is what a model may read in one go: a line, what stands between two blank lines, a file, a row of a table.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, NamedTuple

from trifold.data import embedded, hub, parquet
from trifold.data.compressed import ending
from trifold.data.files import KINDS, find
from trifold.data.lines import WHOLE, Stretch, iter_lines, name_of, read_text
from trifold.data.readers import INNER_BREAK, Fates, held_out
from trifold.data.settings import DataSettings
from trifold.data.tables import objects, text_at
from trifold.errors import DataError, SettingsError

_FIELD = "data.field to the one that holds the text"


class Document(NamedTuple):
    """A text, and where it begins: a line or a row of the file, counted from 1."""

    text: str
    file: str
    line: int


class Part(NamedTuple):
    """A file, or so much of it as can be read on its own: lines, or row groups of a Parquet file."""

    file: str
    kind: str
    stretch: Stretch = WHOLE


@dataclass
class DocumentReport(Fates):
    """What was read and what became of it: `documents == kept + dropped`, always. Blank has no visible character."""

    files: int = 0
    documents: int = 0
    characters: int = 0  # of the documents that are kept
    passed_over: Counter[str] = field(default_factory=Counter)  # other files in folders, by ending

    @property
    def kept(self) -> int:
        """Documents that are used."""
        return self.documents - self.dropped

    def __str__(self) -> str:
        others = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.passed_over.items()))
        passed = [f"files of other kinds passed over: {others}"] if others else []
        read = [f"{self.name}: {self.documents:,} documents", *self.notes("blank"), *passed]
        return ", ".join(read) + f"; {self.kept:,} used, {self.characters:,} characters"


@dataclass
class Documents:
    """Raw text, one entry a document."""

    texts: list[str] = field(default_factory=list)
    report: DocumentReport = field(default_factory=lambda: DocumentReport("nothing"))

    def __len__(self) -> int:
        return len(self.texts)

    def select(self, indices: list[int], name: str) -> Documents:
        """The documents at `indices` as a set of their own, called `name`."""
        return Documents.of([self.texts[i] for i in indices], name)

    @classmethod
    def of(cls, texts: list[str], name: str) -> Documents:
        """Texts that are documents as they stand."""
        report = DocumentReport(name, documents=len(texts), characters=sum(map(len, texts)))
        return cls(texts, report)


class DocumentSplits(NamedTuple):
    """The raw text of one experiment; `valid` and `test` are None when the settings name none."""

    train: Documents
    valid: Documents | None
    test: Documents | None


def read_document_splits(settings: DataSettings, seed: int = 0) -> DocumentSplits:
    """Read all that `settings` names; with `holdout`, validation text is taken out of train (see `hold_out_documents`).

    Raises what `read_documents` raises, and SettingsError where nothing is named to train on.
    """
    if settings.train is None:
        raise SettingsError("data.train: no training data is named; set it to files, hub:… or embedded:…")
    train = read_documents(settings.train, settings, split="train")
    valid = read_documents(settings.valid, settings, split="valid") if settings.valid is not None else None
    test = read_documents(settings.test, settings, split="test") if settings.test is not None else None
    if settings.holdout:
        train, valid = hold_out_documents(train, settings.holdout, seed)
    return DocumentSplits(train, valid, test)


def hold_out_documents(documents: Documents, asked: int | float, seed: int) -> tuple[Documents, Documents]:
    """Split off so many documents, or that share of them: the last of a shuffle by `seed`, in the order of the file.

    Of a single document, the share is taken of its characters, from its end. Raises DataError where nothing would be
    left, or where a single document should be counted.
    """
    name = documents.report.name
    if len(documents) == 1:
        if not isinstance(asked, float):
            remedy = (
                "hold out a share of it (data.holdout=0.1), or say with data.documents what a document is"
            )
            raise DataError(f"data.holdout: {name} is a single document; {remedy}")
        text = documents.texts[0]
        cut = int(len(text) * (1 - asked))
        if not text[:cut].strip() or not text[cut:].strip():
            raise DataError(
                f"data.holdout: a share of {asked} of {len(text):,} characters leaves a part blank"
            )
        train, held = Documents.of([text[:cut]], name), Documents.of([text[cut:]], f"the end of {name}")
    else:
        rest, taken = held_out(len(documents), asked, seed, "documents")
        train, held = documents.select(rest, name), documents.select(taken, f"held out of {name}")
    train.report = documents.report  # what was dropped on reading stays on record
    return train, held


def read_documents(source: str | list[str], settings: DataSettings, split: str = "train") -> Documents:
    """Read every document of `source` into memory, dropping what the settings say, each drop counted.

    `split` is the part taken of an embedded source that names none. Raises DataError for what is missing, unreadable
    or broken and where nothing is left; SettingsError for a source that makes no sense.
    """
    report, found = open_documents(source, settings, split)
    documents = Documents([one.text for one in kept(found, settings, report)], report)
    if not documents:
        raise DataError(
            f"{report.name}: no document is left ({report.documents:,} read, {report.blank:,} blank)"
        )
    return documents


def iter_documents(
    source: str | list[str], settings: DataSettings, split: str = "train"
) -> Iterator[Document]:
    """The documents of `source` one by one, nothing dropped, in memory bounded by the longest of them."""
    return open_documents(source, settings, split)[1]


def open_documents(
    source: str | list[str], settings: DataSettings, split: str
) -> tuple[DocumentReport, Iterator[Document]]:
    """A report to be filled, with the name of the source, and its documents."""
    if isinstance(source, str):
        for prefix, places in _NAMED.items():
            if source.startswith(prefix):
                return DocumentReport(source), _rows(
                    enumerate(places(source, split), start=1), source, settings
                )
    report, parts = whole_files(source, settings)
    return report, (document for part in parts for document in documents_in(part, settings))


def whole_files(source: str | list[str], settings: DataSettings) -> tuple[DocumentReport, list[Part]]:
    """The files of a source and what is in them. Raises SettingsError where that contradicts the settings."""
    files, passed_over = find(source)
    parts = [Part(file, _kind(file, settings)) for file in files]
    if settings.documents != "line" and all(part.kind != "text" for part in parts):
        raise SettingsError(
            f"data.documents: {settings.documents} divides plain text, but in {files[0]} each row is a document; "
            "leave data.documents out"
        )
    name = PurePath(name_of(files[0])).name
    if len(files) > 1:
        name = f"{name} and {len(files) - 1:,} more file{'s' if len(files) > 2 else ''}"
    return DocumentReport(name, files=len(files), passed_over=passed_over), parts


def documents_in(part: Part, settings: DataSettings) -> Iterator[Document]:
    """The documents of a file, or of a part of it, as they stand there."""
    return _READERS[settings.documents if part.kind == "text" else part.kind](part, settings)


def kept(documents: Iterator[Document], settings: DataSettings, report: DocumentReport) -> Iterator[Document]:
    """The documents that the settings let through, everything counted in `report`."""
    # A cache is for text whose digests alone would fill the memory: nothing is known of duplicates there.
    seen: set[bytes] | None = None if settings.cache is not None else set()
    for document in documents:
        text = document.text
        report.documents += 1
        if not text or text.isspace():
            report.blank += 1
            if settings.blank == "drop":
                report.blank_dropped += 1
                continue
        if seen is not None:
            digest = hashlib.blake2b(text.encode("utf-8"), digest_size=16).digest()
            if digest in seen:
                report.duplicates += 1
                if settings.duplicates == "drop":
                    report.duplicates_dropped += 1
                    continue
            seen.add(digest)
        report.inner_breaks += INNER_BREAK.search(text) is not None
        report.characters += len(text)
        yield document


def _kind(file: str, settings: DataSettings) -> str:
    if settings.format in ("tsv", "csv"):
        raise SettingsError(f"data.format: {settings.format} holds pairs; raw text is text, jsonl or parquet")
    if settings.format != "auto":
        return settings.format
    if ending(file) in (".json", ".tsv", ".tab", ".csv"):
        remedy = (
            "set data.format=jsonl if each line is an object, data.format=text to read its lines as they are"
        )
        raise SettingsError(f"data: {file} is no raw text by its ending; {remedy}")
    return KINDS.get(ending(file), "text")


# --- what stands in a file --------------------------------------------------------------------------------


def _each_line(part: Part, settings: DataSettings) -> Iterator[Document]:
    lines = iter_lines(part.file, settings.max_line_bytes, stretch=part.stretch, may_be_empty=True)
    for number, line in enumerate(lines, part.stretch.first_line):
        yield Document(line, part.file, number)


def _between_blank_lines(part: Part, settings: DataSettings) -> Iterator[Document]:
    lines: list[str] = []
    number = part.stretch.first_line
    for document in _each_line(part, settings):
        if document.text and not document.text.isspace():
            number = number if lines else document.line
            lines.append(document.text)
        elif lines:
            yield Document("\n".join(lines), part.file, number)
            lines = []
    if lines:
        yield Document("\n".join(lines), part.file, number)


def _whole_file(part: Part, settings: DataSettings) -> Iterator[Document]:
    yield Document(read_text(part.file), part.file, 1)


def _objects(part: Part, settings: DataSettings) -> Iterator[Document]:
    lines = iter_lines(part.file, settings.max_line_bytes, stretch=part.stretch, may_be_empty=True)
    for number, row in objects(lines, part.file, part.stretch.first_line):
        text = "" if row is None else text_at(row, settings.field, f"{part.file}:{number}", _FIELD)
        yield Document(text, part.file, number)


def _table(part: Part, settings: DataSettings) -> Iterator[Document]:
    rows = parquet.rows(part.file, settings.field, part.stretch.start, part.stretch.stop)
    places = ((number, (f"{part.file}, row {number}", row)) for number, row in rows)
    return _rows(places, part.file, settings)


def _rows(
    places: Iterator[tuple[int, tuple[str, Mapping[str, Any]]]], file: str, settings: DataSettings
) -> Iterator[Document]:
    for number, (place, row) in places:
        yield Document(text_at(row, settings.field, place, _FIELD), file, number)


_READERS: dict[str, Callable[[Part, DataSettings], Iterator[Document]]] = {
    "line": _each_line,
    "blank": _between_blank_lines,
    "file": _whole_file,
    "jsonl": _objects,
    "parquet": _table,
}
_NAMED: dict[str, Callable[[str, str], Iterator[tuple[str, Mapping[str, Any]]]]] = {
    "hub:": lambda source, split: hub.places(source),
    "embedded:": embedded.iter_rows,
}
