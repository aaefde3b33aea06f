"""Embeddings: one vector for each text or image, pooled from the last hidden states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.errors import UsageError
from trifold.nn import Inputs
from trifold.predict.model_reader import ModelReader

Pooling = Literal["mean", "cls", "last", "pooler"]


def _mean(hidden: Tensor, attend: Tensor | None) -> Tensor:
    if attend is None:
        return hidden.float().mean(1)
    real = attend[:, :, None].float()
    return (hidden.float() * real).sum(1) / real.sum(1)


def _cls(hidden: Tensor, attend: Tensor | None) -> Tensor:
    return hidden[:, 0]


def _last(hidden: Tensor, attend: Tensor | None) -> Tensor:
    if attend is None:
        return hidden[:, -1]
    return hidden[torch.arange(len(hidden), device=hidden.device), attend.sum(1) - 1]


POOLINGS: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {"mean": _mean, "cls": _cls, "last": _last}


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
    (cls), the last state, or the output of the pooler. Raises UsageError if the model has no pooler.
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
            vectors = POOLINGS[pooling](hidden, inputs.attend)
        return F.normalize(vectors.float(), dim=-1) if normalise else vectors.float()

    return reader.run(texts, pairs, apply)
