"""Does a run learn from the files with which it was begun? data.json remembers what they were.

    {"data.train": {"a.en": {"size": 9, "mtime_ns": 8, "sha256": "…"}, …}, …}

Files are known again by size and time, and read whole where one of these has moved. A digest of it all is in every
checkpoint, so that data.json cannot be lost or damaged unnoticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import TypeAlias

from trifold import disk
from trifold.data import FileDigest, Source, compute_digests, digests_in_caches, expand_path, list_files
from trifold.errors import DataError
from trifold.hub import resolve
from trifold.hub.folder import DOWNLOADED
from trifold.objectives.distill import DistillSettings
from trifold.objectives.text_to_text import TextToTextSettings
from trifold.recipe import Recipe
from trifold.train.run_folder import RunFolder, read_object

Files: TypeAlias = Mapping[
    str, Mapping[str, FileDigest]
]  # dotted key of the recipe -> file -> what it was like
FIRST_FORM, TOGETHER = "data", ("data.train", "data.valid")  # data.json did not tell these two apart once


def check_same_data(folder: RunFolder, recipe: Recipe, *, changed: bool) -> list[str]:
    """Compare the files that the recipe names with those that the run was begun with, and write down what they are now.

    Gives a line for every file that differs, where that is allowed by `changed`; else raises DataError naming them.
    """
    before = written_data(folder)
    known = digests_in_caches(recipe.data.cache)
    for files in before.values():
        known |= {(name, each.size, each.mtime_ns): each.sha256 for name, each in files.items()}
    found = {key: compute_digests(files, known) for key, files in named_files(recipe).items()}
    now = {key: files for key, files in found.items() if files}
    lines = list(dict.fromkeys(other_files(before, now)))  # a file may have two keys
    if not before and folder.identity().get("data", data_digest(now)) != data_digest(now):
        lines = [f"{folder.data}: gone or damaged, and the data is not that with which the run was begun"]
    if lines and not changed:
        remedy = (
            "put the old files back, or go on with these: --data-changed; or begin another run with --out"
        )
        raise DataError("\n".join([*lines[:-1], f"{lines[-1]}; {remedy}"]))
    if now != before:
        told = {key: {name: each._asdict() for name, each in files.items()} for key, files in now.items()}
        disk.replace_text(folder.data, json.dumps(told, indent=2) + "\n")
    return lines


def data_digest(files: Files) -> str:
    """SHA-256 (hexadecimal) of what the files hold, whatever their names."""
    held = {key: [each.sha256 for each in some.values()] for key, some in files.items()}
    return hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()


def named_files(recipe: Recipe) -> dict[str, list[str]]:
    """All files from which a run learns, in the order in which they are read, by the dotted keys that name them."""
    task, tokenizer = recipe.task, recipe.tokenizer.file
    sources: dict[str, Source] = {"data.train": recipe.data.train, "data.valid": recipe.data.valid}
    if isinstance(task, TextToTextSettings):
        for name, part in task.parts.items():
            sources |= {f"task.parts.{name}.train": part.train, f"task.parts.{name}.valid": part.valid}
    named = {key: list_files(source) for key, source in sources.items()}
    if isinstance(task, DistillSettings) and Path(task.teacher).expanduser().is_dir():  # the hub's have none
        named["task.teacher"] = _model_files(resolve(task.teacher))
    if tokenizer is not None:
        place = expand_path(tokenizer)
        named["tokenizer.file"] = _model_files(place) if place.is_dir() else [str(place)]
    return named


def _model_files(folder: Path) -> list[str]:
    """What may be read of the folder of a model, or of its tokenizer."""
    return sorted({str(path) for pattern in DOWNLOADED for path in folder.glob(pattern)})


def other_files(before: Files, now: Files) -> Iterator[str]:
    """A line for each file that is not what it was: by its content and its place, not by its name, so that data may be
    moved. Of keys of which nothing was written down, nothing is said.
    """
    for key, then in before.items():
        keys = TOGETHER if key == FIRST_FORM else (key,)
        files = {name: each for key in keys for name, each in now.get(key, {}).items()}
        old, new = ([each.sha256 for each in some.values()] for some in (then, files))
        if old == new:
            continue
        changed = [name for name in files if _new_content(name, files, then)]
        gone = [name for name, each in then.items() if name not in files and each.sha256 not in new]
        yield from (f"{name}: its content is not that with which the run was begun" for name in changed)
        yield from (f"{name}: the run was begun with it, and now it is not there" for name in gone)
        if not changed and not gone:
            place = next(n for n, (a, b) in enumerate(zip_longest(old, new)) if a != b)
            name = list(files if place < len(files) else then)[place]
            yield f"{name}: when the run was begun, another file stood in its place, and their order decides"


def _new_content(name: str, files: Mapping[str, FileDigest], then: Mapping[str, FileDigest]) -> bool:
    """Whether a file holds what it did not hold, or, under a new name, what none did."""
    held = [then[name]] if name in then else then.values()
    return files[name].sha256 not in {each.sha256 for each in held}


def written_data(folder: RunFolder) -> dict[str, dict[str, FileDigest]]:
    """What data.json says; nothing where it is not there, or damaged."""
    told = read_object(folder.data)
    if told and all(isinstance(sha256, str) for sha256 in told.values()):
        return {FIRST_FORM: {name: FileDigest(-1, -1, sha256) for name, sha256 in told.items()}}
    try:
        return {
            key: {name: FileDigest(**each) for name, each in files.items()} for key, files in told.items()
        }
    except (AttributeError, TypeError):
        return {}
