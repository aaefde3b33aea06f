"""Examples, batches and loss terms: what a model reads in training, and the terms of its loss."""

from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trifold.nn import Inputs, Transformer
from trifold.nn.losses import linear_cross_entropy, score_targets
from trifold.nn.packing import Packing
from trifold.ragged import Ragged
from trifold.text import Tokenizer
from trifold.text.spans import Ids


class Examples(Protocol):
    """Encoded rows. `Blocks`, which are too many to list, plan their own batches."""

    @property
    def lengths(self) -> Ids:
        """(N, sides) tokens of each example, for one or two sides."""


@dataclass(frozen=True)
class Batch:
    """Inputs of one forward pass with labels. tokens: the number of labels in the loss, which is
    the count of its term "tokens".
    """

    inputs: Inputs
    labels: Tensor
    tokens: int

    def to(self, device: torch.device, *, non_blocking: bool = True) -> Self:
        """A copy on another device."""
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=non_blocking)
            for name, value in vars(self).items()
            if isinstance(value, Tensor | Inputs)
        }
        return replace(self, **moved)


def pad_end(values: NDArray[np.integer], size: int, padding: int) -> Tensor:
    """values (N,) with padding at the end, (size,) int64."""
    return torch.from_numpy(
        np.pad(values.astype(np.int64), (0, size - len(values)), constant_values=padding)
    )


def pack(
    ids: NDArray[np.integer], lengths: Ids, pad: int, *, always_pad: bool = True
) -> tuple[Inputs, Packing]:
    """Rows of the given lengths as one packed row (1, N); ids: their tokens, concatenated."""
    packing = Packing.of(torch.from_numpy(lengths), always_pad=always_pad)
    return Inputs(pad_end(ids, packing.length, pad)[None], packing=packing), packing


def pack_rows(
    texts: Ragged,
    rows: Ids,
    width: int | None,
    tokenizer: Tokenizer,
    types: Ragged | None = None,
    matches: Ragged | None = None,
) -> tuple[Inputs, Packing]:
    """The given rows, truncated to `width` tokens if given, as one packed row, with their token
    types and word matches, if any.
    """
    lengths = texts.lengths[rows]
    if width is not None:
        lengths = np.minimum(lengths, width)
    inputs, packing = pack(texts.joined(rows, lengths), lengths, tokenizer.padding_id)
    given = {"segments": types, "matches": matches}
    of_tokens: dict[str, Any] = {
        name: pad_end(values.joined(rows, lengths), packing.length, 0)[None]
        for name, values in given.items()
        if values is not None
    }
    return replace(inputs, **of_tokens), packing


@dataclass(frozen=True)
class LossTerm:
    """One term of a loss: weight · sum / count. `nll` is the same sum without label smoothing, for
    logging.

    An objective returns sums and counts, never means. Training divides each sum by its count over
    all micro-batches and ranks, so accumulation and uneven batches do not change the gradient.
    """

    sum: Tensor
    count: int
    weight: float = 1.0
    nll: Tensor | None = None


def token_loss(
    model: Transformer, states: Tensor, batch: Batch, smoothing: float = 0.0
) -> LossTerm:
    """Cross-entropy of the labels, -1 for none, predicted by the language-model head from `states`
    (N, E).
    """
    head = model.lm_head
    labels = batch.labels.flatten()
    assert head is not None
    sums = linear_cross_entropy(head.features(states), head.weight, head.bias, labels, smoothing)
    return LossTerm(sums.loss, batch.tokens, nll=sums.nll)


def measure_tokens(model: Transformer, states: Tensor, batch: Batch) -> dict[str, Any]:
    """The negative log-likelihood of the labels and the number of correct predictions, for
    `Objective.measure`.
    """
    head = model.lm_head
    labels = batch.labels.flatten()
    assert head is not None
    sums = score_targets(head.features(states), head.weight, head.bias, labels, head.soft_cap)
    return {"nll": float(sums.nll), "correct": int(sums.correct), "tokens": batch.tokens}
