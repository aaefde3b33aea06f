"""`trifold demo`: from nothing to a translator that works, in one command."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trifold.cli.options import Json
from trifold.cli.streams import note, print_json
from trifold.errors import TrifoldError, UsageError

if TYPE_CHECKING:
    from trifold.pipeline import Pipeline

EXAMPLES = (
    "trifold demo",
    "trifold demo --minutes 1 --out runs/quick-demo",
    "trifold demo --json",
)
MARKER = ".trifold-demo"  # in a folder that the demo made, and may therefore replace
SENTENCE = "I love dogs."
SHOWN = 12


def run(
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Where to; an earlier demo there is replaced.")
    ] = Path("runs/demo"),
    minutes: Annotated[float | None, typer.Option(metavar="N", help="Train no longer than this.")] = None,
    json: Json = False,
) -> None:
    """Train English to French on the embedded phrasebook, then translate sentences it has never seen."""
    from trifold.data import read_pairs
    from trifold.pipeline import load
    from trifold.recipe import load_recipe
    from trifold.scores import bleu, exact_match
    from trifold.train import train
    from trifold.train.view import choose_view

    recipe = load_recipe("demo", {} if minutes is None else {"train.minutes": minutes})
    clear(out)
    # "auto" begins afresh in a folder that holds nothing but the marker.
    outcome = train(recipe, out=out, resume="auto", view=choose_view())
    if not outcome.finished:
        raise typer.Exit(outcome.exit_code)

    pairs = read_pairs(recipe.data.test, recipe.data, split="test")
    pipeline = load(str(out))
    ours = list(pipeline.generate(pairs.sources))
    match, score = exact_match(ours, pairs.targets), bleu(ours, pairs.targets)
    examples = spread(list(zip(pairs.sources, pairs.targets, ours, strict=True)), SHOWN)
    picture = draw(pipeline, out / "attention.png")
    if json:
        print_json(
            {
                "seconds": round(outcome.seconds, 1),
                "steps": outcome.steps,
                "exact_match": round(match.value, 2),
                "bleu": round(score.value, 2),
                "signature": score.signature,
                "examples": [
                    dict(zip(("source", "reference", "ours"), each, strict=True)) for each in examples
                ],
                "folder": str(out),
            }
        )
        return
    print(f"\n{len(ours):,} sentences that training never saw, {len(examples)} of them:\n")
    print(side_by_side(examples))
    print(f"\nexact match  {match.value:.1f} %")
    print(f"BLEU         {score.value:.1f}   {score.signature}")
    print(f"training     {outcome.seconds:.0f} s, {outcome.steps:,} steps\n")
    for line in _where(out, picture):
        print(line)


def clear(folder: Path) -> None:
    """An empty folder with the marker in it. Raises UsageError rather than touch a folder that no demo made."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: a file, so it stays; choose another with --out")
    if folder.exists():
        if not (folder / MARKER).is_file() and any(folder.iterdir()):
            raise UsageError(
                f"{folder}: exists and was not made by the demo, so it stays; choose another with --out"
            )
        shutil.rmtree(folder)
    try:
        folder.mkdir(parents=True)
        (folder / MARKER).write_text(
            "made by `trifold demo`, which replaces it\n", encoding="utf-8", newline="\n"
        )
    except OSError as error:
        raise UsageError(
            f"{folder}: cannot be written ({error.strerror}); choose another with --out"
        ) from None


def spread(rows: list[Any], count: int) -> list[Any]:
    """`count` rows from all over the list, so that they show different constructions."""
    return (
        [rows[index * len(rows) // count] for index in range(min(count, len(rows)))]
        if len(rows) > count
        else rows
    )


def side_by_side(examples: list[tuple[str, str, str]]) -> str:
    """Source, reference and ours in columns, with a mark where ours is the reference."""
    from trifold.look.canvas import table

    rows = [
        (source, reference, ours, "✓" if ours == reference else "✗") for source, reference, ours in examples
    ]
    return table([("source", "reference", "ours", ""), *rows])


def draw(pipeline: Pipeline, path: Path) -> Path | None:
    """The cross-attention of one sentence as a picture, or a word on how to get it."""
    from trifold.look import attention, figures, seen

    try:
        return figures.save(attention.picture(seen(pipeline, SENTENCE), ["cross"]), path)
    except TrifoldError as error:
        note(f"no picture of the attention: {error}")
        return None


def _where(folder: Path, picture: Path | None) -> list[str]:
    again = f'trifold look {folder} "{SENTENCE}" --out attention.png'
    return [
        f"the model            {folder / 'model'}",
        f"the whole run        {folder}",
        *([f"where it looks       {picture}"] if picture else []),
        "",
        "and now:",
        f'  trifold generate {folder} "{SENTENCE}"',
        f"  trifold eval {folder}",
        f"  trifold show {folder}",
        f"  {again}",
    ]
