"""Is this the run that was begun? What may differ when it is continued, and what that does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trifold.errors import SettingsError
from trifold.recipe import ENDING, Recipe, TrainSettings, load_recipe
from trifold.train.run_folder import RunFolder, read_object

# These change how long and how loudly a run goes on, not what it learns from a step.
FREE: tuple[str, ...] = (
    *("name", "description", "generate"),
    *("train.device", "train.log_every", "train.minutes", "train.patience"),
    *("train.recompute", "train.samples", "train.steps", "train.sharding"),
    *("train.keep_every", "train.keep_best", "train.save_behind", "train.check_memory"),
    # What to do about trouble that has come up since the run was begun.
    *("train.on_nonsense", "train.on_spike", "train.spike_factor", "train.spike_window", "train.skip_limit"),
)
# These too, unless earlier checkpoints are averaged.
FREE_ALONE: tuple[str, ...] = ("train.save_every", "train.keep_last")


def check_same_run(recipe: Recipe, folder: RunFolder) -> list[str]:
    """Compare with the recipe.yaml that lies there; gives a line for each change that moves the learning rate.

    Raises SettingsError listing what must not differ.
    """
    written = folder.recipe
    if not written.is_file():
        return []
    before = load_recipe(written)
    free = FREE if recipe.train.average > 1 else FREE + FREE_ALONE
    changed = list(_differences(before.model_dump(), recipe.model_dump()))
    if refused := [key for key in changed if not any(_covers(known, key) for known in free)]:
        raise SettingsError(
            f"{written}: the run was begun with other values of {', '.join(refused)}; "
            "resume it with the same ones, or begin another run with --out"
        )
    return list(_moved_rates(before.train, recipe.train))


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
)


def changed_environment(folder: RunFolder, here: Mapping[str, Any]) -> list[str]:
    """A line where versions, device, threads or precision are others than when the run was last seen."""
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
    elif now.schedule not in ENDING:
        moved = "does not know its end, so the learning rate goes on as it was"
    yield f"train.steps was {before.steps:,} and is {now.steps:,}: the {now.schedule} schedule {moved}"


def _covers(free: str, key: str) -> bool:
    return key == free or key.startswith(free + ".")


def _differences(a: Any, b: Any, at: str = "") -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({*a, *b}):
            yield from _differences(a.get(key), b.get(key), f"{at}.{key}" if at else key)
    elif a != b:
        yield at
