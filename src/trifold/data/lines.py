r"""Strict reading of text files, plain or compressed: invalid UTF-8 is an error that names file,
line and byte.

A line ends at `\n` or `\r\n` and nowhere else. `str.splitlines` and text-mode files also split at
U+2028, U+0085, form feeds and lone carriage returns, which misaligns all later lines of a parallel
file.
"""

import gzip
import importlib
import io
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, BinaryIO, NamedTuple, cast

from trifold.data.archives import open_stored
from trifold.data.catalog import VARIABLE, data_folder, missing_remedy
from trifold.data.foreign import foreign_error
from trifold.errors import DataError
from trifold.folders import open_named
from trifold.installation import install_command

STANDARD_INPUT = "-"
MAX_LINE_BYTES = 1_000_000
BOM = b"\xef\xbb\xbf"  # byte order mark of UTF-8
COMPRESSED_SUFFIXES = {".gz": "gzip", ".zst": "zstd"}

_MAGIC_BYTES = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
# A kilobyte of zstd can decompress to 32 MB. Small reads bound the memory that a hostile file can
# take.
_ZSTD_READ_BYTES = 4096
_WIDE_BOMS = {  # the longer ones first
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_OFFICE = (b"PK\3\4", b"\xd0\xcf\x11\xe0")  # zip; compound file
_NOT_CP1252 = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")
_VARIABLE_PATTERN = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


class FileRange(NamedTuple):
    """Bytes [start, stop) of a plain file, where `start` begins line number `first_line`; or
    Parquet row groups.
    """

    start: int = 0
    stop: int | None = None
    first_line: int = 1


WHOLE_FILE = FileRange()


def iter_lines(
    path: str | Path,
    max_line_bytes: int = MAX_LINE_BYTES,
    *,
    part: FileRange = WHOLE_FILE,
    allow_empty: bool = False,
) -> Iterator[str]:
    """Iterate over the lines of a file, or of standard input for `-`, in memory bounded by
    `max_line_bytes`.

    Lines have no line ends, and blank lines are kept. Raises DataError if the file is missing,
    unreadable, empty or not valid UTF-8 text.
    """
    name = display_name(path)
    # A longer line is rejected without reading it to its end.
    read_limit = max_line_bytes + len(BOM) + 2
    with open_binary(path, name) as stream:
        if part.start:
            stream.seek(part.start)
        number = part.first_line - 1
        position = part.start
        while (part.stop is None or position < part.stop) and (raw := stream.readline(read_limit)):
            line = raw
            if raw.endswith(b"\n"):
                line = raw.removesuffix(b"\n").removesuffix(b"\r")
            if position == 0:
                _check_start(raw, name)
                if raw == BOM:
                    break
                line = line.removeprefix(BOM)
            position += len(raw)
            number += 1
            if len(line) > max_line_bytes:
                remedy = "split the line, or raise data.max_line_bytes"
                raise DataError(
                    f"{name}:{number}: the line is longer than {max_line_bytes:,} bytes; {remedy}"
                )
            yield _decode(line, name, number, position - len(raw))
        if number == 0 and not allow_empty and part == WHOLE_FILE:
            raise DataError(f"{name}: the file is empty; there is nothing to read in it")


def check_first_lines(lines: Iterator[str], file: str) -> Iterator[str]:
    """The lines of a file. Raises DataError if they end in carriage returns, so that the file is
    one line.
    """
    first = [*islice(lines, 2)]
    if len(first) == 1 and "\r" in re.sub('"[^"]*"', "", first[0]).rstrip("\r"):
        remedy = r"convert it with `tr '\r' '\n'`"
        raise DataError(f"{file}:1: the lines end in carriage returns, as of old Macs; {remedy}")
    yield from first
    yield from lines


def check_readable(path: str | Path, max_line_bytes: int) -> None:
    """Raises DataError if a file is missing, or its first line cannot be read."""
    next(iter_lines(path, max_line_bytes), None)


def read_text(path: str | Path) -> str:
    r"""The content of a file, with line ends converted to `\n`. Raises as `iter_lines` does, except
    for empty files.
    """
    name = display_name(path)
    with open_binary(path, name) as stream:
        raw = stream.read()
    _check_start(raw, name)
    return _decode(raw.removeprefix(BOM).replace(b"\r\n", b"\n"), name, 1)


def display_name(path: str | Path) -> str:
    """The name of the file in messages."""
    return "standard input" if path == STANDARD_INPUT else str(path)


def expand_path(path: str | Path) -> Path:
    """Expand `~` and `${VARIABLES}`, of which TRIFOLD_DATA has a default. Raises DataError for one
    that is not set.
    """
    variables = os.environ | {VARIABLE: str(data_folder())}
    for plain, braced in _VARIABLE_PATTERN.findall(str(path)):
        if plain + braced not in variables:
            raise DataError(
                f"{path}: the environment variable {plain or braced} is not set; set it to the "
                "folder of the data, or use a dataset of the hub with data.train=hub:NAME:SPLIT"
            )
    return Path(
        _VARIABLE_PATTERN.sub(lambda found: variables[found[1] or found[2]], str(path))
    ).expanduser()


@contextmanager
def open_binary(path: str | Path, name: str) -> Iterator[BinaryIO]:
    """Open the decompressed bytes of `path`; every error while reading them becomes a DataError."""
    try:
        if path == STANDARD_INPUT:
            yield _decompress(sys.stdin.buffer, name)
            return
        with open_stored(expand_path(path)) as file:
            yield _decompress(file, name)
    except FileNotFoundError:
        remedy = missing_remedy(expand_path(path))
        if not remedy:
            remedy = "check the path and variables" if "$" in name else "check the path"
        raise DataError(f"{name}: no such file; {remedy}") from None
    except IsADirectoryError:
        raise DataError(f"{name}: this is a folder; name a file in it") from None
    except PermissionError:
        raise DataError(f"{name}: no permission to read it; try `chmod u+r {name}`") from None
    except EOFError:
        raise DataError(
            f"{name}: the compressed file ends too early; copy or download it again"
        ) from None
    except (gzip.BadGzipFile, zlib.error, _ZstdError) as error:
        raise DataError(
            f"{name}: the compressed file is damaged ({error}); copy or download it again"
        ) from None
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror or error})") from None


def _check_start(raw: bytes, name: str) -> None:
    """Raises DataError if a file begins in another encoding, or as one of another program."""
    encoding = next((kind for mark, kind in _WIDE_BOMS.items() if raw.startswith(mark)), None)
    if encoding is not None:
        raise _wide_error(name, encoding)
    if (error := foreign_error(name, raw)) is not None:
        raise error
    if raw.startswith(_OFFICE):
        raise DataError(
            f"{name}: an archive or an office document such as .xlsx, not text; save it as CSV or "
            "text in UTF-8"
        )


def _wide_error(name: str, encoding: str) -> DataError:
    remedy = f"convert it with `iconv -f {encoding} -t UTF-8`"
    return DataError(f"{name}:1:1: this is {encoding[:6]} text, not UTF-8; {remedy}")


def _decode(raw: bytes, name: str, number: int, offset: int = 0) -> str:
    """The text of lines, of which the first has this number and begins at this byte of the
    file.
    """
    try:
        text = raw.decode("utf-8")
        position = raw.find(0)  # -1 if the text is valid
        problem = "a NUL byte, so this is not plain text; remove it (`tr -d '\\0'`)"
    except UnicodeDecodeError as error:
        position = error.start
        problem = f"byte 0x{raw[position]:02x} is not valid UTF-8; {_encoding_remedy(raw)}"
    if position >= 0:
        if encoding := _wide_encoding(raw, offset):
            raise _wide_error(name, encoding)
        line = number + raw.count(b"\n", 0, position)
        column = position - raw.rfind(b"\n", 0, position)
        raise DataError(f"{name}:{line}:{column}: {problem}")
    return text


def _encoding_remedy(raw: bytes) -> str:
    """How to convert lines that are not UTF-8, without loss of quotation marks and signs that
    Latin-1 does not have.
    """
    if not raw.decode("utf-8", "ignore").isascii():
        return "other characters of this line are, so two encodings are mixed; correct this byte"
    if _NOT_CP1252.search(raw):
        return "find the file's encoding and convert it with `iconv -f ENCODING -t UTF-8`"
    return "find the file's encoding and convert it, for instance with `iconv -f CP1252 -t UTF-8`"


def _wide_encoding(raw: bytes, offset: int) -> str | None:
    """The encoding of lines of UTF-16 without a byte order mark: of each two bytes, the higher one
    is small in most alphabets, and NUL in ASCII. offset: of the first byte.
    """
    parities = {(offset + place) % 2 for place, byte in enumerate(raw) if byte == 0}
    small = sum(byte < 9 for byte in raw)
    is_wide = raw == b"\0" or (small > 1 and 4 * small > len(raw))  # a blank line, or others
    if len(parities) != 1 or not is_wide:
        return None
    if parities == {1}:
        return "UTF-16LE"
    return "UTF-16BE"


# --- compressed files -----------------------------------------------------------------------------


def inner_suffix(file: str) -> str:
    """The suffix without that of a compression: `.jsonl` for `a/b.JSONL.gz`."""
    for suffix in COMPRESSED_SUFFIXES:
        if file.lower().endswith(suffix):
            file = file[: -len(suffix)]
    return PurePath(file).suffix.lower()


def is_compressed(path: Path) -> bool:
    """Whether the file begins with the magic bytes of gzip or zstd."""
    with open_named(path) as file:
        return _compression(file.read(4)) is not None


def _compression(first: bytes) -> str | None:
    return next((kind for magic, kind in _MAGIC_BYTES.items() if first.startswith(magic)), None)


def _decompress(stream: BinaryIO, name: str) -> BinaryIO:
    """The decompressed bytes of a file. The first bytes decide, which also works for pipes and
    wrong suffixes.
    """
    file = cast(io.BufferedReader, stream)  # members of archives have its methods
    kind = _compression(file.peek(4)[:4])
    suffix = PurePath(name).suffix
    claimed = COMPRESSED_SUFFIXES.get(suffix.lower())
    if kind is None and claimed and file.peek(1):
        remedy = f"rename it, or compress it with {claimed}"
        raise DataError(f"{name}: ends in {suffix} but is not {claimed}; {remedy}")
    if kind == "gzip":
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    if kind == "zstd":
        return cast(
            BinaryIO, io.BufferedReader(_ZstdReader(file, _zstd_factory(name)), buffer_size=1 << 17)
        )
    return file


class _ZstdError(Exception):
    """A zstd file is damaged."""


class _ZstdReader(io.RawIOBase):
    """Reads one or more zstd frames. Unlike the reader of the library, it detects a truncated
    frame.
    """

    def __init__(self, file: io.BufferedReader, new_frame: Callable[[], Any]) -> None:
        self._chunks = filter(None, _decompress_frames(file, new_frame))
        self._pending = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._pending = self._pending or memoryview(next(self._chunks, b""))
        size = min(len(buffer), len(self._pending))
        buffer[:size] = self._pending[:size]
        self._pending = self._pending[size:]
        return size


def _decompress_frames(file: io.BufferedReader, new_frame: Callable[[], Any]) -> Iterator[bytes]:
    frame: Any = None  # the decompressor of the current frame
    while compressed := file.read(_ZSTD_READ_BYTES):
        while compressed:
            frame = frame or new_frame()
            try:
                content = frame.decompress(compressed)
            except Exception as error:  # each library has its own class
                raise _ZstdError(str(error)) from None
            yield content
            compressed = b""
            if frame.eof:
                compressed = frame.unused_data
                frame = None
    if frame is not None:
        raise EOFError


def _zstd_factory(name: str) -> Any:
    """Creates the decompressor of a frame, from the standard library (Python 3.14) or the
    `zstandard` library.
    """
    with suppress(ModuleNotFoundError):
        return importlib.import_module("compression.zstd").ZstdDecompressor
    with suppress(ModuleNotFoundError):
        library = importlib.import_module("zstandard")
        return lambda: library.ZstdDecompressor().decompressobj()
    raise DataError(
        f"{name}: reading zstd needs the `zstandard` library; install it with "
        f"`{install_command('zst')}`, or decompress the file with `zstd -d`"
    ) from None
