"""A corpus of any size in parts that are read side by side, and a name for what is in it.

A part is a stretch of a file between two documents, so that reading the parts one after the other is reading the
whole. Which parts there are depends on the files alone, never on the machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

from trifold.data import parquet
from trifold.data.compressed import is_compressed
from trifold.data.documents import Document, DocumentReport, Part, documents_in, whole_files
from trifold.data.lines import STANDARD_INPUT, Stretch, expand
from trifold.data.settings import DataSettings
from trifold.errors import DataError, SettingsError

PART_BYTES = 64 << 20

_SAMPLES = 256  # blocks looked at in all files together, and two at least in each
_BLOCK = 4096


class SourceFile(NamedTuple):
    """A file as it was found. sample: SHA-256 of blocks spread evenly over it, the first and the last among them."""

    file: str
    kind: str
    size: int
    mtime_ns: int
    sample: str


class Corpus(NamedTuple):
    """The files of a source, `files[i]` being what is known of `wholes[i]`."""

    report: DocumentReport
    wholes: list[Part]
    files: list[SourceFile]


def survey(source: str | list[str], settings: DataSettings) -> Corpus:
    """Look at the files of a source without reading them.

    Raises DataError for a file that is not there, SettingsError for a source that is no file.
    """
    if source == STANDARD_INPUT or (isinstance(source, str) and source.startswith(("hub:", "embedded:"))):
        raise SettingsError(
            f"data.cache: {source!r} is no file, and only files are made into a cache; save it as one, or leave "
            "data.cache out"
        )
    report, wholes = whole_files(source, settings)
    blocks = max(2, _SAMPLES // len(wholes))
    return Corpus(report, wholes, [_look_at(part, blocks) for part in wholes])


def groups(corpus: Corpus, settings: DataSettings, part_bytes: int = PART_BYTES) -> list[list[Part]]:
    """Parts in the order of the corpus, in groups of about so many bytes that are worked on one at a time."""
    found: list[list[Part]] = [[]]
    filled = 0
    for whole, file in zip(corpus.wholes, corpus.files, strict=True):
        for part, size in _parts(whole, file.size, settings, part_bytes):
            if found[-1] and filled + size > part_bytes:
                found.append([])
                filled = 0
            found[-1].append(part)
            filled += size
    return found


def documents_of(parts: Sequence[Part], settings: DataSettings) -> Iterator[Document]:
    """The documents of some parts. Raises DataError, which names the line as it is counted from the file's start."""
    for part in parts:
        try:
            yield from documents_in(part, settings)
        except DataError:
            if part.kind != "parquet" and part.stretch.start:
                for _ in documents_in(part._replace(stretch=_numbered(part)), settings):
                    pass  # the same error, by its line
            raise


def content(file: str) -> str:
    """SHA-256 (hexadecimal) of a whole file."""
    with expand(file).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def unchanged(found: SourceFile) -> bool:
    """Whether a file has the size and the time that it had."""
    try:
        now = expand(found.file).stat()
    except OSError:
        return False
    return (now.st_size, now.st_mtime_ns) == (found.size, found.mtime_ns)


def _look_at(part: Part, blocks: int) -> SourceFile:
    path = expand(part.file)
    try:
        with path.open("rb") as stream:
            about = path.stat()
            digest = hashlib.sha256()
            last = max(0, about.st_size - _BLOCK)
            for place in sorted({last * block // (blocks - 1) for block in range(blocks)}):
                stream.seek(place)
                digest.update(stream.read(_BLOCK))
    except OSError as error:
        raise DataError(f"{part.file}: cannot be read ({error.strerror or error}); check the path") from None
    return SourceFile(part.file, part.kind, about.st_size, about.st_mtime_ns, digest.hexdigest())


def _parts(whole: Part, size: int, settings: DataSettings, part_bytes: int) -> Iterator[tuple[Part, int]]:
    """Parts of about so many bytes, and how large they are."""
    if whole.kind == "parquet":
        for group in range(parquet.groups(whole.file)):
            yield (
                whole._replace(stretch=Stretch(group, group + 1)),
                max(1, size // parquet.groups(whole.file)),
            )
        return
    path = expand(whole.file)
    one = whole.kind == "text" and settings.documents == "file"
    if size <= part_bytes or one or is_compressed(path):
        yield whole, size
        return
    with path.open("rb") as stream:
        between = whole.kind == "text" and settings.documents == "blank"
        start = 0
        for stop in _cuts(stream, size, part_bytes, between):
            yield whole._replace(stretch=Stretch(start, stop)), stop - start
            start = stop
        yield whole._replace(stretch=Stretch(start, None)), size - start


def _cuts(stream: BinaryIO, size: int, part_bytes: int, between: bool) -> Iterator[int]:
    """Places where a line begins, the next one at least `part_bytes` further; `between`: after a blank line."""
    place = part_bytes
    while place < size:
        stream.seek(place)
        _end_of_line(stream)
        while between and _end_of_line(stream) is False:
            pass
        place = stream.tell()
        if place < size:
            yield place
        place += part_bytes


def _end_of_line(stream: BinaryIO) -> bool | None:
    """Read to behind the next line feed; whether the line is blank, None at the end of the file."""
    blank, piece = True, b""
    while piece := stream.readline(1 << 16):  # a line may be as long as the file
        blank = blank and not piece.strip()
        if piece.endswith(b"\n"):
            return blank
    return None


def _numbered(part: Part) -> Stretch:
    before, start = 0, part.stretch.start
    with expand(part.file).open("rb") as stream:
        while start > 0 and (piece := stream.read(min(1 << 20, start))):
            before, start = before + piece.count(b"\n"), start - len(piece)
    return part.stretch._replace(first_line=before + 1)
