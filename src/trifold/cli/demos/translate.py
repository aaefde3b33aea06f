"""Train a translator from English to French on the embedded phrasebook."""

from pathlib import Path

from trifold.cli import demos
from trifold.cli.terminal import print_json, print_table
from trifold.data import read_pairs
from trifold.look.attention import draw_alignment, read_attention
from trifold.pipeline import load
from trifold.scores import bleu, exact_match

FOLDER = Path("runs/demo")
SENTENCE = "I love dogs."
SHOWN = 12


def run(out: Path, minutes: float | None, json: bool) -> None:
    """Train, translate sentences that training never saw, and score them."""
    from trifold.recipe import load_recipe

    recipe = load_recipe("demo", {} if minutes is None else {"train.minutes": minutes})
    demos.clear_folder(out)
    outcome = demos.train_demo(recipe, out)

    pairs = read_pairs(recipe.data.test, recipe.data, split="test")
    pipeline = load(str(out))
    ours = list(pipeline.generate(pairs.sources))
    match = exact_match(ours, pairs.targets)
    score = bleu(ours, pairs.targets)
    examples = demos.spread(list(zip(pairs.sources, pairs.targets, ours, strict=True)), SHOWN)
    picture = demos.save_picture(
        lambda: draw_alignment(read_attention(pipeline, SENTENCE)),
        out / "attention.png",
        "the attention",
    )
    if json:
        scores = {"exact_match": round(match.value, 2), "bleu": round(score.value, 2)}
        report = {"seconds": round(outcome.seconds, 1), "steps": outcome.steps, **scores}
        listed = [
            dict(zip(("source", "reference", "ours"), each, strict=True)) for each in examples
        ]
        print_json(**report, signature=score.signature, examples=listed, folder=str(out))
        return
    print(f"\n{len(ours):,} sentences that training never saw, {len(examples)} of them:\n")
    rows = [(*texts, demos.MARKS[texts[1] == texts[2]]) for texts in examples]
    print_table([("source", "reference", "output", ""), *rows])
    print(f"\nexact match  {match.value:.1f} %")
    print(f"BLEU         {score.value:.1f}   {score.signature}")
    print(f"training     {outcome.seconds:.0f} s, {outcome.steps:,} steps\n")
    folders = {"model": out / "model", "run folder": out, "attention": picture}
    demos.print_folders(folders, demos.next_commands(out, SENTENCE))
