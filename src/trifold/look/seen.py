"""What a model attends to while it reads a text and writes another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from trifold.errors import DataError
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

    `source` are the pieces read; `given` the pieces the decoder had before it (a start token first) and `written` the
    ones it then wrote, so that row t of a decoder's pattern is where it looked while it wrote `written[t]`.
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


def seen(pipeline: Pipeline, text: str, target: str | None = None) -> Seen:
    """Read `text`, and write `target` or, without one, what the model itself makes of it; watch every head meanwhile.

    Raises DataError where the text holds no token, or text or target too many.
    """
    reader, writer = pipeline.reader, pipeline.writer
    read = reader.encode([text])[0]
    if not read:
        raise DataError(f"{text!r} has no tokens: there is nothing to look at")
    source = [*read, reader.required("eos")]
    if target is None:
        best = pipeline.hypotheses([text])[0][0]
        ids, ended = best.tokens, best.finish_reason == "stop"
    else:
        ids, ended = writer.encode([target])[0], True
    written = [*ids, writer.required("eos")] if ended else ids
    given = [pipeline.config.start_id, *written[:-1]]
    _refuse_long(max(len(source), len(given)), pipeline.config.max_positions)
    return Seen(
        text=text,
        output=writer.decode([ids])[0],
        source=reader.pieces(source),
        given=writer.pieces(given),
        written=writer.pieces(written),
        patterns=patterns(pipeline.model, source, given),
    )


@torch.no_grad()
def patterns(
    model: Transformer, source: Sequence[int], given: Sequence[int]
) -> dict[str, NDArray[np.float32]]:
    """Weights of every layer and head for one sentence: kind -> (layers, heads, queries, keys) float32."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    try:
        with capture(model, "pattern") as places:
            model(*(Inputs(torch.tensor([ids], device=device)) for ids in (source, given)))
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
