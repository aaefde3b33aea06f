"""Features: the vector of each token after a layer, with those of whole texts and of words."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trifold.errors import UsageError
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.hooks import capture
from trifold.predict.embed import POOLINGS
from trifold.predict.model_reader import ModelReader
from trifold.text import Encoded


class Features(NamedTuple):
    """A text after a layer. vectors: (T, E) of its tokens, special ones included, in float32.
    spans: the characters of each token, None of special tokens. pooled: (E,) of the whole text.
    """

    tokens: list[str]
    ids: list[int]
    spans: list[tuple[int, int] | None]
    vectors: Tensor
    pooled: Tensor


class WordVector(NamedTuple):
    """A word in a text: its characters, and the mean (E,) of the vectors of its tokens."""

    start: int
    end: int
    vector: Tensor


def features(
    reader: ModelReader,
    texts: Sequence[Any],
    pairs: Sequence[str] | None = None,
    *,
    layer: int | None = None,
    pooling: str = "mean",
) -> list[Features]:
    """The vectors of each input after a layer: 0 for the embeddings, by default the last, after the
    final norm, if any; of an encoder-decoder, those of its encoder.

    pooling: mean, cls, last or max of the tokens of that layer; see `embed`. Raises UsageError for
    a layer that the model does not have.
    """
    layer = check_layer(reader.config, layer)
    if pooling not in POOLINGS:
        raise UsageError(
            f"pooling: {pooling!r} is not known for features; choose {', '.join(POOLINGS)}"
        )

    def apply(inputs: Inputs) -> list[Tensor]:
        hidden = inputs.packing.grid(states_after(reader.model, inputs, layer)).float()
        real = inputs.real
        if real is None:
            real = hidden.new_ones(hidden.shape[:2], dtype=torch.bool)
        pooled = POOLINGS[pooling](hidden, real)
        # The vector of the whole is a row before those of the tokens.
        return [*torch.cat([pooled[:, None], hidden], dim=1)]

    reader = replace(reader, in_parallel=False)  # `states_after` watches a hook point
    if reader.config.n_patches:
        return [*map(_of_picture, reader.run(texts, pairs, apply))]
    rows = reader.encode(texts, pairs)
    outputs = reader.run_rows(rows, apply)
    return [_of_text(reader, row, output) for row, output in zip(rows, outputs, strict=True)]


def check_layer(config: ModelConfig, layer: int | None) -> int:
    """The number of a layer, by default the last. Raises UsageError if there is no such layer."""
    last = config.encoder_layers or config.decoder_layers
    if layer is None:
        return last
    if not 0 <= layer <= last:
        raise UsageError(
            f"layer {layer}: give a number from 0, the embeddings, to {last}, the last layer"
        )
    return layer


def states_after(model: Transformer, inputs: Inputs, layer: int) -> Tensor:
    """The states (B, T, E) of the first stack after a layer, as `Transformer.hidden_states`."""
    side = "decoder" if model.encoder is None else "encoder"
    last = check_layer(model.config, None)
    name = f"{side}.states.{layer - 1}" if layer else f"{side}_embeddings.output"
    with capture(model, name) as captured:
        output = model(inputs) if model.encoder is None else model.encode(inputs).hidden
    if layer == last:
        return output
    return captured[name]


def _of_picture(output: Tensor) -> Features:
    """The features of a picture: its class token and its patches."""
    count = len(output) - 1
    names = ["[CLS]", *(f"patch {number}" for number in range(1, count))]
    return Features(names, list(range(count)), [None] * count, output[1:], output[0])


def _of_text(reader: ModelReader, row: Encoded, output: Tensor) -> Features:
    """The features of a text, without those of padding."""
    tokenizer = reader.required_tokenizer
    has_offsets = tokenizer.has_offsets
    spans = [
        span if has_offsets and text is not None else None
        for span, text in zip(row.offsets, row.texts, strict=True)
    ]
    vectors = output[1 : len(row.ids) + 1]
    return Features(tokenizer.pieces(row.ids), row.ids, spans, vectors, output[0])


def word_vectors(found: Features, text: str, word: str) -> Iterator[WordVector]:
    """The vectors of a word wherever it stands in a text, in upper or lower case."""
    pattern = rf"(?<!\w){re.escape(word)}(?!\w)"
    for match in re.finditer(pattern, text, re.IGNORECASE):
        start, end = match.span()
        numbers = [
            number
            for number, span in enumerate(found.spans)
            if span is not None and span[0] < end and span[1] > start
        ]
        if numbers:
            yield WordVector(start, end, found.vectors[numbers].mean(0))
