"""`trifold look`: what a model attends to while it reads and writes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from trifold.cli.options import Codec, Device, Json, Model
from trifold.cli.terminal import print_json, print_note
from trifold.errors import UsageError, check_utf8

EXAMPLES = (
    'trifold look runs/demo "I love dogs."',
    'trifold look runs/demo "I love dogs." --kind all --out heads.png',
    'trifold look runs/demo "I love dogs." --kind cross --layer 2',
    'trifold look runs/demo "I love dogs." --target "J\'aime les chiens." --json',
)


def run(
    model: Model,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text that the model reads.")],
    target: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The text that it writes.", show_default="its own output"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="The picture (.png, .svg, .pdf).", show_default="attention.png"
        ),
    ] = None,
    kind: Annotated[
        Literal["alignment", "cross", "encoder", "decoder", "all"] | None,
        typer.Option(
            help="alignment: words, averaged over all heads; others: every layer and head.",
            show_default="alignment for a translation, else all",
        ),
    ] = None,
    layer: Annotated[int | None, typer.Option(metavar="N", help="Only this layer, from 1.")] = None,
    head: Annotated[int | None, typer.Option(metavar="N", help="Only this head, from 1.")] = None,
    device: Device = None,
    tokenizer: Codec = None,
    json: Json = False,
) -> None:
    """Draw what a model attends to. With --json, print the weights, and draw only with --out."""
    from trifold.cli.batch import load_pipeline
    from trifold.look import read_attention
    from trifold.look.attention import draw_alignment, draw_heads
    from trifold.look.plots import check_picture, save_figure

    for value, name in ((text, "TEXT"), (target or "", "--target"), (str(out), "--out")):
        check_utf8(value, name)
    picture = None if json and out is None else out or Path("attention.png")
    if picture is not None:
        check_picture(picture)  # before the model runs
    maps = read_attention(load_pipeline(model, device=device, tokenizer=tokenizer), text, target)
    if kind is None:
        kind = "alignment" if "cross" in maps.patterns and layer is None and head is None else "all"
    kinds = tuple(maps.patterns) if kind == "all" else ("cross" if kind == "alignment" else kind,)
    if missing := [name for name in kinds if name not in maps.patterns]:
        raise UsageError(f"--kind {missing[0]}: this model has {', '.join(maps.patterns)}")
    if picture is not None:
        figure = draw_alignment(maps) if kind == "alignment" else draw_heads(maps, kinds, layer, head)
        picture = save_figure(figure, picture)
    if not json:
        if maps.written:
            print_note(f"{maps.text}  →  {maps.output}")
        print(picture)
        return
    if kind == "alignment":
        kinds = tuple(maps.patterns)
    texts = {name: getattr(maps, name) for name in ("text", "output", "source", "given", "written")}
    # (layers, heads, queries, keys)
    patterns = {name: maps.patterns[name].astype(float).round(4).tolist() for name in kinds}
    print_json(**texts, patterns=patterns, picture=None if picture is None else str(picture))
