"""Comparisons when a run is continued: what may have changed since it began, and what must not.

recipe.yaml, the tokenizer and data.json can be edited or damaged, so they are compared with the identity of the run in
its checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from trifold.data import FileDigest
from trifold.errors import DataError, SettingsError
from trifold.recipe import FINITE_SCHEDULES, Recipe, TrainSettings, load_recipe
from trifold.train.run_folder import (
    FIRST_FORMAT,
    FREE,
    FREE_WITHOUT_AVERAGING,
    Files,
    RunFolder,
    data_digest,
    free_settings,
    hash_data_files,
    is_free,
    read_data_json,
    read_object,
    tokenizer_digests,
    write_data_json,
)


def check_same_run(recipe: Recipe, folder: RunFolder) -> list[str]:
    """Compare the recipe with recipe.yaml, and both and the tokenizer with the identity in the checkpoints.

    Returns a message for each change that affects the learning rate. Raises SettingsError listing the settings that
    must not change, DataError naming a changed tokenizer file.
    """
    identity = folder.identity()
    written = load_recipe(folder.recipe)
    bound = identity.get("recipe")
    original = written if bound is None else Recipe.parse(_merge(bound, recipe.model_dump()))
    free = free_settings(recipe)
    changes = _differences(original.model_dump(), recipe.model_dump())
    if rejected := [f"{key} ({value!r:.60})" for key, value in changes if not is_free(key, free)]:
        raise SettingsError(
            f"{folder.recipe}: the run began with other values of {', '.join(rejected)}; "
            "resume it with these values, or start another run with --out"
        )
    _check_tokenizer(folder, identity)
    return list(_schedule_changes(written.train, recipe.train))


def check_same_rows(folder: RunFolder, rows: str, *, changed: bool) -> None:
    """Compare the tokenizer and the fingerprint of the training rows with those at the beginning of the run.

    changed: whether the data may differ. Raises DataError.
    """
    identity = folder.identity()
    _check_tokenizer(folder, identity)
    same_data = identity.get("data") == data_digest(read_data_json(folder)) and not changed
    if same_data and rows != identity["rows"]:
        raise DataError(
            f"{folder.path}: the same data now gives {rows}, but gave {identity['rows']} when the run began; continue "
            "with the versions in environment.json, or accept the new rows with --data-changed"
        )


def _check_tokenizer(folder: RunFolder, identity: Mapping[str, Any]) -> None:
    """Compare the existing tokenizer files. Missing ones are trained again and compared then."""
    original = identity.get("tokenizer", {})
    for name, digest in tokenizer_digests(folder).items():
        if original.get(name, digest) != digest:
            raise DataError(
                f"{folder.tokenizer / name}: damaged or replaced since the run began; restore the original file, or "
                f"delete {folder.tokenizer} to train the tokenizer again on the same data"
            )


def environment_changes(folder: RunFolder, environment: Mapping[str, Any]) -> list[str]:
    """A message if versions, device, threads or precision differ from those of the previous session."""
    before = read_object(folder.environment)
    changed = [
        f"{name} changed from {before[name]} to {value}"
        for name, value in environment.items()
        if name != "platform" and before.get(name, value) != value  # all others affect the last bits
    ]
    return [f"{', '.join(changed)}: results may differ in the last bits from here on"] if changed else []


def _schedule_changes(before: TrainSettings, now: TrainSettings) -> Iterator[str]:
    if before.steps == now.steps:
        return
    effect = "now ends later or earlier, so the learning rate jumps here"
    if now.schedule == "warmup-stable-decay":
        effect = "decays before the new end; if the decay had begun, the learning rate jumps here"
    elif now.schedule not in FINITE_SCHEDULES:
        effect = "does not depend on the number of steps"
    yield f"train.steps changed from {before.steps:,} to {now.steps:,}: the {now.schedule} schedule {effect}"


# --- settings ------------------------------------------------------------------------------------------


def _merge(bound: Mapping[str, Any], current: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """The settings `bound` in a checkpoint, and the free ones of the current recipe."""
    merged = dict(bound)
    for key, value in current.items():
        if isinstance(value, dict) and isinstance(bound.get(key), dict):
            merged[key] = _merge(bound[key], value, f"{at}{key}.")
        elif key not in bound and is_free(at + key, FREE + FREE_WITHOUT_AVERAGING):
            merged[key] = value
    return merged


def _differences(a: Any, b: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys with differing values, and the value in `a`."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({*a, *b}):
            yield from _differences(a.get(key), b.get(key), f"{at}.{key}" if at else key)
    elif a != b:
        yield at, a


# --- data files ----------------------------------------------------------------------------------------


def check_same_data(folder: RunFolder, recipe: Recipe, *, changed: bool) -> list[str]:
    """Compare the data files of the recipe with those of data.json, and update data.json.

    Returns a message for each file that differs if `changed` allows it; otherwise raises DataError listing them.
    """
    before = read_data_json(folder)
    now = hash_data_files(recipe, before)
    messages = list(dict.fromkeys(changed_files(before, now)))  # two keys may share a file
    if not before and folder.identity().get("data", data_digest(now)) != data_digest(now):
        messages = [f"{folder.data}: missing or damaged, and the data differs from that of the run"]
    if messages and not changed:
        remedy = (
            "restore the old files, accept the new ones with --data-changed, or start another run with --out"
        )
        raise DataError("\n".join([*messages[:-1], f"{messages[-1]}; {remedy}"]))
    if now != before:
        write_data_json(folder, now)
    return messages


def changed_files(before: Files, now: Files) -> Iterator[str]:
    """A message for each file with another content or position. Files may be renamed; keys not in `before` are new."""
    for key, old_files in before.items():
        keys = ("data.train", "data.valid") if key == FIRST_FORMAT else (key,)
        files = {name: each for key in keys for name, each in now.get(key, {}).items()}
        old, new = ([each.sha256 for each in group.values()] for group in (old_files, files))
        if old == new:
            continue
        changed = [name for name in files if _has_new_content(name, files, old_files)]
        missing = [name for name, each in old_files.items() if name not in files and each.sha256 not in new]
        yield from (f"{name}: the content has changed since the run began" for name in changed)
        yield from (f"{name}: part of the run when it began, and now missing" for name in missing)
        if not changed and not missing:
            position = next(n for n, (a, b) in enumerate(zip_longest(old, new)) if a != b)
            name = list(files if position < len(files) else old_files)[position]
            yield f"{name}: the order of the files has changed since the run began, and it affects training"


def _has_new_content(name: str, files: Mapping[str, FileDigest], old_files: Mapping[str, FileDigest]) -> bool:
    """Whether the content of a file is new: for its name, or for a new name, among all files."""
    old = [old_files[name]] if name in old_files else old_files.values()
    return files[name].sha256 not in {each.sha256 for each in old}
