"""Pretrain a small encoder on the docstrings of the standard library, then classify docstrings by package.

It first learns to fill in masked words of all docstrings except those of the test, without labels. Then it learns the
packages with most docstrings, and so does a model without pretraining; examples/naive_bayes.py is a baseline. The split
depends on the letters of a text, so no two splits contain docstrings that differ only in case, white space, digits or
punctuation. Docstrings that name their package are kept and counted.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from trifold.cli.demos import (
    abbreviate,
    check_mark,
    clear_folder,
    print_folders,
    quote,
    save_picture,
    spread,
    train_demo,
)
from trifold.cli.terminal import print_json, print_note, print_table

if TYPE_CHECKING:
    from trifold.look.plots import Figure
    from trifold.recipe import Recipe
    from trifold.train.monitor import Outcome

FOLDER = Path("runs/demo-read")
PRETRAINING, FROM_SCRATCH = "pretraining", "from-scratch"  # folders of the other runs in that of the demo
SHARES = {PRETRAINING: 0.6, "": 0.2, FROM_SCRATCH: 0.2}  # of --minutes
LISTED = 12
OURS, SCRATCH = "encoder, pretrained", "encoder, from scratch"


def run(out: Path, minutes: float | None, json: bool) -> None:
    """Pretrain, learn the packages with and without pretraining, and print the accuracies."""
    from trifold.data.embedded import load_rows

    print_note("reading the docstrings of this Python's standard library …")
    test_rows = load_rows("packages", "test")
    texts, labels = ([row[column] for row in test_rows] for column in ("text", "package"))
    recipes = _load_recipes(out, minutes)  # errors in them are found before the folder is cleared
    clear_folder(out)
    outcomes = [
        _train("1 of 3: pretraining on masked words", recipes[PRETRAINING], out / PRETRAINING),
        _train("2 of 3: packages, after pretraining", recipes[""], out),
        _train("3 of 3: packages, from scratch", recipes[FROM_SCRATCH], out / FROM_SCRATCH),
    ]

    packages = Counter(row["package"] for row in load_rows("packages", "train"))
    most = max(sorted(packages), key=packages.__getitem__)
    ours = classify(out, texts)
    predictions = {
        f"always {most}": [most] * len(texts),
        SCRATCH: classify(out / FROM_SCRATCH, texts),
        OURS: ours,
    }
    scores = {name: accuracy(labels, found) for name, found in predictions.items()}
    picture = save_picture(lambda: draw(labels, ours, scores), out / "packages.png", "the packages")
    examples = spread(list(zip(texts, labels, ours, strict=True)), LISTED)
    naming = sum(
        package in re.findall(r"\w+", text.lower()) for text, package in zip(texts, labels, strict=True)
    )
    seconds, steps = sum(each.seconds for each in outcomes), sum(each.steps for each in outcomes)
    if json:
        print_json(
            seconds=round(seconds, 1),
            steps=steps,
            docstrings=len(texts),
            naming_their_package=naming,
            accuracy={name: round(value, 2) for name, value in scores.items()},
            examples=[dict(zip(("text", "package", "ours"), each, strict=True)) for each in examples],
            folder=str(out),
        )
        return
    print(f"\n{len(texts):,} docstrings that training never saw, {len(examples)} of them:\n")
    rows = [
        (abbreviate(text, 48), package, found, check_mark(found == package))
        for text, package, found in examples
    ]
    print_table([("docstring", "package", "predicted", ""), *rows])
    print()
    measured = [
        (name, f"{value:.1f} %", f"± {standard_error(value, len(texts)):.1f}")
        for name, value in scores.items()
    ]
    print_table([(f"{len(texts):,} docstrings", "accuracy", "std. error"), *measured], "lrr")
    print(f"\n{compare(labels, predictions, OURS, SCRATCH)}\n")
    print(f"{naming:,} of the {len(texts):,} docstrings name their package.")
    print(f"training             {seconds:.0f} s, {steps:,} steps in three runs")
    folders = {"model": out / "model", "pretrained model": out / PRETRAINING / "model", "confusions": picture}
    print_folders(folders, next_commands(out))


def next_commands(out: Path) -> list[str]:
    """Commands that use the models, quoted for a shell."""
    folder, pretrained = (shlex.quote(str(path)) for path in (out, out / PRETRAINING))
    example = "Return the message's payload, decoded."
    return [
        f"trifold predict {folder} {quote(example)}",
        f'trifold predict {pretrained} "Return the <mask> of the file."',
        f"trifold eval {folder}",
        f"trifold show {folder}",
    ]


def _load_recipes(out: Path, minutes: float | None) -> dict[str, Recipe]:
    """Folder -> recipe of each run. Raises SettingsError if `minutes` is not valid."""
    from trifold.recipe import load_recipe

    model = {"tokenizer.file": str(out / PRETRAINING / "model")}
    begin = {"train.start_from": str(out / PRETRAINING)}
    runs: dict[str, tuple[str, dict[str, Any]]] = {
        PRETRAINING: ("demo-read", {}),
        "": ("demo-read-packages", model | begin),
        FROM_SCRATCH: ("demo-read-packages", model),
    }
    return {
        name: load_recipe(
            recipe, more if minutes is None else more | {"train.minutes": minutes * SHARES[name]}
        )
        for name, (recipe, more) in runs.items()
    }


def _train(title: str, recipe: Recipe, out: Path) -> Outcome:
    print_note(f"\n{title}")
    try:
        return train_demo(recipe, out)
    except typer.Exit:
        print_note("this is one of three runs; `trifold demo read` starts all of them again")
        raise


def classify(folder: Path, texts: list[str]) -> list[str]:
    """The most likely package of each docstring; long docstrings are truncated, as in training."""
    from trifold.pipeline import load

    found = load(str(folder)).classify(texts, top_k=1, on_overflow="truncate")
    return [best[0].label for best in found]


def accuracy(labels: list[str], found: list[str]) -> float:
    """The percentage of correct predictions."""
    return 100 * sum(map(str.__eq__, labels, found)) / max(len(labels), 1)


def standard_error(percentage: float, count: int) -> float:
    """The standard error of a share of `count` examples, in percentage points."""
    return math.sqrt(percentage * (100 - percentage) / max(count, 1))


def compare(labels: list[str], predictions: Mapping[str, list[str]], one: str, other: str) -> str:
    """The difference of two accuracies, with the standard error of paired predictions."""
    lead = [
        (mine == label) - (theirs == label)
        for label, mine, theirs in zip(labels, predictions[one], predictions[other], strict=True)
    ]
    count, total = max(len(lead), 1), sum(lead)
    if not total:
        return f"{one}: as accurate as {other}"
    error = 100 * math.sqrt(sum(map(abs, lead)) - total**2 / count) / count
    direction = "ahead of" if total > 0 else "behind"
    return f"{one}: {100 * abs(total) / count:.1f} points (± {error:.1f}) {direction} {other}"


def draw(labels: list[str], ours: list[str], scores: Mapping[str, float]) -> Figure:
    """The confusion matrix of the packages, and the accuracies."""
    import numpy as np

    from trifold.look import plots
    from trifold.scores.classification import confusion_matrix

    names = sorted({*labels, *ours})
    true, predicted = (np.array([names.index(each) for each in column]) for column in (labels, ours))
    figure = plots.new_figure(11.5, 5.4)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    plots.draw_confusion(left, confusion_matrix(true, predicted, len(names)), names)
    left.set_title("packages of docstrings, true and predicted", fontsize=11, fontweight="bold")
    plots.draw_bars(right, scores, OURS)
    right.set_title("accuracy", fontsize=11, fontweight="bold")
    return figure
