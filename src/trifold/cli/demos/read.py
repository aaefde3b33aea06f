"""Pretrain a small encoder on the phrasebook, then tell whether a French sentence translates an
English one.

It first learns to fill in masked words of sentences and their translations, without labels (Lample
& Conneau 2019). Then it learns the labels, and so does a model without pretraining. Single words
tell nothing about a label, so that examples/naive_bayes.py, a baseline, is at chance.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from trifold.cli.demos import MARKS, clear_folder, print_folders, spread, train_demo
from trifold.cli.terminal import print_json, print_note, print_table
from trifold.data import embedded
from trifold.pipeline import load
from trifold.recipe import Recipe
from trifold.scores import exact_match
from trifold.train import Outcome

FOLDER = Path("runs/demo-read")
# Folders of the other runs in that of the demo.
PRETRAINING = "pretraining"
FROM_SCRATCH = "from-scratch"
SHARES = {PRETRAINING: 0.5, "": 0.25, FROM_SCRATCH: 0.25}  # of --minutes
TITLES = {
    PRETRAINING: "1 of 3: pretraining on masked words",
    "": "2 of 3: translations, after pretraining",
    FROM_SCRATCH: "3 of 3: translations, from scratch",
}
LISTED = 12


def run(out: Path, minutes: float | None, json: bool) -> None:
    """Pretrain, learn the labels with and without pretraining, and print the accuracies."""
    recipes = _load_recipes(out, minutes)  # errors in them are found before the folder is cleared
    clear_folder(out)
    outcomes = [_train(TITLES[name], recipe, out / name) for name, recipe in recipes.items()]
    rows = embedded.load_rows("translations", "test")
    ours = classify(out, rows)
    labels = [row["label"] for row in rows]
    accuracies = {
        "encoder, from scratch": exact_match(classify(out / FROM_SCRATCH, rows), labels).value,
        "encoder, pretrained": exact_match(ours, labels).value,
    }
    examples = spread(
        [{**row, "ours": label} for row, label in zip(rows, ours, strict=True)], LISTED
    )
    seconds = sum(each.seconds for each in outcomes)
    steps = sum(each.steps for each in outcomes)
    if json:
        rounded = {name: round(value, 2) for name, value in accuracies.items()}
        report = {
            "seconds": round(seconds, 1),
            "steps": steps,
            "pairs": len(rows),
            "accuracy": rounded,
        }
        print_json(**report, examples=examples, folder=str(out))
        return
    print(f"\n{len(rows):,} pairs that training never saw, {len(examples)} of them:\n")
    found = [
        (row["sentence1"], row["sentence2"], row["ours"], MARKS[row["ours"] == row["label"]])
        for row in examples
    ]
    print_table([("English", "French", "predicted", ""), *found])
    print()
    measured = [
        (name, f"{value:.1f} %", f"± {standard_error(value, len(rows)):.1f}")
        for name, value in accuracies.items()
    ]
    print_table([(f"{len(rows):,} pairs", "accuracy", "std. error"), *measured], "lrr")
    print("\nEach sentence has each label once, so that its words alone do not tell.")
    print(f"\ntraining             {seconds:.0f} s, {steps:,} steps in three runs")
    folders = {"model": out / "model", "pretrained model": out / PRETRAINING / "model"}
    print_folders(folders, next_commands(out))


def next_commands(out: Path) -> list[str]:
    """Commands that use the models, quoted for a shell."""
    folder, pretrained, scratch = (
        shlex.quote(str(out / name)) for name in ("", PRETRAINING, FROM_SCRATCH)
    )
    return [
        f'trifold predict {folder} "I love dogs." --pair "J\'aime les chiens."',
        f'trifold predict {pretrained} "I love <mask>. = J\'aime les chiens."',
        f"trifold compare {scratch} {folder}",
        f"trifold show {folder}",
    ]


def _load_recipes(out: Path, minutes: float | None) -> dict[str, Recipe]:
    """Folder -> recipe of each run. Raises SettingsError if `minutes` is not valid."""
    from trifold.recipe import load_recipe

    model = {"tokenizer.file": str(out / PRETRAINING / "model")}
    begin = {"start_from": str(out / PRETRAINING)}
    runs: dict[str, tuple[str, dict[str, Any]]] = {
        PRETRAINING: ("demo-read", {}),
        "": ("demo-read-translations", model | begin),
        FROM_SCRATCH: ("demo-read-translations", model),
    }
    recipes = {}
    for name, (recipe, changes) in runs.items():
        if minutes is not None:
            changes = {**changes, "train.minutes": minutes * SHARES[name]}
        recipes[name] = load_recipe(recipe, changes)
    return recipes


def _train(title: str, recipe: Recipe, out: Path) -> Outcome:
    print_note(f"\n{title}")
    try:
        return train_demo(recipe, out)
    except typer.Exit:
        print_note("this is one of three runs; `trifold demo read` starts all of them again")
        raise


def classify(folder: Path, rows: Sequence[Mapping[str, str]]) -> list[str]:
    """The most likely label of each pair."""
    texts, pairs = ([row[column] for row in rows] for column in ("sentence1", "sentence2"))
    return [best[0].label for best in load(str(folder)).classify(texts, pairs, top_k=1)]


def standard_error(percentage: float, count: int) -> float:
    """The standard error of a share of `count` examples, in percentage points."""
    return math.sqrt(percentage * (100 - percentage) / max(count, 1))
