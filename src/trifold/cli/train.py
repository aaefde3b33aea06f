"""`trifold train`: learn what a recipe says."""

from __future__ import annotations

import shlex
import signal
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import typer

from trifold.cli.options import Json
from trifold.cli.streams import note, print_json, speaks

EXAMPLES = (
    "trifold train multi30k-en-de",
    "trifold train multi30k-en-de train.steps=2000 --out runs/short",
    "trifold train my.yaml data.train=a.en,a.de data.holdout=500",
    "trifold train multi30k-en-de --resume auto",
)


def run(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A name from `trifold recipes`, or a YAML file.")
    ],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change, such as train.steps=2000."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="The run folder.", show_default="runs/RECIPE"),
    ] = None,
    resume: Annotated[
        Literal["auto"] | None, typer.Option(help="Continue the run in that folder, where there is one.")
    ] = None,
    data_changed: Annotated[
        bool, typer.Option("--data-changed", help="Continue although the data files have changed.")
    ] = False,
    json: Json = False,
) -> None:
    """Train a model by a recipe; Ctrl-C saves and says how to continue."""
    with suppress(AttributeError, ValueError):  # not every system has it, and only the main thread may say so
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until training listens, it would end the process
    try:
        from trifold.recipe import load_recipe
        from trifold.train import train
        from trifold.train.distributed import join_ranks
        from trifold.train.monitor import choose_view

        with join_ranks() as ranks:
            chosen = ranks.in_turn(lambda: load_recipe(recipe, changes or ()))
            outcome = train(chosen, out=out, resume=resume, data_changed=data_changed, view=choose_view())
    except (KeyboardInterrupt, SystemExit):
        if speaks():
            note("stopped at once; go on with the same command and --resume auto")
        raise
    if not speaks():
        raise typer.Exit(outcome.exit_code)
    if json:
        print_json(
            {
                "folder": str(outcome.folder),
                "steps": outcome.steps,
                "seconds": round(outcome.seconds, 2),
                "scores": outcome.scores,
                "finished": outcome.finished,
                "stopped_by": outcome.stopped_by,
            }
        )
    elif outcome.finished:
        in_shell = Path(shlex.quote(str(outcome.folder)))
        for line in summary(outcome.folder, outcome.scores, chosen.task.usage(in_shell)):
            print(line)
    raise typer.Exit(outcome.exit_code)


def summary(folder: Path, scores: dict[str, float], command: str) -> list[str]:
    """The last scores, where everything is, and the command that uses it."""
    from trifold.train.monitor import score_text

    last = ", ".join(score_text(name, value) for name, value in scores.items())
    return [
        *([f"validation:          {last}"] if last else []),
        f"the model:           {folder / 'model'}  (a Hugging Face folder)",
        f"the whole run:       {folder}  (recipe.yaml, metrics.jsonl, checkpoints, samples)",
        f"use it:              {command}",
    ]
