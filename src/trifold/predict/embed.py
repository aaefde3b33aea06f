"""Embeddings: one vector for each text or image, pooled from the last hidden states."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.errors import UsageError
from trifold.nn import Inputs
from trifold.predict.model_reader import ModelReader

Pooling = Literal["mean", "cls", "last", "max", "pooler"]


def _mean(hidden: Tensor, real: Tensor) -> Tensor:
    weights = real[:, :, None].float()
    return (hidden.float() * weights).sum(1) / weights.sum(1)


# States (B, T, E), and (B, T) True at real tokens -> vectors (B, E).
POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": _mean,
    "cls": lambda hidden, real: hidden[:, 0],
    "last": lambda hidden, real: hidden[torch.arange(len(hidden), device=hidden.device), real.sum(1) - 1],
    "max": lambda hidden, real: hidden.masked_fill(~real[:, :, None], -math.inf).amax(1),
}


def embed(
    reader: ModelReader,
    texts: Sequence[Any],
    pairs: Sequence[str] | None = None,
    *,
    pooling: Pooling = "mean",
    normalise: bool = False,
) -> list[Tensor]:
    """A vector (E,) in float32 for each input; for an encoder-decoder, from its encoder.

    pooling: the mean of the states of all tokens, including special ones (Reimers & Gurevych 2019), the first state
    (cls), the last state, the maximum, or the output of the pooler. Raises UsageError if the model has no pooler.
    """
    model = reader.model
    if pooling not in (*POOLINGS, "pooler"):
        raise UsageError(f"pooling: {pooling!r} is not known; known: {', '.join(POOLINGS)}, pooler")
    if pooling == "pooler" and "pooler" not in model.heads:
        raise UsageError(f"pooling: pooler: this model has no pooler; choose {', '.join(POOLINGS)}")

    def apply(inputs: Inputs) -> Tensor:
        if pooling == "pooler":
            vectors = model.head_outputs(inputs, heads=["pooler"])["pooler"]
        else:
            hidden = model(inputs) if model.encoder is None else model.encode(inputs).hidden
            everything = hidden.new_ones(hidden.shape[:2], dtype=torch.bool)
            vectors = POOLINGS[pooling](hidden, everything if inputs.attend is None else inputs.attend)
        return F.normalize(vectors.float(), dim=-1) if normalise else vectors.float()

    return reader.run(texts, pairs, apply)
