"""`trifold runs`: list runs with their recipe, changed settings, best score, time and state,
without torch.
"""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Any, Literal

import typer

from trifold import disk
from trifold.cli.options import Json, argument
from trifold.cli.run_table import make_table, split_table
from trifold.cli.terminal import print_json, print_note, print_table
from trifold.errors import CheckpointError, TrifoldError, UsageError, wrapped
from trifold.folders import AnyPath, UntrustedPath, named, read_text
from trifold.jsonfiles import MAX_JSON, finite, iter_metrics, read_json

EXAMPLES = ("trifold runs", "trifold runs experiments --sort score", "trifold runs --json")
RECIPE = "recipe.yaml"
METRICS = "metrics.jsonl"
ENVIRONMENT = "environment.json"
MODEL = "config.json"  # beside which other tools write a recipe.yaml
LOCK = ".lock"
SUMMARY = "summary.json"  # of `trifold train --seeds` and `--folds`
# Folders of a run, in which there are no runs.
PARTS = {"checkpoints", "model", "samples", "tokenizer", "tensorboard", "rejected", "folds"}


@dataclass
class RunFacts:
    """What is known about a run. score, value, loss, best_step: name, value, loss and step of its
    best validation.

    changed: the settings that the command line changed. started: the last session, in UTC. error:
    of a damaged run.
    """

    run: str
    state: Literal["finished", "stopped", "running", "damaged"] = "damaged"
    recipe: str = ""
    changed: dict[str, Any] = field(default_factory=dict)
    score: str = ""
    value: float | None = None
    best_step: int = 0
    step: int = 0
    seconds: float = 0.0
    started: str = ""
    error: str | None = None
    loss: float | None = None

    @property
    def rank(self) -> tuple[bool, str, float, float]:
        """The place in the order of scores: by name, best first, and of equal ones the lower loss
        first; runs without a validation at the end.
        """
        if self.value is None:
            return True, self.score, 0.0, 0.0
        value, loss = _order(self.score, self.value, self.loss)
        return False, self.score, -value, -loss


def run(
    folder: Annotated[Path, argument("[FOLDER]", "The folder of the runs.")] = Path("runs"),
    sort: Annotated[
        Literal["date", "score"],
        typer.Option(help="Newest first, or best first for each kind of score."),
    ] = "date",
    json: Json = False,
) -> None:
    """List the runs in a folder and its subfolders: the recipe, the settings that the command line
    changed, the best validation with its step, the minutes of training, and the state.
    """
    if not folder.is_dir():
        raise UsageError(
            f"{folder}: no such folder; name the folder of the runs: trifold runs FOLDER"
        )
    runs = [
        describe_run(UntrustedPath(path, folder), os.path.relpath(path, folder))
        for path in find_runs(folder)
    ]
    runs.sort(key=lambda facts: facts.started, reverse=True)
    if sort == "score":
        runs.sort(key=lambda facts: facts.rank)
    if json:
        print_json([asdict(facts) for facts in runs])
        return
    for facts in runs:
        if facts.error is not None:
            print_note(f"warning: {facts.error}")
    table = make_table(runs)
    columns = get_terminal_size().columns
    for note in table.notes:
        print(wrapped(note, columns))
    rows, *changed = split_table(table.rows, columns)
    wide = len(rows[0]) - 3  # columns of texts; the others are short
    print_table(rows, " " * (wide + 1) + "r", whole_from=wide)
    for settings in changed:
        print()
        print_table(settings)
    summary = named(folder) / SUMMARY
    if summary.exists():
        _print_summary(summary, runs)


def _print_summary(file: UntrustedPath, runs: list[RunFacts]) -> None:
    """Print the mean and the deviation of several runs, unless one of them has changed since."""
    values = {facts.run: facts.value for facts in runs if facts.state == "finished"}
    try:
        summary = read_json(file)
        score = summary["score"]
        n_runs = len(summary["runs"])
        is_current = all(values.get(run["run"]) == run["value"] for run in summary["runs"])
        spread = "{mean:.2f} ± {deviation:.2f}, mean ± standard deviation (n - 1)".format(**summary)
    except (CheckpointError, ValueError, TypeError, KeyError):
        is_current = False
    if not is_current:
        print_note(
            f"warning: {file}: is not of these runs; repeat the command that trains them, which "
            "writes it again"
        )
        return
    print(f"\n{n_runs} runs: {score.replace('_', ' ')} {spread}")


def find_runs(folder: Path) -> Iterator[Path]:
    """The runs in a folder, itself included, and the folders that cannot be read."""
    unreadable = list[OSError]()
    for path, names, files in os.walk(folder, onerror=unreadable.append):
        is_run = (RECIPE in files or METRICS in files) and MODEL not in files
        names[:] = [name for name in names if not (is_run and name in PARTS)]
        if is_run:
            yield Path(path)
    yield from (Path(error.filename) for error in unreadable)


def describe_run(folder: AnyPath, name: str) -> RunFacts:
    """The facts about a run; if its files are missing or damaged, those found before the error."""
    path = named(folder)
    facts = RunFacts(name)
    try:
        facts.started = datetime.fromtimestamp(path.path.stat().st_mtime, UTC).strftime(
            "%Y-%m-%dT%H:%M:%SZ"
        )
        _read_run(path, facts)
    except (TrifoldError, OSError) as error:
        facts.error = str(error)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        facts.error = f"{path}: its files have values that training does not write"
    return facts


def _read_run(path: UntrustedPath, facts: RunFacts) -> None:
    from trifold.yaml_dialect import parse

    recipe = parse(read_text(path / RECIPE, MAX_JSON), str(path / RECIPE))
    task = recipe["task"]
    sessions = list[Any]()
    facts.recipe = str(recipe["name"])
    facts.score = str(task.get("best_by") or task["of"]["best_by"])
    validated = _read_metrics(path / METRICS, facts)
    if (path / ENVIRONMENT).exists():  # written with the first session
        environment = read_json(path / ENVIRONMENT, largest=2**64)  # seeds have 64 bits
        sessions = environment.get("sessions", [])
    for session in sessions:
        facts.changed |= session.get("changed", {})
    last = sessions[-1] if sessions else {}
    facts.started = str(last.get("started", facts.started))
    facts.step = int(last.get("to_step", facts.step))
    facts.seconds = float(last.get("seconds", facts.seconds))
    if _is_locked(path.path / LOCK):
        facts.state = "running"
    elif _is_complete(path, facts.step, validated, last):
        facts.state = "finished"
    else:
        facts.state = "stopped"


def _is_complete(run: UntrustedPath, step: int, validated: int, last: dict[str, Any]) -> bool:
    """Whether nothing is left to do at the last step: no signal or kill ended the last session, it
    had this recipe, the step is validated and saved, and the model is written.
    """
    if last.get("stopped_by") in (None, "signal") or validated != step:
        return False
    # A session that was killed while it read the data left a recipe with other settings.
    recipe = disk.sha256_of_file(run / RECIPE)
    checkpoint = run / "checkpoints" / f"step-{step:08d}" / "manifest.json"
    has_model = bool((run / "model").glob("*.safetensors"))
    return last.get("recipe", recipe) == recipe and checkpoint.exists() and has_model


def _read_metrics(file: UntrustedPath, facts: RunFacts) -> int:
    """The best validation, the last step, and the time of the last logged step. Returns the step of
    the last validation.
    """
    best: tuple[float, float] | None = None
    validated = 0
    for values in iter_metrics(file):
        facts.step = values["step"]
        facts.seconds = finite(values.get("seconds")) or facts.seconds
        if facts.score == "auto":
            facts.score = _main_score(values)
        if "valid/loss" in values:
            validated = facts.step
        value = finite(values.get(f"valid/{facts.score}"))
        if value is None:
            continue
        order = _order(facts.score, value, finite(values.get("valid/loss")))
        if best is None or order > best:
            best = order
            facts.value = value
            facts.loss = -order[1]
            facts.best_step = facts.step
    return validated


def _order(score: str, value: float, loss: float | None) -> tuple[float, float]:
    """What is greater for the better validation, as training compares them: the score, and of equal
    ones the lower loss.
    """
    if loss is None:
        loss = math.inf
    if score == "loss":
        value = -value
    return value, -loss


def _main_score(values: Mapping[str, Any]) -> str:
    """The name of the first score of a validation; "auto" for a line without one."""
    names = [key.removeprefix("valid/") for key in values if key.startswith("valid/")]
    return names[1] if names else "auto"  # after the loss


def _is_locked(file: Path) -> bool:
    """Whether a process holds the lock of its run."""
    from filelock import FileLock, Timeout

    if file.is_file():
        with suppress(OSError, NotImplementedError):
            try:
                FileLock(file).acquire(timeout=0).lock.release()
            except Timeout:
                return True
    return False
