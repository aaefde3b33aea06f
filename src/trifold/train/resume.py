"""The identity of a run, and comparisons when it is continued: what may have changed, and what must
not.

recipe.yaml, the tokenizer and data.json can be edited or damaged, so they are compared with the
identity of the run in its checkpoints.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeAlias

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
from trifold.disk import sha256_of_file
from trifold.errors import DataError, SettingsError, TrifoldError
from trifold.hub import resolve
from trifold.hub.labels import labels_to_ours
from trifold.hub.names import CONFIG, DOWNLOADED
from trifold.jsonfiles import read_json
from trifold.recipe import FINITE_SCHEDULES, Recipe, TrainSettings, load_recipe
from trifold.train.run_folder import IDENTITY, RunFolder, read_object

# --- the identity of a run ------------------------------------------------------------------------
#
# Every checkpoint records the identity of its run, protected by its manifest: the settings that
# must not change, digests of the tokenizer and of the data files, and a fingerprint of the training
# rows. data.json has the data files:
#
#     {"data.train": {"a.en": {"size": 9, "mtime_ns": 8, "sha256": "…"}, …}, …}

# Settings that change the length and the output of a run, but not what a step learns.
FREE: tuple[str, ...] = (
    *("name", "description", "generate", "task.tokenize"),
    *("train.device", "train.log_every", "train.minutes", "train.patience"),
    *("train.recompute", "train.samples", "train.steps", "train.sharding"),
    *("train.keep_every", "train.keep_best", "train.async_save", "train.check_memory"),
    # Reactions to problems, which may have come up since the run began.
    *(
        "train.on_nonfinite",
        "train.on_spike",
        "train.spike_factor",
        "train.spike_window",
        "train.skip_limit",
    ),
)
# These are free too, unless earlier checkpoints are averaged.
FREE_WITHOUT_AVERAGING: tuple[str, ...] = ("train.save_every", "train.keep_last")


def run_identity(recipe: Recipe, folder: RunFolder, rows: str) -> dict[str, Any]:
    """The identity of a run, as recorded in its checkpoints."""
    return {
        IDENTITY: {
            "recipe": _bound_settings(recipe.model_dump(), free_settings(recipe)),
            "tokenizer": tokenizer_digests(folder),
            "data": data_digest(read_data_json(folder)),
            "rows": rows,
        }
    }


def tokenizer_digests(folder: RunFolder) -> dict[str, str]:
    """The SHA-256 of the tokenizer files that exist, by name."""
    files = sorted(path for path in folder.tokenizer.glob("[!.]*") if path.is_file())
    return {path.name: sha256_of_file(path) for path in files}


def free_settings(recipe: Recipe) -> tuple[str, ...]:
    """Dotted keys of settings, and of groups of settings, that may change when the run is
    continued.
    """
    return FREE if recipe.train.average > 1 else FREE + FREE_WITHOUT_AVERAGING


def is_free(key: str, free: Sequence[str]) -> bool:
    """Whether a dotted key is one of these keys, or in one of these groups."""
    return any(key == each or key.startswith(each + ".") for each in free)


def _bound_settings(values: Mapping[str, Any], free: Sequence[str], at: str = "") -> dict[str, Any]:
    """The settings that are not free."""
    return {
        key: _bound_settings(value, free, f"{at}{key}.") if isinstance(value, dict) else value
        for key, value in values.items()
        if not is_free(at + key, free)
    }


# --- comparisons ----------------------------------------------------------------------------------


def check_same_run(recipe: Recipe, folder: RunFolder, environment: Mapping[str, Any]) -> list[str]:
    """Compare the recipe with recipe.yaml, and both and the tokenizer with the identity in the
    checkpoints.

    Returns a message for each change that affects the learning rate, and for a changed environment.
    Raises SettingsError listing the settings that must not change, DataError naming a changed
    tokenizer file.
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
    return [
        *_schedule_changes(written.train, recipe.train),
        *_environment_changes(folder, environment),
    ]


def check_same_rows(folder: RunFolder, rows: str, *, changed: bool) -> None:
    """Raises DataError if the tokenizer or the rows differ from those of the run; changed: whether
    the data may.
    """
    identity = folder.identity()
    _check_tokenizer(folder, identity)
    same_data = identity.get("data") == data_digest(read_data_json(folder)) and not changed
    if same_data and rows != identity["rows"]:
        raise DataError(
            f"{folder.path}: the same data now gives {rows}, but gave {identity['rows']} when "
            "the run began; continue "
            "with the versions in environment.json, or accept the new rows with --data-changed"
        )


def check_same_labels(folder: RunFolder, labels: Sequence[str]) -> None:
    """Raises DataError if the labels or their order are not those of the saved model, if there is
    one: the rows of the head belong to them.
    """
    before: Sequence[str] | None = None
    with suppress(TrifoldError):  # a damaged model is written again
        before = labels_to_ours(read_json(folder.model / CONFIG))["label_names"]
    if before is not None and tuple(before) != tuple(labels):
        then, now = (
            shorten(", ".join(map(repr, each)), 60, placeholder=" …") for each in (before, labels)
        )
        raise DataError(
            f"{folder.path}: the labels are now {now}, but were {then} when the run began; restore "
            "the old data, or start another run with --out"
        )


def _check_tokenizer(folder: RunFolder, identity: Mapping[str, Any]) -> None:
    """Compare the existing tokenizer files. Missing ones are trained again and compared then."""
    original = identity.get("tokenizer", {})
    for name, digest in tokenizer_digests(folder).items():
        if original.get(name, digest) != digest:
            raise DataError(
                f"{folder.tokenizer / name}: damaged or replaced since the run began; restore "
                "the original file, or "
                f"delete {folder.tokenizer} to train the tokenizer again on the same data"
            )


def _environment_changes(folder: RunFolder, environment: Mapping[str, Any]) -> list[str]:
    """A message if versions, device, threads or precision differ from those of the previous
    session.
    """
    before = read_object(folder.environment)
    changed = [
        f"{name} changed from {before[name]} to {value}"
        for name, value in environment.items()
        if name != "platform"
        and before.get(name, value) != value  # all others affect the last bits
    ]
    return (
        [f"{', '.join(changed)}: results may differ in the last bits from here on"]
        if changed
        else []
    )


def _schedule_changes(before: TrainSettings, now: TrainSettings) -> Iterator[str]:
    if before.steps == now.steps:
        return
    effect = "now ends later or earlier, so the learning rate jumps here"
    if now.schedule == "warmup-stable-decay":
        effect = "decays before the new end; if the decay had begun, the learning rate jumps here"
    elif now.schedule not in FINITE_SCHEDULES:
        effect = "does not depend on the number of steps"
    yield (
        f"train.steps changed from {before.steps:,} to {now.steps:,}: the {now.schedule} "
        f"schedule {effect}"
    )


# --- settings -------------------------------------------------------------------------------------


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


# --- data files -----------------------------------------------------------------------------------

Files: TypeAlias = Mapping[
    str, Mapping[str, FileDigest]
]  # dotted key of the recipe -> file -> digest
MOST_MESSAGES = 10  # about changed files


def data_digest(files: Files) -> str:
    """SHA-256 (hexadecimal) of the contents of the files, independent of their names."""
    content = {key: [each.sha256 for each in group.values()] for key, group in files.items()}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


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
    kind = "table" if getattr(task, "texts_of", None) else task.evaluated.data_kind
    files = {
        key: _files_of_source(source, kind, recipe.data)
        for key, source in data_sources(recipe).items()
    }
    if task.kind == "distill" and Path(task.teacher).expanduser().is_dir():  # not a hub id
        files["task.teacher"] = _model_files(resolve(task.teacher))
    if recipe.train.lora is not None and recipe.train.lora.int8:  # not in the checkpoints
        files["start_from"] = _model_files(resolve(str(recipe.start_from)))
    if tokenizer is not None:
        path = expand_path(tokenizer)
        files["tokenizer.file"] = _model_files(path) if path.is_dir() else {str(path): ""}
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
    found = {key: compute_digests(files, known) for key, files in data_files(recipe).items()}
    for key, source in data_sources(recipe).items():
        if is_dataset(source) and not source.startswith("embedded:"):
            count, sha256 = digest_rows(row for _, _, row in iter_dataset(source, "train"))
            found[key] |= {str(source): FileDigest(count, -1, sha256)}
    return {key: digests for key, digests in found.items() if digests}


def _model_files(folder: Path) -> dict[str, str]:
    """The files of a model or tokenizer folder that may be read."""
    found = {str(path) for pattern in DOWNLOADED for path in folder.glob(pattern)}
    return dict.fromkeys(sorted(found), "")


def read_data_json(folder: RunFolder) -> dict[str, dict[str, FileDigest]]:
    """The content of data.json; empty if it is missing or damaged."""
    content = read_object(folder.data)
    try:
        return {
            key: {name: FileDigest(**each) for name, each in files.items()}
            for key, files in content.items()
        }
    except (AttributeError, TypeError):
        return {}


def check_same_data(folder: RunFolder, recipe: Recipe, *, changed: bool) -> list[str]:
    """Compare the data files of the recipe with those of data.json, and update data.json.

    Files in data.json or in a cache, with the same size and time, are not read. Returns a message
    for each file that differs if `changed` allows it; otherwise raises DataError listing them.
    Data that the run did not record is accepted.
    """
    before = read_data_json(folder)
    known = digests_in_caches(recipe.data.cache) if recipe.data.cache is not None else {}
    for files in before.values():
        known |= {(name, each.size, each.mtime_ns): each.sha256 for name, each in files.items()}
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
    if now != before:
        content = {
            key: {name: each._asdict() for name, each in files.items()}
            for key, files in now.items()
        }
        disk.replace_text(folder.data, json.dumps(content, indent=2) + "\n")
    return messages


def changed_files(before: Files, now: Files) -> Iterator[str]:
    """A message for each file with another content or position. Files may be renamed; keys not in
    `before` are new.
    """
    for key, old_files in before.items():
        files = now.get(key, {})
        old, new = ([each.sha256 for each in group.values()] for group in (old_files, files))
        if old == new:
            continue
        # The content of a file is new for its name, or for a new name, among all files.
        before_all = {*old}
        now_all = {*new}
        known = {name: {each.sha256} for name, each in old_files.items()}
        changed = [
            name for name, each in files.items() if each.sha256 not in known.get(name, before_all)
        ]
        missing = [
            name
            for name, each in old_files.items()
            if name not in files and each.sha256 not in now_all
        ]
        yield from (f"{name}: the content has changed since the run began" for name in changed)
        yield from (f"{name}: part of the run when it began, and now missing" for name in missing)
        if not changed and not missing:
            position = next(n for n, (a, b) in enumerate(zip_longest(old, new)) if a != b)
            name = list(files if position < len(files) else old_files)[position]
            yield (
                f"{name}: the order of the files has changed since the run began, and it "
                "affects training"
            )
