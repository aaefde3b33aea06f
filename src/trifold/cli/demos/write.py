"""A small GPT learns Python from the standard library's sources, and completes functions that it has never seen.

Whole modules are held out, and of their functions those whose signature no training function has. Of each the first
sample counts: it must parse, and its body must do something (see data/stdlib.py). examples/trigram.py computes the same
scores for a trigram model.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from trifold.cli.demos.folder import clear
from trifold.cli.demos.showing import argument, counting, in_short, mark, save_picture, spread
from trifold.cli.streams import note, print_json

if TYPE_CHECKING:
    from trifold.data.stdlib import FunctionCheck
    from trifold.generate import GenerationConfig
    from trifold.look.figures import Figure
    from trifold.pipeline import Pipeline

FOLDER = Path("runs/demo-write")
ASKED = 100  # signatures
LISTED, WHOLE, DRAWN = 10, 3, 5  # completions in the table, shown whole, and drawn
LINES = 9  # of one that is shown whole, at most
WIDTH = 88  # columns of a completion in the picture


class Completion(NamedTuple):
    """What was written behind a signature."""

    signature: str
    body: str
    check: FunctionCheck

    @property
    def text(self) -> str:
        return self.signature + self.body


class Score(NamedTuple):
    """Of so many completions: how many parse, how many do something besides; nats a token on held-out text."""

    parses: int
    does: int
    loss: float


def run(out: Path, minutes: float | None, json: bool) -> None:
    """Train, complete, and say how often that came to something."""
    from trifold.data.embedded import load_rows
    from trifold.pipeline import load
    from trifold.recipe import load_recipe
    from trifold.train import train
    from trifold.train.monitor import choose_view

    recipe = load_recipe("demo-write", {} if minutes is None else {"train.minutes": minutes})
    note("reading the sources of this Python's standard library …")
    test_rows = load_rows("functions", "test")
    clear(out)
    outcome = train(recipe, out=out, resume="auto", view=choose_view())
    if not outcome.finished:
        raise typer.Exit(outcome.exit_code)

    pipeline, config = load(str(out)), recipe.generate
    signatures = asked([row["signature"] for row in test_rows], pipeline, config)
    ours = by_model(pipeline, signatures, config)
    scores = score(ours, _loss(out))
    examples = worth_showing(ours)
    picture = save_picture(
        lambda: draw(pipeline, out, spread(examples, DRAWN)),
        out / "completions.png",
        "what it wrote",
    )
    if json:
        print_json(
            {
                "seconds": round(outcome.seconds, 1),
                "steps": outcome.steps,
                "signatures": len(signatures),
                "gpt": {
                    "parses": scores.parses,
                    "does_something": scores.does,
                    "loss": round(scores.loss, 4),
                },
                "examples": [
                    {"signature": one.signature, "ours": one.text, "does_something": one.check.does_something}
                    for one in spread(ours, LISTED)
                ],
                "folder": str(out),
            }
        )
        return
    listed = spread(ours, LISTED)
    print(f"\n{len(ours):,} functions of modules that training never saw, {len(listed)} of them:\n")
    print(in_table(listed))
    whole = spread(examples, WHOLE)
    print(f"\n{len(whole)} of those that do something, whole:")
    for one in whole:
        print("\n" + "\n".join(f"    {line}" for line in one.text.splitlines()))
    print(f"\n{scored(scores, len(ours))}\n")
    print(f"training             {outcome.seconds:.0f} s, {outcome.steps:,} steps")
    for line in _where(out, picture, signatures[0]):
        print(line)


# --- completing -------------------------------------------------------------------------------------------


def asked(signatures: list[str], pipeline: Pipeline, config: GenerationConfig) -> list[str]:
    """Some from all over, all different, that leave the model room to write."""
    room = pipeline.config.max_positions - (config.max_new_tokens or 0)
    different = list(dict.fromkeys(signatures))
    return spread([one for one in different if len(pipeline.read([one])[0]) <= room], ASKED)


def by_model(pipeline: Pipeline, signatures: list[str], config: GenerationConfig) -> list[Completion]:
    """The first sample of each."""
    said = config.model_dump(exclude_unset=True)
    with counting("functions completed", len(signatures)) as count:
        found = pipeline.hypotheses(signatures, on_done=count, **said)
    bodies = pipeline.writer.decode([best[0].tokens for best in found])
    return [judged(signature, body) for signature, body in zip(signatures, bodies, strict=True)]


def judged(signature: str, body: str) -> Completion:
    """With what the grammar says of it."""
    from trifold.data.stdlib import check_function

    return Completion(signature, body, check_function(signature + body))


def score(completions: list[Completion], loss: float) -> Score:
    """Counted."""
    checks = [one.check for one in completions]
    return Score(sum(c.parses for c in checks), sum(c.does_something for c in checks), loss)


def _loss(run: Path) -> float:
    """The last validation's."""
    from trifold.look.curves import curve

    return curve(run, "valid/loss")[1][-1]


# --- showing ----------------------------------------------------------------------------------------------


def worth_showing(completions: list[Completion]) -> list[Completion]:
    """Those that do something, in some lines but not too many, where there are such."""
    good = [one for one in completions if one.check.does_something]
    return [one for one in good if 3 <= len(one.text.splitlines()) <= LINES] or good


def in_table(completions: list[Completion]) -> str:
    """Signatures and completions, one per row."""
    from trifold.look.canvas import table

    rows = [
        (in_short(one.signature, 40), mark(one.check.does_something), in_short(one.body, 80) or "–")
        for one in completions
    ]
    return table([("signature", "", "completion"), *rows])


def scored(scores: Score, count: int) -> str:
    """The scores in one sentence."""
    return (
        f"Of {count} functions, {scores.parses} parse and {scores.does} do something; "
        f"the loss on held-out functions is {scores.loss:.3f} nats per token."
    )


def draw(pipeline: Pipeline, run: Path, completions: list[Completion]) -> Figure:
    """How it learnt, and what it wrote, with how sure it was of each token."""
    from trifold.look import curves, sureness
    from trifold.look.figures import new_figure

    prompts = pipeline.read([one.signature for one in completions])
    bodies = pipeline.reader.encode([one.body for one in completions])
    texts = [sureness.pieces(pipeline, *each) for each in zip(prompts, bodies, strict=True)]
    lines, columns = sureness.size(texts) if texts else (1, 1)
    lines, columns = min(lines, 46), max(min(columns, WIDTH), 56)
    wide, tall = columns * 0.066, max(3.6, lines * 0.14)
    figure = new_figure(4.6 + wide, tall + 0.5)
    left, right = figure.subplots(1, 2, width_ratios=(4.2, max(wide, 2.0)))
    curves.draw_curve(left, run, {})
    left.set_title("how it learnt", fontsize=11, fontweight="bold")
    sureness.draw(right, texts, lines, columns)
    right.set_title(
        "what it wrote behind the signatures in bold\nthe darker, the less sure it was",
        fontsize=11,
        fontweight="bold",
    )
    return figure


def _where(folder: Path, picture: Path | None, signature: str) -> list[str]:
    ours, said = shlex.quote(str(folder)), argument(signature)
    return [
        f"the model            {folder / 'model'}",
        f"the whole run        {folder}",
        *([f"how sure it was      {picture}"] if picture else []),
        "",
        "and now:",
        f"  trifold generate {ours} {said}",
        f"  trifold eval {ours}",
        f"  trifold show {ours}",
        f"  trifold look {ours} {said} --out attention.png",
    ]
