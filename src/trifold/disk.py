"""The one door through which anything lasting is written: flushed to the disk before its name can be seen.

Whoever wants to know what a power cut, a full disk or a slow one does to a run stands at this door: every byte, flush
and rename passes through the functions below, and is looked up here when it does.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TypeAlias

Bytes: TypeAlias = bytes | memoryview

# What is to be done where a disk refuses; most often it is full.
REMEDIES = {
    errno.ENOENT: "put back what was moved or removed",
    errno.EACCES: "make it writable",
    errno.EPERM: "make it writable",
    errno.EROFS: "make the disk writable",
    errno.EIO: "see whether the disk is sound",
}


def remedy(error: OSError) -> str:
    """What the user can do about it."""
    return REMEDIES.get(error.errno or 0, "free some disk space")


def write(path: Path, pieces: Iterable[Bytes]) -> str:
    """Write a new file, flushed; the SHA-256 (hexadecimal) of what was meant to be in it. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for piece in pieces:
            put(file, piece)
            digest.update(piece)
        flush(file)
    return digest.hexdigest()


def replace_text(path: Path, text: str) -> None:
    """The file is the old one or the new one, never half of it. Raises OSError, and then it is the old one."""
    replace_bytes(path, text.encode("utf-8"))


def replace_bytes(path: Path, content: bytes) -> None:
    """As `replace_text`."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(aside, [content])
        rename(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def leftovers(folder: Path) -> list[Path]:
    """What a process that was killed in `replace_text` and its kin left in a folder."""
    return [path for path in folder.glob(".*.tmp") if path.name.split(".")[-2].isdigit()]


def put(file: BinaryIO, piece: Bytes) -> None:
    """Some bytes more."""
    file.write(piece)


def flush(file: BinaryIO) -> None:
    """Return when the content is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def flush_path(path: Path) -> None:
    """The same of a file that somebody else has written."""
    with path.open("rb+") as file:
        flush(file)


def flush_folder(path: Path) -> None:
    """Return when the names in a folder are on the disk."""
    if os.name == "nt":  # there, folders cannot be opened
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(old: Path, new: Path) -> None:
    """`new` is what `old` was, in one step."""
    os.replace(old, new)


def make_folder(path: Path) -> None:
    """With those above it."""
    path.mkdir(parents=True, exist_ok=True)


def remove(path: Path) -> None:
    """A file or a folder with all that is in it; what cannot be removed stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
