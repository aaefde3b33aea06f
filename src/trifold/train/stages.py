"""Recipes that derive from another one: with other values, and its first stage."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trifold.data.catalog import program_for
from trifold.errors import SettingsError
from trifold.nn import ModelConfig
from trifold.recipe import Recipe, carry_facts, named_files, set_key, settle
from trifold.train.monitor import Outcome, View
from trifold.train.run_folder import PRETRAINED


def changed(recipe: Recipe, changes: dict[str, Any]) -> Recipe:
    """The recipe with other values of dotted keys."""
    values = recipe.model_dump()
    for key, value in changes.items():
        set_key(values, key, value)
    derived = carry_facts(recipe, Recipe.parse(values))
    derived.overrides.update(changes)
    derived.sized[:] = [key for key in recipe.sized if key not in changes]
    return derived


def pretrain(
    recipe: Recipe, out: Path, view: View, train: Callable[..., Outcome]
) -> tuple[Outcome, Recipe]:
    """Train the first stage of a recipe in `out`; its outcome, and the recipe of the second, which
    starts from it.
    """
    stage = recipe.pretrain or {}
    kind = recipe.task.kind
    task: dict[str, str] = {}
    if "kind" not in stage.get("task", {}):  # by default, the texts of the task are masked
        if kind not in ("classify", "tag", "answer"):
            raise SettingsError(f"pretrain: requires task.kind classify, tag or answer, not {kind}")
        task = {"kind": "masked", "texts_of": kind}
    values = recipe.model_dump(exclude={"pretrain", "generate"})
    labels = ModelConfig().model_dump(include={"heads", "n_labels", "label_names", "problem_type"})
    values |= {"task": task, "model": values["model"] | labels}
    values = _merge(values, stage)
    chosen = _merge({**recipe.chosen, "pretrain": {}}, recipe.chosen.get("pretrain") or {})
    for line in settle(values, chosen):
        view.say(line)
    first = Recipe.parse(values)
    first.chosen.update(chosen)
    model = str(out / PRETRAINED / "model")
    second = changed(recipe, {"pretrain": None, "start_from": model, "tokenizer.file": model})
    view.say(f"pretraining in {out / PRETRAINED}; repeat with --resume auto to continue")
    return train(first, out=out / PRETRAINED), second


def check_made_files(stage: Mapping[str, Any]) -> None:
    """Raises SettingsError if a first stage, or one before it, reads a missing file that a program
    of the examples makes.
    """
    for file in named_files(stage):
        if (program := program_for(file)) and not Path(file).exists():
            raise SettingsError(
                f"pretrain: {file} is not here; `{program}`, in the source of trifold, writes it, "
                "and pretrain=null leaves the first stages out"
            )


def _merge(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """The values of a recipe with those of a stage, whose groups are merged."""
    merged = dict(values)
    for name, value in more.items():
        if isinstance(value, dict):
            value = {**values.get(name, {}), **value}
        merged[name] = value
    return merged
