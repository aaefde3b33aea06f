"""The data files of a run: their digests in data.json, and a comparison when the run is continued.

{"data.train": {"a.en": {"size": 9, "mtime_ns": 8, "sha256": "…"}, …}, …}
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from trifold import disk
from trifold.data import (
    DataSettings,
    FileDigest,
    Source,
    compute_digests,
    digests_in_caches,
    expand_path,
    list_files,
)
from trifold.data.datasets import iter_dataset
from trifold.data.files import FOLDER_FORMATS, KnownDigests, is_dataset
from trifold.data.frames import digest_rows
from trifold.data.image_sets import list_images
from trifold.errors import DataError, TrifoldError
from trifold.folders import UntrustedPath, names_on_disk
from trifold.hub import resolve
from trifold.hub.names import DOWNLOADED
from trifold.recipe import Recipe
from trifold.text.training import find_tokenizer
from trifold.train.run_folder import RunFolder, read_object

# dotted key of the recipe -> file -> digest
Files: TypeAlias = Mapping[str, Mapping[str, FileDigest]]
MOST_MESSAGES = 10  # about changed files


def data_digest(files: Files) -> str:
    """SHA-256 (hexadecimal) of the contents of the files, independent of their names."""
    content = {key: _contents(group) for key, group in files.items()}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _contents(files: Mapping[str, FileDigest]) -> list[str]:
    """The SHA-256 of each file, in reading order."""
    return [digest.sha256 for digest in files.values()]


def data_sources(recipe: Recipe) -> dict[str, Source]:
    """The sources that a run learns from, by dotted key."""
    task: Any = recipe.task
    sources: dict[str, Source] = {"data.train": recipe.data.train, "data.valid": recipe.data.valid}
    if task.kind == "text-to-text":
        for name, part in task.parts.items():
            sources |= {
                f"task.parts.{name}.train": part.train,
                f"task.parts.{name}.valid": part.valid,
            }
    return sources


def data_files(recipe: Recipe) -> dict[str, dict[str, str]]:
    """The files that a run learns from, in reading order, by dotted key; each with the label that
    its folder gives an image, or "".
    """
    task: Any = recipe.task
    tokenizer = recipe.tokenizer.file
    kind = task.evaluated.data_kind
    if getattr(task, "texts_of", None):
        kind = "table"
    files = {
        key: _files_of_source(source, kind, recipe.data)
        for key, source in data_sources(recipe).items()
    }
    if task.kind == "distill" and Path(task.teacher).expanduser().is_dir():  # not a hub id
        files["task.teacher"] = _model_files(resolve(task.teacher))
    if recipe.train.lora is not None and recipe.train.lora.int8:  # not in the checkpoints
        files["start_from"] = _model_files(resolve(str(recipe.start_from)))
    if tokenizer is not None:
        path = find_tokenizer(tokenizer)
        if path.is_folder():
            files["tokenizer.file"] = _model_files(path)
        else:
            files["tokenizer.file"] = {str(path): ""}
    return files


def _files_of_source(source: Source, kind: str, data: DataSettings) -> dict[str, str]:
    if kind != "images":
        return dict.fromkeys(list_files(source, FOLDER_FORMATS[kind]), "")
    with suppress(TrifoldError):  # which reading reports
        if source is not None:
            return list_images(source, data)
    return {}


def _compute_digests(recipe: Recipe, known: KnownDigests) -> dict[str, dict[str, FileDigest]]:
    """The digests of all that a run learns from, by dotted key: of its files, and of rows in memory
    or on the hub.
    """
    digests = {key: compute_digests(files, known) for key, files in data_files(recipe).items()}
    for key, source in data_sources(recipe).items():
        if is_dataset(source) and not source.startswith("embedded:"):
            count, sha256 = digest_rows(row for _, _, row in iter_dataset(source, "train"))
            digests[key] |= {str(source): FileDigest(count, -1, sha256)}
    return {key: group for key, group in digests.items() if group}


def _model_files(folder: UntrustedPath) -> dict[str, str]:
    """The files of a model or tokenizer folder that may be read. Raises CheckpointError for a link
    that leads out.
    """
    return dict.fromkeys(names_on_disk(folder, DOWNLOADED), "")


def read_data_json(folder: RunFolder) -> dict[str, dict[str, FileDigest]]:
    """The content of data.json; empty if it is missing or damaged."""
    content = read_object(folder.below(folder.data))
    try:
        return {
            key: {name: _read_digest(digest) for name, digest in files.items()}
            for key, files in content.items()
        }
    except (AttributeError, TypeError):
        return {}


def _read_digest(values: Mapping[str, Any]) -> FileDigest:
    """Raises TypeError for other keys, or values of another type."""
    digest = FileDigest(**values)
    numbers = (digest.size, digest.mtime_ns)
    if not isinstance(digest.sha256, str) or any(type(number) is not int for number in numbers):
        raise TypeError("not the digest of a file")
    return digest


class DataComparison(NamedTuple):
    """A message for each file that differs from those of data.json, and the digests of all."""

    messages: list[str]
    files: Files


def check_same_data(folder: RunFolder, recipe: Recipe, *, changed: bool) -> list[str]:
    """The messages of `compare_data`; updates data.json."""
    compared = compare_data(folder, recipe, changed=changed)
    record_data(folder, compared.files)
    return compared.messages


def compare_data(folder: RunFolder, recipe: Recipe, *, changed: bool) -> DataComparison:
    """Compare the data files of the recipe with those of data.json.

    Files in data.json or in a cache, with the same size and time, are not read. The messages are
    for each file that differs if `changed` allows it; otherwise raises DataError listing them. Data
    that the run did not record is accepted.
    """
    before = read_data_json(folder)
    known = dict[tuple[str, int, int], str]()
    if recipe.data.cache is not None:
        known.update(digests_in_caches(recipe.data.cache))
    for files in before.values():
        for name, digest in files.items():
            known[name, digest.size, digest.mtime_ns] = digest.sha256
    now = _compute_digests(recipe, known)
    messages = list(dict.fromkeys(changed_files(before, now)))  # two keys may share a file
    if len(messages) > MOST_MESSAGES:
        messages[MOST_MESSAGES:] = [f"and {len(messages) - MOST_MESSAGES:,} more files"]
    accepted = {None, data_digest({}), data_digest(now)}
    if not before and folder.identity().get("data") not in accepted:
        messages = [f"{folder.data}: missing or damaged, and the data differs from that of the run"]
    if messages and not changed:
        remedy = (
            "restore the old data, accept the new one with --data-changed, or start "
            "another run with --out"
        )
        raise DataError("\n".join([*messages[:-1], f"{messages[-1]}; {remedy}"]))
    return DataComparison(messages, now)


def record_data(folder: RunFolder, files: Files) -> None:
    """Write data.json, unless it has these digests."""
    if files == read_data_json(folder):
        return
    content = {
        key: {name: digest._asdict() for name, digest in group.items()}
        for key, group in files.items()
    }
    disk.replace_text(folder.data, json.dumps(content, indent=2) + "\n")


def changed_files(before: Files, now: Files) -> Iterator[str]:
    """A message for each file with another content or position. Files may be renamed; keys not in
    `before` are new.
    """
    for key, old_files in before.items():
        files = now.get(key, {})
        if _contents(old_files) != _contents(files):
            yield from _changes_of_group(old_files, files)


def _changes_of_group(
    old_files: Mapping[str, FileDigest], files: Mapping[str, FileDigest]
) -> Iterator[str]:
    """The messages for the files of one key, whose contents or positions differ."""
    old = _contents(old_files)
    new = _contents(files)
    old_contents = set(old)
    new_contents = set(new)

    def is_changed(name: str, content: str) -> bool:
        """Whether a content is new for the name of a file, or for a new name, among all files."""
        if name in old_files:
            return content != old_files[name].sha256
        return content not in old_contents

    changed = [name for name, digest in files.items() if is_changed(name, digest.sha256)]
    missing = [
        name
        for name, digest in old_files.items()
        if name not in files and digest.sha256 not in new_contents
    ]
    # One file that cannot be found keeps the others of its source from being listed.
    missing = [name for name in missing if not expand_path(name).is_file()] or missing
    yield from (f"{name}: the content has changed since the run began" for name in changed)
    yield from (f"{name}: part of the run when it began, and now missing" for name in missing)
    if not changed and not missing:
        pairs = enumerate(zip_longest(old, new))
        position = next(number for number, (before, after) in pairs if before != after)
        longer = files if position < len(files) else old_files
        name = list(longer)[position]
        yield (
            f"{name}: the order of the files has changed since the run began, and it affects "
            "training"
        )
