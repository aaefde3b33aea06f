"""Baselines in `trifold eval`: those of the run of a model, on the rows that the model is scored
on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trifold.baselines.comparison import Comparison, MeasuredBaselines
from trifold.baselines.stored import FILE, load_baselines
from trifold.baselines.table import evaluated, kinds_of
from trifold.errors import CheckpointError, DataError
from trifold.folders import named
from trifold.hub.names import find_run_recipe
from trifold.objectives.evaluation import Evaluation
from trifold.recipe import Recipe
from trifold.train.baseline_advice import advise_baselines
from trifold.train.run_folder import RunFolder


class EvaluatedBaselines:
    """What `trifold eval` says of baselines. notes: why there are none, and advice."""

    def __init__(self, model: str, recipe: Recipe | None, task: Any) -> None:
        self.recipe = recipe
        self.task = task
        self.notes: list[str] = []
        self.run = _run_of(model)
        self.fitted = []
        if self.run is None or recipe is None or not kinds_of(evaluated(task)):
            return
        try:
            self.fitted = load_baselines(self.run)
        except CheckpointError as error:
            self.notes.append(f"warning: {error}")
        if not self.fitted and not self.notes and recipe.train.baselines:
            self.notes.append(f"no baseline is known: {self.run / FILE} is missing")

    def compare(self, rows: Any, examples: Any, evaluation: Evaluation) -> Comparison | None:
        """The scores of the model and of the baselines on rows, of which advice is added to the
        notes.
        """
        try:
            measured = MeasuredBaselines.on(self.task, self.fitted, rows, examples)
        except (CheckpointError, DataError) as error:
            self.notes.append(f"warning: {self.run}: {error}")
            measured = MeasuredBaselines.on(self.task, [], rows, examples)
        comparison = measured.compare(evaluation)
        if self.recipe is not None and self.run is not None:
            self.notes += advise_baselines(comparison, self.recipe, RunFolder(self.run), self.task)
        return comparison


def _run_of(model: str) -> Path | None:
    """The folder of the run that a model belongs to."""
    folder = named(Path(model).expanduser())
    if not folder.is_folder():
        return None
    recipe = find_run_recipe(folder) or find_run_recipe(folder.parent)
    return None if recipe is None else recipe.parent.path
