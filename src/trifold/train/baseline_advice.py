"""What to try if a baseline is ahead of a model, or not clearly behind it."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trifold.baselines.comparison import Comparison, MeasuredSystem
from trifold.baselines.table import evaluated
from trifold.nn.config import REGRESSION
from trifold.recipe import Recipe, included_names
from trifold.scores import score_name
from trifold.train.run_folder import RunFolder

# Published checkpoints to start from, by the kind of the task.
CHECKPOINTS: Mapping[str, str] = {
    "images": "google/vit-base-patch16-224-in21k",
    "summarize": "facebook/bart-base",
}
OF_TASK = ("model.problem_type", "model.label_names")
ENCODER = "distilbert/distilbert-base-uncased"  # of texts
SENTENCES = "sentence-transformers/all-MiniLM-L6-v2"  # of embeddings


def advise_baselines(
    comparison: Comparison | None, recipe: Recipe, folder: RunFolder, task: Any
) -> list[str]:
    """A line that names the best baseline that the model is not clearly ahead of, and what to try,
    with the command; none if it is ahead of all.

    folder: of the run, which names its settings and the folder of the command. task: the objective.
    """
    rivals = [] if comparison is None else comparison.rivals
    if comparison is None or not rivals:
        return []
    key = comparison.score
    best = max(rivals, key=lambda rival: rival.scores[key])
    command = shlex.join(_command(recipe, folder, task))
    return [f"advice: {describe_rival(comparison, best)}; try more rows, or `{command}`"]


def describe_rival(comparison: Comparison, rival: MeasuredSystem) -> str:
    """How a baseline compares with a model that is not clearly ahead of it."""
    key = comparison.score
    found = rival.describe(key)
    ours = comparison.model.describe(key)
    name = score_name(key)
    if comparison.model.scores[key] < rival.scores[key]:
        if rival.lead is not None and rival.lead[1] < 0:
            return f"{rival.name} is ahead of this model ({name} {found} against {ours})"
        return (
            f"{rival.name} is ahead of this model ({name} {found} against {ours}), though other "
            "rows might change that"
        )
    return f"this model is not clearly ahead of {rival.name} ({name} {ours} against {found})"


def _command(recipe: Recipe, folder: RunFolder, task: Any) -> list[str]:
    """The command of another run that may be ahead."""
    changes = folder.read_changes()
    if _has_scores_of_pairs(task):
        kept = {name: value for name, value in changes.items() if name.startswith("data.")}
        return _train("similarity", kept | {"start_from": SENTENCES}, folder.path)
    base = CHECKPOINTS.get(recipe.task.evaluated.kind, ENCODER)
    if recipe.task.evaluated.kind == "embed":
        base = SENTENCES
    if recipe.start_from is not None:  # that one did not help
        base = "ANOTHER-MODEL"
    kept = {name: value for name, value in changes.items() if not _is_of_checkpoint(name)}
    name = recipe.name
    if name not in included_names():
        name += ".yaml"
    return _train(name, kept | {"start_from": base}, folder.path)


def _is_of_checkpoint(key: str) -> bool:
    """Whether a setting is that of a checkpoint: of its model or its tokenizer."""
    return key.startswith(("model.", "tokenizer.")) and key not in OF_TASK


def _has_scores_of_pairs(task: Any) -> bool:
    """Whether the rows are pairs of texts with numbers, which embeddings learn as well."""
    task = evaluated(task)
    return getattr(task, "problem", None) == REGRESSION and getattr(task, "pairs", False)


def _train(recipe: str, changes: Mapping[str, Any], folder: Path) -> list[str]:
    listed = [f"{name}={_value(value)}" for name, value in changes.items()]
    return ["trifold", "train", recipe, *listed, "--out", f"{folder}-2"]


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
