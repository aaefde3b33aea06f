"""A corpus of any size, divided into parts that are read in parallel.

A part is a range of a file that ends between two documents, so reading all parts in order reads the
corpus. The division depends on the files only.
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import BinaryIO, NamedTuple

from trifold.data.archives import split_member
from trifold.data.documents import FilePart, find_parts, iter_part
from trifold.data.files import is_dataset
from trifold.data.lines import STANDARD_INPUT, FileRange, expand_path, is_compressed
from trifold.data.parquet import count_row_groups
from trifold.data.reports import DocumentReport
from trifold.data.settings import DataSettings
from trifold.errors import DataError, SettingsError
from trifold.folders import open_found

PART_BYTES = 64 << 20

_SAMPLED_BLOCKS = 256  # of all files together, and at least two of each
_BLOCK_BYTES = 4096


class SourceFile(NamedTuple):
    """A file of the corpus; `sample` is the SHA-256 of blocks spread evenly over it, the first and
    last included.
    """

    file: str
    kind: str
    size: int
    mtime_ns: int
    sample: str

    def is_unchanged(self) -> bool:
        """Whether size and modification time are still the same."""
        with suppress(OSError):
            status = expand_path(self.file).stat()
            return (status.st_size, status.st_mtime_ns) == (self.size, self.mtime_ns)
        return False


class Corpus(NamedTuple):
    """The files of a source, and a report with its name."""

    report: DocumentReport
    files: list[SourceFile]


def survey(source: str | list[str], settings: DataSettings) -> Corpus:
    """Describe the files of a source without reading them whole.

    Raises DataError for a missing file, SettingsError for a source that is not a file.
    """
    if source == STANDARD_INPUT or is_dataset(source):
        raise SettingsError(
            f"data.cache: {source!r} is not a file, and only files can be cached; save it as a "
            "file, or leave data.cache out"
        )
    report, parts = find_parts(source, settings)
    if archived := [part.file for part in parts if split_member(expand_path(part.file))]:
        raise SettingsError(
            f"data.cache: {archived[0]} is in an archive, of which no range can be read; unpack "
            "it, or leave data.cache out"
        )
    blocks = max(2, _SAMPLED_BLOCKS // len(parts))
    return Corpus(report, [_describe(part, blocks) for part in parts])


def _describe(part: FilePart, blocks: int) -> SourceFile:
    path = expand_path(part.file)
    try:
        with open_found(path, DataError) as stream:
            status = path.stat()
            digest = hashlib.sha256()
            last = max(0, status.st_size - _BLOCK_BYTES)
            for position in sorted({last * block // (blocks - 1) for block in range(blocks)}):
                stream.seek(position)
                digest.update(stream.read(_BLOCK_BYTES))
    except OSError as error:
        raise DataError(
            f"{part.file}: cannot be read ({error.strerror or error}); check the path"
        ) from None
    return SourceFile(part.file, part.kind, status.st_size, status.st_mtime_ns, digest.hexdigest())


def group_parts(
    corpus: Corpus, settings: DataSettings, part_bytes: int = PART_BYTES
) -> list[list[FilePart]]:
    """The parts of the corpus in order, in groups of about `part_bytes`."""
    groups: list[list[FilePart]] = [[]]
    group_bytes = 0
    for file in corpus.files:
        for part, size in _divide(FilePart(file.file, file.kind), file.size, settings, part_bytes):
            if groups[-1] and group_bytes + size > part_bytes:
                groups.append([])
                group_bytes = 0
            groups[-1].append(part)
            group_bytes += size
    return groups


def _divide(
    whole: FilePart, size: int, settings: DataSettings, part_bytes: int
) -> Iterator[tuple[FilePart, int]]:
    """Parts of about `part_bytes`, with their sizes."""
    if whole.kind == "parquet":
        row_groups = count_row_groups(whole.file)
        for group in range(row_groups):
            yield whole._replace(range=FileRange(group, group + 1)), max(1, size // row_groups)
        return
    path = expand_path(whole.file)
    is_one_document = whole.kind == "text" and settings.documents == "file"
    if size <= part_bytes or is_one_document or is_compressed(path):
        yield whole, size
        return
    with open_found(path, DataError) as stream:
        at_blank_lines = whole.kind == "text" and settings.documents == "blank"
        start = 0
        for stop in _cut_positions(stream, size, part_bytes, at_blank_lines):
            yield whole._replace(range=FileRange(start, stop)), stop - start
            start = stop
        yield whole._replace(range=FileRange(start, None)), size - start


def _cut_positions(
    stream: BinaryIO, size: int, part_bytes: int, at_blank_lines: bool
) -> Iterator[int]:
    """Positions after a line end (or after a blank line), at least `part_bytes` apart."""
    position = part_bytes
    while position < size:
        stream.seek(position)
        _skip_line(stream)
        while at_blank_lines and _skip_line(stream) is False:
            pass
        position = stream.tell()
        if position < size:
            yield position
        position += part_bytes


def _skip_line(stream: BinaryIO) -> bool | None:
    """Move past the next line feed. Returns whether the line is blank; None at the end of the
    file.
    """
    is_blank = True
    while chunk := stream.readline(1 << 16):  # a line may be as long as the file
        is_blank = is_blank and not chunk.strip()
        if chunk.endswith(b"\n"):
            return is_blank
    return None


def iter_parts(parts: Iterable[FilePart], settings: DataSettings) -> Iterator[str]:
    """The documents of some parts. Errors name the line number within the file, not within the
    part.
    """
    for part in parts:
        try:
            yield from iter_part(part, settings)
        except DataError:
            if part.kind != "parquet" and part.range.start:
                first_line = 1 + _count_line_feeds(part)
                for _ in iter_part(
                    part._replace(range=part.range._replace(first_line=first_line)), settings
                ):
                    pass  # raises the same error with the right line number
            raise


def _count_line_feeds(part: FilePart) -> int:
    """The number of line feeds before a part, needed only for the line number in an error."""
    with open_found(expand_path(part.file), DataError) as stream:
        chunks = iter(lambda: stream.read(min(1 << 20, part.range.start - stream.tell())), b"")
        return sum(chunk.count(b"\n") for chunk in chunks)
