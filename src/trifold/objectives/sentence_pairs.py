"""Masked language model with a classification of pairs of texts.

    follows   whether the second text follows the first or is from another document
              (Devlin et al. 2019, section 3.1)
    order     whether two consecutive texts are in their original order
              (Lan et al. 2020, section 3.1)

rows -> example    two consecutive runs of whole sentences of a document, drawn again in each epoch;
                   half of the pairs are negative: with the second text of another document, or with
                   the texts swapped
example -> batch   tokens masked
loss               - Σ log P(masked token) / tokens - Σ log P(positive or negative) / pairs
scores             accuracy of the masked tokens and of the pairs
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from trifold.errors import DataError, SettingsError
from trifold.nn import ModelConfig, Transformer
from trifold.objectives.batch import LossTerm
from trifold.objectives.documents import Cut
from trifold.objectives.evaluation import ConstantAnswer, EvalRun, Evaluation
from trifold.objectives.masked import BoundarySettings, MaskedBatch, MaskedLM
from trifold.text import Tokenizer
from trifold.text.annotation import AnnotatedTexts
from trifold.text.encoded import share_room
from trifold.text.spans import Flags, Ids, Rng, example_rng


class SentencePairSettings(BoundarySettings):
    """Settings of masked tokens with sentence pairs."""

    command = 'predict {folder} "a text" --pair "another" --task next-sentence'
    unused_keys = (*BoundarySettings.unused_keys, "data.cut")
    redraws = True
    heads = ("lm", "pooler", "next-sentence")

    kind: Literal["pairs"] = "pairs"
    pairs: Literal["follows", "order"] = Field(
        "follows",
        description="what is predicted: whether the second text follows the first, or whether "
        "two texts are in order",
    )
    weight: float = Field(
        1.0, gt=0, description="weight of the loss of the pairs; masked tokens have 1"
    )
    short: float = Field(
        0.1, ge=0, le=1, description="share of the pairs that get a random, shorter length"
    )
    best_by: Literal["loss", "accuracy", "pairs_accuracy"] = "loss"

    def create(
        self, tokenizer: Tokenizer, config: ModelConfig, width: int, cut: Cut
    ) -> SentencePairs:
        return SentencePairs(self, tokenizer, config, width)


@dataclass(frozen=True)
class SentencePairExamples:
    """Examples. document (N,): number of the document; bounds (N, 3): start, middle and end of the
    two texts; whole (N, 3): the same before truncation.

    negative (N,): whether the second text is that of example `other`, or the texts are swapped.
    lengths (N, 1): tokens of both texts, including special tokens.
    """

    documents: AnnotatedTexts
    document: Ids
    bounds: Ids
    whole: Ids
    negative: Flags
    other: Ids
    lengths: Ids

    def text(self, row: int, which: int) -> tuple[Ids, Flags]:
        """Ids of the first (0) or second (1) text, and flags at the first tokens of words."""
        part = slice(self.bounds[row, which], self.bounds[row, which + 1])
        return self.documents.ids[part].astype(np.int64), self.documents.word_starts[part]


@dataclass(frozen=True, kw_only=True)
class MaskedPairBatch(MaskedBatch):
    """Packed pairs with masked tokens. pairs (B,): 0 positive, 1 negative."""

    pairs: Tensor


class SentencePairs(MaskedLM):
    """Masked tokens and sentence pairs. width: tokens that the model reads at once."""

    row_name = "pairs"
    reads_pairs = True
    fills_width = True

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        if not len(self.special.before):
            raise SettingsError(
                "tokenizer.special: the pooler reads the first token, and the tokenizer adds "
                "none before a text; set tokenizer.special=[cls, sep, mask]"
            )

    # --- rows -> examples -------------------------------------------------------------------------

    def examples(self, rows: AnnotatedTexts, draw: int | None = None) -> SentencePairExamples:
        """Runs of sentences that fill the model's width, each split in two between sentences; half
        are negative.

        Raises DataError if no document has two sentences, or if only one has and a second one is
        required.
        """
        cuts = [
            (number, *cut)
            for number in range(len(rows))
            for cut in self._cut_document(rows, number, draw or 0)
        ]
        table = np.array(cuts, dtype=np.int64).reshape(-1, 4)
        document = table[:, 0]
        whole = table[:, 1:]
        follows = self.settings.pairs == "follows"
        useful = len(np.unique(document))
        needed = 1 + follows
        if useful < needed:
            raise DataError(
                f"of {len(rows):,} documents {useful:,} have two sentences or more; pairs "
                f"require {needed}; set data.documents=blank if blank lines separate documents, "
                "hold out more, or use another text"
            )
        # The longer text loses its outer tokens, so that the texts stay adjacent.
        middle = whole[:, 1]
        kept = [share_room(a, b, self.room) for a, b in np.diff(whole).tolist()]
        first, second = np.array(kept, dtype=np.int64).reshape(-1, 2).T
        bounds = np.stack([middle - first, middle, middle + second], axis=1)
        rng = example_rng(draw or 0, 2**62)
        negative = rng.random(len(document)) < 0.5
        other = np.arange(len(document))
        if follows:
            other = np.where(negative, _draw_others(document, rng), other)
        lengths = np.minimum(first + second[other], self.room)[:, None] + self.special.size
        return SentencePairExamples(rows, document, bounds, whole, negative, other, lengths)

    def _cut_document(
        self, rows: AnnotatedTexts, number: int, draw: int
    ) -> list[tuple[int, int, int]]:
        """Start, middle and end of the pairs of one document, of any length."""
        start = int(rows.starts[number])
        end = int(rows.starts[number + 1])
        sentences = np.append(start + np.flatnonzero(rows.sentence_starts[start:end]), end)
        rng = example_rng(draw, number)
        cuts = []
        first = 0
        while first < len(sentences) - 1:
            size = self.room
            if rng.random() < self.settings.short:
                size = int(rng.integers(2, self.room + 1))
            last = int(np.searchsorted(sentences, sentences[first] + size, side="right")) - 1
            # A single sentence is not a pair: the next one is added and truncated.
            last = min(max(last, first + 2), len(sentences) - 1)
            if last >= first + 2:  # otherwise a last sentence without a second one
                middle = int(sentences[rng.integers(first + 1, last)])
                cuts.append((int(sentences[first]), middle, int(sentences[last])))
            first = last
        return cuts

    def describe(self, documents: AnnotatedTexts) -> Iterator[str]:
        """Lines about tokens in no pair. The numbers are those of one epoch; each epoch draws other
        pairs.
        """
        pairs = self.examples(documents)
        sizes = np.ptp(pairs.whole, axis=1)
        used = np.bincount(pairs.document, sizes, minlength=len(documents)).astype(np.int64)
        rest = documents.lengths - used
        lost = sizes - np.ptp(pairs.bounds, axis=1)
        for tokens, line in (
            (rest[used == 0], "{:,} documents of a single sentence: left out, with {:,} tokens"),
            (
                rest[used > 0],
                "{:,} last sentences with none after them to form a pair (about as many in each "
                "epoch): left out, with {:,} tokens",
            ),
            (
                lost,
                f"{{:,}} of {len(lost):,} pairs have more than {self.room:,} tokens (about as "
                "many in each epoch): truncated, {:,} tokens are lost",
            ),
        ):
            if number := np.count_nonzero(tokens):
                yield line.format(number, tokens.sum())
        if self.settings.pairs == "follows":
            yield (
                "half of the pairs, others in each epoch, get the second text of another "
                "document, truncated if it does not fit"
            )

    # --- examples -> batch ------------------------------------------------------------------------

    def batch(
        self, examples: Any, rows: Ids, width: int | None = None, *, draw: int = 0
    ) -> MaskedPairBatch:
        masked = []
        segments = []
        for row in rows.tolist():
            ids, starts, row_segments = self._join(examples, row)
            masked.append(self.mask_ids(ids, starts, draw, row))
            segments.append(row_segments)
        pairs = torch.from_numpy(examples.negative[rows].astype(np.int64))
        return MaskedPairBatch(**vars(self.pack(masked, segments)), pairs=pairs)

    def _join(self, examples: SentencePairExamples, row: int) -> tuple[Ids, Flags, Ids]:
        """Ids of a pair with special tokens, flags at the first tokens of words, and segments."""
        first = examples.text(row, 0)
        second = examples.text(int(examples.other[row]), 1)
        if examples.negative[row] and self.settings.pairs == "order":  # swapped
            first, second = second, first
        size, other_size = share_room(len(first[0]), len(second[0]), self.room)
        special = self.special
        parts = [
            _no_words(special.before),
            (first[0][:size], first[1][:size]),
            _no_words(special.between),
            (second[0][:other_size], second[1][:other_size]),
            _no_words(special.after),
        ]
        of_second, of_between, of_after = special.segments
        segments = (0, 0, of_between, of_second, of_after)
        ids, starts = (np.concatenate(side) for side in zip(*parts, strict=True))
        return ids, starts, np.repeat(segments, [len(ids) for ids, _ in parts])

    def counts(self, batch: Any) -> dict[str, int]:
        return super().counts(batch) | {"pairs": len(batch.pairs)}

    # --- loss, scores -----------------------------------------------------------------------------

    def loss(
        self, model: Transformer, batch: Any, states: Tensor | None = None
    ) -> dict[str, LossTerm]:
        if states is None:
            states = model(batch.inputs)[0]
        nll = F.cross_entropy(self._logits(model, batch, states), batch.pairs, reduction="sum")
        terms = super().loss(model, batch, states)
        return terms | {"pairs": LossTerm(nll, len(batch.pairs), self.settings.weight)}

    def _logits(self, model: Transformer, batch: MaskedPairBatch, states: Tensor) -> Tensor:
        """(B, 2) logits from the state of each row's first token."""
        packing: Any = batch.inputs.packing
        first = states.index_select(0, packing.starts[:-1].to(states.device))[:, None]
        pooled = model.heads["pooler"](first, batch.inputs, None)
        logits: Tensor = model.heads["next_sentence"](first, batch.inputs, pooled)
        return logits

    def measure(
        self, model: Transformer, batch: Any, states: Tensor | None = None
    ) -> dict[str, Any]:
        if states is None:
            states = model(batch.inputs)[0]
        correct = int((self._logits(model, batch, states).argmax(-1) == batch.pairs).sum())
        sums = super().measure(model, batch, states)
        return sums | {"pairs_correct": correct, "pairs": len(batch.pairs)}

    def constant_answer(self, examples: SentencePairExamples) -> ConstantAnswer:
        share = float(examples.negative.mean())
        return ConstantAnswer(
            "always answering the same", "pairs_accuracy", 100 * max(share, 1 - share)
        )

    def compute_scores(self, run: EvalRun) -> Evaluation:
        """Accuracies. Every validation reads the same masks and pairs; half of the pairs are
        negative.
        """
        pairs = 100 * run.sums["pairs_correct"] / max(run.sums["pairs"], 1)
        scores = {"perplexity": run.perplexity, "pairs_accuracy": pairs}
        return Evaluation(self.scores_of_sums(run.sums) | scores)


def _no_words(ids: Ids) -> tuple[Ids, Flags]:
    return ids, np.zeros(len(ids), np.bool_)


def _draw_others(document: Ids, rng: Rng) -> Ids:
    """For each example a random one of another document; `document` (N,) is sorted."""
    first = np.searchsorted(document, document)
    after = np.searchsorted(document, document, side="right")
    # A number among the examples of other documents, which skips those of its own.
    drawn: Ids = rng.integers(len(document) - (after - first))
    return np.where(drawn < first, drawn, drawn + after - first)
