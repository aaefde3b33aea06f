"""What a model attends to while it reads a text, and while it writes one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from trifold.errors import DataError, UsageError
from trifold.nn import Inputs, Transformer, capture
from trifold.pipeline import Pipeline

# kind -> how a picture of it is called; also the order in which they are shown
KINDS = {
    "encoder": "encoder self-attention: each source token looks at the source",
    "decoder": "decoder self-attention: each token written looks at what came before it",
    "cross": "cross-attention: each token written looks at the source",
}
_PLACES = {
    "encoder": "encoder.blocks.{}.self_attention.sublayer.pattern",
    "decoder": "decoder.blocks.{}.self_attention.sublayer.pattern",
    "cross": "decoder.blocks.{}.cross_attention.sublayer.pattern",
}


@dataclass(frozen=True)
class Seen:
    """Attention weights by kind, each (layers, heads, queries, keys) with rows that sum to 1, and the tokens.

    `source` are the pieces an encoder read; `given` the pieces a decoder had before it (a start token first, or the
    prompt) and `written` the ones that followed, so that row t of a decoder's pattern is where it looked while it wrote
    `written[t]`, or read that in its prompt. `output` is what it wrote; what a model has no part for is empty.
    """

    text: str
    output: str
    source: list[str]
    given: list[str]
    written: list[str]
    patterns: Mapping[str, NDArray[np.float32]]

    def labels(self, kind: str) -> tuple[list[str], list[str]]:
        """What stands at the rows and at the columns of that kind."""
        return {
            "encoder": (self.source, self.source),
            "decoder": (self.written, self.given),
            "cross": (self.written, self.source),
        }[kind]


class Sides(NamedTuple):
    """Ids that an encoder reads, those that a decoder has before it, and those that follow each of them; the output."""

    source: list[int]
    given: list[int]
    written: list[int]
    output: list[int]


def seen(pipeline: Pipeline, text: str, target: str | None = None) -> Seen:
    """Read `text`, and write `target` or, without one, what the model itself makes of it; watch every head meanwhile.

    Raises DataError where the text holds no token, or text or target too many; UsageError for a target of an encoder.
    """
    reader, writer = pipeline.reader, pipeline.writer
    if not reader.encode([text])[0]:
        raise DataError(f"{text!r} has no tokens: there is nothing to look at")
    sides = _SIDES[pipeline.config.shape](pipeline, text, target)
    _refuse_long(max(len(sides.source), len(sides.given)), pipeline.config.max_positions)
    return Seen(
        text=text,
        output=writer.decode([sides.output])[0],
        source=reader.pieces(sides.source),
        given=writer.pieces(sides.given),
        written=writer.pieces(sides.written),
        patterns=patterns(pipeline.model, sides.source, sides.given),
    )


def _answered(pipeline: Pipeline, text: str, target: str | None) -> Sides:
    output, written = _written(pipeline, text, target)
    return Sides(pipeline.read([text])[0], [pipeline.config.start_id, *written[:-1]], written, output)


def _continued(pipeline: Pipeline, text: str, target: str | None) -> Sides:
    output, written = _written(pipeline, text, target)
    whole = [*pipeline.read([text])[0], *written]
    return Sides([], whole[:-1], whole[1:], output)


def _read(pipeline: Pipeline, text: str, target: str | None) -> Sides:
    if target is not None:
        raise UsageError("an encoder writes no text: leave the target out")
    return Sides(pipeline.read([text])[0], [], [], [])


_SIDES: dict[str, Callable[[Pipeline, str, str | None], Sides]] = {
    "encoder-decoder": _answered,
    "decoder": _continued,
    "encoder": _read,
}


def _written(pipeline: Pipeline, text: str, target: str | None) -> tuple[list[int], list[int]]:
    """The output, and the same with its end where it has one."""
    if target is None:
        best = pipeline.hypotheses([text])[0][0]
        ids, ended = best.tokens, best.finish_reason == "stop"
    else:
        ids, ended = pipeline.writer.encode([target])[0], True
    return ids, [*ids, pipeline.writer.required("eos")] if ended else ids


@torch.no_grad()
def patterns(
    model: Transformer, source: Sequence[int], given: Sequence[int]
) -> dict[str, NDArray[np.float32]]:
    """Weights of every layer and head for one sentence: kind -> (layers, heads, queries, keys) float32.

    source: what an encoder reads; given: what a decoder has before it; empty for a model without that part.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    try:
        with capture(model, "pattern") as places:
            model(*(Inputs(torch.tensor([ids], device=device)) for ids in (source, given) if ids))
    finally:
        model.train(was_training)
    found = {kind: [*_layers(places, name)] for kind, name in _PLACES.items()}
    return {kind: np.stack(layers) for kind, layers in found.items() if layers}


def _refuse_long(length: int, limit: int) -> None:
    if length > limit:
        raise DataError(
            f"{length:,} tokens, and the model reads at most {limit:,} (max_positions): look at less text"
        )


def _layers(places: Mapping[str, torch.Tensor], name: str) -> list[NDArray[np.float32]]:
    count = sum(name.format(layer) in places for layer in range(len(places)))
    return [places[name.format(layer)][0].float().cpu().numpy() for layer in range(count)]
