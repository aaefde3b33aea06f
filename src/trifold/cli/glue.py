"""`trifold glue`: score the runs of the nine tasks of GLUE on its dev sets, and average them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from trifold.cli.batch import load_pipeline
from trifold.cli.eval import EvalRequest, check, find_recipe, validate
from trifold.cli.options import BatchSize, Device, Dtype, Json, Weights, argument
from trifold.cli.terminal import print_json, print_note, print_table
from trifold.errors import UsageError

if TYPE_CHECKING:
    from trifold.pipeline import Pipeline

EXAMPLES = ("trifold glue", "trifold glue runs --json")


def run(
    folder: Annotated[
        Path, argument("[FOLDER]", "Where the runs glue-cola, glue-sst2, … are.")
    ] = Path("runs"),
    batch_size: BatchSize = None,
    device: Device = None,
    dtype: Dtype = "float32",
    weights: Weights = "file",
    json: Json = False,
) -> None:
    """Score the runs of the nine recipes glue-… on the dev sets of GLUE, and average them.

    The score of a task is the mean of its scores, MNLI's of both sets; the total is the mean of the
    nine tasks. A task without a run or without data is left out with a line, and then there is no
    total.
    """
    from trifold.scores.glue import TASKS, mean

    machine: dict[str, Any] = {"device": device, "dtype": dtype, "weights": weights}
    scored = dict[str, dict[str, float]]()
    skipped = dict[str, str]()
    for name in TASKS:
        model = folder / f"glue-{name}"
        skipped[name] = _problem(name, model)
        if not skipped[name]:
            del skipped[name]
            load = partial(load_pipeline, str(model), **machine)
            scored[name] = _score(name, str(model), batch_size, load)
    if not scored:
        raise UsageError(
            f"{folder}: no run of a task of GLUE; train one with `trifold train glue-sst2`, or "
            "name the folder of the runs"
        )
    means = {name: mean([*values.values()]) for name, values in scored.items()}
    total = None if skipped else mean([*means.values()])
    if json:
        print_json(scores=scored, means=means, total=total, skipped=skipped)
    else:
        _print_scores(scored, means, total)
    for name, problem in skipped.items():
        print_note(f"{name} is left out: {problem}")


def _problem(name: str, model: Path) -> str:
    """Why a task cannot be scored; empty if it can."""
    from trifold.data import expand_path
    from trifold.data.catalog import missing_remedy

    recipe = find_recipe(str(model))
    if recipe is None or not (model / "model").is_dir():
        return f"no run {model}; `trifold train glue-{name}` trains one"
    for file in _files(name, recipe.data.test):
        path = expand_path(file)
        if not path.exists():
            return f"{path} is missing; {missing_remedy(path) or 'copy it there'}"
    return ""


def _files(name: str, test: Any) -> list[str]:
    """The sets on which a task is scored."""
    from trifold.scores.glue import TASKS

    second = TASKS[name].second
    return [str(test), second] if second else [str(test)]


def _score(
    name: str, model: str, batch_size: int | None, load: Callable[[], Pipeline]
) -> dict[str, float]:
    """The scores of a task by name, with the number of the set if there are several."""
    from trifold.data import expand_path
    from trifold.scores.glue import task_scores

    recipe = find_recipe(model)
    assert recipe is not None, "see `_problem`"
    files = _files(name, recipe.data.test)
    scores = dict[str, float]()
    for number, file in enumerate(files, start=1):
        print_note(f"{name}: {file}")
        data = [str(expand_path(file))]
        request = EvalRequest(model, recipe, data, None, batch_size, {}, load)
        check(request)
        measured = task_scores(name, validate(request).values["scores"])
        label = f" {number}" if len(files) > 1 else ""
        scores |= {f"{score}{label}": value for score, value in measured.items()}
    return scores


def _print_scores(
    scored: dict[str, dict[str, float]], means: dict[str, float], total: float | None
) -> None:
    from trifold.scores.glue import mean

    rows = list[tuple[str, str, str]]()
    for name, values in scored.items():
        shown = ", ".join(f"{score} {value:.1f}" for score, value in values.items())
        rows.append((name, shown, f"{means[name]:.1f}"))
    if total is None:
        partial_mean = mean([*means.values()])
        rows.append((f"{len(means)} of 9", "their mean, which is no total", f"{partial_mean:.1f}"))
    else:
        rows.append(("GLUE", "mean of the nine tasks", f"{total:.1f}"))
    print_table([("task", "scores", "score"), *rows], "  r")
