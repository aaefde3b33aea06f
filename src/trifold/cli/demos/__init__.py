"""The demos of `trifold demo`, and what they share: their folder, and how they show examples and
pictures.
"""

import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import TypeVar

import typer

from trifold.cli.terminal import print_note
from trifold.errors import TrifoldError, UsageError
from trifold.hub.folder import describe_folder
from trifold.look.plots import Figure, save_figure
from trifold.recipe import Recipe
from trifold.train import Outcome, train
from trifold.train.run_folder import LOCK, RunFolder

Row = TypeVar("Row")

MARKS = {True: "✓", False: "✗"}
MARKER = ".trifold-demo"  # file in a folder that a demo created and may replace
abbreviate = partial(shorten, placeholder=" …")  # a text in one line of at most so many columns


def clear_folder(folder: Path) -> None:
    """Make an empty folder with the marker. Raises UsageError for a folder that no demo created, or
    that is in use.

    The folder is emptied and not removed, because it may be a link or the current folder.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(
            f"{folder}: is a file and is not replaced; choose another folder with --out"
        )
    try:
        content = list(folder.iterdir()) if folder.exists() else []
        if content and not (folder / MARKER).is_file():
            raise UsageError(
                f"{folder}: was not made by the demo and is not replaced; choose another folder "
                "with --out"
            )
        for lock in folder.rglob(LOCK):  # of each run in the folder
            RunFolder(lock.parent).check_unlocked()
        for path in content:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != MARKER:
                path.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        text = "made by `trifold demo`, which replaces it\n"
        (folder / MARKER).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(
            f"{folder}: cannot be written ({error.strerror}); choose another --out"
        ) from None


def train_demo(recipe: Recipe, out: Path) -> Outcome:
    """Train in the cleared folder; exit if training was interrupted."""
    # "auto" starts a new run in a folder with nothing but the marker.
    outcome = train(recipe, out=out, resume="auto")
    if not outcome.finished:
        raise typer.Exit(outcome.exit_code)
    return outcome


def spread(rows: Sequence[Row], count: int) -> list[Row]:
    """`count` rows at equal distances, so that they show different constructions."""
    count = min(count, len(rows))
    return [rows[index * len(rows) // count] for index in range(count)]


def save_picture(draw: Callable[[], Figure], path: Path, what: str) -> Path | None:
    """Draw and save a picture; None and a note if matplotlib is missing or the file cannot be
    written.
    """
    try:
        return save_figure(draw(), path)
    except TrifoldError as error:
        print_note(f"no picture of {what}: {error}")
        return None


def quote(text: str) -> str:
    """The text for a shell, in double quotes where that is safe."""
    if set(text) & set('"$`\\!'):
        return shlex.quote(text)
    return f'"{text}"'


def next_commands(out: Path, text: str) -> list[str]:
    """Commands that use a model that generates, quoted for a shell."""
    folder = shlex.quote(str(out))
    text = quote(text)
    return [
        f"trifold generate {folder} {text}",
        f"trifold eval {folder}",
        f"trifold show {folder}",
        f"trifold look {folder} {text} --out attention.png",
    ]


def print_folders(folders: Mapping[str, Path | None], commands: Sequence[str]) -> None:
    """Print where the results are and what to do next."""
    for name, path in folders.items():
        if path is not None:
            print(f"{name:<20} {describe_folder(path) if path.name == 'model' else path}")
    print("\ntry it:", *commands, sep="\n  ")
