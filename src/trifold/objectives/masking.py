"""Masking of tokens, shared by masked.py and sentence_pairs.py: batches, loss terms and statistics.

Only the states at masked positions reach the head: 15 % of them.

Shapes: N tokens of the packed row, M masked ones (padded to a multiple), E model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from trifold.errors import SettingsError
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.heads import SpanBoundary
from trifold.nn.losses import linear_cross_entropy
from trifold.nn.packing import round_up
from trifold.objectives.documents import DocumentObjectiveSettings
from trifold.objectives.objective import Batch, LossTerm, measure_tokens, pack, token_loss
from trifold.text import Tokenizer
from trifold.text.annotation import special_flags
from trifold.text.corruption import (
    MASK_CHOICES,
    MaskChoice,
    MaskedRow,
    Replacement,
    choose_spans,
    mask_tokens,
)
from trifold.text.spans import MAX_SPAN_RATE, Flags, Ids, example_rng, expand_spans, geometric


class MaskingSettings(DocumentObjectiveSettings):
    """Which tokens are masked, and what replaces them."""

    mask: Literal["plain", "words", "spans"] = Field(
        "plain", description="what is masked: single tokens, whole words, or spans of whole words"
    )
    rate: float = Field(0.15, gt=0, lt=1, description="share of the tokens that are masked")
    masked: float = Field(0.8, ge=0, le=1, description="share of these that the mask token replaces")
    random: float = Field(
        0.1, ge=0, le=1, description="share of these that a random token replaces; the rest stays"
    )
    span_p: float = Field(
        0.2, gt=0, lt=1, description="spans: parameter of the geometric distribution of lengths in words"
    )
    span_longest: int = Field(10, ge=1, description="spans: largest length in words")
    boundary: float = Field(
        0.0,
        ge=0,
        description="weight of the span-boundary objective, which predicts a masked token from the states at both "
        "ends of its span; requires the head boundary",
    )


@dataclass(frozen=True)
class MaskedBatch(Batch):
    """Packed rows with masked tokens.

    positions (M,): of masked tokens in the packed row; labels (M,): the original tokens, -1 in padding. For the
    span-boundary objective, of each masked token: left, right (M,) the positions at both ends of its span, and offset
    (M,) its position in the span, -1 beyond the positions of the boundary head.
    """

    inputs: Inputs
    positions: Tensor
    labels: Tensor
    tokens: int
    left: Tensor | None = None
    right: Tensor | None = None
    offset: Tensor | None = None
    boundary_tokens: int = 0


class Masking:
    """Masks tokens. Raises SettingsError if the tokenizer or the model lacks what the settings require."""

    def __init__(self, settings: MaskingSettings, tokenizer: Tokenizer, config: ModelConfig) -> None:
        self.settings, self.tokenizer, self.config = settings, tokenizer, config
        if tokenizer.mask_id is None:
            raise SettingsError(
                "tokenizer.special: the tokenizer has no mask token; set tokenizer.special=[cls, sep, mask]"
            )
        if settings.mask == "spans" and settings.rate > MAX_SPAN_RATE:
            raise SettingsError(
                f"task.rate: {settings.rate} of the words do not fit into separate spans; set at most "
                f"{MAX_SPAN_RATE}, or task.mask=words"
            )
        if settings.masked + settings.random > 1:
            raise SettingsError(f"task.masked + task.random is {settings.masked + settings.random}, above 1")
        if (settings.boundary > 0) != ("boundary" in config.chosen_heads):
            raise SettingsError(
                "task.boundary and model.heads: the span-boundary objective requires both a weight and the head; "
                "set task.boundary=1.0 model.heads=[lm, boundary], or remove both"
            )
        self.special = special_flags(tokenizer)
        ordinary = np.flatnonzero(~self.special[: tokenizer.vocab_size])
        self.replacement = Replacement(tokenizer.mask_id, ordinary, settings.masked, settings.random)
        distribution = partial(geometric, p=settings.span_p, longest=settings.span_longest)
        choices: dict[str, MaskChoice] = {
            **MASK_CHOICES,
            "spans": partial(choose_spans, distribution=distribution),
        }
        self._choose = choices[settings.mask]

    def mask(self, ids: Ids, starts: Flags, draw: int, row: int) -> MaskedRow:
        """Mask tokens of one row; a function of (draw, row). starts: flags at the first tokens of words."""
        rng = example_rng(draw, row)
        positions = self._choose(~self.special[ids], starts, self.settings.rate, rng)
        return mask_tokens(ids, positions, rng, self.replacement, per_span=self.settings.mask == "spans")

    def mask_single(self, ids: Ids, position: int) -> MaskedRow:
        """Mask the token at one position."""
        inputs, at = ids.copy(), np.array([position], dtype=np.int64)
        inputs[at] = self.replacement.mask
        return MaskedRow(inputs, at, ids[at], np.array([[position, position + 1]], dtype=np.int64))

    def pack(self, rows: Sequence[MaskedRow], segments: Sequence[Ids] | None = None) -> MaskedBatch:
        """Concatenate rows into one."""
        lengths = np.array([len(row.inputs) for row in rows], dtype=np.int64)
        ids = np.concatenate([row.inputs for row in rows])
        inputs, packing = pack(ids, lengths, self.tokenizer.required("pad"))
        if segments is not None and self.config.n_token_types > 1:
            padded = _padded(np.concatenate(segments), packing.length, 0)
            inputs = replace(inputs, segments=torch.from_numpy(padded)[None])
        firsts = np.cumsum(lengths) - lengths
        count = sum(len(row.positions) for row in rows)
        size, last = round_up(count), packing.length - 1  # padding refers to the last token
        positions = np.concatenate([row.positions + first for row, first in zip(rows, firsts, strict=True)])
        labels = np.concatenate([row.targets for row in rows])
        arrays = {"positions": _padded(positions, size, last), "labels": _padded(labels, size, -1)}
        boundary_tokens = 0
        if self.settings.boundary:
            spans = np.concatenate([row.spans + first for row, first in zip(rows, firsts, strict=True)])
            span_lengths = spans[:, 1] - spans[:, 0]
            offset = expand_spans(spans) - np.repeat(spans[:, 0], span_lengths)
            offset = np.where(offset < self.config.boundary_positions, offset, -1)
            arrays["left"] = _padded(np.repeat(spans[:, 0] - 1, span_lengths), size, last)
            arrays["right"] = _padded(np.repeat(spans[:, 1], span_lengths), size, last)
            arrays["offset"] = _padded(offset, size, -1)
            boundary_tokens = int((offset >= 0).sum())
        tensors: dict[str, Any] = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return MaskedBatch(inputs, tokens=count, boundary_tokens=boundary_tokens, **tensors)

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """The count of each loss term."""
        boundary = {"boundary": batch.boundary_tokens} if self.settings.boundary else {}
        return {"tokens": batch.tokens} | boundary

    def loss(self, model: Transformer, batch: MaskedBatch, states: Tensor) -> dict[str, LossTerm]:
        """Cross-entropy of the masked tokens, in nats; states (N, E)."""
        own = states.index_select(0, batch.positions)
        terms = {"tokens": token_loss(model, own, batch.labels, batch.tokens)}
        if batch.left is not None and batch.right is not None and batch.offset is not None:
            boundary, head = model.heads["boundary"], model.lm_head
            assert isinstance(boundary, SpanBoundary) and head is not None
            left, right = (states.index_select(0, positions) for positions in (batch.left, batch.right))
            labels = torch.where(batch.offset < 0, -1, batch.labels)
            features = boundary(left, right, batch.offset.clamp_min(0))
            sums = linear_cross_entropy(features, head.weight, boundary.bias, labels)
            terms["boundary"] = LossTerm(sums.loss, batch.boundary_tokens, self.settings.boundary)
        return terms

    def measure(self, model: Transformer, batch: MaskedBatch, states: Tensor) -> dict[str, Any]:
        """Negative log-likelihood and correct predictions of the masked tokens."""
        return measure_tokens(model, states.index_select(0, batch.positions), batch.labels, batch.tokens)


def _padded(values: NDArray[np.int64], size: int, padding: int) -> NDArray[np.int64]:
    return np.pad(values, (0, size - len(values)), constant_values=padding)
