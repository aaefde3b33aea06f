"""Train a small GPT on the sources of the standard library, and complete functions that it has
never seen.

Whole modules are held out, and of their functions those whose signature no training function has.
The first sample of each is judged: it must parse, and its body must do something (see
data/stdlib.py). examples/trigram.py computes the same scores for a trigram model.
"""

from pathlib import Path
from typing import NamedTuple

from trifold.cli import demos
from trifold.cli.demos import MARKS, abbreviate, next_commands, spread
from trifold.cli.progress import count_progress
from trifold.cli.terminal import print_json, print_note, print_table
from trifold.data import embedded
from trifold.data.stdlib import FunctionCheck, check_function
from trifold.generate import GenerationConfig
from trifold.look import plots
from trifold.pipeline import Pipeline, load

FOLDER = Path("runs/demo-write")
SIGNATURES = 100  # functions to complete
LISTED, WHOLE, DRAWN = 10, 3, 5  # completions in the table, printed in full, and drawn
MAX_LINES = 9  # of a completion that is printed in full
MAX_WIDTH = 88  # columns of a completion in the picture


class Completion(NamedTuple):
    """A signature, the generated body, and whether they parse and do something."""

    signature: str
    body: str
    check: FunctionCheck

    @property
    def text(self) -> str:
        return self.signature + self.body


def run(out: Path, minutes: float | None, json: bool) -> None:
    """Train, complete functions, and count how many parse and do something."""
    from trifold.recipe import load_recipe

    recipe = load_recipe("demo-write", {} if minutes is None else {"train.minutes": minutes})
    print_note("reading the sources of this Python's standard library …")
    test_rows = embedded.load_rows("functions", "test")
    demos.clear_folder(out)
    outcome = demos.train_demo(recipe, out)

    pipeline = load(str(out))
    signatures = choose_signatures(
        [row["signature"] for row in test_rows], pipeline, recipe.generate
    )
    ours = complete(pipeline, signatures, recipe.generate)
    parses = sum(one.check.parses for one in ours)
    does_something = sum(one.check.does_something for one in ours)
    loss = plots.read_metric(out, "valid/loss")[1][-1]
    examples = choose_examples(ours)
    picture = demos.save_picture(
        lambda: draw(pipeline, out, spread(examples, DRAWN)),
        out / "completions.png",
        "the completions",
    )
    listed = spread(ours, LISTED)
    if json:
        report = {
            "seconds": round(outcome.seconds, 1),
            "steps": outcome.steps,
            "signatures": len(signatures),
        }
        gpt = {"parses": parses, "does_something": does_something, "loss": round(loss, 4)}
        shown = [
            {
                "signature": one.signature,
                "ours": one.text,
                "does_something": one.check.does_something,
            }
            for one in listed
        ]
        print_json(**report, gpt=gpt, examples=shown, folder=str(out))
        return
    print(f"\n{len(ours):,} functions of modules that training never saw, {len(listed)} of them:\n")
    rows = [
        (
            abbreviate(one.signature, 28),
            MARKS[one.check.does_something],
            abbreviate(one.body, 44) or "–",
        )
        for one in listed
    ]
    print_table([("signature", "", "completion"), *rows])
    whole = spread(examples, WHOLE)
    print(f"\n{len(whole)} of those that do something, in full:")
    for one in whole:
        print("\n" + "\n".join(f"    {line}" for line in one.text.splitlines()))
    print(f"\nOf {len(ours)} functions, {parses} parse and {does_something} do something;")
    print(f"the loss on held-out functions is {loss:.3f} nats per token.\n")
    print(f"training             {outcome.seconds:.0f} s, {outcome.steps:,} steps")
    folders = {"model": out / "model", "run folder": out, "completions": picture}
    demos.print_folders(folders, next_commands(out, signatures[0]))


def choose_signatures(
    signatures: list[str], pipeline: Pipeline, config: GenerationConfig
) -> list[str]:
    """Different signatures that leave the model enough positions for its output."""
    longest = pipeline.config.max_positions - (config.max_new_tokens or 0)
    different = list(dict.fromkeys(signatures))
    return spread([one for one in different if len(pipeline.read([one])[0]) <= longest], SIGNATURES)


def complete(
    pipeline: Pipeline, signatures: list[str], config: GenerationConfig
) -> list[Completion]:
    """The first sample for each signature."""
    settings = config.model_dump(exclude_unset=True)
    with count_progress("functions completed", len(signatures)) as count:
        found = pipeline.hypotheses(signatures, on_done=count, **settings)
    bodies = pipeline.writer.decode([best[0].tokens for best in found])
    return [
        Completion(signature, body, check_function(signature + body))
        for signature, body in zip(signatures, bodies, strict=True)
    ]


def choose_examples(completions: list[Completion]) -> list[Completion]:
    """Completions that do something, of a few lines if there are such."""
    good = [one for one in completions if one.check.does_something]
    return [one for one in good if 3 <= len(one.text.splitlines()) <= MAX_LINES] or good


def draw(pipeline: Pipeline, run: Path, completions: list[Completion]) -> plots.Figure:
    """The loss during training, and completions with the probability of each token."""
    prompts = pipeline.read([one.signature for one in completions])
    bodies = pipeline.reader.encode([one.body for one in completions])
    found = [
        plots.token_probabilities(pipeline, *each) for each in zip(prompts, bodies, strict=True)
    ]
    cells = plots.arrange(found, MAX_WIDTH)
    rows = min(64, 1 + max((cell.row for cell in cells), default=0))
    columns = max(56, 1 + max((cell.column for cell in cells), default=0))
    wide = columns * 0.066
    tall = max(3.6, rows * 0.14)
    figure = plots.new_figure(4.6 + wide, tall + 0.5)
    left, right = figure.subplots(1, 2, width_ratios=(4.2, max(wide, 2.0)))
    plots.draw_loss(left, run)
    left.set_title("loss during training", fontsize=11, fontweight="bold")
    plots.draw_probabilities(right, cells, rows, columns)
    title = "completions of the signatures in bold\ndarker tokens were less likely"
    right.set_title(title, fontsize=11, fontweight="bold")
    return figure
