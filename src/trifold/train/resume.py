"""Is this the run that was begun? What may differ when it is continued, and what that does.

Every checkpoint says of which run it is (`identity`), under its manifest. So recipe.yaml and the tokenizer, which lie
open to whoever has an editor and to every bad disk, are taken for what they were only where they still are that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trifold.errors import DataError, SettingsError
from trifold.recipe import FINITE_SCHEDULES, Recipe, TrainSettings, load_recipe
from trifold.train import checkpoint
from trifold.train.run_folder import IDENTITY, RunFolder, read_object
from trifold.train.same_data import data_digest, written_data

# These change how long and how loudly a run goes on, not what it learns from a step.
FREE: tuple[str, ...] = (
    *("name", "description", "generate"),
    *("train.device", "train.log_every", "train.minutes", "train.patience"),
    *("train.recompute", "train.samples", "train.steps", "train.sharding"),
    *("train.keep_every", "train.keep_best", "train.async_save", "train.check_memory"),
    # What to do about trouble that has come up since the run was begun.
    *("train.on_nonfinite", "train.on_spike", "train.spike_factor", "train.spike_window", "train.skip_limit"),
)
# These too, unless earlier checkpoints are averaged.
FREE_ALONE: tuple[str, ...] = ("train.save_every", "train.keep_last")


def check_same_run(recipe: Recipe, folder: RunFolder) -> list[str]:
    """Compare with the recipe.yaml that lies there, and with what the checkpoints say of it and of the tokenizer.

    Gives a line for each change that moves the learning rate.

    Raises SettingsError listing what must not differ, DataError naming a file of the tokenizer.
    """
    written, known = folder.recipe, folder.identity()
    if not written.is_file():
        return []
    before = load_recipe(written)
    begun = _as_begun(known["recipe"], recipe) if "recipe" in known else before
    free = _free(recipe)
    changed = _differences(begun.model_dump(), recipe.model_dump())
    if refused := [f"{key} ({was!r:.60})" for key, was in changed if not _covered(key, free)]:
        raise SettingsError(
            f"{written}: the run was begun with other values of {', '.join(refused)}; "
            "resume it with the same ones, or begin another run with --out"
        )
    _check_tokenizer(folder, known)
    return list(_moved_rates(before.train, recipe.train))


def check_reading(folder: RunFolder, rows: str, *, changed: bool) -> str:
    """Compare what was made of the data, tokenizer and rows, with what was made of it when the run was begun.

    rows: the fingerprint of the training rows, which is given back. changed: whether the data may be another. Raises
    DataError.
    """
    known = folder.identity()
    _check_tokenizer(folder, known)
    same = known.get("data") == data_digest(written_data(folder)) and not changed
    if same and rows != known["rows"]:
        raise DataError(
            f"{folder.path}: the same data is read as {rows}, and when the run was begun it was {known['rows']}; go on "
            "with the versions that environment.json had, or with these rows: --data-changed"
        )
    return rows


def identity(recipe: Recipe, folder: RunFolder, rows: str) -> dict[str, Any]:
    """What a checkpoint says of its run: the settings that must not differ, digests of the tokenizer's files and of the
    data, and a fingerprint of the training rows.
    """
    told = {
        "recipe": _bound(recipe.model_dump(), _free(recipe)),
        "tokenizer": _tokenizer_digests(folder),
        "data": data_digest(written_data(folder)),
        "rows": rows,
    }
    return {IDENTITY: told}


def _tokenizer_digests(folder: RunFolder) -> dict[str, str]:
    files = sorted(path for path in folder.tokenizer.glob("[!.]*") if path.is_file())
    return {path.name: checkpoint.digest_of(path) for path in files}


def _check_tokenizer(folder: RunFolder, known: Mapping[str, Any]) -> None:
    """Of the files that are there; those that are not will be made anew, and then be looked at again."""
    before = known.get("tokenizer", {})
    for name, digest in _tokenizer_digests(folder).items():
        if before.get(name, digest) != digest:
            raise DataError(
                f"{folder.tokenizer / name}: damaged, or not the one with which the run was begun; put the old one "
                f"back, or remove {folder.tokenizer}, which is made anew of the same data"
            )


# Of environment.json: what the last bits of a result depend on.
DECIDING = (
    "trifold",
    "git",
    "torch",
    "numba",
    "python",
    "device",
    "device_name",
    "precision",
    "threads",
    "workers",
    "ranks",
    "compiled",
    "fast",
)


def changed_environment(folder: RunFolder, here: Mapping[str, Any]) -> list[str]:
    """A line where versions, device, threads, precision or the like are others than when the run was last seen."""
    before = read_object(folder.environment)
    changed = [
        f"{name} was {before[name]} and is {here[name]}"
        for name in DECIDING
        if name in before and before[name] != here[name]
    ]
    return [f"{', '.join(changed)}: from here on the last bits may differ"] if changed else []


def _moved_rates(before: TrainSettings, now: TrainSettings) -> Iterator[str]:
    if before.steps == now.steps:
        return
    moved = "is stretched to the new end, so the learning rate jumps here"
    if now.schedule == "warmup-stable-decay":
        moved = "decays before the new end; where the decay had begun, the learning rate jumps here"
    elif now.schedule not in FINITE_SCHEDULES:
        moved = "does not know its end, so the learning rate goes on as it was"
    yield f"train.steps was {before.steps:,} and is {now.steps:,}: the {now.schedule} schedule {moved}"


def _free(recipe: Recipe) -> tuple[str, ...]:
    return FREE if recipe.train.average > 1 else FREE + FREE_ALONE


def _covered(key: str, free: Sequence[str]) -> bool:
    return any(key == each or key.startswith(each + ".") for each in free)


def _bound(values: Mapping[str, Any], free: Sequence[str], at: str = "") -> dict[str, Any]:
    """The settings that are not free."""
    return {
        key: _bound(value, free, f"{at}{key}.") if isinstance(value, dict) else value
        for key, value in values.items()
        if not _covered(at + key, free)
    }


def _as_begun(bound: Mapping[str, Any], recipe: Recipe) -> Recipe:
    """The settings of a checkpoint; its free ones are those of the recipe, and those it did not know yet, the usual."""
    return Recipe.parse(_laid_over(bound, recipe.model_dump()))


def _laid_over(bound: Mapping[str, Any], now: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    both = {k: _laid_over(bound[k], v, f"{at}{k}.") for k, v in now.items() if _are_groups(bound.get(k), v)}
    free = {k: v for k, v in now.items() if k not in bound and _covered(at + k, FREE + FREE_ALONE)}
    return {**bound, **both, **free}


def _are_groups(*values: Any) -> bool:
    return all(isinstance(value, dict) for value in values)


def _differences(a: Any, b: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys with differing values, and what they are in `a`."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({*a, *b}):
            yield from _differences(a.get(key), b.get(key), f"{at}.{key}" if at else key)
    elif a != b:
        yield at, a
