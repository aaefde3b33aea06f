"""Masked words and the order of two texts, learnt together.

    follows   does the second text follow the first, or is it from another document?  Devlin et al. 2019, section 3.1
    order     do two texts that follow each other stand in their order?               Lan et al. 2020, section 3.1

rows -> example    two runs of whole sentences that follow each other in a document, cut anew each epoch; half of them
                   with the second text of another document, or with their places exchanged
example -> batch   tokens hidden
loss               - Σ log P(hidden token) / tokens - Σ log P(follows, or in order) / pairs
scores             how many hidden tokens, and how many pairs, are told right
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from trifold.errors import DataError, SettingsError
from trifold.nn import ModelConfig, Transformer
from trifold.objectives.hiding import Around, Hidden, Hiding, HidingSettings
from trifold.objectives.measuring import every_batch, value_of
from trifold.objectives.task import Evaluation, Looking
from trifold.objectives.terms import Term
from trifold.text import Tokenizer
from trifold.text.annotation import AnnotatedTexts
from trifold.text.spans import Flags, Ids, Rng, example_rng

HEADS = ("lm", "pooler", "next-sentence")


class PairsSettings(HidingSettings):
    """Masked words, and whether two texts belong together."""

    kind: Literal["pairs"] = "pairs"
    pairs: Literal["follows", "order"] = Field(
        "follows", description="tell the next text from one of another document, or the order of two texts"
    )
    weight: float = Field(1.0, gt=0, description="of that loss beside the one of masked words")
    short: float = Field(
        0.1, ge=0, le=1, description="share of the pairs that are shorter than need be, by chance"
    )
    best_by: Literal["loss", "accuracy", "pairs_accuracy"] = Field(
        "loss", description="a score of the validation set, or loss, by which the best weights are chosen"
    )


class Count(NamedTuple):
    """So many documents, sentences or pairs, and so many tokens of theirs in all."""

    number: int
    tokens: int


class Left(NamedTuple):
    """What of the documents is in no pair: the tokens of all three and those of the pairs are all there are."""

    single: Count  # documents of one sentence
    last: Count  # sentences at the end of a document, with none behind them to make a pair with
    cut: Count  # pairs too long for the model, and what they lose


@dataclass(frozen=True)
class Pairs:
    """Examples: document, and the tokens [start, middle) and [middle, end) of the two texts, with `around` more. Where
    they are `apart` they do not belong together so: the second is that of the example `other`, or they change places.
    """

    documents: AnnotatedTexts
    of: Ids
    bounds: Ids  # (N, 3)
    apart: Flags
    other: Ids
    room: int
    around: int
    left: Left

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N, 1) tokens of both texts, special ones included."""
        sizes = np.diff(self.bounds)
        both: Ids = np.minimum(sizes[:, 0] + sizes[self.other, 1], self.room)
        return both[:, None] + self.around

    def text(self, row: int, which: int) -> tuple[Ids, Flags]:
        """Ids of the first (0) or second (1) text, and where words start."""
        part = slice(self.bounds[row, which], self.bounds[row, which + 1])
        return self.documents.ids[part].astype(np.int64), self.documents.word_starts[part]


@dataclass(frozen=True)
class Batch:
    """Packed pairs with hidden tokens. firsts (B,): where each begins; answers (B,): 0 follows or in order, 1 not."""

    hidden: Hidden
    firsts: Tensor
    answers: Tensor

    @property
    def tokens(self) -> int:
        return self.hidden.tokens

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return Batch(self.hidden.to(device), self.firsts.to(device), self.answers.to(device))


class PairsOfTexts:
    """The task. width: tokens that the model reads at once."""

    row_name, read_name, token_name = "pairs", "tokens", "hidden tokens"
    packs = True

    def __init__(
        self, settings: PairsSettings, tokenizer: Tokenizer, config: ModelConfig, width: int
    ) -> None:
        self.settings, self.tokenizer = settings, tokenizer
        self.hiding = Hiding(settings, tokenizer, config)
        if missing := set(HEADS).difference(config.chosen_heads):
            raise SettingsError(
                f"model.heads: {', '.join(sorted(missing))} is missing; set model.heads=[{', '.join(HEADS)}]"
            )
        self.around = Around.two(tokenizer)
        if not len(self.around.before):
            raise SettingsError(
                "tokenizer.special: the pooler reads the first token, and the tokenizer puts none before a text; "
                "set tokenizer.special=[cls, sep, mask]"
            )
        self.room = width - self.around.size
        if self.room < 2:
            raise SettingsError(f"{width} tokens leave no room for two texts; raise model.max_positions")

    # rows -> examples

    def examples(self, rows: AnnotatedTexts, draw: int | None = None) -> Pairs:
        """Runs of sentences that fill the model's width, parted in two between sentences, and half of these parted or
        turned round, by the draw.

        Raises DataError where no document has two sentences, or only one and another is needed.
        """
        found = [(number, *cut) for number in range(len(rows)) for cut in self._cuts(rows, number, draw or 0)]
        table = np.array(found, dtype=np.int64).reshape(-1, 4)
        of, whole = table[:, 0], table[:, 1:]
        follows = self.settings.pairs == "follows"
        useful, needed = len(np.unique(of)), 1 + follows
        if useful < needed:
            raise DataError(
                f"of {len(rows):,} documents {useful:,} have two sentences or more, and pairs need {needed} such; say "
                "with data.documents=blank that blank lines part documents, hold out more, or take another text"
            )
        bounds = np.array([self._fitting(*pair) for pair in whole.tolist()], dtype=np.int64)
        rng, every = example_rng(draw or 0, 2**62), np.arange(len(of))
        apart = rng.random(len(of)) < 0.5
        other = np.where(apart, _of_others(of, rng), every) if follows else every
        return Pairs(
            rows, of, bounds, apart, other, self.room, self.around.size, _left(rows, of, whole, bounds)
        )

    def _cuts(self, rows: AnnotatedTexts, number: int, draw: int) -> list[tuple[int, int, int]]:
        """Start, middle and end of the pairs of one document, however long they are."""
        start, end = int(rows.starts[number]), int(rows.starts[number + 1])
        heads = np.append(start + np.flatnonzero(rows.sentence_starts[start:end]), end)
        rng = example_rng(draw, number)
        cuts, at = [], 0
        while at < len(heads) - 1:
            target = int(rng.integers(2, self.room + 1)) if rng.random() < self.settings.short else self.room
            last = int(np.searchsorted(heads, heads[at] + target, side="right")) - 1
            # A text of one sentence is no pair: the next one belongs to it, as far as it fits.
            last = min(max(last, at + 2), len(heads) - 1)
            if last >= at + 2:  # else a last sentence, of which there is nothing to tell
                middle = int(heads[rng.integers(at + 1, last)])
                cuts.append((int(heads[at]), middle, int(heads[last])))
            at = last
        return cuts

    def _fitting(self, start: int, middle: int, end: int) -> tuple[int, int, int]:
        """At most `room` tokens: the longer text loses its outer ones, so that the two still meet."""
        first, second = _shares(middle - start, end - middle, self.room)
        return middle - first, middle, middle + second

    # examples -> batch

    def batch(
        self, examples: Pairs, rows: NDArray[np.int64], width: int | None = None, *, draw: int = 0
    ) -> Batch:
        """Hide tokens of the chosen pairs, a function of (draw, number of the example)."""
        masked, kinds, answers = [], [], []
        for row in rows.tolist():
            ids, starts, segments = self._pair(examples, row)
            masked.append(self.hiding.hide(ids, starts, draw, row))
            kinds.append(segments)
            answers.append(int(examples.apart[row]))
        lengths = np.array([len(kind) for kind in kinds], dtype=np.int64)
        firsts = torch.from_numpy(np.cumsum(lengths) - lengths)
        return Batch(self.hiding.packed(masked, kinds), firsts, torch.tensor(answers))

    def _pair(self, examples: Pairs, row: int) -> tuple[Ids, Flags, Ids]:
        """ids, where words start, and segments."""
        first, second = examples.text(row, 0), examples.text(int(examples.other[row]), 1)
        if examples.apart[row] and self.settings.pairs == "order":
            first, second = second, first
        a, b = _shares(len(first[0]), len(second[0]), self.room)
        parts = [
            (self.around.before, None, 0),
            (first[0][:a], first[1][:a], 0),
            (self.around.between, None, self.around.segments[1]),
            (second[0][:b], second[1][:b], self.around.segments[0]),
            (self.around.behind, None, self.around.segments[2]),
        ]
        return (
            np.concatenate([ids for ids, _, _ in parts]),
            np.concatenate([np.zeros(len(ids), np.bool_) if own is None else own for ids, own, _ in parts]),
            np.concatenate([np.full(len(ids), kind, np.int64) for ids, _, kind in parts]),
        )

    def counts(self, batch: Batch) -> dict[str, int]:
        """What each term will be divided by, known before the forward pass."""
        return self.hiding.counts(batch.hidden) | {"pairs": len(batch.answers)}

    # batch -> loss

    def loss(self, model: Transformer, batch: Batch) -> dict[str, Term]:
        """Of the hidden tokens, and of the pairs."""
        states = model(batch.hidden.inputs)[0]
        logits = self._answers(model, batch, states)
        nll = F.cross_entropy(logits, batch.answers, reduction="sum")
        terms = self.hiding.loss(model, batch.hidden, states)
        return terms | {"pairs": Term(nll, len(batch.answers), self.settings.weight)}

    def _answers(self, model: Transformer, batch: Batch, states: Tensor) -> Tensor:
        """(B, 2) logits from the state of each row's first token."""
        first, inputs = states.index_select(0, batch.firsts)[:, None], batch.hidden.inputs
        pooled = model.heads["pooler"](first, inputs, None)
        logits: Tensor = model.heads["next_sentence"](first, inputs, pooled)
        return logits

    # scores

    @torch.no_grad()
    def evaluate(
        self, model: Transformer, rows: AnnotatedTexts, examples: Pairs, looking: Looking
    ) -> Evaluation:
        """The same tokens hidden, and the same pairs parted, at every validation. Half of the pairs is chance."""
        nll, right, count, told, pairs = 0.0, 0, 0, 0, 0
        for batch in every_batch(self, model, examples, looking):
            states = model(batch.hidden.inputs)[0]
            each, good = self.hiding.right(model, batch.hidden, states)
            nll, right, count = nll + each, right + good, count + batch.tokens
            told += int((self._answers(model, batch, states).argmax(-1) == batch.answers).sum())
            pairs += len(batch.answers)
        loss = nll / max(count, 1)
        scores = {
            "accuracy": 100 * right / max(count, 1),
            "perplexity": math.exp(min(loss, 700.0)),
            "pairs_accuracy": 100 * told / max(pairs, 1),
        }
        return Evaluation(loss, scores, value_of(self.settings.best_by, loss, scores))

    # disk

    def save(self, folder: Path) -> None:
        """Write the tokenizer."""
        folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save(folder)


def _of_others(of: Ids, rng: Rng) -> Ids:
    """For each example one of another document, any of them; `of` (N,) are the documents, in order."""
    first, behind = np.searchsorted(of, of), np.searchsorted(of, of, side="right")
    drawn: Ids = rng.integers(len(of) - (behind - first))
    return np.where(drawn < first, drawn, drawn + behind - first)


def _left(rows: AnnotatedTexts, of: Ids, whole: Ids, bounds: Ids) -> Left:
    """whole, bounds (N, 3): the pairs of documents `of` before and after they were cut to the model's width."""
    used = np.bincount(of, weights=whole[:, 2] - whole[:, 0], minlength=len(rows)).astype(np.int64)
    rest, paired = rows.lengths - used, used > 0
    lost = (whole[:, 2] - whole[:, 0]) - (bounds[:, 2] - bounds[:, 0])
    return Left(*(_count(each) for each in (rest[~paired], rest[paired], lost)))


def _count(tokens: Ids) -> Count:
    return Count(int(np.count_nonzero(tokens)), int(tokens.sum()))


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """What two texts keep of `room` tokens: the longer one loses until both are of one length, then both lose."""
    if first + second <= room:
        return first, second
    half = min(first, second, room // 2)
    return (half, room - half) if first <= second else (room - half, half)
