"""`trifold look`: what a model attends to while it reads and writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trifold.cli.options import Device, Json, Model
from trifold.cli.streams import clean, note, print_json
from trifold.errors import UsageError

if TYPE_CHECKING:
    from trifold.look import Seen

EXAMPLES = (
    'trifold look runs/demo "I love dogs." --out attention.png',
    'trifold look runs/demo "I love dogs." --kind cross --layer 2',
    'trifold look runs/demo "I love dogs." --target "J\'aime les chiens." --json',
)


def run(
    model: Model,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What the model reads.")],
    target: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What it writes.", show_default="its own output")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="The picture (.png, .svg, .pdf).", show_default="attention.png"
        ),
    ] = None,
    kind: Annotated[
        Literal["cross", "encoder", "decoder", "all"], typer.Option(help="Which attention.")
    ] = "all",
    layer: Annotated[int | None, typer.Option(metavar="N", help="Only this layer, from 1.")] = None,
    head: Annotated[int | None, typer.Option(metavar="N", help="Only this head, from 1.")] = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Draw the attention of every layer and head; with --json, print the weights (and draw only with --out)."""
    from trifold.cli.answers import opened
    from trifold.look import attention, figures, seen

    for value, name in ((text, "TEXT"), (target or "", "--target")):
        clean(value, name)
    if out is not None or not json:
        figures.check(out or Path("attention.png"))  # before the work, not after it
    found = seen(opened(model, device), text, target)
    kinds = tuple(found.patterns) if kind == "all" else (kind,)
    if missing := [name for name in kinds if name not in found.patterns]:
        raise UsageError(f"--kind {missing[0]}: this model has {', '.join(found.patterns)}")
    if out is not None or not json:
        out = figures.save(attention.picture(found, kinds, layer, head), out or Path("attention.png"))
    if json:
        print_json(_as_json(found, kinds, out))
    else:
        if found.written:
            note(f"{found.text}  →  {found.output}")
        print(out)


def _as_json(seen: Seen, kinds: tuple[str, ...], picture: Path | None) -> dict[str, Any]:
    return {
        "text": seen.text,
        "output": seen.output,
        "source": seen.source,
        "given": seen.given,
        "written": seen.written,
        # (layers, heads, queries, keys)
        "patterns": {kind: seen.patterns[kind].astype(float).round(4).tolist() for kind in kinds},
        "picture": None if picture is None else str(picture),
    }
