"""What to try if a baseline is ahead of a model, or not clearly behind it."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trifold.baselines.comparison import Comparison, Measured
from trifold.data import Rows
from trifold.nn.config import REGRESSION
from trifold.recipe import Recipe
from trifold.scores import score_name

# Published checkpoints to start from, by the kind of the task.
CHECKPOINTS: Mapping[str, str] = {
    "images": "google/vit-base-patch16-224-in21k",
    "summarize": "facebook/bart-base",
}
ENCODER = "distilbert/distilbert-base-uncased"  # of texts
SENTENCES = "sentence-transformers/all-MiniLM-L6-v2"  # of embeddings


def advise_baselines(
    comparison: Comparison | None, recipe: Recipe, folder: Path, train: Any = None
) -> list[str]:
    """A line that names the best baseline that the model is not clearly ahead of, and what to try,
    with the command; none if it is ahead of all.

    folder: of the run, after which that of the command is named. train: the training rows.
    """
    rivals = [] if comparison is None else comparison.rivals
    if comparison is None or not rivals:
        return []
    key = comparison.score
    best = max(rivals, key=lambda rival: rival.scores[key])
    command = shlex.join(_command(recipe, folder, train))
    return [f"advice: {describe_rival(comparison, best)}; try more rows, or `{command}`"]


def describe_rival(comparison: Comparison, rival: Measured) -> str:
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


def _command(recipe: Recipe, folder: Path, train: Any) -> list[str]:
    """The command of another run that may be ahead."""
    changes = {name: value for name, value in recipe.overrides.items() if value is not None}
    if _has_scores_of_pairs(recipe, train):
        kept = {name: value for name, value in changes.items() if name.startswith("data.")}
        return _train("similarity", kept | {"start_from": SENTENCES}, folder)
    base = CHECKPOINTS.get(recipe.task.evaluated.kind, ENCODER)
    if recipe.task.evaluated.kind == "embed":
        base = SENTENCES
    if recipe.start_from is not None:  # that one did not help
        base = "ANOTHER-MODEL"
    # The sizes of the model are those of the checkpoint.
    kept = {name: value for name, value in changes.items() if not name.startswith("model.")}
    return _train(recipe.name, kept | {"start_from": base}, folder)


def _has_scores_of_pairs(recipe: Recipe, train: Any) -> bool:
    """Whether the rows are pairs of texts with numbers, which embeddings learn as well."""
    if recipe.task.evaluated.kind != "classify" or recipe.model.problem_type != REGRESSION:
        return False
    return isinstance(train, Rows) and any(pair is not None for pair in train.columns["pair"])


def _train(recipe: str, changes: Mapping[str, Any], folder: Path) -> list[str]:
    listed = [f"{name}={_value(value)}" for name, value in changes.items()]
    return ["trifold", "train", recipe, *listed, "--out", f"{folder}-2"]


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
