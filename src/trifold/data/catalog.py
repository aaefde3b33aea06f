"""The public datasets that recipes use, and the folder that `${TRIFOLD_DATA}` stands for."""

import importlib.resources
import os
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

VARIABLE = "TRIFOLD_DATA"
UNKNOWN = "-"  # the digest of a file that is obtained by hand
# Programs of the folder examples, and the files that they write for the first stages of recipes.
_PROGRAMS = {
    "translation_pairs.py": ("pairs.tsv", "pairs-valid.tsv"),
    "cloze_questions.py": ("cloze.json", "cloze-valid.json"),
    "changed_sentences.py": ("changed.tsv", "changed-valid.tsv", "sts.tsv"),
}
_CACHES = {"darwin": "~/Library/Caches", "win32": "~/AppData/Local"}


class File(NamedTuple):
    """A file of a dataset. Size and SHA-256 are those of its content, which is decompressed if it
    ends in .gz; 0 and "-" if they are not known.
    """

    path: str  # below the data folder
    size: int
    sha256: str
    urls: tuple[str, ...]  # what it is made from; none if it is obtained by hand
    conversion: str  # a function of `conversions`, or nothing


class Dataset(NamedTuple):
    """A dataset; `by_hand` describes how to obtain one that cannot be downloaded."""

    name: str
    description: str
    licence: str
    source: str
    by_hand: str
    files: tuple[File, ...]

    def present(self) -> list[File]:
        """The files that exist in the data folder, whatever their content."""
        return [file for file in self.files if (data_folder() / file.path).exists()]


def data_folder() -> Path:
    """The folder in the environment variable TRIFOLD_DATA, by default one in the user's cache
    folder.
    """
    caches = os.environ.get("XDG_CACHE_HOME") or _CACHES.get(sys.platform, "~/.cache")
    return Path(os.environ.get(VARIABLE) or Path(caches, "trifold", "data")).expanduser()


@cache
def datasets() -> dict[str, Dataset]:
    """Name -> dataset, in the order of catalog.txt."""
    text = importlib.resources.files("trifold.data").joinpath("catalog.txt").read_text("utf-8")
    return {dataset.name: dataset for dataset in map(_parse, text.split("\n[")[1:])}


def _parse(entry: str) -> Dataset:
    """The dataset of an entry: a line about it, an address or how to obtain it, and its files."""
    head, address, *rows = entry.strip().split("\n")
    name, _, about = head.partition("] ")
    description, licence, source = about.split(" | ")
    base = ""
    by_hand = address
    if address.startswith("https://"):
        base = address
        by_hand = ""
    files = tuple(_parse_file(row, name, base) for row in rows)
    return Dataset(name, description, licence, source, by_hand, files)


def _parse_file(row: str, folder: str, base: str) -> File:
    """The file of a row: path, size, SHA-256, and maybe addresses below `base` and a conversion."""
    path, size, sha256, *made = row.split(" ")
    urls: tuple[str, ...] = ()
    if made:
        urls = tuple(base + name for name in made[0].split(","))
    return File(f"{folder}/{path}", int(size), sha256, urls, "".join(made[1:]))


def find_dataset(path: Path) -> Dataset | None:
    """The dataset in whose folder a path is."""
    folder = data_folder()
    if path == folder or not path.is_relative_to(folder):
        return None
    return datasets().get(path.relative_to(folder).parts[0])


def missing_remedy(path: Path) -> str:
    """How to obtain a missing file; empty if it belongs to no dataset."""
    if (dataset := find_dataset(path)) is None:
        return ""
    verb = "describes how to obtain" if dataset.by_hand else "downloads"
    return f"`trifold data {dataset.name}` {verb} it"


def program_for(file: str) -> str:
    """The command that writes a file of this name for a recipe; empty if there is none."""
    for program, files in _PROGRAMS.items():
        if file in files:
            return f"python examples/{program} {' '.join(files)}"
    return ""
