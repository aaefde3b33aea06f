"""Embeddings: one vector for each text or image, pooled from the last hidden states; search by
their similarity.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from heapq import nlargest
from itertools import islice
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.errors import UsageError
from trifold.nn import Inputs, Transformer
from trifold.nn.precision import widened
from trifold.predict.model_reader import ModelReader

Pooling = Literal["mean", "cls", "last", "max", "pooler"]
PART = 2048  # texts of a corpus that are in memory at a time


class Found(NamedTuple):
    """A text of a corpus with its number, from 1, and the similarity of its vector and that of the
    query.
    """

    number: int
    text: str
    score: float


def _mean(hidden: Tensor, real: Tensor) -> Tensor:
    hidden = widened(hidden)
    weights = real[:, :, None].to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1)


# States (B, T, E), and (B, T) True at real tokens -> vectors (B, E).
POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": _mean,
    "cls": lambda hidden, real: hidden[:, 0].clone(),  # a view would keep all states
    "last": lambda hidden, real: hidden[
        torch.arange(len(hidden), device=hidden.device), real.sum(1) - 1
    ],
    "max": lambda hidden, real: hidden.masked_fill(~real[:, :, None], -math.inf).amax(1),
}


# Queries (Q, E) and texts (N, E) -> (Q, N), larger for nearer ones, under the names and with the
# values of sentence-transformers.
SIMILARITIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cosine": lambda q, x: F.normalize(q, dim=-1) @ F.normalize(x, dim=-1).T,
    "dot": lambda q, x: q @ x.T,
    "euclidean": lambda q, x: -torch.cdist(q, x),
    "manhattan": lambda q, x: -torch.cdist(q, x, p=1),
}


def embed(
    reader: ModelReader,
    texts: Sequence[Any],
    pairs: Sequence[str] | None = None,
    *,
    pooling: Pooling = "mean",
    normalise: bool = False,
    dense: Sequence[Callable[[Tensor], Tensor]] = (),
    prompt: str = "",
) -> list[Tensor]:
    """A vector (E,) in float32 for each input; for an encoder-decoder, from its encoder.

    pooling: the mean of the states of all tokens, including special ones (Reimers & Gurevych 2019),
    the first state (cls), the last state, the maximum, or the output of the pooler. dense: layers
    that are applied to the pooled vector. prompt: put before each text. Raises UsageError if the
    model has no pooler.
    """
    model = reader.model
    if pooling not in (*POOLINGS, "pooler"):
        raise UsageError(f"pooling: {pooling!r} is not known; known: {', '.join(POOLINGS)}, pooler")
    if pooling == "pooler" and "pooler" not in model.heads:
        raise UsageError(f"pooling: pooler: this model has no pooler; choose {', '.join(POOLINGS)}")

    def apply(inputs: Inputs) -> Tensor:
        vectors = _pool(model, inputs, pooling).float()
        for layer in dense:
            vectors = layer(vectors)
        if normalise:
            vectors = F.normalize(vectors, dim=-1)
        return vectors

    if prompt:
        texts = [prompt + text for text in texts]
    return reader.run(texts, pairs, apply)


def _pool(model: Transformer, inputs: Inputs, pooling: Pooling) -> Tensor:
    """The vectors (B, E) of the inputs; see `embed`."""
    if pooling == "pooler":
        return model.head_outputs(inputs, heads=["pooler"])["pooler"]
    if model.encoder is None:
        hidden = model(inputs)
    else:
        hidden = model.encode(inputs).hidden
    hidden = inputs.packing.grid(hidden)
    real = inputs.real
    if real is None:
        real = hidden.new_ones(hidden.shape[:2], dtype=torch.bool)
    return POOLINGS[pooling](hidden, real)


def search(
    reader: ModelReader,
    queries: Sequence[str],
    *,
    corpus: Iterable[str] = (),
    top_k: int = 5,
    pooling: Pooling = "mean",
    dense: Sequence[Callable[[Tensor], Tensor]] = (),
    normalise: bool = False,
    similarity: str = "cosine",
    prompt: str = "",
    corpus_prompt: str = "",
) -> list[list[Found]]:
    """The `top_k` texts of a corpus nearest to each query, best first. Blank texts are skipped.

    similarity: what is compared, a name of `SIMILARITIES`; of vectors of length 1 with `normalise`.
    prompt, corpus_prompt: put before each query, and before each text of the corpus.
    Raises UsageError without a corpus, and for an unknown similarity.
    """
    if similarity not in SIMILARITIES:
        known = ", ".join(SIMILARITIES)
        raise UsageError(f"similarity: {similarity!r} is not known; known: {known}")
    if not corpus:
        raise UsageError("search: no texts to search; add --corpus FILE")
    options: dict[str, Any] = {"pooling": pooling, "normalise": normalise, "dense": dense}
    vectors = torch.stack(embed(reader, queries, prompt=prompt, **options))
    best: list[list[Found]] = [[] for _ in queries]
    numbered = ((number, text) for number, text in enumerate(corpus, start=1) if text.strip())
    while part := [*islice(numbered, PART)]:
        reader = replace(reader, places=[f"line {number} of the corpus" for number, _ in part])
        texts = torch.stack(
            embed(reader, [text for _, text in part], prompt=corpus_prompt, **options)
        )
        for row, scores in enumerate(SIMILARITIES[similarity](vectors, texts).tolist()):
            results = [
                Found(number, text, score)
                for (number, text), score in zip(part, scores, strict=True)
            ]
            best[row] = nlargest(top_k, [*best[row], *results], key=lambda result: result.score)
    return best
