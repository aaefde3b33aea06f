"""`trifold look`: inspect a model in the browser, or draw what it attends to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trifold.cli.options import Codec, Device, Json, Model
from trifold.cli.terminal import print_json, print_note
from trifold.errors import UsageError, check_utf8

if TYPE_CHECKING:
    from trifold.pipeline import Pipeline

EXAMPLES = (
    'trifold look runs/demo "I love dogs."',
    'trifold look runs/demo "I love dogs." --out page.html',
    'trifold look runs/demo "I love dogs." --kind all --out heads.png',
    'trifold look runs/demo "I love dogs." --target "J\'aime les chiens." --json',
)


def run(
    model: Model,
    text: Annotated[
        str | None,
        typer.Argument(metavar="[TEXT]", help="The text, or the image file, that the model reads."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The text that it writes.", show_default="its own output"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="A page that works offline (.html), or a picture (.png, .svg, .pdf).",
            show_default="open the live page",
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
    compare: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Another model beside it on the live page.")
    ] = None,
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Of the live page.")] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the live page, or print its address.")
    ] = True,
    device: Device = None,
    tokenizer: Codec = None,
    json: Json = False,
) -> None:
    """Inspect a model in the browser, or write the page or a picture of attention to a file.

    The live page is served on this machine only. With --json, print the weights, and draw only with --out.
    """
    from trifold.cli.batch import load_pipeline
    from trifold.look import read_attention
    from trifold.look.attention import draw_alignment, draw_heads
    from trifold.look.plots import check_picture, save_figure

    for value, name in ((text or "", "TEXT"), (target or "", "--target"), (str(out), "--out")):
        check_utf8(value, name)
    draws = kind is not None or layer is not None or head is not None
    is_page = out is not None and out.suffix.lower() == ".html"
    names = [model] if compare is None else [model, compare]
    if compare is not None and (out is not None or json or draws):
        raise UsageError(
            "--compare requires the live page; leave out --out, --kind, --layer, --head and --json"
        )
    if (is_page or out is None) and not json and not draws:
        models = {name: load_pipeline(name, device=device, tokenizer=tokenizer) for name in names}
        _open_page(models, text, target, out, port, browser)
        return
    if text is None:
        raise UsageError(
            "TEXT is missing; without it, only the live page opens (no --out, --kind, --layer, --head, --json)"
        )
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


def _open_page(
    models: dict[str, Pipeline],
    text: str | None,
    target: str | None,
    out: Path | None,
    port: int,
    browser: bool,
) -> None:
    """Write the page, or serve it until interrupted."""
    import webbrowser

    from trifold.look.page import write_page
    from trifold.look.run_view import run_folder
    from trifold.look.server import serve
    from trifold.look.session import Session

    sessions = [Session(pipeline, run_folder(name)) for name, pipeline in models.items()]
    if out is not None:
        if text is None:
            raise UsageError("TEXT is missing; a written page shows one text")
        print(write_page(sessions[0], text, target, out, name=next(iter(models))))
        return

    if text is not None:
        sessions[0].trace(text, target)  # report its errors before the page opens

    def ready(address: str) -> None:
        print_note("the page is open until Ctrl-C")
        print(address, flush=True)
        if browser:
            webbrowser.open(address)

    serve(sessions, {"text": text or "", "target": target, "models": [*models]}, port, ready)
