"""`trifold train --folds`: every row with what the model that has not seen it predicts, the most
doubtful label first.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from trifold.cli.batch import load_pipeline
from trifold.cli.eval import REPORTED, EvalRequest, encode_rows, find_recipe, open_validation
from trifold.cli.report import write_table
from trifold.nn.config import REGRESSION
from trifold.objectives.evaluation import Sample
from trifold.recipe import Recipe

DOUBTS = "doubts.tsv"


class PredictedRow(NamedTuple):
    """A row of a file with its label and the prediction. size: its probability, or of a regression
    the distance from the label.
    """

    file: str
    line: int
    sample: Sample
    size: float

    def rank(self, *, is_regression: bool) -> tuple[bool, float]:
        """The place in the list: wrong predictions with a high probability, then right ones with a
        low one; of a regression large distances.
        """
        is_right = self.sample.reference == self.sample.ours
        if is_right and not is_regression:
            return is_right, self.size
        return False, -self.size


def write_doubts(out: Path, folds: Sequence[str]) -> Path | None:
    """Write the rows of all folds, runs in the folder `out`, to a table in it. Returns the table;
    None if the task has no labels.
    """
    rows: list[PredictedRow] = []
    is_regression = False
    for name in folds:
        run = out / name
        recipe = find_recipe(str(run))
        if recipe is None or recipe.task.evaluated.kind not in REPORTED:
            return None
        task, predicted = _predict(run, recipe)
        is_regression = getattr(task, "problem", None) == REGRESSION
        rows += predicted
    rows.sort(key=lambda row: row.rank(is_regression=is_regression))
    last = "error" if is_regression else "probability"
    table: list[Sequence[object]] = [("file", "line", "text", "label", "predicted", last)]
    for row in rows:
        table.append((row.file, row.line, *row.sample, f"{row.size:.4f}"))
    file = out / DOUBTS
    write_table(file, table)
    return file


def _predict(run: Path, recipe: Recipe) -> tuple[Any, list[PredictedRow]]:
    """The task of a fold, and the predictions for the rows that are held out."""
    load = partial(load_pipeline, str(run))
    request = EvalRequest(
        str(run), recipe, [], "valid", None, {}, load, report=lambda _line: None, folder=run
    )
    pipeline, task, rows, context = open_validation(request)
    evaluation = task.evaluate(pipeline.model, rows, encode_rows(request, task, rows), context)
    is_regression = getattr(task, "problem", None) == REGRESSION
    file = rows.report.name.removeprefix("held out of ")
    predicted = []
    found = zip(rows.lines, evaluation.samples, evaluation.confidences, strict=False)
    for line, sample, size in found:
        if is_regression:
            assert sample.reference is not None  # the row has a label
            size = abs(float(sample.reference) - float(sample.ours))
        predicted.append(PredictedRow(file, line, sample, size))
    return task, predicted
