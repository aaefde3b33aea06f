"""`trifold look --matrices FILE`: attention on chosen matrices as tables, and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trifold.cli.terminal import print_json, print_note, print_table
from trifold.errors import UsageError, escape

if TYPE_CHECKING:
    from trifold.look.matrices import Step, Worked
    from trifold.look.plots import Figure

SHOWN_ROWS, SHOWN_COLUMNS = 12, 8  # of a matrix on a terminal


def show_matrices(file: Path, picture: Path | None, *, as_json: bool) -> None:
    """Print every step of the attention of a file, and draw its weights if a picture is named."""
    from trifold.look.matrices import report, work_file
    from trifold.look.plots import check_picture, save_figure

    if picture is not None:
        check_picture(picture)
    worked = work_file(file)
    if picture is not None:
        save_figure(_picture(worked), picture)
    if as_json:
        print_json(report(worked))
        return
    for number, step in enumerate(worked.steps, start=1):
        if number > 1:
            print()
        _print_step(number, step)
    if picture is not None:
        print_note(f"{picture}: the weights")


def _picture(worked: Worked) -> Figure:
    """The weights of every head."""
    from trifold.look.attention import Panel, draw_panels

    patterns = worked.weights[None].numpy()
    heads = range(1, patterns.shape[1] + 1)
    panel = Panel(patterns, worked.queries, worked.keys, "Attention weights", [1], [*heads])
    return draw_panels([panel])


def _print_step(number: int, step: Step) -> None:
    print(f"{number}. {step.name} = {step.formula}\n")
    for head, matrix in enumerate(step.matrices, start=1):
        if head > 1:
            print()
        if len(step.matrices) > 1:
            print(f"head {head}")
        columns = [escape(label) for label in step.columns[:SHOWN_COLUMNS]]
        rows = [
            (escape(label), *(f"{value:.4f}" for value in row[:SHOWN_COLUMNS]))
            for label, row in zip(step.rows[:SHOWN_ROWS], matrix.tolist(), strict=False)
        ]
        print_table([("", *columns), *rows], " " + "r" * len(columns))
        hidden = (len(step.rows) - SHOWN_ROWS, len(step.columns) - SHOWN_COLUMNS)
        if max(hidden) > 0:
            rest = " and ".join(
                f"{count} {what}"
                for count, what in zip(hidden, ("rows", "columns"), strict=True)
                if count > 0
            )
            print(f"… {rest} more, with --json")


def check_alone(words: str) -> None:
    """Raises UsageError for other arguments than --out, --overwrite and --json. words: those that
    were given, as they are typed.
    """
    if words:
        raise UsageError(f"--matrices reads no model; leave out {words.strip():.60}")
