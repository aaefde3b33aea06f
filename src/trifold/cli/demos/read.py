"""A small encoder reads the standard library's docstrings, then tells which package one comes from.

First it guesses masked words of all docstrings but those of the test, without any label. Then it learns the packages
with most docstrings, as does one that begins from nothing; examples/naive_bayes.py is a baseline. Texts are divided
by their letters, so that no docstring is in two parts, nor another that differs in case, white space, digits and
punctuation only. Nothing is blotted out: a docstring that names its package stays as it is, and these are counted.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from trifold.cli.demos.folder import clear
from trifold.cli.demos.showing import argument, in_short, mark, save_picture, spread
from trifold.cli.streams import note, print_json

if TYPE_CHECKING:
    from trifold.look.figures import Figure
    from trifold.recipe import Recipe
    from trifold.train.state import Outcome

FOLDER = Path("runs/demo-read")
PRETRAINING, ALONE = "pretraining", "from-scratch"  # folders in it, of the runs beside the one that it is for
SHARES = {PRETRAINING: 0.6, "": 0.2, ALONE: 0.2}  # of --minutes
LISTED = 12
OURS, SCRATCH = "encoder, pretrained", "the same, from scratch"


def run(out: Path, minutes: float | None, json: bool) -> None:
    """Pretrain, learn the packages with and without that, and say how many docstrings are told right."""
    from trifold.data.embedded import load_rows

    note("reading the docstrings of this Python's standard library …")
    test_rows = load_rows("packages", "test")
    texts, wanted = ([row[column] for row in test_rows] for column in ("text", "package"))
    recipes = _recipes(out, minutes)  # all of them, before anything is touched
    clear(out)
    outcomes = [
        _trained("first it guesses masked words", recipes[PRETRAINING], out / PRETRAINING),
        _trained("then it learns packages", recipes[""], out),
        _trained("and another does, from nothing", recipes[ALONE], out / ALONE),
    ]

    packages = Counter(row["package"] for row in load_rows("packages", "train"))
    most = max(sorted(packages), key=packages.__getitem__)
    ours = told(out, texts)
    answers = {
        f"always {most}": [most] * len(texts),
        SCRATCH: told(out / ALONE, texts),
        OURS: ours,
    }
    scores = {name: right(wanted, found) for name, found in answers.items()}
    picture = save_picture(lambda: draw(wanted, ours, scores), out / "packages.png", "the packages")
    examples = spread(list(zip(texts, wanted, ours, strict=True)), LISTED)
    naming = sum(
        package in re.findall(r"\w+", text.lower()) for text, package in zip(texts, wanted, strict=True)
    )
    seconds, steps = sum(each.seconds for each in outcomes), sum(each.steps for each in outcomes)
    if json:
        print_json(
            {
                "seconds": round(seconds, 1),
                "steps": steps,
                "docstrings": len(texts),
                "naming_their_package": naming,
                "accuracy": {name: round(value, 2) for name, value in scores.items()},
                "examples": [dict(zip(("text", "package", "ours"), each, strict=True)) for each in examples],
                "folder": str(out),
            }
        )
        return
    print(f"\n{len(texts):,} docstrings that training never saw, {len(examples)} of them:\n")
    print(in_table(examples))
    print(f"\n{scored(scores, len(texts))}\n")
    print(f"{compared(wanted, answers, OURS, SCRATCH)}\n")
    print(f"{naming:,} of the {len(texts):,} docstrings name their package.")
    print(f"training             {seconds:.0f} s, {steps:,} steps in three runs")
    for line in _where(out, picture):
        print(line)


def _recipes(out: Path, minutes: float | None) -> dict[str, Recipe]:
    """By the folders of their runs. Raises SettingsError where no run can last so long."""
    from trifold.recipe import load_recipe

    model = {"tokenizer.file": str(out / PRETRAINING / "model")}
    begin = {"train.start_from": str(out / PRETRAINING)}
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        PRETRAINING: ("demo-read", {}),
        "": ("demo-read-packages", model | begin),
        ALONE: ("demo-read-packages", model),
    }
    return {
        name: load_recipe(
            recipe, more if minutes is None else more | {"train.minutes": minutes * SHARES[name]}
        )
        for name, (recipe, more) in asked.items()
    }


def _trained(what: str, recipe: Recipe, out: Path) -> Outcome:
    from trifold.train import train
    from trifold.train.monitor import choose_view

    note(f"\n{what}")
    outcome = train(recipe, out=out, resume="auto", view=choose_view())
    if not outcome.finished:
        note("that goes on with this run only, one of three; `trifold demo read` begins all of them anew")
        raise typer.Exit(outcome.exit_code)
    return outcome


# --- telling ----------------------------------------------------------------------------------------------


def told(folder: Path, texts: list[str]) -> list[str]:
    """The likeliest package of each docstring; of long ones the beginning is read, as in training."""
    from trifold.pipeline import load

    found = load(str(folder)).classify(texts, top_k=1, on_overflow="truncate")
    return [best[0].label for best in found]


def right(wanted: list[str], found: list[str]) -> float:
    """Percent."""
    return 100 * sum(map(str.__eq__, wanted, found)) / max(len(wanted), 1)


# --- showing ----------------------------------------------------------------------------------------------


def in_table(examples: list[tuple[str, str, str]]) -> str:
    """Docstrings, their packages and ours."""
    from trifold.look.canvas import table

    rows = [(in_short(text, 66), package, ours, mark(ours == package)) for text, package, ours in examples]
    return table([("docstring", "is from", "ours", ""), *rows])


def scored(scores: Mapping[str, float], count: int) -> str:
    """A row each, with the standard error of a share of so many."""
    from trifold.look.canvas import table

    def error(value: float) -> float:
        return math.sqrt(value * (100 - value) / max(count, 1))

    rows = [(name, f"{value:.1f} %", f"± {error(value):.1f}") for name, value in scores.items()]
    return table([(f"of {count:,} docstrings", "told right", ""), *rows], "lrr")


def compared(wanted: list[str], answers: Mapping[str, list[str]], one: str, other: str) -> str:
    """How far one is ahead of another, with the standard error of that: of pairs, as both were asked the same."""
    lead = [
        (mine == label) - (theirs == label)
        for label, mine, theirs in zip(wanted, answers[one], answers[other], strict=True)
    ]
    count, total = max(len(lead), 1), sum(lead)
    if not total:
        return f"{one}: as good as {other}"
    error = 100 * math.sqrt(sum(map(abs, lead)) - total**2 / count) / count
    where = "ahead of" if total > 0 else "behind"
    return f"{one}: {100 * abs(total) / count:.1f} points (± {error:.1f}) {where} {other}"


def draw(wanted: list[str], ours: list[str], scores: Mapping[str, float]) -> Figure:
    """Which packages are taken for which, and how the others did."""
    import numpy as np

    from trifold.look import curves
    from trifold.look.figures import new_figure
    from trifold.objectives.classify import confusion_matrix

    names = sorted({*wanted, *ours})
    numbers: Callable[[list[str]], Any] = lambda labels: np.array([names.index(one) for one in labels])  # noqa: E731
    figure = new_figure(11.5, 5.4)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    curves.draw_confusion(left, confusion_matrix(numbers(wanted), numbers(ours), len(names)), names)
    left.set_title(
        "where docstrings are from, and where they are told to be from", fontsize=11, fontweight="bold"
    )
    curves.draw_bars(right, scores, OURS)
    right.set_title("told right", fontsize=11, fontweight="bold")
    return figure


def _where(folder: Path, picture: Path | None) -> list[str]:
    said = "Return the message's payload, decoded."
    ours, before = (shlex.quote(str(run)) for run in (folder, folder / PRETRAINING))
    return [
        f"the model            {folder / 'model'}",
        f"before the packages  {folder / PRETRAINING / 'model'}",
        *([f"what is confused     {picture}"] if picture else []),
        "",
        "and now:",
        f"  trifold predict {ours} {argument(said)}",
        f'  trifold predict {before} "Return the <mask> of the file."',
        f"  trifold eval {ours}",
        f"  trifold show {ours}",
    ]
