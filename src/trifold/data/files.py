"""The files that a data source names, and their SHA-256 digests."""

import glob
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import NamedTuple, TypeAlias, TypeGuard

from trifold.data.archives import (
    HIDDEN,
    file_on_disk,
    is_archive,
    is_hidden,
    list_members,
    split_member,
)
from trifold.data.formats import suffixes_of
from trifold.data.lines import COMPRESSED_SUFFIXES, STANDARD_INPUT, expand_path, inner_suffix
from trifold.data.settings import Source
from trifold.disk import sha256_of_file
from trifold.errors import DataError, SettingsError, TrifoldError
from trifold.folders import check_regular

# Suffix -> format, of what each kind of task reads.
TEXT_FORMATS = suffixes_of("documents")
FORMATS = TEXT_FORMATS | suffixes_of("pairs")
# What a folder stands for in a task of pairs (ROW_FORMATS) and of labelled rows (TABLE_FORMATS).
ROW_FORMATS = {suffix: kind for suffix, kind in FORMATS.items() if kind != "text"}
TABLE_FORMATS = ROW_FORMATS | suffixes_of("rows", in_folders=True)
FOLDER_FORMATS: Mapping[str, Mapping[str, str]] = {
    "documents": TEXT_FORMATS,
    "pairs": ROW_FORMATS,
    "parts": ROW_FORMATS,
    "table": TABLE_FORMATS,
}
SPLITS = {"train", "dev", "val", "valid", "validation", "test"}
_SPLIT = re.compile(rf"(?<![^\W\d_])({'|'.join(SPLITS)})(?![^\W\d_])")  # between no letters


def is_dataset(source: Source) -> TypeGuard[str]:
    """Whether a source is a dataset of the hub, embedded text or rows in memory, and not files."""
    return isinstance(source, str) and source.startswith(("hub:", "embedded:", "python:"))


def find_files(
    source: str | list[str], formats: Mapping[str, str] = TEXT_FORMATS
) -> tuple[list[str], Counter[str]]:
    """Every file once, in the order of the source, and the number of other files in its folders by
    suffix.

    A folder stands for its files of these formats (suffix -> kind) at any depth, a zip archive for
    those in it, a pattern for every match, all sorted by name. Hidden files are ignored. Raises
    DataError if nothing is found, and for one of several splits in an archive or in a folder of
    tables; SettingsError if the source is empty.
    """
    if isinstance(source, str):
        source = [source] if expand_path(source).exists() else source.split(",")
    names = [name.strip() for name in source]
    if not names or not all(names):
        raise SettingsError(
            f"data: {source!r} names no file; give a file, a folder, or a pattern like *.txt"
        )
    skipped: Counter[str] = Counter()
    files: dict[str, None] = {}
    for name in names:
        files |= dict.fromkeys(_files_of_name(name, formats, skipped))
    return list(files), skipped


def _files_of_name(name: str, formats: Mapping[str, str], skipped: Counter[str]) -> list[str]:
    """The files that a name of a source stands for."""
    if name == STANDARD_INPUT:
        return [name]
    path = expand_path(name)
    in_archive = files_in_archive(path)
    if in_archive or path.is_dir():
        selected = _select(path, in_archive or _walk(path), formats, skipped)
        if not in_archive:
            check_found(selected)
        if in_archive or formats is not TEXT_FORMATS:
            check_splits(name, [file.relative_to(path) for file in selected])
        return [*map(str, selected)]
    if not path.exists() and any(sign in name for sign in "*?["):
        return _files_of_pattern(name, formats, skipped)
    return [str(path)]  # if it is missing, opening it raises the error


def _files_of_pattern(name: str, formats: Mapping[str, str], skipped: Counter[str]) -> list[str]:
    """The files that a pattern matches, and those of archives among them."""
    # Path.glob takes no absolute pattern.
    matches = glob.glob(str(expand_path(name)), recursive=True)  # noqa: PTH207
    files: list[str] = []
    for match in sorted(matches):
        if is_archive(Path(match)):
            files += _files_of_name(match, formats, skipped)
        elif not Path(match).is_dir():
            check_found([Path(match)])
            files.append(match)
    if not files:
        raise DataError(f"{name}: matches no file; check it with `ls`, in quotes on a command line")
    return files


def check_found(files: Iterable[Path]) -> None:
    """Raise DataError for a named pipe, a socket or a device among files that were found in a
    folder or by a pattern. One that the user names itself may be a pipe.
    """
    for file in files:
        with suppress(OSError):  # which opening reports
            check_regular(file)


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):  # does not follow links to folders
        folders[:] = sorted(name for name in folders if not name.startswith(HIDDEN))
        yield from (Path(parent, name) for name in files if not name.startswith(HIDDEN))


def files_in_archive(path: Path) -> list[Path]:
    """The files of an archive, or of a folder in it, without hidden ones; none for another path."""
    if is_archive(path):
        archive = path
        folder = PurePath()
    elif (member := split_member(path)) is not None:
        archive = member[0]
        folder = PurePath(member[1])
    else:
        return []
    return [
        archive / file
        for file in map(PurePath, list_members(archive))
        if folder in file.parents and not is_hidden(file.relative_to(folder))
    ]


def _select(
    folder: Path, files: Iterable[Path], formats: Mapping[str, str], skipped: Counter[str]
) -> list[Path]:
    """The files of these formats, sorted; the others are counted. Raises DataError if there is
    none.
    """
    selected = []
    for file in files:
        if _has_format(file, formats):
            selected.append(file)
        else:
            skipped[file.suffix or file.name] += 1
    if not selected:
        raise _nothing_found(folder, formats)
    return sorted(selected, key=str)


def _has_format(file: Path, formats: Mapping[str, str]) -> bool:
    """Whether a file in a folder has one of these suffixes; one without a suffix is text only if it
    is compressed.
    """
    suffix = inner_suffix(file.name)
    has_any_suffix = suffix or file.name.lower().endswith(tuple(COMPRESSED_SUFFIXES))
    return suffix in formats and bool(has_any_suffix)


def _nothing_found(folder: Path, formats: Mapping[str, str]) -> DataError:
    what = "text file" if formats is TEXT_FORMATS else "table"
    known = ", ".join(filter(None, formats))
    also = " or ".join(COMPRESSED_SUFFIXES)
    if split_member(folder / "any"):
        return DataError(f"{folder}: no {what} in this archive ({known}, each also {also})")
    return DataError(
        f"{folder}: no {what} in this folder ({known}, each also {also}); name others with a "
        f"pattern, such as {folder}/**/*.md"
    )


def check_splits(name: str, files: Iterable[PurePath]) -> None:
    """Raises DataError if files in a folder, or their folders, are named after several splits, and
    `train` is one of them.
    """
    splits: dict[str, PurePath] = {}
    for file in files:
        matches = (_SPLIT.search(part.lower()) for part in file.parts)
        split = next(filter(None, matches), None)
        if split is not None:
            splits.setdefault(split[1], file)
    if "train" in splits and len(splits) > 1:
        raise DataError(
            f"{name}: contains the splits {', '.join(sorted(splits))}; name the files of one, "
            f"such as {name}/{splits['train'].as_posix()}"
        )


def safe_file_name(name: str) -> str:
    """Replace the characters that some file systems do not allow."""
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-.")[:60] or "text"


# --- digests --------------------------------------------------------------------------------------


class FileDigest(NamedTuple):
    """Size, modification time and SHA-256 (hexadecimal) of a file, or of a file and its label.

    Of rows that are no file: their number, and -1.
    """

    size: int
    mtime_ns: int
    sha256: str


KnownDigests: TypeAlias = Mapping[tuple[str, int, int], str]  # (file, size, mtime_ns) -> SHA-256


def list_files(source: Source, formats: Mapping[str, str] = TEXT_FORMATS) -> list[str]:
    """The files of a source in reading order; empty if it is not a file or cannot be found.

    formats: what a folder stands for.
    """
    with suppress(TrifoldError):
        if source is not None and not is_dataset(source):
            return find_files(source, formats)[0]
    return []


def compute_digests(
    files: Iterable[str] | Mapping[str, str], known: KnownDigests = MappingProxyType({})
) -> dict[str, FileDigest]:
    """The digest of every readable file, and of the archives of others; a file whose size and time
    are in `known` is not read.

    files: names, maybe with labels, which belong to the digests.
    """
    labels = files if isinstance(files, Mapping) else {}
    digests: dict[str, FileDigest] = {}
    for path in dict.fromkeys(file_on_disk(Path(name)) for name in files):
        with suppress(OSError):
            if not path.is_file():
                continue
            name = str(path)
            status = path.stat()  # before reading: later changes get a later time
            sha256 = known.get((name, status.st_size, status.st_mtime_ns))
            if sha256 is None:
                sha256 = sha256_of_file(path)
                if label := labels.get(name):
                    sha256 = hashlib.sha256(f"{label}/{sha256}".encode()).hexdigest()
            digests[name] = FileDigest(status.st_size, status.st_mtime_ns, sha256)
    return digests
