"""The files that a data source names, and their SHA-256 digests."""

import glob
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeAlias, TypeGuard

from trifold.data.lines import COMPRESSED_SUFFIXES, STANDARD_INPUT, expand_path, inner_suffix
from trifold.data.settings import Source
from trifold.errors import DataError, SettingsError, TrifoldError

TEXT_FORMATS = {"": "text", ".txt": "text", ".text": "text"}
TEXT_FORMATS |= {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
FORMATS = TEXT_FORMATS | {".tsv": "tsv", ".tab": "tsv", ".csv": "csv"}


def is_dataset(source: Source) -> TypeGuard[str]:
    """Whether a source is a dataset of the hub or embedded text, and not files."""
    return isinstance(source, str) and source.startswith(("hub:", "embedded:"))


def find_files(source: str | list[str]) -> tuple[list[str], Counter[str]]:
    """Every file once, in the order of the source, and the number of other files in its folders by
    suffix.

    A folder stands for its text files at any depth, a pattern for every match, both sorted by name.
    Hidden files are ignored. Raises DataError if nothing is found, SettingsError if the source is
    empty.
    """
    if isinstance(source, str):
        source = [source] if expand_path(source).exists() else source.split(",")
    names = [name.strip() for name in source]
    if not names or not all(names):
        raise SettingsError(
            f"data: {source!r} names no file; give a file, a folder, or a pattern like *.txt"
        )
    skipped: Counter[str] = Counter()
    return list(
        dict.fromkeys(file for name in names for file in _files_of_name(name, skipped))
    ), skipped


def _files_of_name(name: str, skipped: Counter[str]) -> list[str]:
    if name == STANDARD_INPUT:
        return [name]
    path = expand_path(name)
    if path.is_dir():
        return _files_of_folder(path, skipped)
    if not path.exists() and any(sign in name for sign in "*?["):
        # Path.glob takes no absolute pattern.
        matches = glob.glob(str(path), recursive=True)  # noqa: PTH207
        found = [file for file in sorted(matches) if Path(file).is_file()]
        if not found:
            raise DataError(
                f"{name}: matches no file; check it with `ls`, in quotes on a command line"
            )
        return found
    return [str(path)]  # if it is missing, opening it raises the error


def _files_of_folder(folder: Path, skipped: Counter[str]) -> list[str]:
    found = []
    for parent, folders, files in os.walk(folder):  # does not follow links to folders
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in files:
            if name.startswith("."):
                continue
            suffix = inner_suffix(name)
            if suffix in TEXT_FORMATS and (
                suffix or name.lower().endswith(tuple(COMPRESSED_SUFFIXES))
            ):
                found.append(str(Path(parent, name)))
            else:
                skipped[Path(name).suffix or name] += 1
    if not found:
        known = ", ".join(filter(None, TEXT_FORMATS))
        raise DataError(
            f"{folder}: no text file in this folder ({known}, each also "
            f"{' or '.join(COMPRESSED_SUFFIXES)}); "
            f"name others with a pattern, such as {folder}/**/*.md"
        )
    return sorted(found)


def safe_file_name(name: str) -> str:
    """Replace the characters that some file systems do not allow."""
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-.")[:60] or "text"


# --- digests --------------------------------------------------------------------------------------


class FileDigest(NamedTuple):
    """Size, modification time and SHA-256 (hexadecimal) of a file."""

    size: int
    mtime_ns: int
    sha256: str


KnownDigests: TypeAlias = Mapping[tuple[str, int, int], str]  # (file, size, mtime_ns) -> SHA-256


def list_files(source: Source) -> list[str]:
    """The files of a source in reading order; empty if it is not a file or cannot be found."""
    with suppress(TrifoldError):
        if source is not None and not is_dataset(source):
            return find_files(source)[0]
    return []


def compute_digests(
    files: Iterable[str], known: KnownDigests = MappingProxyType({})
) -> dict[str, FileDigest]:
    """The digest of every readable file; a file whose size and time are in `known` is not read."""
    found = {}
    for name in files:
        with suppress(OSError):
            path = Path(name)
            if not path.is_file():
                continue
            status = path.stat()  # before reading: a file that changes meanwhile gets a later time
            sha256 = known.get((name, status.st_size, status.st_mtime_ns)) or sha256_of_file(path)
            found[name] = FileDigest(status.st_size, status.st_mtime_ns, sha256)
    return found


def sha256_of_file(path: Path) -> str:
    """SHA-256 (hexadecimal) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
