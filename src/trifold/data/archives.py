"""Members of zip archives, which are named like the files of a folder: `reviews.zip/train.csv`.

Nothing is extracted to the disk.
"""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePath, PurePosixPath
from typing import BinaryIO, NamedTuple, cast

from trifold.errors import DataError
from trifold.folders import check_regular, open_named

SUFFIX = ".zip"
HIDDEN = (".", "~$")  # the second one begins files that Excel makes beside an open workbook


class Archive(NamedTuple):
    """An open archive, and its files by their names, which do not begin with a slash."""

    file: zipfile.ZipFile
    members: dict[str, zipfile.ZipInfo]


def is_archive(path: Path) -> bool:
    """Whether this is a file that is called a zip archive."""
    return path.suffix.lower() == SUFFIX and path.is_file()


def split_member(path: Path) -> tuple[Path, str] | None:
    """The archive and the name in it; None for the path of a plain file."""
    if SUFFIX not in str(path).lower():
        return None
    archive = next(filter(is_archive, path.parents), None)
    if archive is None:
        return None
    return archive, path.relative_to(archive).as_posix()


def file_on_disk(path: Path) -> Path:
    """The file itself, or the archive that it is in."""
    member = split_member(path)
    return path if member is None else member[0]


def stored_size(path: Path) -> int:
    """The bytes of a file or, when it is read, of a member. Raises OSError."""
    if (place := split_member(path)) is None:
        return path.stat().st_size
    return _find(*place)[1].file_size


def is_hidden(path: PurePath) -> bool:
    """Whether the name of a file, or of a folder that it is in, begins with a sign of HIDDEN."""
    return any(part.startswith(HIDDEN) and part != ".." for part in path.parts)


def list_members(archive: Path) -> list[str]:
    """The names of the files in an archive, sorted, hidden ones included."""
    return sorted(_open(archive).members)


@contextmanager
def open_stored(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file or of a member. Raises OSError, and DataError for a damaged archive."""
    if (place := split_member(path)) is not None:
        with _open_member(*place) as content:
            yield content
    elif is_archive(path):
        example = next((name for name in list_members(path) if not is_hidden(PurePath(name))), "")
        raise DataError(f"{path}: an archive; name a file in it, such as {path}/{example}")
    else:
        with open_named(path) as plain:
            yield plain


@contextmanager
def _open_member(path: Path, name: str) -> Iterator[BinaryIO]:
    archive, info = _find(path, name)
    if info.flag_bits & 1:
        raise DataError(f"{path}/{name}: is encrypted; unpack the archive with its password")
    try:
        content = archive.open(info)
    except NotImplementedError as error:
        raise DataError(f"{path}/{name}: {error}; unpack the archive") from None
    try:
        with content:
            yield cast(BinaryIO, content)
    except zipfile.BadZipFile as error:
        raise _damaged(path, error) from None


def _find(path: Path, name: str) -> tuple[zipfile.ZipFile, zipfile.ZipInfo]:
    archive = _open(path)
    if name not in archive.members:
        raise FileNotFoundError(2, "no such file in the archive", f"{path}/{name}")
    return archive.file, archive.members[name]


def _open(path: Path) -> Archive:
    status = path.stat()
    return _open_unchanged(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=2)  # the directory of an archive is read once, not for each of its members
def _open_unchanged(path: Path, size: int, mtime_ns: int) -> Archive:
    try:
        check_regular(path)
        file = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise _damaged(path, error) from None
    infos = (info for info in file.infolist() if not info.is_dir())
    members = {PurePosixPath(info.filename.lstrip("/")).as_posix(): info for info in infos}
    return Archive(file, members)


def _damaged(path: Path, error: zipfile.BadZipFile) -> DataError:
    return DataError(f"{path}: not a readable zip archive ({error}); copy or download it again")
