"""`trifold train`: train a model from a recipe."""

import signal
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import typer

from trifold.cli import runs
from trifold.cli.options import Json, argument, value
from trifold.cli.several import changes_by_run, train_each
from trifold.cli.terminal import is_main_process, print_json, print_note
from trifold.errors import wrapped

EXAMPLES = (
    "trifold train demo",
    "trifold train my.yaml data.train=a.en,a.de data.holdout=500",
    "trifold train demo --resume auto",
    "trifold train classify data.train=reviews.csv --seeds 5",
)


Changes = Annotated[
    list[str] | None, argument("[KEY=VALUE]...", "Settings to override, such as train.steps=2000.")
]
RunOut = Annotated[Path | None, value("FOLDER", "The folder.", show_default="runs/NAME")]
DataChanged = Annotated[
    bool, typer.Option("--data-changed", help="Continue although the data files have changed.")
]


def run(
    recipe: Annotated[
        str, argument("RECIPE", "A name from `trifold recipes`, a YAML file, or a run folder.")
    ],
    changes: Changes = None,
    out: RunOut = None,
    resume: Annotated[
        Literal["auto"] | None,
        typer.Option(help="Continue the run in the run folder, if there is one."),
    ] = None,
    data_changed: DataChanged = False,
    seeds: Annotated[str | None, value("N|A,B,…", "Train with these seeds.")] = None,
    folds: Annotated[int | None, value("N", "Cross-validate on folds.", min=2)] = None,
    json: Json = False,
) -> None:
    """Train a model from a recipe. Ctrl-C saves a checkpoint and prints how to continue."""
    with suppress(
        AttributeError, ValueError
    ):  # not on all systems; only the main thread may set handlers
        signal.signal(
            signal.SIGUSR1, signal.SIG_IGN
        )  # until training handles it, it would end the process
    try:
        from trifold.hub.folder import describe_folder
        from trifold.recipe import is_run, load_recipe
        from trifold.scores import score_text
        from trifold.train import train
        from trifold.train.launch import join_ranks

        with join_ranks() as ranks:
            chosen = ranks.in_turn(lambda: load_recipe(recipe, changes or (), imports_parts=True))
            out = Path(recipe) if out is None and is_run(recipe) else out
            if seeds is not None or folds is not None:
                folder = out or Path("runs") / chosen.name
                code = train_each(
                    chosen, changes_by_run(seeds, folds), folder, data_changed=data_changed
                )
                if is_main_process() and not code:
                    runs.run(folder, "date", json)
                raise typer.Exit(code)
            outcome = train(chosen, out=out, resume=resume, data_changed=data_changed)
    except (KeyboardInterrupt, SystemExit):
        if is_main_process():
            print_note("stopped immediately; continue with the same command and --resume auto")
        raise
    if not is_main_process():
        raise typer.Exit(outcome.exit_code)
    folder = outcome.folder
    if json:
        values = {
            "folder": str(folder),
            "seconds": round(outcome.seconds, 2),
            "finished": outcome.finished,
        }
        facts = outcome._asdict() | values
        del facts["exit_code"]
        print_json(facts)
    elif outcome.finished:
        if outcome.scores:
            scores = ", ".join(score_text(name, value) for name, value in outcome.scores.items())
            print(wrapped(f"validation:   {scores} at step {outcome.best_step:,}, the best"))
        print(f"model:        {describe_folder(folder / 'model')}")
        print(f"run folder:   {folder}")
        print(f"use it:       {chosen.task.usage(folder)}")
    raise typer.Exit(outcome.exit_code)
