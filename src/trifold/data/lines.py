r"""Bytes of a file to lines of text, strictly: what is not clean UTF-8 is refused by name, line and byte.

A line ends at `\n` or `\r\n` and nowhere else. `str.splitlines` and text-mode files also split at U+2028,
U+0085, form feeds and lone carriage returns, which shifts every later line against its partner file.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from trifold.errors import DataError

STANDARD_INPUT = "-"
MAX_LINE_BYTES = 1_000_000

_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")


def read_lines(path: str | Path, max_line_bytes: int = MAX_LINE_BYTES) -> list[str]:
    """All lines of a file, or of standard input for `-`, without their ends; blank lines are kept.

    Raises DataError for a missing, unreadable or empty file and for anything that is not clean UTF-8 text.
    """
    return list(iter_lines(path, max_line_bytes))


def iter_lines(path: str | Path, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[str]:
    """The lines of a plain or gzipped file one by one, in memory bounded by `max_line_bytes`."""
    name = "standard input" if path == STANDARD_INPUT else str(path)
    with _opened(path, name) as stream:
        number = 0
        for number, raw in enumerate(_raw_lines(stream, name, max_line_bytes), start=1):
            yield _decode(raw, name, number)
        if number == 0:
            raise DataError(f"{name}: the file is empty; there is nothing to read in it")


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
            yield _uncompressed(cast(io.BufferedReader, sys.stdin.buffer), name)
            return
        with expand(path).open("rb") as file:
            if stat.S_ISDIR(os.fstat(file.fileno()).st_mode):
                raise IsADirectoryError
            yield _uncompressed(file, name)
    except FileNotFoundError:
        raise DataError(f"{name}: no such file; check the path, {_remedies()}") from None
    except IsADirectoryError:
        raise DataError(f"{name}: this is a folder; name a file in it") from None
    except PermissionError:
        raise DataError(f"{name}: no permission to read it; try `chmod u+r {name}`") from None
    except EOFError:
        raise DataError(f"{name}: the compressed file ends too early; copy or download it again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{name}: the compressed file is damaged ({error}); copy or download it again"
        ) from None
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror or error})") from None


def _uncompressed(file: io.BufferedReader, name: str) -> BinaryIO:
    # Looking at the first bytes, not at the ending, also serves pipes and gzipped files named .txt.
    if file.peek(2)[:2] == _GZIP:
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    if name.endswith(".gz") and file.peek(1):
        raise DataError(f"{name}: ends in .gz but is not gzip; rename it, or compress it with gzip")
    return file


def _raw_lines(stream: BinaryIO, name: str, max_line_bytes: int) -> Iterator[bytes]:
    """Lines as bytes, without their ends and without the mark some programs put at the start of a file."""
    longest = max_line_bytes + len(_BOM) + 2  # so much of a line is read before it is refused
    number = 0
    while raw := stream.readline(longest):
        number += 1
        if number == 1:
            if raw.startswith(_WIDE_BOMS):
                remedy = "convert it with `iconv -f UTF-16 -t UTF-8`"
                raise DataError(f"{name}:1:1: this is UTF-16 or UTF-32 text, not UTF-8; {remedy}")
            raw = raw.removeprefix(_BOM)
            if not raw:
                return
        if raw.endswith(b"\n"):
            raw = raw[:-2] if raw.endswith(b"\r\n") else raw[:-1]
        if len(raw) > max_line_bytes:
            remedy = "split the line, or raise data.max_line_bytes"
            raise DataError(f"{name}:{number}: the line is longer than {max_line_bytes:,} bytes; {remedy}")
        yield raw


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
