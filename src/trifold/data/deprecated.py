"""Functions of version 0.1 whose replacements have other signatures."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trifold.data import documents
from trifold.data.files import is_dataset
from trifold.data.lines import MAX_LINE_BYTES, iter_lines
from trifold.data.pairs import Row, open_pairs
from trifold.data.settings import DataSettings, Source


class Document(NamedTuple):
    """A text, and the line or row of the file where it begins, counted from 1."""

    text: str
    file: str
    line: int


def read_lines(path: str | Path, max_line_bytes: int = MAX_LINE_BYTES) -> list[str]:
    """All lines of a file."""
    return list(iter_lines(path, max_line_bytes))


def read_document_splits(settings: DataSettings, seed: int = 0) -> documents.Splits:
    """The splits of raw text."""
    return documents.read_splits(settings, seed, documents.read_documents)


def iter_rows(source: Source, settings: DataSettings, split: str = "train") -> Iterator[Row]:
    """All pairs of `source`, in memory bounded by the longest."""
    return open_pairs(source, settings, split)[1]


def iter_documents(
    source: str | list[str], settings: DataSettings, split: str = "train"
) -> Iterator[Document]:
    """All documents of `source`, in memory bounded by the longest."""
    if is_dataset(source):
        texts = enumerate(documents.open_documents(source, settings, split)[1], start=1)
        return (Document(text, source, line) for line, text in texts)
    parts = documents.find_parts(source, settings)[1]
    return (
        Document(text, part.file, line)
        for part in parts
        for line, text in _numbered(part, settings)
    )


def _numbered(part: documents.FilePart, settings: DataSettings) -> Iterator[tuple[int, str]]:
    """The documents of a file with their first lines; each is one line or row, except blocks and
    whole files.
    """
    if part.kind == "text" and settings.documents == "blank":
        return documents.iter_blocks(
            iter_lines(part.file, settings.max_line_bytes, allow_empty=True)
        )
    return enumerate(documents.iter_part(part, settings), start=1)
