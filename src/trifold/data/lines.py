r"""Bytes of a file to lines of text, strictly: what is not clean UTF-8 is refused by name, line and byte.

A line ends at `\n` or `\r\n` and nowhere else. `str.splitlines` and text-mode files also split at U+2028,
U+0085, form feeds and lone carriage returns, which shifts every later line against its partner file.
"""

from __future__ import annotations

import io
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from trifold.data import compressed
from trifold.errors import DataError

STANDARD_INPUT = "-"
MAX_LINE_BYTES = 1_000_000

_BOM = b"\xef\xbb\xbf"
_WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")


class Stretch(NamedTuple):
    """The lines of a plain file that begin at bytes [start, stop); `first_line` is the number of the first of them.

    `start` is where a line begins.
    """

    start: int = 0
    stop: int | None = None
    first_line: int = 1


WHOLE = Stretch()


def read_lines(path: str | Path, max_line_bytes: int = MAX_LINE_BYTES) -> list[str]:
    """All lines of a file, or of standard input for `-`, without their ends; blank lines are kept.

    Raises DataError for a missing, unreadable or empty file and for anything that is not clean UTF-8 text.
    """
    return list(iter_lines(path, max_line_bytes))


def iter_lines(
    path: str | Path,
    max_line_bytes: int = MAX_LINE_BYTES,
    *,
    stretch: Stretch = WHOLE,
    may_be_empty: bool = False,
) -> Iterator[str]:
    """The lines of a plain or compressed file one by one, in memory bounded by `max_line_bytes`."""
    name = name_of(path)
    with _opened(path, name) as stream:
        if stretch.start:
            stream.seek(stretch.start)
        number = 0
        for number, raw in enumerate(_raw_lines(stream, name, max_line_bytes, stretch), stretch.first_line):
            yield _decode(raw, name, number)
        if number == 0 and not may_be_empty and stretch == WHOLE:
            raise DataError(f"{name}: the file is empty; there is nothing to read in it")


def read_text(path: str | Path) -> str:
    r"""All of a file as one text, its line ends as `\n` and those at its end kept; it must fit into memory.

    Raises DataError as `iter_lines` does, but for an empty file, whose text is empty.
    """
    name = name_of(path)
    with _opened(path, name) as stream:
        raw = stream.read()
    if raw.startswith(_WIDE_BOMS):
        raise _wide(name)
    raw = raw.removeprefix(_BOM).replace(b"\r\n", b"\n")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:  # one line is at fault, and says so
        for number, line in enumerate(raw.split(b"\n"), start=1):
            _decode(line, name, number)
    return text


def name_of(path: str | Path) -> str:
    """What a message calls the file."""
    return "standard input" if path == STANDARD_INPUT else str(path)


def expand(path: str | Path) -> Path:
    """The path with `~` and `${VARIABLES}` filled in; DataError names a variable that is not set."""
    for variable in _VARIABLE.findall(str(path)):
        if variable not in os.environ:
            raise DataError(f"{path}: the environment variable {variable} is not set; {_remedies(variable)}")
    return Path(os.path.expandvars(path)).expanduser()


def _remedies(variable: str = "TRIFOLD_DATA") -> str:
    return (
        f"set {variable} to the folder that holds the file, "
        "or take a dataset of the hub with data.train=hub:NAME:SPLIT"
    )


@contextmanager
def _opened(path: str | Path, name: str) -> Iterator[BinaryIO]:
    """The uncompressed bytes of `path`; every way in which reading them can fail becomes a DataError."""
    try:
        if path == STANDARD_INPUT:
            yield compressed.uncompressed(cast(io.BufferedReader, sys.stdin.buffer), name)
            return
        with expand(path).open("rb") as file:
            if stat.S_ISDIR(os.fstat(file.fileno()).st_mode):
                raise IsADirectoryError
            yield compressed.uncompressed(file, name)
    except FileNotFoundError:
        raise DataError(f"{name}: no such file; check the path, {_remedies()}") from None
    except IsADirectoryError:
        raise DataError(f"{name}: this is a folder; name a file in it") from None
    except PermissionError:
        raise DataError(f"{name}: no permission to read it; try `chmod u+r {name}`") from None
    except EOFError:
        raise DataError(f"{name}: the compressed file ends too early; copy or download it again") from None
    except compressed.ERRORS as error:
        raise DataError(
            f"{name}: the compressed file is damaged ({error}); copy or download it again"
        ) from None
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror or error})") from None


def _raw_lines(stream: BinaryIO, name: str, max_line_bytes: int, stretch: Stretch) -> Iterator[bytes]:
    """Lines as bytes, without their ends and without the mark some programs put at the start of a file."""
    longest = max_line_bytes + len(_BOM) + 2  # so much of a line is read before it is refused
    number, place = stretch.first_line - 1, stretch.start
    while (stretch.stop is None or place < stretch.stop) and (raw := stream.readline(longest)):
        number += 1
        if place == 0:
            if raw.startswith(_WIDE_BOMS):
                raise _wide(name)
            place, raw = len(raw), raw.removeprefix(_BOM)
            if not raw:
                return
        else:
            place += len(raw)
        if raw.endswith(b"\n"):
            raw = raw[:-2] if raw.endswith(b"\r\n") else raw[:-1]
        if len(raw) > max_line_bytes:
            remedy = "split the line, or raise data.max_line_bytes"
            raise DataError(f"{name}:{number}: the line is longer than {max_line_bytes:,} bytes; {remedy}")
        yield raw


def _wide(name: str) -> DataError:
    remedy = "convert it with `iconv -f UTF-16 -t UTF-8`"
    return DataError(f"{name}:1:1: this is UTF-16 or UTF-32 text, not UTF-8; {remedy}")


def _decode(raw: bytes, name: str, number: int) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        place, value = f"{name}:{number}:{error.start + 1}", raw[error.start]
        remedy = "find the file's encoding and convert it, for instance with `iconv -f LATIN1 -t UTF-8`"
        raise DataError(f"{place}: byte 0x{value:02x} is not valid UTF-8; {remedy}") from None
    if "\0" in text:
        place = f"{name}:{number}:{raw.index(0) + 1}"
        raise DataError(f"{place}: a NUL byte, so this is not plain text; remove it (`tr -d '\\0'`)")
    return text
