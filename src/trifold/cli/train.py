"""`trifold train`: train a model from a recipe."""

from __future__ import annotations

import shlex
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from trifold.cli import runs
from trifold.cli.options import Json, argument, value
from trifold.cli.several import changes_by_run, train_each
from trifold.cli.terminal import is_main_process, print_json, print_note
from trifold.errors import wrapped
from trifold.folders import AnyPath, named

if TYPE_CHECKING:
    from trifold.recipe import Recipe
    from trifold.train import Outcome

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
    train_recipe(recipe, changes, out, resume, data_changed, seeds, folds, json=json)


def train_recipe(
    recipe: AnyPath,
    changes: list[str] | None,
    out: Path | None,
    resume: Literal["auto"] | None,
    data_changed: bool,
    seeds: str | None = None,
    folds: int | None = None,
    *,
    json: bool,
) -> None:
    """Train a recipe, which was named or found in the folder of a run, and print the outcome."""
    _ignore_user_signal()
    try:
        from trifold.recipe import is_run, load_recipe
        from trifold.train import train
        from trifold.train.launch import join_ranks

        with join_ranks() as ranks:
            settings = ranks.in_turn(lambda: load_recipe(recipe, changes or (), imports_parts=True))
            if out is None and is_run(recipe):
                out = named(recipe).path
            if seeds is not None or folds is not None:
                command = _command(recipe, changes, out, seeds, folds, data_changed=data_changed)
                _train_several(
                    settings, out, seeds, folds, command, data_changed=data_changed, json=json
                )
            outcome = train(settings, out=out, resume=resume, data_changed=data_changed)
    except (KeyboardInterrupt, SystemExit) as stop:
        command = _command(recipe, changes, out, seeds, folds, data_changed=data_changed)
        line = f"stopped immediately; continue with `{command}`"
        if isinstance(stop, KeyboardInterrupt):
            raise KeyboardInterrupt(line) from None
        if is_main_process():
            print_note(line)
        raise
    if is_main_process() and json:
        _print_outcome_as_json(outcome)
    elif is_main_process() and outcome.finished:
        _print_outcome(outcome, settings)
    raise typer.Exit(outcome.exit_code)


def _train_several(
    settings: Recipe,
    out: Path | None,
    seeds: str | None,
    folds: int | None,
    command: str,
    *,
    data_changed: bool,
    json: bool,
) -> NoReturn:
    """Train a run for each seed or fold, list them, and exit. command: it continues them."""
    folder = out or Path("runs") / settings.name
    changes_of_runs = changes_by_run(seeds, folds)
    exit_code = train_each(settings, changes_of_runs, folder, data_changed=data_changed)
    if is_main_process() and exit_code:  # a signal, after which the run has said how it continues
        print_note(f"continue all runs with `{command}`")
    elif is_main_process():
        runs.run(folder, "date", json)
        if folds is not None:
            _print_doubts(folder, [*changes_of_runs])
    raise typer.Exit(exit_code)


def _print_doubts(folder: Path, folds: list[str]) -> None:
    """Write and name the list of doubtful labels."""
    from trifold.cli.doubts import write_doubts

    file = write_doubts(folder, folds)
    if file is not None:
        print_note(f"every row, predicted by the model that has not seen it: {file}")


def _command(
    recipe: AnyPath,
    changes: list[str] | None,
    out: Path | None,
    seeds: str | None,
    folds: int | None,
    *,
    data_changed: bool,
) -> str:
    """The command that continues; several runs are continued without an option."""
    given: dict[str, object] = {"--out": out, "--seeds": seeds, "--folds": folds}
    if seeds is None and folds is None:
        given["--resume"] = "auto"
    options = ["--data-changed"] * data_changed
    for name, choice in given.items():
        if choice is not None:
            options += [name, str(choice)]
    return shlex.join(["trifold", "train", str(recipe), *(changes or ()), *options])


def _ignore_user_signal() -> None:
    """Ignore SIGUSR1, which would end the process until training handles it."""
    # It is not on all systems, and only the main thread may set handlers.
    with suppress(AttributeError, ValueError):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def _print_outcome_as_json(outcome: Outcome) -> None:
    facts = outcome._asdict()
    facts["folder"] = str(outcome.folder)
    facts["seconds"] = round(outcome.seconds, 2)
    facts["finished"] = outcome.finished
    del facts["exit_code"]
    if outcome.comparison is not None:
        facts["comparison"] = outcome.comparison.as_json()
    if outcome.folds is not None:
        facts["folds"] = outcome.folds._asdict()
    print_json(facts)


def _print_outcome(outcome: Outcome, recipe: Recipe) -> None:
    """Print the best scores of a finished run, where its files are, and how to use the model."""
    from trifold.hub.folder import describe_folder
    from trifold.scores import score_text

    if outcome.folds is not None:
        step = f"step {outcome.best_step:,} of all rows"
        print(wrapped(f"validation:   {outcome.folds.describe()}; {step}"))
    elif outcome.scores:
        scores = ", ".join(score_text(name, value) for name, value in outcome.scores.items())
        print(wrapped(f"validation:   {scores} at step {outcome.best_step:,}, the best"))
    if outcome.comparison is not None:
        for line in outcome.comparison.lines():
            print(wrapped(f"compared:     {line}"))
    if outcome.stopped_by in ("patience", "minutes"):
        print(wrapped(f"stopped by:   {_describe_end(outcome, recipe)}"))
    print(f"model:        {describe_folder(outcome.folder / 'model')}")
    print(f"run folder:   {outcome.folder}")
    parts = "".join(f" --part {name}" for name in recipe.model.parts)
    print(f"use it:       {recipe.task.usage(outcome.folder)}{parts}")
    for line in outcome.advice:
        print_note(line)


def _describe_end(outcome: Outcome, recipe: Recipe) -> str:
    """Which limit ended a run before its last step, and which weights are kept."""
    from trifold.recipe import load_recipe

    planned = load_recipe(outcome.folder).train.steps  # which may have been fitted to the minutes
    limit = f"train.{outcome.stopped_by}={getattr(recipe.train, outcome.stopped_by)}"
    place = f"{limit} at step {outcome.steps:,} of {planned:,}"
    if outcome.stopped_by == "minutes":
        return place
    return f"{place}; model/ has the weights of step {outcome.best_step:,}"
