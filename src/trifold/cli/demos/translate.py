"""From nothing to a translator that works: English to French on the embedded phrasebook."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from trifold.cli.demos.folder import clear
from trifold.cli.demos.showing import mark, save_picture, spread
from trifold.cli.streams import print_json

if TYPE_CHECKING:
    from trifold.pipeline import Pipeline

FOLDER = Path("runs/demo")
SENTENCE = "I love dogs."
SHOWN = 12


def run(out: Path, minutes: float | None, json: bool) -> None:
    """Train, translate sentences that training never saw, and say how well."""
    from trifold.data import read_pairs
    from trifold.pipeline import load
    from trifold.recipe import load_recipe
    from trifold.scores import bleu, exact_match
    from trifold.train import train
    from trifold.train.monitor import choose_view

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


def side_by_side(examples: list[tuple[str, str, str]]) -> str:
    """Source, reference and ours in columns, with a mark where ours is the reference."""
    from trifold.look.canvas import table

    rows = [(source, reference, ours, mark(ours == reference)) for source, reference, ours in examples]
    return table([("source", "reference", "ours", ""), *rows])


def draw(pipeline: Pipeline, path: Path) -> Path | None:
    """The cross-attention of one sentence as a picture, or a word on how to get it."""
    from trifold.look import attention, seen

    return save_picture(lambda: attention.picture(seen(pipeline, SENTENCE), ["cross"]), path, "the attention")


def _where(folder: Path, picture: Path | None) -> list[str]:
    ours = shlex.quote(str(folder))
    return [
        f"the model            {folder / 'model'}",
        f"the whole run        {folder}",
        *([f"where it looks       {picture}"] if picture else []),
        "",
        "and now:",
        f'  trifold generate {ours} "{SENTENCE}"',
        f"  trifold eval {ours}",
        f"  trifold show {ours}",
        f'  trifold look {ours} "{SENTENCE}" --out attention.png',
    ]
