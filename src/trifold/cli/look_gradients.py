"""`trifold look MODEL TEXT --gradients`: the norms of gradients by layer, as table and picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trifold.cli.terminal import print_json, print_note, print_table
from trifold.errors import UsageError

if TYPE_CHECKING:
    from trifold.pipeline import Pipeline

TITLES = {
    "self_attention": "attention",
    "cross_attention": "cross",
    "feed_forward": "feed-forward",
    "others": "others",
    "all": "block",
}


def show_gradients(
    pipeline: Pipeline, text: str, target: str | None, picture: Path | None, *, as_json: bool
) -> None:
    """Print the gradients of a text by layer, and draw them if a picture is named."""
    from trifold.look.gradients import draw_gradients, layer_gradients
    from trifold.look.plots import check_picture, save_figure

    if picture is not None:
        check_picture(picture)
    trace = pipeline.trace(text, target, gradients=True)
    if trace.head is None:
        raise UsageError("--gradients: this model has no head, so there is no loss")
    layers = layer_gradients(trace)
    of = "the sum of the losses of its labels"
    if not trace.has_labels:
        of = "the logit that is the largest; a --target gives a loss"
    if picture is not None:
        save_figure(draw_gradients(layers), picture)
    if as_json:
        values = [one._asdict() for one in layers]
        print_json(text=text, loss=trace.has_labels, tokens=trace.tokens, layers=values)
        return
    parts = dict.fromkeys(part for one in layers for part in one.parameters)
    shown = [part for part in TITLES if part in parts]
    heading = ("stack", "layer", "states", *(TITLES[part] for part in shown))
    rows = [
        (
            one.side,
            str(one.layer),
            f"{one.states:.3g}",
            *(f"{one.parameters[part]:.3g}" if part in one.parameters else "" for part in shown),
        )
        for one in layers
    ]
    print_table([heading, *rows], " " + "r" * (len(shown) + 2))
    print_note(
        f"norms of the gradients of {of}: of the output of each layer (mean over tokens), and of "
        "the parameters of each part"
    )
    if picture is not None:
        print(picture)
