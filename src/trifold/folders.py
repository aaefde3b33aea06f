"""Files of folders that may come from others, such as a downloaded model or a run.

A link in such a folder could expose any file of this machine, and a named pipe or a device could
stop the program or fill its memory. So a link is followed only if it leads below the folder that
the user named, or to the `blobs` of its hub cache, and only regular files are opened. This module
opens all files that are read; `tests/test_opening.py` enforces it.

`UntrustedPath` is what is found in a folder; `open_file` opens it. `open_found` opens what this
program has written or what data names, and `open_named` what the user names directly.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from io import BufferedReader, BytesIO, RawIOBase
from pathlib import Path
from typing import Any, TypeAlias, cast

from trifold.errors import CheckpointError, DataError, TrifoldError

# What is not opened, and what to do about it.
_REPLACE = "remove it, or put the file itself there"
_KINDS = {
    stat.S_IFDIR: ("a folder", "name a file in it, or put one in its place"),
    stat.S_IFIFO: ("a named pipe", _REPLACE),
    stat.S_IFSOCK: ("a socket", _REPLACE),
    stat.S_IFCHR: ("a device", _REPLACE),
    stat.S_IFBLK: ("a device", _REPLACE),
}
# Without O_NONBLOCK, a file that is replaced by a named pipe after the check would stop the
# program. Windows lacks some of the flags, and opens text by default.
_FLAGS = 0
for _flag in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_NOFOLLOW", "O_BINARY"):
    _FLAGS |= getattr(os, _flag, 0)


@dataclass(frozen=True, order=True)
class UntrustedPath:
    """A path in the folder `root` that the user named; or what the user named itself."""

    path: Path
    root: Path

    def __truediv__(self, name: str) -> UntrustedPath:
        return UntrustedPath(self.path / name, self.root)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def stem(self) -> str:
        return self.path.stem

    @property
    def suffix(self) -> str:
        return self.path.suffix

    @property
    def parent(self) -> UntrustedPath:
        """The folder; that of what the user named is named with it."""
        if self.path == self.root:
            return named(self.path.parent)
        return UntrustedPath(self.path.parent, self.root)

    def exists(self) -> bool:
        """Whether there is something of this name, also a link that leads nowhere or a named pipe:
        opening it raises the error. Raises CheckpointError if its folder is a link that leads out.
        """
        return os.path.lexists(self.path) and self.parent.is_inside()

    def is_folder(self) -> bool:
        """Whether this is a folder. Raises CheckpointError for a link that leads out."""
        return self.path.is_dir() and self.is_inside()

    def is_inside(self) -> bool:
        """Whether the path leads to something; raises CheckpointError if that is outside the
        folder.
        """
        try:
            self.target()
        except FileNotFoundError:
            return False
        return True

    def glob(self, pattern: str) -> list[UntrustedPath]:
        """What matches a pattern in this folder, sorted by name. Raises CheckpointError if it is a
        link that leads out.
        """
        if not self.is_inside():
            return []
        if not any(sign in pattern for sign in "*?["):  # for which `Path.glob` ignores broken links
            return [path for path in [self / pattern] if path.exists()]
        return [UntrustedPath(path, self.root) for path in sorted(self.path.glob(pattern))]

    def target(self) -> Path:
        """What the path leads to, without links. Raises CheckpointError for a link that leads out
        of the folder or nowhere, FileNotFoundError if there is nothing, OSError.
        """
        try:
            target = self.path.resolve(strict=True)
        except FileNotFoundError:
            if not self.path.is_symlink():
                raise
            raise self._leads_nowhere() from None
        except RuntimeError:  # a circular link, in some versions of Python
            raise self._leads_nowhere() from None
        except OSError:
            if not self.path.is_symlink():
                raise
            raise self._leads_nowhere() from None
        if not self._is_allowed(target):
            raise self._leads_out()
        return target

    def _is_allowed(self, target: Path) -> bool:
        """Whether something is below the folder that the user named, or below the blobs beside the
        snapshots that contain this path: the files of a hub cache are links to them.
        """
        folder = self.path.parent.resolve()
        blobs = [up.parent / "blobs" for up in (folder, *folder.parents) if up.name == "snapshots"]
        return any(target.is_relative_to(allowed) for allowed in (self.root.resolve(), *blobs))

    def _leads_nowhere(self) -> CheckpointError:
        return CheckpointError(f"{self}: a link that leads nowhere; copy the file itself")

    def _leads_out(self) -> CheckpointError:
        """The error, which names the first link on the path that leads out."""
        below = [path for path in (self.path, *self.path.parents) if path.is_relative_to(self.root)]
        outside = (path for path in reversed(below) if not self._is_allowed(path.resolve()))
        link = next(outside, self.path)
        what = "folder" if link.is_dir() else "file"
        return CheckpointError(
            f"{link}: a link that leads out of its folder, {self.root}; copy the {what} itself"
        )


@dataclass(frozen=True, order=True)
class FileAsFolder(UntrustedPath):
    """A file that is read like a folder, or something in it.

    contents: the name of each file in it, with / between folders -> what makes its content, bytes
    or the object of a JSON file.
    inside: the name of this one there, "" for the file itself.
    """

    contents: Mapping[str, Callable[[], bytes | dict[str, Any]]] = field(compare=False, repr=False)
    inside: str = ""

    def __truediv__(self, name: str) -> FileAsFolder:
        return replace(self, inside=f"{self.inside}/{name}".lstrip("/"))

    def __str__(self) -> str:
        if not self.inside:
            return str(self.path)
        return f"{self.path} ({self.inside})"

    @property
    def name(self) -> str:
        return self.inside.rpartition("/")[2] or self.path.name

    @property
    def stem(self) -> str:
        return Path(self.name).stem

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix

    @property
    def parent(self) -> UntrustedPath:
        """The folder in the file; that of the file itself is named with it."""
        if not self.inside:
            return named(self.path.parent)
        return replace(self, inside=self.inside.rpartition("/")[0])

    def exists(self) -> bool:
        """Whether the file has something of this name."""
        return self.inside in self.contents or self.is_folder()

    def is_folder(self) -> bool:
        """Whether this is the file itself, or a folder in it."""
        inner = self.inside and f"{self.inside}/"
        return any(name.startswith(inner) for name in self.contents)

    def is_inside(self) -> bool:
        return self.exists()

    def glob(self, pattern: str) -> list[UntrustedPath]:
        """What matches a pattern in this folder, sorted by name."""
        inner = self.inside and f"{self.inside}/"
        names = [name for name in self.contents if fnmatch(name, inner + pattern)]
        return [replace(self, inside=name) for name in sorted(names)]

    def made(self) -> bytes | dict[str, Any]:
        """The content of this file as it is made. Raises FileNotFoundError if there is none."""
        if self.inside not in self.contents:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        return self.contents[self.inside]()

    def content(self) -> bytes:
        """The bytes of this file. Raises FileNotFoundError if there is none."""
        made = self.made()
        if isinstance(made, bytes):
            return made
        return json.dumps(made, ensure_ascii=False).encode("utf-8")


AnyPath: TypeAlias = str | Path | UntrustedPath


def named(path: AnyPath) -> UntrustedPath:
    """A file or folder that the user named; a path that is already in a named folder stays so."""
    if isinstance(path, UntrustedPath):
        return path
    return UntrustedPath(Path(path), Path(path))


def names_on_disk(folder: UntrustedPath, patterns: Iterable[str] = ("*",)) -> list[str]:
    """The paths of what matches the patterns in a folder; of a file that is read like one, its own.
    Raises CheckpointError for a link that leads out.
    """
    if isinstance(folder, FileAsFolder):
        return [str(folder.path)]
    found = (path for pattern in patterns for path in folder.glob(pattern))
    return sorted({str(path) for path in found if path.is_inside()})


# The ending of files that are read like folders -> what opens one. `trifold.hub` adds its own.
FOLDER_ENDINGS: dict[str, Callable[[UntrustedPath], UntrustedPath]] = {}


def folder_or_file(path: AnyPath) -> UntrustedPath:
    """As `named`; a file that is read like a folder is opened as one. Raises CheckpointError if it
    is damaged.
    """
    source = named(path)
    opener = FOLDER_ENDINGS.get(source.suffix.lower())
    if opener is None or isinstance(source, FileAsFolder) or not source.path.is_file():
        return source
    return opener(source)


def open_file(path: UntrustedPath) -> BufferedReader:
    """A regular file of a folder. Raises FileNotFoundError, and CheckpointError for a link that
    leads out, a folder, a named pipe, a socket or a device, and if it cannot be read.
    """
    if isinstance(path, FileAsFolder):
        return BufferedReader(cast(RawIOBase, BytesIO(path.content())))
    try:
        return _open(path.target(), str(path), CheckpointError)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from None


def open_found(path: AnyPath, error: type[TrifoldError] = CheckpointError) -> BufferedReader:
    """A file that this program has written, that data names or that lies in a folder of data, where
    links lead anywhere; what is in a folder that the user named is opened by `open_file`. Raises
    OSError, and the error for a folder, a named pipe, a socket or a device.
    """
    if isinstance(path, UntrustedPath):
        return open_file(path)
    return _open(Path(path).resolve(), str(path), error)


def open_named(path: AnyPath) -> BufferedReader:
    """What the user named directly, which may be a named pipe such as /dev/stdin; what is in a
    folder that the user named is opened by `open_file`. Raises OSError.
    """
    source = named(path)
    if source.path != source.root or isinstance(source, FileAsFolder):
        return open_file(source)
    return source.path.open("rb")


def check_regular(path: Path, error: type[TrifoldError] = DataError) -> None:
    """Raise the error for a named pipe, a socket or a device; OSError if there is nothing."""
    _check_kind(path.stat().st_mode, str(path), error)


def _open(target: Path, place: str, error: type[TrifoldError]) -> BufferedReader:
    """Open a path without links; `place` names it in errors."""
    # Opening a device could already act on it.
    _check_kind(target.stat().st_mode, place, error)
    file = open(target, "rb", opener=_open_descriptor)  # noqa: SIM115
    try:
        _check_kind(os.fstat(file.fileno()).st_mode, place, error)
    except BaseException:
        file.close()
        raise
    return file


def _open_descriptor(path: str, flags: int) -> int:
    return os.open(path, flags | _FLAGS)


def _check_kind(mode: int, place: str, error: type[TrifoldError]) -> None:
    if not stat.S_ISREG(mode):
        kind, remedy = _KINDS.get(stat.S_IFMT(mode), ("something else", _REPLACE))
        raise error(f"{place}: {kind}, not a file; {remedy}")


# --- whole files ----------------------------------------------------------------------------------


def read_bytes(path: AnyPath, limit: int) -> bytes:
    """The content of a file of at most `limit` bytes. Raises CheckpointError if it is missing, over
    the limit, or refused by `open_file`.
    """
    source = named(path)
    try:
        with open_file(source) as file:
            content = file.read(limit + 1)
            size = file.seek(0, os.SEEK_END)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; is this the folder of a model?") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    if len(content) > limit:
        raise CheckpointError(f"{path}: {size:,} bytes is too large; at most {limit:,} are read")
    return content


def read_text(path: AnyPath, limit: int) -> str:
    """The content of a UTF-8 file of at most `limit` bytes. Raises CheckpointError like
    `read_bytes`.
    """
    return decode(read_bytes(path, limit), str(path))


def decode(content: bytes, place: str) -> str:
    """UTF-8 as text. Raises CheckpointError for other bytes."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{place}: byte {error.start} is not UTF-8; copy the file again"
        ) from None
