"""`trifold study`: train models of several sizes on several numbers of tokens, and fit the law of
their losses.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trifold import disk
from trifold.cli.interruption import INTERRUPTED, continued_by_the_same_command
from trifold.cli.options import Json, Overwrite, argument
from trifold.cli.terminal import print_json, print_note, print_table
from trifold.cli.train import Changes, RunOut
from trifold.errors import TrifoldError, UsageError

if TYPE_CHECKING:
    from trifold.train.power_law import Law
    from trifold.train.study import StudyRun

RESULTS = ("study.tsv", "study.png")
EXAMPLES = (
    "trifold study examples/scaling.yaml",
    "trifold study scaling.yaml tokens=[250000,500000,1000000] --out runs/short",
    "trifold study scaling.yaml --json",
)


def run(
    study: Annotated[Path, argument("STUDY", "The YAML file of the study.")],
    changes: Changes = None,
    out: RunOut = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Train each size on each number of tokens, and fit L(N, D) = E + A/N^alpha + B/D^beta to the
    losses.

    N: parameters without embeddings and head. D: tokens. Intervals are those of a bootstrap over
    the runs. Complete runs are not repeated: after Ctrl-C, or with more sizes or tokens, the same
    command continues. study.tsv and study.png are written to the folder.
    """
    from trifold.look.plots import draw_law
    from trifold.train.power_law import FORM, fit
    from trifold.train.study import load_study, plan_runs

    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UsageError("a study trains in one process; start it without torchrun")
    settings = load_study(study, changes or ())
    folder = out or Path("runs") / settings.name
    runs = plan_runs(settings, folder)
    if not any(run.folder.path.exists() for run in runs):  # the results are not of this study
        for file in RESULTS:
            disk.check_free(folder / file, overwrite=overwrite)
    with continued_by_the_same_command():
        _train_runs(runs)
    results = [run.result() for run in runs]
    points = [(result["parameters"], result["tokens"]) for result in results]
    losses = [result["loss"] for result in results]
    law = fit(points, losses, settings.resamples)
    table, picture = RESULTS
    _write_results(folder / table, results)
    try:
        draw_law(law, points, losses, folder / picture)
    except TrifoldError as error:
        print_note(f"no {picture}: {error.message}")
    if json:
        print_json(folder=str(folder), runs=results, law={"form": FORM, **law._asdict()})
    else:
        _print_law(law, results, settings.resamples)


def _train_runs(runs: Sequence[StudyRun]) -> None:
    """Train the runs that are not complete; exit if training was interrupted."""
    from trifold.train.loop import train

    for number, run in enumerate(runs, start=1):
        if run.is_complete:
            continue
        size = f"size {run.size}: {run.parameters:,} parameters, {run.tokens:,} tokens"
        print_note(f"run {number} of {len(runs)}, {size}")
        outcome = train(run.recipe, out=run.folder.path, resume="auto")
        if outcome.exit_code == INTERRUPTED:
            raise KeyboardInterrupt
        if not outcome.finished:
            print_note("the same command continues the study")
            raise typer.Exit(outcome.exit_code)


def _write_results(file: Path, results: Sequence[Mapping[str, Any]]) -> None:
    """Write a table with a row for each run, and the names of the values above."""
    rows = [[*results[0]], *(result.values() for result in results)]
    lines = ("\t".join(map(str, row)) for row in rows)
    disk.replace_text(file, "".join(f"{line}\n" for line in lines))


def _print_law(law: Law, results: Sequence[Mapping[str, Any]], resamples: int) -> None:
    """Print the losses beside those of the law, and its parameters with their intervals."""
    from trifold.train.power_law import FORM

    form = "{size} {parameters:,} {tokens:,} {loss:.4f} {law:.4f} {flops:.2e} {seconds:.0f}"
    heading = ("size", "N", "tokens", "loss", "law", "FLOPs", "seconds")
    cells = []
    for result in results:
        predicted = law.loss(result["parameters"], result["tokens"])
        cells.append(form.format(**result, law=predicted).split())
    print_table([heading, *cells], " rrrrrr")
    print(f"\n{FORM}\n{len(results)} runs, {resamples:,} resamples, mean error {law.error:.2%}\n")
    rows = [("parameter", "estimate", "95 % interval")]
    for name, estimate in law.estimates.items():
        low, high = law.intervals[name]
        rows.append((name, f"{estimate:.4g}", f"{low:.4g} to {high:.4g}"))
    print_table(rows, " rr")
