"""Files that are compressed, told by their first bytes: gzip, and zstd by the extra `zst` or from Python 3.14 on."""

from __future__ import annotations

import gzip
import importlib
import io
import zlib
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any, BinaryIO, cast

from trifold.errors import DataError

ENDINGS = (".gz", ".zst")

_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_NAMED = {".gz": "gzip", ".zst": "zstd"}
# A kilobyte of zstd may stand for 32 MB of text: this bounds the memory that a hostile file can take.
_CHUNK = 4096


class DamagedError(Exception):
    """What is compressed cannot be read any further."""


def ending(file: str) -> str:
    """`.jsonl` for `a/b.JSONL.gz`: the ending of what is inside."""
    for outer in ENDINGS:
        file = file[: -len(outer)] if file.lower().endswith(outer) else file
    return PurePath(file).suffix.lower()


def is_compressed(path: Path) -> bool:
    """Whether the bytes of a file are those of a compressed one."""
    with path.open("rb") as file:
        return _kind(file.read(4)) is not None


def uncompressed(file: io.BufferedReader, name: str) -> BinaryIO:
    """The bytes that `file` stands for.

    Looking at the first bytes, not at the ending, also serves pipes and compressed files named .txt. Raises DataError
    for a file that is not what its ending says, and for zstd where nothing can read it.
    """
    kind = _kind(file.peek(4)[:4])
    claimed = _NAMED.get(PurePath(name).suffix.lower())
    if kind is None and claimed and file.peek(1):
        remedy = f"rename it, or compress it with {claimed}"
        raise DataError(f"{name}: ends in {PurePath(name).suffix} but is not {claimed}; {remedy}")
    if kind == "gzip":
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    if kind == "zstd":
        return cast(BinaryIO, io.BufferedReader(_Frames(file, _zstd(name)), buffer_size=1 << 17))
    return file


def _kind(first: bytes) -> str | None:
    return next((kind for magic, kind in _MAGIC.items() if first.startswith(magic)), None)


class _Frames(io.RawIOBase):
    """The text of one or more zstd frames; unlike the library's own reader it notices a frame that ends too early."""

    def __init__(self, file: io.BufferedReader, new: Callable[[], Any]) -> None:
        self._file, self._new = file, new
        self._frame: Any = None  # the one being read
        self._waiting = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._waiting:
            more = self._file.read(_CHUNK)
            if not more:
                if self._frame is not None:
                    raise EOFError
                return 0
            self._waiting = memoryview(self._text(more))
        size = min(len(buffer), len(self._waiting))
        buffer[:size] = self._waiting[:size]
        self._waiting = self._waiting[size:]
        return size

    def _text(self, more: bytes) -> bytes:
        found = []
        while more:
            self._frame = self._frame or self._new()
            try:
                found.append(self._frame.decompress(more))
            except Exception as error:  # each library has a class of its own
                raise DamagedError(str(error)) from None
            more = b""
            if self._frame.eof:
                more, self._frame = self._frame.unused_data, None
        return b"".join(found)


def _zstd(name: str) -> Callable[[], Any]:
    """What makes a decompressor of one frame: Python's own from 3.14 on, else that of the `zstandard` library."""
    for module, make in (
        ("compression.zstd", lambda library: library.ZstdDecompressor()),
        ("zstandard", lambda library: library.ZstdDecompressor().decompressobj()),
    ):
        try:
            library = importlib.import_module(module)
        except ModuleNotFoundError:
            continue
        return lambda library=library, make=make: make(library)
    remedy = 'install it with `pip install "trifold[zst]"`, or decompress the file with `zstd -d`'
    raise DataError(f"{name}: reading zstd needs the `zstandard` library; {remedy}") from None


ERRORS = (gzip.BadGzipFile, zlib.error, DamagedError)
