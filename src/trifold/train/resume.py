"""The identity of a run, and comparisons when it is continued: what may have changed, and what must
not.

recipe.yaml, the tokenizer and data.json can be edited or damaged, so they are compared with the
identity of the run in its checkpoints.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from textwrap import shorten
from typing import Any

from trifold.data import expand_path
from trifold.data.files import is_dataset
from trifold.disk import sha256_of_file
from trifold.errors import DataError, SettingsError, TrifoldError
from trifold.hub.labels import labels_to_ours
from trifold.hub.names import CONFIG
from trifold.jsonfiles import read_json
from trifold.nn import ModelConfig
from trifold.nn.config import REGRESSION
from trifold.recipe import FINITE_SCHEDULES, Recipe, TrainSettings, load_recipe
from trifold.train import checkpoint
from trifold.train.data_files import (
    Files,
    check_same_data,
    data_digest,
    data_sources,
    read_data_json,
)
from trifold.train.run_folder import IDENTITY, RunFolder
from trifold.train.schedules import learning_rate

# --- the identity of a run ------------------------------------------------------------------------
#
# Every checkpoint records the identity of its run, protected by its manifest: the settings that
# must not change, digests of the tokenizer and of the data files, and a fingerprint of the training
# rows.

LONG_WARMUP = 0.25  # share of the steps
SMALLEST_JUMP = 0.005  # share of the peak of the learning rate
LABELS = "labels"  # the key of the names of classes or tags in the identity

# Settings that change the length and the output of a run, but not what a step learns.
FREE: tuple[str, ...] = (
    *("name", "description", "generate", "task.tokenize"),
    *("train.device", "train.log_every", "train.minutes", "train.patience"),
    *("train.baselines", "train.recompute", "train.samples", "train.steps", "train.sharding"),
    "train.last_step",
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


def run_identity(
    recipe: Recipe, folder: RunFolder, rows: str, config: ModelConfig, files: Files
) -> dict[str, Any]:
    """The identity of a run, as recorded in its checkpoints. config: of its model. files: the
    digests of its data.
    """
    return {
        IDENTITY: {
            "recipe": _bound_settings(recipe.model_dump(), free_settings(recipe)),
            "tokenizer": tokenizer_digests(folder),
            "data": data_digest(files),
            "rows": rows,
            LABELS: labels_of(config),
        }
    }


def tokenizer_digests(folder: RunFolder) -> dict[str, str]:
    """The SHA-256 of the tokenizer files that exist, by name."""
    files = folder.below(folder.tokenizer).glob("[!.]*")
    return {path.name: sha256_of_file(path) for path in files}


def free_settings(recipe: Recipe) -> tuple[str, ...]:
    """Dotted keys of settings, and of groups of settings, that may change when the run is
    continued.
    """
    if recipe.train.average > 1:
        return FREE
    return FREE + FREE_WITHOUT_AVERAGING


def is_free(key: str, free: Sequence[str]) -> bool:
    """Whether a dotted key is one of these keys, or in one of these groups."""
    names = key.split(".")
    return any(".".join(names[:count]) in free for count in range(1, len(names) + 1))


def _bound_settings(values: Mapping[str, Any], free: Sequence[str], at: str = "") -> dict[str, Any]:
    """The settings that are not free."""
    bound = dict[str, Any]()
    for key, value in values.items():
        if is_free(at + key, free):
            continue
        if isinstance(value, dict):
            value = _bound_settings(value, free, f"{at}{key}.")
        bound[key] = value
    return bound


# --- comparisons ----------------------------------------------------------------------------------


def check_same_run(
    recipe: Recipe,
    folder: RunFolder,
    environment: Mapping[str, Any],
    *,
    data_changed: bool = False,
) -> list[str]:
    """Compare the recipe with recipe.yaml, and both and the tokenizer with the identity in the
    checkpoints. data_changed: whether the data may differ.

    Returns a message for each change that affects the learning rate, and for a changed environment.
    Raises SettingsError listing the settings that must not change, DataError naming a changed
    tokenizer file, or a data file because of which a default has changed.
    """
    identity = folder.identity()
    written = load_recipe(folder.below(folder.recipe))
    original = written
    if "recipe" in identity:
        original = Recipe.parse(_merge(identity["recipe"], recipe.model_dump()))
    free = free_settings(recipe)
    differences = _differences(original.model_dump(), recipe.model_dump())
    changes = {key: value for key, value in differences if not is_free(key, free)}
    if changes:
        remedy = "resume it with these values, or start another run with --out"
        if not any(_is_set(key, recipe.chosen) for key in changes):
            check_files_exist(folder, recipe)
            if not data_changed:
                check_same_data(folder, recipe, changed=False)
            remedy = f"{folder.continue_command} keeps them"
            if data_changed:
                remedy = remedy.replace("` keeps", " --data-changed` keeps")
        listed = ", ".join(f"{key} ({value!r:.60})" for key, value in changes.items())
        raise SettingsError(
            f"{folder.recipe}: the run began with other values of {listed}; {remedy}"
        )
    _check_tokenizer(folder, identity)
    return [
        *_schedule_changes(written.train, recipe.train, _next_step(folder)),
        *_environment_changes(folder, environment),
    ]


def _is_set(key: str, chosen: Mapping[str, Any]) -> bool:
    """Whether a user has set the value of a dotted key."""
    value: Any = chosen
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return False
        value = value[part]
    return True


def check_files_exist(folder: RunFolder, recipe: Recipe) -> None:
    """Raises DataError for a data file of the run that is missing: defaults that depend on the data
    differ because of it.
    """
    names = [name for files in read_data_json(folder).values() for name in files]
    for source in data_sources(recipe).values():  # which data.json may have lost
        listed = [source] if isinstance(source, str) else source or ()
        names += [name for name in listed if not set("*?[") & set(str(name))]
    for name in names:
        if not is_dataset(name) and not expand_path(name).exists():
            raise DataError(
                f"{name}: part of the run when it began, and now missing; restore it, or start "
                "another run with --out"
            )


def check_same_rows(folder: RunFolder, rows: str, files: Files, *, changed: bool) -> None:
    """Raises DataError if the tokenizer or the rows differ from those of the run; changed: whether
    the data may. files: the digests of the data.
    """
    identity = folder.identity()
    _check_tokenizer(folder, identity)
    same_data = identity.get("data") == data_digest(files) and not changed
    if same_data and rows != identity["rows"]:
        raise DataError(
            f"{folder.path}: the same data now gives {rows}, but gave {identity['rows']} when "
            "the run began; continue with the versions in environment.json, or accept the other "
            "rows with --data-changed"
        )


def check_same_labels(folder: RunFolder, config: ModelConfig) -> None:
    """Raises DataError if the labels or their order are not those of the run: the rows of the head
    belong to them.
    """
    now = labels_of(config)
    before = folder.identity().get(LABELS)
    if before is None and now:
        before = _labels_of_model(folder)
    if before and [*before] != now:
        then, current = (
            shorten(", ".join(map(repr, names)) or "numbers", 60, placeholder=" …")
            for names in (before, now)
        )
        raise DataError(
            f"{folder.path}: the labels are now {current}, but were {then} when the run began; "
            "restore the old data, or start another run with --out"
        )


def labels_of(config: ModelConfig) -> list[str]:
    """The labels that the data gives a model; none of a regression, which has one number."""
    if config.label_names is None or config.problem_type == REGRESSION:
        return []
    return [*config.labels]


def _labels_of_model(folder: RunFolder) -> Sequence[str]:
    """The labels of the saved model, if there is one. Checkpoints of earlier versions have none."""
    with suppress(TrifoldError):  # a damaged model is written again
        values = read_json(folder.below(folder.model) / CONFIG)
        return values.get("label_names") or labels_to_ours(values)["label_names"] or ()
    return ()


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
    before = folder.read_environment()
    changes = [
        f"{name} changed from {before[name]} to {value}"
        for name, value in environment.items()
        if before.get(name, value) != value and name != "platform"  # which does not affect bits
    ]
    if not changes:
        return []
    return [f"{', '.join(changes)}: results may differ in the last bits from here on"]


def _next_step(folder: RunFolder) -> int:
    """The number of the next update, counted from 1, after the newest checkpoint."""
    saved = checkpoint.list_checkpoints(folder.below(folder.checkpoints))
    if not saved:
        return 1
    return checkpoint.step_of(saved[-1]) + 1


def _schedule_changes(before: TrainSettings, now: TrainSettings, step: int) -> Iterator[str]:
    """What another number of steps does to the learning rate of update `step`, and a warmup that
    takes long beside it.
    """
    if before.steps == now.steps:
        return
    effect = "does not depend on the number of steps"
    if now.schedule in FINITE_SCHEDULES:
        effect = _effect_on_rate(before, now, step)
    yield (
        f"train.steps changed from {before.steps:,} to {now.steps:,}: the {now.schedule} "
        f"schedule {effect}"
    )
    is_warming_up = step < now.warmup < now.steps
    if is_warming_up and now.warmup > LONG_WARMUP * now.steps:
        yield (
            f"warning: train.warmup stays {now.warmup:,}, which is {now.warmup / now.steps:.0%} "
            f"of {now.steps:,} steps; a continued run keeps it, so for a shorter one start another "
            f"run, with --out and train.warmup={max(1, now.steps // 10)}"
        )


def _effect_on_rate(before: TrainSettings, now: TrainSettings, step: int) -> str:
    """What a schedule with an end does at update `step`, in shares of the peak rate."""
    planned = learning_rate(before, min(step, before.steps), 1.0)
    new = learning_rate(now, step, 1.0)
    end = f"now ends at step {now.steps:,}"
    if math.isclose(planned, new, abs_tol=SMALLEST_JUMP):
        return end
    return f"{end}, so the learning rate jumps here, from {planned:.0%} to {new:.0%} of its peak"


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
            dotted = f"{at}.{key}" if at else key
            yield from _differences(a.get(key), b.get(key), dotted)
    elif a != b:
        yield at, a
