"""`trifold study`: train models of several sizes on several numbers of tokens, and fit the law of
their losses.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

from trifold.cli.options import Json, argument
from trifold.cli.terminal import print_json, print_note, print_table
from trifold.cli.train import Changes, RunOut
from trifold.errors import TrifoldError, UsageError

EXAMPLES = (
    "trifold study examples/scaling.yaml",
    "trifold study scaling.yaml tokens=[250000,500000,1000000] --out runs/short",
    "trifold study scaling.yaml --json",
)


def run(
    study: Annotated[Path, argument("STUDY", "The YAML file of the study.")],
    changes: Changes = None,
    out: RunOut = None,
    json: Json = False,
) -> None:
    """Train each size on each number of tokens, and fit L(N, D) = E + A/N^alpha + B/D^beta to the
    losses.

    N: parameters without embeddings and head. D: tokens. Intervals are those of a bootstrap over
    the runs. Complete runs are not repeated: after Ctrl-C, or with more sizes or tokens, the same
    command continues. study.tsv and study.png are written to the folder.
    """
    from trifold import disk
    from trifold.look.plots import draw_law
    from trifold.train.loop import train
    from trifold.train.power_law import FORM, fit
    from trifold.train.study import load_study, plan_runs

    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UsageError("a study trains in one process; start it without torchrun")
    settings = load_study(study, changes or ())
    folder = out or Path("runs") / settings.name
    runs = plan_runs(settings, folder)
    for number, each in enumerate(runs, start=1):
        if not each.is_complete:
            size = f"size {each.size}: {each.parameters:,} parameters, {each.tokens:,} tokens"
            print_note(f"run {number} of {len(runs)}, {size}")
            outcome = train(each.recipe, out=each.folder.path, resume="auto")
            if not outcome.finished:
                print_note("the same command continues the study")
                raise typer.Exit(outcome.exit_code)
    results = [each.result() for each in runs]
    points = [(each["parameters"], each["tokens"]) for each in results]
    losses = [each["loss"] for each in results]
    law = fit(points, losses, settings.resamples)
    lines = (
        "\t".join(map(str, line)) for line in ([*results[0]], *(each.values() for each in results))
    )
    disk.replace_text(folder / "study.tsv", "".join(f"{line}\n" for line in lines))
    try:
        draw_law(law, points, losses, folder / "study.png")
    except TrifoldError as error:
        print_note(f"no study.png: {error.message}")
    if json:
        print_json(folder=str(folder), runs=results, law={"form": FORM, **law._asdict()})
        return
    form = "{size} {parameters:,} {tokens:,} {loss:.4f} {law:.4f} {flops:.2e} {seconds:.0f}"
    cells = [
        form.format(**x, law=law.loss(*at)).split() for x, at in zip(results, points, strict=True)
    ]
    print_table([("size", "N", "tokens", "loss", "law", "FLOPs", "seconds"), *cells], " rrrrrr")
    print(
        f"\n{FORM}\n{len(runs)} runs, {settings.resamples:,} resamples, mean error "
        f"{law.error:.2%}\n"
    )
    limits = {name: "{:.4g} to {:.4g}".format(*law.intervals[name]) for name in law.estimates}
    rows = [(name, f"{value:.4g}", limits[name]) for name, value in law.estimates.items()]
    print_table([("parameter", "estimate", "95 % interval"), *rows], " rr")
