"""What all tasks with hidden tokens have in common: hiding them in a batch, the loss of guessing them, the scores.

Only states at hidden places reach the head: 15 % of them, and logits of a chunk at a time.

Shapes: N tokens of the long row, M hidden ones (filled up to a round number), E model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from trifold.errors import SettingsError
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.heads import SpanBoundary
from trifold.nn.losses import judge, linear_cross_entropy
from trifold.nn.packing import Packing, rounded
from trifold.objectives.terms import Term
from trifold.settings import Settings
from trifold.text import Tokenizer
from trifold.text.annotation import special_flags
from trifold.text.corruption import MASK_FUNCTIONS, MaskedRow, MaskFunction, Replacement, mask_spans
from trifold.text.spans import MAX_SPAN_RATE, Flags, Geometric, Ids, example_rng, expand_spans


class HidingSettings(Settings):
    """Which tokens are hidden, and behind what."""

    mask: Literal["plain", "words", "spans"] = Field(
        "plain", description="what is hidden: single tokens, whole words, or spans of whole words"
    )
    rate: float = Field(0.15, gt=0, lt=1, description="share of the tokens that are hidden")
    masked: float = Field(0.8, ge=0, le=1, description="of these, the share that the mask hides")
    random: float = Field(0.1, ge=0, le=1, description="… and that another token hides; the rest stays")
    span_p: float = Field(
        0.2, gt=0, lt=1, description="spans: lengths in words are geometric with this parameter"
    )
    span_longest: int = Field(10, ge=1, description="… and at most so long")
    boundary: float = Field(
        0.0,
        ge=0,
        description="weight of guessing each hidden token from the states at both sides of its span; "
        "needs the head boundary",
    )


class Around(NamedTuple):
    """Special tokens around a text, or around and between two."""

    before: Ids
    between: Ids
    behind: Ids
    segments: tuple[int, int, int]  # of the second text, of what stands between, and of what stands behind

    @classmethod
    def one(cls, tokenizer: Tokenizer) -> Around:
        """As the tokenizer has it around a text."""
        row = tokenizer.rows(["a"])[0]
        own = [place for place, text in enumerate(row.texts) if text is not None]
        return cls(_ids(row.ids[: own[0]]), _ids([]), _ids(row.ids[own[-1] + 1 :]), (0, 0, 0))

    @classmethod
    def two(cls, tokenizer: Tokenizer) -> Around:
        """As the tokenizer has it around a pair."""
        row = tokenizer.rows(["a"], ["a"])[0]
        first, second = ([at for at, text in enumerate(row.texts) if text == which] for which in (0, 1))
        between = slice(first[-1] + 1, second[0])
        kinds = (
            row.types[second[0]],
            (row.types[between] or [0])[-1],
            (row.types[second[-1] + 1 :] or [0])[-1],
        )
        return cls(_ids(row.ids[: first[0]]), _ids(row.ids[between]), _ids(row.ids[second[-1] + 1 :]), kinds)

    @property
    def size(self) -> int:
        """How many they are."""
        return len(self.before) + len(self.between) + len(self.behind)


@dataclass(frozen=True)
class Hidden:
    """Packed rows with hidden tokens.

    places (M,): where in the long row; targets (M,): what stood there, -1 in filling. Of each hidden token `left` and
    `right` (M,) are the places at both sides of its span and `inside` (M,) its place in the span, -1 beyond what the
    boundary head tells apart; None where that objective is off.
    """

    inputs: Inputs
    places: Tensor
    targets: Tensor
    tokens: int
    left: Tensor | None = None
    right: Tensor | None = None
    inside: Tensor | None = None
    sided: int = 0

    def to(self, device: torch.device) -> Hidden:
        """The same on another device."""

        def moved(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.to(device, non_blocking=True)

        return replace(
            self,
            inputs=self.inputs.to(device),
            places=self.places.to(device, non_blocking=True),
            targets=self.targets.to(device, non_blocking=True),
            left=moved(self.left),
            right=moved(self.right),
            inside=moved(self.inside),
        )


class Hiding:
    """How tokens are hidden. Raises SettingsError where tokenizer or model lack what that needs."""

    def __init__(self, settings: HidingSettings, tokenizer: Tokenizer, config: ModelConfig) -> None:
        self.settings, self.tokenizer, self.config = settings, tokenizer, config
        if tokenizer.mask_id is None:
            raise SettingsError(
                "tokenizer.special: the tokenizer has no mask token; set tokenizer.special=[cls, sep, mask]"
            )
        if settings.mask == "spans" and settings.rate > MAX_SPAN_RATE:
            raise SettingsError(
                f"task.rate: {settings.rate} of the words do not fit into spans that stand apart; at most "
                f"{MAX_SPAN_RATE}, or set task.mask=words"
            )
        if settings.masked + settings.random > 1:
            raise SettingsError(f"task.masked + task.random is {settings.masked + settings.random}, above 1")
        if (settings.boundary > 0) != ("boundary" in config.chosen_heads):
            raise SettingsError(
                "task.boundary and model.heads: the boundary objective needs a weight and the head; "
                "set task.boundary=1.0 model.heads=[lm, boundary], or leave out both"
            )
        self.special = special_flags(tokenizer)
        ordinary = np.flatnonzero(~self.special[: tokenizer.vocab_size])
        self.to = Replacement(tokenizer.mask_id, ordinary, settings.masked, settings.random)
        law = Geometric(settings.span_p, settings.span_longest)
        own: dict[str, MaskFunction] = {**MASK_FUNCTIONS, "spans": partial(mask_spans, law=law)}
        self.mask = own[settings.mask]

    def hide(self, ids: Ids, starts: Flags, draw: int, row: int) -> MaskedRow:
        """Hide tokens of one row, a function of (draw, row)."""
        return self.mask(ids, ~self.special[ids], starts, example_rng(draw, row), self.to, self.settings.rate)

    def packed(self, rows: Sequence[MaskedRow], segments: Sequence[Ids] | None = None) -> Hidden:
        """Rows as one long row."""
        lengths = np.array([len(row.inputs) for row in rows], dtype=np.int64)
        packing = Packing.of(torch.from_numpy(lengths))
        firsts = np.cumsum(lengths) - lengths
        tokens = np.full(packing.filled, self.tokenizer.required("pad"), dtype=np.int64)
        tokens[: packing.real] = np.concatenate([row.inputs for row in rows])
        kinds = None
        if segments is not None and self.config.n_token_types > 1:
            kinds = np.zeros(packing.filled, np.int64)
            kinds[: packing.real] = np.concatenate(segments)
        asked = sum(len(row.positions) for row in rows)
        room, last = rounded(asked), packing.filled - 1  # filling asks the last token, which is filling too
        places = np.concatenate([row.positions + first for row, first in zip(rows, firsts, strict=True)])
        targets = np.concatenate([row.targets for row in rows])
        inputs = Inputs(
            torch.from_numpy(tokens)[None],
            packing=packing,
            segments=None if kinds is None else torch.from_numpy(kinds)[None],
        )
        hidden = Hidden(inputs, _filled(places, room, last), _filled(targets, room, -1), asked)
        return hidden if not self.settings.boundary else self._with_sides(hidden, rows, firsts, room, last)

    def _with_sides(
        self, hidden: Hidden, rows: Sequence[MaskedRow], firsts: Ids, room: int, last: int
    ) -> Hidden:
        spans = np.concatenate([row.spans + first for row, first in zip(rows, firsts, strict=True)])
        lengths = spans[:, 1] - spans[:, 0]
        inside = expand_spans(spans) - np.repeat(spans[:, 0], lengths)
        inside = np.where(inside < self.config.boundary_positions, inside, -1)
        return replace(
            hidden,
            left=_filled(np.repeat(spans[:, 0] - 1, lengths), room, last),
            right=_filled(np.repeat(spans[:, 1], lengths), room, last),
            inside=_filled(inside, room, -1),
            sided=int((inside >= 0).sum()),
        )

    # loss

    def counts(self, batch: Hidden) -> dict[str, int]:
        """What each term will be divided by."""
        return {"tokens": batch.tokens} | ({"boundary": batch.sided} if self.settings.boundary else {})

    def loss(self, model: Transformer, batch: Hidden, states: Tensor) -> dict[str, Term]:
        """Cross-entropy of the hidden tokens, in nats; states (N, E)."""
        head = model.lm_head
        assert head is not None
        features = head.features(states.index_select(0, batch.places))
        sums = linear_cross_entropy(features, head.weight, head.bias, batch.targets)
        terms = {"tokens": Term(sums.loss, batch.tokens, nll=sums.nll)}
        if batch.left is not None and batch.right is not None and batch.inside is not None:
            boundary = model.heads["boundary"]
            assert isinstance(boundary, SpanBoundary)
            left, right = (states.index_select(0, places) for places in (batch.left, batch.right))
            wanted = torch.where(batch.inside < 0, -1, batch.targets)
            guess = boundary(left, right, batch.inside.clamp_min(0))
            sided = linear_cross_entropy(guess, head.weight, boundary.bias, wanted)
            terms["boundary"] = Term(sided.loss, batch.sided, self.settings.boundary)
        return terms

    @torch.no_grad()
    def right(self, model: Transformer, batch: Hidden, states: Tensor) -> tuple[float, int]:
        """The summed negative log-likelihood of the hidden tokens, and how many are guessed right."""
        head = model.lm_head
        assert head is not None
        features = head.features(states.index_select(0, batch.places))
        found = judge(features, head.weight, head.bias, batch.targets)
        return float(found.nll), int(found.right)


def _filled(values: NDArray[np.int64], size: int, filling: int) -> Tensor:
    out = np.full(size, filling, dtype=np.int64)
    out[: len(values)] = values
    return torch.from_numpy(out)


def _ids(values: Sequence[int]) -> Ids:
    return np.array(values, dtype=np.int64)
