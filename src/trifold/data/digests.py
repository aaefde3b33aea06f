"""Which bytes a run learns from: a SHA-256 for every file, computed anew only where its size or its time has moved."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from trifold.data.files import find
from trifold.data.lines import expand
from trifold.data.settings import Source
from trifold.data.token_build import MANIFEST, read_json
from trifold.errors import TrifoldError

NO_FILES = ("hub:", "embedded:")


class FileDigest(NamedTuple):
    """What a file was like when it was read whole. sha256: hexadecimal."""

    size: int
    mtime_ns: int
    sha256: str


Known: TypeAlias = Mapping[tuple[str, int, int], str]  # (file, size, mtime_ns) -> SHA-256
NOTHING: Known = {}


def files_of(source: Source) -> list[str]:
    """The files that a source means, in the order in which they are read.

    What is no file (a dataset of the hub, embedded text, standard input) is left out; so is what cannot be found, which
    those who read it will say.
    """
    if source is None or (isinstance(source, str) and source.startswith(NO_FILES)):
        return []
    try:
        return find(source).files
    except TrifoldError:
        return []


def digests(files: Iterable[str], known: Known = NOTHING) -> dict[str, FileDigest]:
    """Of each file that is there and can be read, in the order given; those that are `known` are not read again."""
    found = {}
    for name in files:
        with suppress(OSError):
            if Path(name).is_file():
                found[name] = _digest(name, known)
    return found


def _digest(name: str, known: Known) -> FileDigest:
    about = Path(name).stat()  # before it is read: who changes it meanwhile gives it another time than this
    sha256 = known.get((name, about.st_size, about.st_mtime_ns))
    if sha256 is None:
        with Path(name).open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return FileDigest(about.st_size, about.st_mtime_ns, sha256)


def known_to_caches(folder: str | None) -> dict[tuple[str, int, int], str]:
    """What the caches of tokens in a folder say of the files that they were made of: corpora are large."""
    known: dict[tuple[str, int, int], str] = {}
    for place in expand(folder).glob(f"*/{MANIFEST}") if folder is not None else ():
        with suppress(KeyError, TypeError):
            for file in read_json(place)["sources"]:
                known[file["file"], file["size"], file["mtime_ns"]] = file["sha256"]
    return known
