"""One vector a text or a picture.

prediction      last hidden states -> their mean over real tokens, or one of them -> of length 1, if asked for
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.errors import UsageError
from trifold.nn import Inputs
from trifold.predict.reading import Reading

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
    reading: Reading,
    texts: Sequence[Any],
    pairs: Sequence[str] | None = None,
    *,
    pooling: Pooling = "mean",
    normalise: bool = False,
) -> list[Tensor]:
    """A vector (E,) in float32 for each input; of an encoder-decoder, of its encoder.

    pooling: the mean over all tokens with the special ones (Reimers & Gurevych 2019), the first state (cls), the last
    one, or the vector of the pooler. Raises UsageError for a pooler that the model does not have.
    """
    model = reading.model
    if pooling not in (*POOLINGS, "pooler"):
        raise UsageError(f"pooling: {pooling!r} is not known; known: {', '.join(POOLINGS)}, pooler")
    if pooling == "pooler" and "pooler" not in model.heads:
        raise UsageError(f"pooling: pooler: this model has no pooler; choose {', '.join(POOLINGS)}")

    def say(inputs: Inputs) -> Tensor:
        if pooling == "pooler":
            vectors = model.answer(inputs, heads=["pooler"])["pooler"]
        else:
            hidden = model(inputs) if model.encoder is None else model.encode(inputs).hidden
            vectors = POOLINGS[pooling](hidden, inputs.attend)
        return F.normalize(vectors.float(), dim=-1) if normalise else vectors.float()

    return reading.each(texts, pairs, say)
