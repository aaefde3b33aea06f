"""A small GPT learns Python from the standard library's sources, and completes functions that it has never seen.

Whole modules are held out, and of their functions those whose signature no training function has. Of each the first
sample counts: it must parse, and its body must do something (data/bodies.py says what). A trigram model of the same
tokens is drawn from and judged in the same way.
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
    from trifold.data.bodies import Verdict
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
    verdict: Verdict

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
    from trifold.data.embedded import rows
    from trifold.pipeline import load
    from trifold.recipe import load_recipe
    from trifold.train import train
    from trifold.train.view import choose_view

    recipe = load_recipe("demo-write", {} if minutes is None else {"train.minutes": minutes})
    note("reading the sources of this Python's standard library …")
    train_rows, valid_rows, test_rows = (rows("functions", split) for split in ("train", "valid", "test"))
    clear(out)
    outcome = train(recipe, out=out, resume="auto", view=choose_view())
    if not outcome.finished:
        raise typer.Exit(outcome.exit_code)

    pipeline, config = load(str(out)), recipe.generate
    signatures = asked([row["signature"] for row in test_rows], pipeline, config)
    ours = by_model(pipeline, signatures, config)
    theirs, loss = by_trigram(
        pipeline, [row["text"] for row in train_rows], [row["text"] for row in valid_rows], signatures, config
    )
    scores = {"trigram": score(theirs, loss), "GPT": score(ours, _loss(out))}
    examples = worth_showing(ours)
    picture = save_picture(
        lambda: draw(pipeline, out, spread(examples, DRAWN), loss),
        out / "completions.png",
        "what it wrote",
    )
    if json:
        print_json(
            {
                "seconds": round(outcome.seconds, 1),
                "steps": outcome.steps,
                "signatures": len(signatures),
                **{
                    name.lower(): {
                        "parses": each.parses,
                        "does_something": each.does,
                        "loss": round(each.loss, 4),
                    }
                    for name, each in scores.items()
                },
                "examples": [
                    {"signature": one.signature, "ours": one.text, "does_something": one.verdict.does}
                    for one in spread(ours, LISTED)
                ],
                "folder": str(out),
            }
        )
        return
    listed = spread(list(zip(ours, theirs, strict=True)), LISTED)
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


def by_trigram(
    pipeline: Pipeline, texts: list[str], held_out: list[str], signatures: list[str], config: GenerationConfig
) -> tuple[list[Completion], float]:
    """The same of a trigram model of the same tokens, and its loss on held-out functions, in nats a token."""
    import numpy as np

    from trifold.cli.demos.trigram import Trigram

    reader, end = pipeline.reader, pipeline.config.eos_id

    def documents(of: list[str]) -> list[list[int]]:
        return [[*ids, end] for ids in pipeline.read(of)]

    model = Trigram(documents(texts), reader.vocab_size)
    held = documents(held_out)
    loss = model.nats(held) / sum(len(ids) - 1 for ids in held)
    rng = np.random.default_rng(config.seed)
    bodies = reader.decode(
        [
            model.write(
                prompt,
                end=end,
                most=config.max_new_tokens or 0,
                temperature=config.temperature or 1.0,
                top_k=config.top_k or reader.vocab_size,
                rng=rng,
            )
            for prompt in pipeline.read(signatures)
        ]
    )
    return [judged(signature, body) for signature, body in zip(signatures, bodies, strict=True)], loss


def judged(signature: str, body: str) -> Completion:
    """With what the grammar says of it."""
    from trifold.data.bodies import judge

    return Completion(signature, body, judge(signature + body))


def score(completions: list[Completion], loss: float) -> Score:
    """Counted."""
    verdicts = [one.verdict for one in completions]
    return Score(sum(v.parses for v in verdicts), sum(v.does for v in verdicts), loss)


def _loss(run: Path) -> float:
    """The last validation's."""
    from trifold.look.curves import curve

    return curve(run, "valid/loss")[1][-1]


# --- showing ----------------------------------------------------------------------------------------------


def worth_showing(completions: list[Completion]) -> list[Completion]:
    """Those that do something, in some lines but not too many, where there are such."""
    good = [one for one in completions if one.verdict.does]
    return [one for one in good if 3 <= len(one.text.splitlines()) <= LINES] or good


def in_table(pairs: list[tuple[Completion, Completion]]) -> str:
    """Signatures, and what both models wrote behind them."""
    from trifold.look.canvas import table

    rows = [
        (
            in_short(ours.signature, 40),
            mark(ours.verdict.does),
            in_short(ours.body, 52) or "–",
            mark(theirs.verdict.does),
            in_short(theirs.body, 36) or "–",
        )
        for ours, theirs in pairs
    ]
    return table([("signature", "", "the GPT", "", "the trigram"), *rows])


def scored(scores: dict[str, Score], count: int) -> str:
    """A row a model."""
    from trifold.look.canvas import table

    heading = (f"of {count} functions", "parse", "parse and do something", "loss on held-out functions")
    rows = [
        (name, str(one.parses), str(one.does), f"{one.loss:.3f} nats a token") for name, one in scores.items()
    ]
    return table([heading, *rows], "lrrr")


def draw(pipeline: Pipeline, run: Path, completions: list[Completion], trigram: float) -> Figure:
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
    curves.draw_curve(left, run, {"trigram": trigram})
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
