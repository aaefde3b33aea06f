"""Sizes of a recipe that leaves them to its data, from the counted tokens.

The tokenizer is trained first. The positions of the model decide how much of a text is read, so the
rows are encoded with the most positions, counted, and then encoded as the model reads them. A
continued run keeps what is recorded in its recipe.yaml.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trifold.batches import BatchSettings, Blocks, plan_epoch
from trifold.nn import ModelConfig
from trifold.nn.checks import first_problem
from trifold.objectives.batch import Examples
from trifold.objectives.linear_path import has_path, has_path_of_texts, path_columns
from trifold.objectives.objective import BuildContext, Objective, TaskBundle
from trifold.objectives.plans import NEW, PATH, plan_for
from trifold.objectives.scheduled_sampling import fitting_k
from trifold.objectives.sizes import (
    MOST_POSITIONS,
    DataSize,
    Groups,
    comparison_for,
    measure_examples,
    schedule,
    sizes_for,
)
from trifold.recipe import Recipe, load_recipe, with_values
from trifold.train.resume import check_files_exist
from trifold.train.run_folder import RunFolder

GROUPS = ("task", "tokenizer", "model", "batch", "train")  # that sizes depend on
ESTIMATED = "estimated"  # key of environment.json: the sizes of a run that has counted nothing yet


class CountingReport:
    """Prints what is reported until the tokenizer is trained. What follows depends on the positions
    of the model, and is reported again when the rows are read with these.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.printed: list[str] = []
        self.has_tokenizer = False

    def __call__(self, line: str) -> None:
        is_of_tokenizer = line.startswith("tokenizer: ")
        if is_of_tokenizer or not self.has_tokenizer:
            self.printed.append(line)
            self.say(line)
        self.has_tokenizer |= is_of_tokenizer

    def again(self, line: str) -> None:
        """Print a line unless it has been printed while counting."""
        if line in self.printed:
            self.printed.remove(line)
        else:
            self.say(line)


def size_model(
    recipe: Recipe, context: BuildContext, build: Callable[[BuildContext], TaskBundle]
) -> tuple[Recipe, BuildContext]:
    """The recipe with the sizes of its model for the counted rows, and the context for it. Images
    have been counted before, and examples that fill the model are as long as it allows.
    """
    keys = [key for key in recipe.sized if key.startswith("model.") or key == "train.learning_rate"]
    if not any(key.startswith("model.") for key in keys) or recipe.task.data_kind == "images":
        return recipe, context
    report = CountingReport(context.report)
    model = context.model
    if "model.max_positions" in keys:
        model = model.model_copy(update={"max_positions": MOST_POSITIONS})
    bundle = build(replace(context, model=model, report=report, is_counted=True))
    if not bundle.objective.fills_width:
        size = _size_of_all(recipe, bundle.objective.examples(bundle.train))
        groups = _groups(recipe, bundle.config)
        sizes = sizes_for(groups, size, None, NEW)
        # The usual dropout, if the rows have nothing for a linear path, with which it is higher.
        sizes["model"].setdefault("dropout", ModelConfig().dropout)
        sizes["model"] |= _comparison(recipe, groups, bundle.objective)
        recipe = _with_chosen(recipe, keys, sizes)
    return recipe, replace(context, model=recipe.model, report=report.again)

    return recipe, replace(context, model=recipe.model, report=report.again)


def _comparison(recipe: Recipe, groups: Groups, objective: Objective) -> dict[str, Any]:
    """The settings with which a model compares two texts, if the rows have them and neither the
    tokenizer nor another setting of the model excludes it.
    """
    compares = objective.compares and objective.tokenizer.has_offsets
    chosen = comparison_for(groups, compares=compares)
    if compares and first_problem(recipe.model.model_copy(update=chosen)) is not None:
        return comparison_for(groups, compares=False)
    return chosen


def size_steps(recipe: Recipe, bundle: TaskBundle, examples: Examples, limit: int | None) -> Recipe:
    """The recipe with batches and steps for the counted examples, and with the settings of the task
    that follow from them. limit: the longest row that the model reads.
    """
    objective = bundle.objective
    groups = _groups(recipe, bundle.config)
    start = recipe.model if recipe.start_from is not None else None
    is_new = start is None
    plan = plan_for(recipe.task.kind, start, has_path=is_new and has_path_of_texts(bundle.config))
    fewest = round(plan.fewest_steps * recipe.data.trained_share)
    plan = plan._replace(fewest_steps=fewest)
    sizes = sizes_for(groups, _size_of_all(recipe, examples), start, plan)
    if objective.gathers:  # every row of a batch is compared with the others
        sizes["batch"]["tokens"] = BatchSettings().tokens
    recipe = _with_chosen(recipe, ["batch.tokens", "batch.rows"], sizes)
    updates = count_batches(recipe, examples, limit) / recipe.train.accumulate
    of_task = objective.counted_settings(examples)
    chosen = {"train": schedule(groups, updates, plan), "task": of_task}
    keys = [f"{group}.{key}" for group, settings in chosen.items() for key in settings]
    recipe = _with_chosen(recipe, keys, chosen)
    kept = {key: recipe.value(f"task.{key}") for key in of_task}
    if (k := _sampling_constant(recipe)) is not None:
        sampling: Any = recipe.value("task.scheduled_sampling")
        kept["scheduled_sampling"] = sampling.model_copy(update={"k": k})
        recipe = with_values(recipe, {"task.scheduled_sampling": kept["scheduled_sampling"]})
    if kept:
        objective.settings = objective.settings.model_copy(update=kept)
    return recipe


def _size_of_all(recipe: Recipe, examples: Examples) -> DataSize:
    """The size of the rows that a fold is a part of, so that its model and batches are those of
    all; of other runs, that of their examples.
    """
    size = measure_examples(examples)
    share = recipe.data.trained_share
    tokens, side, rows = (round(each / share) for each in (size.tokens, size.side, size.rows))
    return DataSize(tokens, side, size.longest, rows)


def count_batches(recipe: Recipe, examples: Examples, limit: int | None) -> int:
    """The number of batches of an epoch. limit: the longest row that the model reads."""
    settings = recipe.batch.model_copy(update={"max_length": limit})
    seed = recipe.train.seed
    if isinstance(examples, Blocks):
        return len(examples.plan(settings, seed=seed, epoch=0))
    return len(plan_epoch(examples.lengths, settings, seed=seed, epoch=0))


def _sampling_constant(recipe: Recipe) -> float | None:
    """The constant of scheduled sampling for the counted steps; None if a user has set it, or the
    steps.
    """
    given = recipe.chosen.get("task", {}).get("scheduled_sampling")
    if not isinstance(given, dict) or given.get("k") is not None:
        return None
    if "train.steps" not in recipe.sized:
        return None
    return fitting_k(given, recipe.train.steps)


def _with_chosen(recipe: Recipe, keys: list[str], chosen: dict[str, dict[str, Any]]) -> Recipe:
    """The recipe with those of the chosen settings that it leaves to its data."""
    values = dict[str, Any]()
    for dotted in keys:
        group, key = dotted.split(".")
        if dotted in recipe.sized and key in chosen.get(group, {}):
            values[dotted] = chosen[group][key]
    return with_values(recipe, values)


def _groups(recipe: Recipe, config: ModelConfig) -> dict[str, dict[str, Any]]:
    """The settings that are not left to the data. config: of the model, which lacks a linear path
    if the rows have none to read.
    """
    groups = {name: getattr(recipe, name).model_dump() for name in GROUPS}
    # Beside the path of pairs, a Transformer learns as one without.
    groups["model"][PATH] = has_path(config) and not path_columns(config).compared
    for dotted in recipe.sized:
        group, key = dotted.split(".")
        groups.get(group, {}).pop(key, None)
    return groups


# --- a run that is continued ----------------------------------------------------------------------


def with_recorded_sizes(recipe: Recipe, folder: RunFolder) -> Recipe:
    """The recipe with the sizes of an existing run that it continues. A run that was killed before
    anything was counted has none, and they are counted then.
    """
    if not folder.recipe.exists():
        return recipe
    if recipe.sized:
        check_files_exist(folder, recipe)
    recorded = load_recipe(folder.below(folder.recipe))
    keys = folder.read_environment().get(ESTIMATED, [])
    estimated = [key for key in keys if _is_size(key, recorded)]
    kept = with_values(recipe, {key: recorded.value(key) for key in recipe.sized})
    kept.sized[:] = estimated
    kept.size_notes.clear()
    return kept


def _is_size(key: Any, recipe: Recipe) -> bool:
    """Whether the name of a setting in a file is one that can be left to the data."""
    if not isinstance(key, str) or key.count(".") != 1:
        return False
    group, name = key.split(".")
    return group in GROUPS and name in type(getattr(recipe, group)).model_fields
