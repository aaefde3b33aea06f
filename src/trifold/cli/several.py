"""Several runs of a recipe, one for each seed or each fold of the data, and the mean of their scores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from math import nan
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from trifold.cli.terminal import is_main_process, print_table
from trifold.errors import TrifoldError, UsageError
from trifold.jsonfiles import read_json

if TYPE_CHECKING:
    from trifold.recipe import Recipe

SUMMARY = "summary.json"


def changes_by_run(seeds: str | None, folds: int | None) -> dict[str, dict[str, Any]]:
    """The name of each run and the settings that it changes. Raises UsageError for fewer than two seeds."""
    if seeds is None:
        numbers = range(1, (folds or 0) + 1)
        return {f"fold-{n}": {"data.valid": None, "data.holdout": f"fold:{n}/{folds}"} for n in numbers}
    given = list(map(int, seeds.split(","))) if all(map(str.isdecimal, seeds.split(","))) else []
    chosen = set(given if len(given) > 1 else range(1, 1 + sum(given)))
    if folds is not None or len(chosen) < 2:
        raise UsageError(f"--seeds {seeds}: give a number of seeds (5) or a list (1,2,3), and no --folds")
    return {f"seed-{seed}": {"train.seed": seed} for seed in sorted(chosen)}


def train_each(recipe: Recipe, changes: Mapping[str, dict[str, Any]], out: Path, **options: Any) -> int:
    """Train the runs that are not finished, and write the scores to summary.json. Returns the exit code.

    After a run that a signal stops, the others do not begin. options: those of `trifold.train`.
    """
    from trifold import disk
    from trifold.train import train
    from trifold.train.stages import changed

    before, runs = read_summary(out).get("runs", {}), dict[str, dict[str, Any]]()
    for name, chosen in {name: changed(recipe, each) for name, each in changes.items()}.items():
        with suppress(OSError):
            if name in before and (out / name / "recipe.yaml").read_text("utf-8") == chosen.resolved():
                runs[name] = before[name]
                continue
        outcome = train(chosen, out=out / name, resume="auto", **options)
        if not outcome.finished:
            return outcome.exit_code
        runs[name] = {f"valid/{key}": value for key, value in outcome.scores.items()}
        if is_main_process():
            runs[name] |= _test_scores(out / name, chosen)
            disk.replace_text(out / SUMMARY, json.dumps(_summarize(runs), indent=2) + "\n")
    return 0


def _test_scores(folder: Path, recipe: Recipe) -> dict[str, float]:
    """The scores of the best weights on the test set of a labelled task; of other tasks, they may take long."""
    from trifold.cli.batch import load_pipeline
    from trifold.cli.eval import Request, open_validation

    if recipe.data.test is None or recipe.task.evaluated.data_kind != "table":
        return {}
    load = partial(load_pipeline, str(folder))
    pipeline, task, rows, context = open_validation(Request(str(folder), recipe, [], "test", None, {}, load))
    found = task.evaluate(pipeline.model, rows, task.examples(rows), context)
    return {f"test/{key}": value for key, value in found.scores.items()}


def _summarize(runs: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    values = {key: [run[key] for run in runs.values() if key in run] for run in runs.values() for key in run}
    spread = {key: stdev(each) for key, each in values.items() if len(each) > 1}
    return {"runs": runs, "mean": {key: mean(each) for key, each in values.items()}, "deviation": spread}


def read_summary(out: Path) -> dict[str, Any]:
    """The content of summary.json; empty if there is none."""
    with suppress(TrifoldError):
        return read_json(out / SUMMARY)
    return {}


def print_summary(out: Path) -> None:
    """Print the scores in summary.json, if it exists: mean ± standard deviation (n - 1), and those of each run."""
    from trifold.scores import DIGITS

    if not (found := read_summary(out)):
        return
    runs, rows = found["runs"], [("score", "mean ± sd", " ".join(found["runs"]))]
    for key, value in found["mean"].items():
        each = value, found["deviation"].get(key, nan), *(run.get(key, nan) for run in runs.values())
        average, spread, *values = (f"{number:6.{DIGITS.get(key.rpartition('/')[2], 2)}f}" for number in each)
        rows.append((key, f"{average} ± {spread.strip()}", " ".join(values)))
    print_table(rows, " r")
