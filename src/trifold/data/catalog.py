"""The public datasets that recipes use, and the folder that `${TRIFOLD_DATA}` stands for."""

import importlib.resources
import os
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

VARIABLE = "TRIFOLD_DATA"
_CACHES = {"darwin": "~/Library/Caches", "win32": "~/AppData/Local"}


class File(NamedTuple):
    """A file of a dataset. Size and SHA-256 are those of its content, which is decompressed if it
    ends in .gz.
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
    head, address, *rows = entry.strip().split("\n")
    name, _, about = head.partition("] ")
    description, licence, source = about.split(" | ")
    base = address if address.startswith("https://") else ""
    files = []
    for row in rows:
        path, size, sha256, *made = row.split(" ")
        urls = tuple(base + each for each in made[0].split(",")) if made else ()
        files.append(File(f"{name}/{path}", int(size), sha256, urls, "".join(made[1:])))
    return Dataset(name, description, licence, source, "" if base else address, tuple(files))


def find_dataset(path: Path) -> Dataset | None:
    """The dataset in whose folder a path is."""
    below = path.relative_to(data_folder()).parts if path.is_relative_to(data_folder()) else ()
    return datasets().get(below[0]) if below else None


def missing_remedy(path: Path) -> str:
    """How to obtain a missing file; empty if it belongs to no dataset."""
    if (dataset := find_dataset(path)) is None:
        return ""
    return (
        f"`trifold data {dataset.name}` "
        f"{'describes how to obtain' if dataset.by_hand else 'downloads'} it"
    )
