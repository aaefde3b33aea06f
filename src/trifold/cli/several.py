"""Several runs of a recipe, one for each seed or each fold of the data, and the mean of their
scores.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from trifold.cli.runs import RECIPE, SUMMARY, RunFacts, describe_run
from trifold.errors import CheckpointError, DataError, UsageError
from trifold.folders import UntrustedPath, named, read_text
from trifold.jsonfiles import MAX_JSON, json_line, read_json

MAX_RUNS = 1_000  # of one command
MAX_DIGITS = 20  # of a seed below 2^64


def changes_by_run(seeds: str | None, folds: int | None) -> dict[str, dict[str, Any]]:
    """The name of each run and the settings that it changes. Raises UsageError for fewer than two
    seeds.
    """
    if seeds is None:
        if (folds or 0) > MAX_RUNS:
            raise UsageError(f"--folds {folds}: at most {MAX_RUNS:,} runs are trained; use fewer")
        numbers = range(1, (folds or 0) + 1)
        return {
            f"fold-{n}": {"data.valid": None, "data.holdout": f"fold:{n}/{folds}"} for n in numbers
        }
    chosen = _parse_seeds(seeds)
    if len(chosen) > MAX_RUNS:
        raise UsageError(f"--seeds {seeds:.40}: at most {MAX_RUNS:,} runs are trained; use fewer")
    if folds is not None or len(chosen) < 2:
        raise UsageError(
            f"--seeds {seeds:.40}: give a number of seeds (5) or a list (1,2,3), and no --folds"
        )
    return {f"seed-{seed}": {"train.seed": seed} for seed in chosen}


def _parse_seeds(text: str) -> Sequence[int]:
    """The seeds of a list, or the first ones for a number; empty for another text."""
    parts = text.split(",")
    if not all(part.isdecimal() and len(part) <= MAX_DIGITS for part in parts):
        return []
    numbers = list(map(int, parts))
    if len(numbers) == 1:
        return range(1, 1 + min(numbers[0], MAX_RUNS + 1))
    return sorted({*numbers})


def train_each(recipe: Any, changes: dict[str, dict[str, Any]], out: Path, **options: Any) -> int:
    """Train the runs that are not finished, until a signal, and write summary.json. Returns the
    exit code. Raises DataError if the data of a finished run has changed since, unless
    `data_changed` accepts it; UsageError for a summary.json of another program.
    """
    from trifold import disk
    from trifold.train import train
    from trifold.train.data_files import check_same_data
    from trifold.train.run_folder import RunFolder
    from trifold.train.sizing import with_recorded_sizes
    from trifold.train.stages import changed

    _check_summary(named(out) / SUMMARY)
    for name, changes_of_run in changes.items():
        chosen = changed(recipe, changes_of_run)
        folder = named(out) / name
        is_finished = describe_run(folder, name).state == "finished"
        same = with_recorded_sizes(chosen, RunFolder(folder.path))
        if is_finished and read_text(folder / RECIPE, MAX_JSON) == same.resolved():
            if not options["data_changed"]:  # a mean of runs with different data means nothing
                check_same_data(RunFolder(folder.path), chosen, changed=False)
            continue
        disk.remove(out / SUMMARY)  # of other runs than those that will be there
        outcome = train(chosen, out=folder.path, resume="auto", **options)
        if not outcome.finished:
            return outcome.exit_code
    runs = [describe_run(named(out) / name, name) for name in changes]
    values = [_score_of(facts, out) for facts in runs]
    summary = {"score": runs[0].score, "mean": mean(values), "deviation": stdev(values)}
    disk.replace_text(
        out / SUMMARY, json_line(summary | {"runs": [asdict(facts) for facts in runs]})
    )
    return 0


def _check_summary(file: UntrustedPath) -> None:
    """Raises UsageError for a file that this module has not written."""
    if not file.exists():
        return
    try:
        is_ours = "runs" in read_json(file)
    except CheckpointError:
        is_ours = False
    if not is_ours:
        raise UsageError(f"{file}: is not of trifold, and is not replaced; choose another --out")


def _score_of(run: RunFacts, out: Path) -> float:
    """Raises DataError for a run without its last validation or without a score, which would make
    the mean wrong.
    """
    if run.state == "finished" and run.value is not None:
        return run.value
    problem = f"has no validation with a finite {run.score!r}"
    if run.state != "finished":
        problem = f"has ended, but is {run.state} according to its files"
    raise DataError(
        f"{out / run.run}: {problem}; remove the folder and repeat the command, which trains it "
        "again"
    )
