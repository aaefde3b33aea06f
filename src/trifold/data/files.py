"""Which files a source means: names, folders and patterns become one list, the same on every machine."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from trifold.data.compressed import ENDINGS, ending
from trifold.data.lines import STANDARD_INPUT, expand
from trifold.errors import DataError, SettingsError

KINDS = {
    "": "text",
    ".txt": "text",
    ".text": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}


class Found(NamedTuple):
    """`passed_over` counts, by their endings, the files of folders that hold something else than text."""

    files: list[str]
    passed_over: Counter[str]


def find(source: str | list[str]) -> Found:
    """Every file once: in the order of the source, and those of a folder or a pattern in the order of their names.

    Of a folder those with an ending of text, at any depth; of a pattern all. Files whose names begin with a dot are not
    looked at. Raises DataError where nothing is found, SettingsError where nothing is asked for.
    """
    names = [name.strip() for name in (source if isinstance(source, list) else _split(source))]
    if not names or not all(names):
        raise SettingsError(
            f"data: {source!r} names no file; give a file, a folder, or a pattern such as *.txt"
        )
    passed_over: Counter[str] = Counter()
    files: dict[str, None] = {}  # a set that remembers the order
    for name in names:
        files.update(dict.fromkeys(_files(name, passed_over)))
    return Found(list(files), passed_over)


def _split(source: str) -> list[str]:
    """At the commas, unless the whole is the name of a file."""
    return [source] if "," not in source or expand(source).exists() else source.split(",")


def _files(name: str, passed_over: Counter[str]) -> list[str]:
    if name == STANDARD_INPUT:
        return [name]
    path = expand(name)
    if path.is_dir():
        return _in_folder(path, passed_over)
    if not path.exists() and any(sign in name for sign in "*?["):
        matches = glob.glob(str(path), recursive=True)  # noqa: PTH207 (that of pathlib takes no absolute pattern)
        found = [file for file in sorted(matches) if Path(file).is_file()]
        if not found:
            raise DataError(
                f"{name}: no file matches this pattern; check it with `ls`, in quotes on a command line"
            )
        return found
    return [str(path)]  # who opens it says what is wrong with it


def _in_folder(folder: Path, passed_over: Counter[str]) -> list[str]:
    found = []
    for here, inner, files in os.walk(folder):  # follows no link to a folder, so that it ends
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        for name in files:
            if name.startswith("."):
                continue
            if ending(name) in KINDS and (ending(name) or name.lower().endswith(ENDINGS)):
                found.append(str(Path(here, name)))
            else:
                passed_over[Path(name).suffix or name] += 1
    if not found:
        known = ", ".join(filter(None, KINDS))
        raise DataError(
            f"{folder}: no file of text in this folder ({known}, each also {' or '.join(ENDINGS)}); "
            f"name others by a pattern, such as {folder}/**/*.md"
        )
    return sorted(found)


def safe_name(name: str) -> str:
    """What may be the name of a file on every system."""
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-.")[:60] or "text"
