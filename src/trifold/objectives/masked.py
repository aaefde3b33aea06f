"""Masked language model (Devlin et al. 2019; Joshi et al. 2020 for spans and their boundaries).

rows -> example    chunks of documents, with the tokenizer's special tokens
example -> batch   15 % of the tokens masked, others in each epoch; only these are labels
loss               - Σ log P(w_i | the unmasked tokens) over the masked tokens
                   [ - Σ log P(w_i | both ends of its span) ]
scores         accuracy and perplexity of the masked tokens; pseudo-perplexity (Salazar et al. 2020)

Only the states at masked positions reach the head. sentence_pairs.py adds a second loss to this
objective.
Shapes: N tokens of the packed row, M masked ones (padded to a multiple), E model width, V
vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from trifold.data import DataSettings, Documents, Rows, read_records
from trifold.errors import SettingsError
from trifold.nn import ModelConfig, Transformer
from trifold.nn.heads import SpanBoundary
from trifold.nn.losses import linear_cross_entropy
from trifold.nn.packing import round_up
from trifold.objectives.batch import (
    Batch,
    LossTerm,
    measure_tokens,
    pack,
    pad_end,
    token_loss,
)
from trifold.objectives.documents import (
    Cut,
    DocumentChunks,
    DocumentObjective,
    DocumentObjectiveSettings,
)
from trifold.objectives.evaluation import EvalRun, Evaluation, Sample
from trifold.objectives.objective import ENCODER, FILL_MASK
from trifold.text import Tokenizer
from trifold.text.corruption import MASK_CHOICES, MaskedRow, Replacement, choose_spans, mask_tokens
from trifold.text.spans import MAX_SPAN_RATE, Flags, Ids, example_rng, expand_spans, geometric

TEXTS = ("text", "pair", "words", "context", "question")  # the roles of texts in the rows of tasks

# --- settings -> rows -----------------------------------------------------------------------------


class MaskingSettings(DocumentObjectiveSettings):
    """Which tokens are masked, and what replaces them."""

    special = ENCODER["tokenizer"]

    mask: Literal["plain", "words", "spans"] = Field(
        "plain", description="what is masked: single tokens, whole words, or spans of whole words"
    )
    rate: float = Field(0.15, gt=0, lt=1, description="share of the tokens that are masked")
    masked: float = Field(0.8, ge=0, le=1, description="share of these replaced by the mask token")
    random: float = Field(
        0.1, ge=0, le=1, description="share of these replaced by a random token; others stay"
    )
    span_p: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="spans: p of the geometric distribution of their lengths in words",
    )
    span_longest: int = Field(10, ge=1, description="spans: largest length in words")


class BoundarySettings(MaskingSettings):
    """Masking, and the weight of the span-boundary objective."""

    boundary: float = Field(
        0.0,
        ge=0,
        description="weight of the span-boundary objective, which predicts a masked token from "
        "the states at both ends of its span; requires the head boundary",
    )


class MaskedSettings(BoundarySettings):
    """Settings of a masked language model."""

    pipeline_tag = "fill-mask"
    command = FILL_MASK

    kind: Literal["masked"] = "masked"
    texts_of: Literal["classify", "tag", "answer"] | None = Field(
        None, description="task of rows with texts"
    )
    best_by: Literal["loss", "accuracy"] = "loss"
    pseudo_perplexity: int = Field(
        0,
        ge=0,
        description="texts for the pseudo-perplexity, which masks each of their tokens in turn",
    )

    def read(self, source: Any, settings: DataSettings, split: str) -> Any:
        """Documents, or the rows of the task `texts_of`."""
        if self.texts_of is None:
            return super().read(source, settings, split)
        roles = import_module(f"trifold.objectives.{self.texts_of}").ROLES
        plain = "conll" if self.texts_of == "tag" else None
        return read_records(source, settings, roles, split, plain)

    def texts(self, rows: Rows) -> Documents:
        """The documents, or the different texts of the rows of a task."""
        if isinstance(rows, Documents):
            return rows
        texts = dict[str, None]()
        for value in chain(*(rows.columns[role] for role in TEXTS if role in rows.columns)):
            if isinstance(value, str):
                texts[value] = None
            elif value is not None:
                texts[" ".join(value)] = None  # a list of words
        return Documents.of([*texts], rows.report.name)

    def create(self, tokenizer: Tokenizer, config: ModelConfig, width: int, cut: Cut) -> MaskedLM:
        return MaskedLM(self, tokenizer, config, width, cut)


# --- examples -> batch ----------------------------------------------------------------------------


@dataclass(frozen=True)
class MaskedBatch(Batch):
    """Packed rows with masked tokens.

    positions (M,): of masked tokens in the packed row; labels (M,): the original tokens, -1 in
    padding. boundary (3, M), for the span-boundary objective: the positions at both ends of the
    span of each masked token, and its position in the span, -1 beyond the positions of the boundary
    head.
    """

    positions: Tensor
    boundary: Tensor | None = None
    boundary_tokens: int = 0


class MaskedLM(DocumentObjective):
    """Masked language model. width: tokens that the model reads at once.

    Raises SettingsError if the tokenizer or the model lacks what the settings require.
    """

    token_name = "masked tokens"
    save_options = {"parse_special": True}  # noqa: RUF012

    def __init__(
        self,
        settings: Any,
        tokenizer: Tokenizer,
        config: ModelConfig,
        width: int,
        cut: Cut = "pieces",
    ) -> None:
        mask = settings.required_mask(tokenizer)
        if settings.mask == "spans" and settings.rate > MAX_SPAN_RATE:
            raise SettingsError(
                f"task.rate: {settings.rate} of the words do not fit into separate spans; set "
                f"at most {MAX_SPAN_RATE}, or task.mask=words"
            )
        if settings.masked + settings.random > 1:
            raise SettingsError(
                f"task.masked + task.random is {settings.masked + settings.random}, above 1"
            )
        if (settings.boundary > 0) != ("boundary" in config.chosen_heads):
            raise SettingsError(
                "task.boundary and model.heads: the span-boundary objective requires both a "
                "weight and the head; set task.boundary=1.0 model.heads=[lm, boundary], or remove "
                "both"
            )
        super().__init__(settings, tokenizer, width, cut)
        if settings.boundary and not (len(self.special.before) and len(self.special.after)):
            raise SettingsError(
                "task.boundary: a span at the end of a text has no neighbor, because the "
                "tokenizer adds no special tokens; set tokenizer.special=[cls, sep, mask]"
            )
        self.config = config
        ordinary = np.flatnonzero(~self.is_special[: tokenizer.vocab_size])
        self.replacement = Replacement(mask, ordinary, settings.masked, settings.random)
        choose = MASK_CHOICES[settings.mask]
        if settings.mask == "spans":
            distribution = partial(geometric, p=settings.span_p, longest=settings.span_longest)
            choose = partial(choose_spans, distribution=distribution)
        self._choose = choose

    def batch(
        self, examples: DocumentChunks, rows: Ids, width: int | None = None, *, draw: int = 0
    ) -> MaskedBatch:
        """Mask tokens of the given examples, as a function of (draw, number of the example), and
        pack them.
        """
        return self.pack([self.mask(examples, int(row), width, draw) for row in rows])

    def mask(
        self, examples: DocumentChunks, row: int, width: int | None = None, draw: int = 0
    ) -> MaskedRow:
        """One example with special tokens and masks."""
        return self.mask_ids(*self.with_special(examples, row, width), draw, row)

    def mask_ids(self, ids: Ids, starts: Flags, draw: int, row: int) -> MaskedRow:
        """Mask tokens of one row; a function of (draw, row). starts: flags at the first tokens of
        words.
        """
        rng = example_rng(draw, row)
        positions = self._choose(~self.is_special[ids], starts, self.settings.rate, rng)
        return mask_tokens(
            ids, positions, rng, self.replacement, per_span=self.settings.mask == "spans"
        )

    def pack(self, rows: Sequence[MaskedRow], segments: Sequence[Ids] | None = None) -> MaskedBatch:
        """Concatenate rows into one."""
        lengths = np.array([len(row.inputs) for row in rows], dtype=np.int64)
        ids = np.concatenate([row.inputs for row in rows])
        inputs, packing = pack(ids, lengths, self.tokenizer.padding_id)
        if segments is not None and self.config.n_token_types > 1:
            inputs = replace(
                inputs, segments=pad_end(np.concatenate(segments), packing.length, 0)[None]
            )
        firsts = packing.starts[:-1].numpy()
        count = sum(len(row.positions) for row in rows)
        size = round_up(count)
        last = packing.length - 1  # padding refers to the last token
        positions = np.concatenate(
            [row.positions + first for row, first in zip(rows, firsts, strict=True)]
        )
        labels = np.concatenate([row.targets for row in rows])
        batch = MaskedBatch(
            inputs, pad_end(labels, size, -1), count, pad_end(positions, size, last)
        )
        if not self.settings.boundary:
            return batch
        spans = np.concatenate([row.spans + first for row, first in zip(rows, firsts, strict=True)])
        return self._with_boundary(batch, spans, padding=last)

    def _with_boundary(self, batch: MaskedBatch, spans: Ids, padding: int) -> MaskedBatch:
        """The batch with what the span-boundary objective reads. spans (S, 2): start and end of the
        masked spans in the packed row; padding: the position that padding refers to.
        """
        size = len(batch.positions)
        starts, ends = np.repeat(spans, spans[:, 1] - spans[:, 0], axis=0).T
        offset = expand_spans(spans) - starts
        offset = np.where(offset < self.config.boundary_positions, offset, -1)
        left = pad_end(starts - 1, size, padding)
        right = pad_end(ends, size, padding)
        boundary = torch.stack([left, right, pad_end(offset, size, -1)])
        return replace(batch, boundary=boundary, boundary_tokens=int((offset >= 0).sum()))

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        counts = super().counts(batch)
        if self.settings.boundary:
            counts["boundary"] = batch.boundary_tokens
        return counts

    # --- loss, scores -----------------------------------------------------------------------------

    def loss(
        self, model: Transformer, batch: MaskedBatch, states: Tensor | None = None
    ) -> dict[str, LossTerm]:
        """Cross-entropy of the masked tokens, and of the span-boundary objective, in nats. states
        (N, E): the last ones, if they are known.
        """
        if states is None:
            states = model(batch.inputs)[0]
        terms = {"tokens": token_loss(model, states.index_select(0, batch.positions), batch)}
        if batch.boundary is not None:
            terms["boundary"] = self._boundary_loss(model, batch, batch.boundary, states)
        return terms

    def _boundary_loss(
        self, model: Transformer, batch: MaskedBatch, boundary: Tensor, states: Tensor
    ) -> LossTerm:
        """The span-boundary objective: each masked token from the states at both ends of its
        span.
        """
        boundary_head = model.heads["boundary"]
        head = model.lm_head
        assert isinstance(boundary_head, SpanBoundary) and head is not None
        left, right, offset = boundary
        labels = torch.where(offset < 0, -1, batch.labels)
        ends = (states.index_select(0, side) for side in (left, right))
        features = boundary_head(*ends, offset.clamp_min(0))
        sums = linear_cross_entropy(features, head.weight, boundary_head.bias, labels)
        return LossTerm(sums.loss, batch.boundary_tokens, self.settings.boundary)

    def measure(
        self, model: Transformer, batch: MaskedBatch, states: Tensor | None = None
    ) -> dict[str, Any]:
        """Negative log-likelihood and correct predictions of the masked tokens. states: as for
        `loss`.
        """
        if states is None:
            states = model(batch.inputs)[0]
        return measure_tokens(model, states.index_select(0, batch.positions), batch)

    def compute_scores(self, run: EvalRun) -> Evaluation:
        """Accuracy and perplexity. Every validation masks the same tokens."""
        scores = self.scores_of_sums(run.sums) | {"perplexity": run.perplexity}
        if count := min(self.settings.pseudo_perplexity, len(run.examples)):
            scores["pseudo_perplexity"] = self.pseudo_perplexity(run, count)
        return Evaluation(scores, self.samples(run))

    def pseudo_perplexity(self, run: EvalRun, count: int) -> float:
        """exp of the mean - log P(w_i | all other tokens) over all tokens of the first `count`
        examples.

        Salazar et al. 2020, equation 3. Each token is masked in a copy of its row.
        """
        nll = 0.0
        tokens = 0
        rng = example_rng(0, 0)
        always_mask = self.replacement._replace(masked=1.0)
        for row in range(count):
            run.context.poll()
            ids = self.special.around(run.examples[row][0])
            positions = np.flatnonzero(~self.is_special[ids])
            size = max(1, run.context.batches.tokens // len(ids))
            for start in range(0, len(positions), size):
                single = positions[start : start + size, None]
                copies = [mask_tokens(ids, position, rng, always_mask) for position in single]
                nll += self.measure(run.model, self.pack(copies).to(run.device))["nll"]
            tokens += len(positions)
        return math.exp(min(nll / max(tokens, 1), 700.0))

    def samples(self, run: EvalRun) -> list[Sample]:
        """Masked texts, the original texts, and the texts with the model's predictions."""
        masked = [self.mask(run.examples, row) for row in run.sample_rows]
        if not masked:
            return []
        batch = self.pack(masked).to(run.device)
        head = run.model.lm_head
        assert head is not None
        states = run.model(batch.inputs)[0].index_select(0, batch.positions[: batch.tokens])
        predictions = head(states).argmax(-1).cpu().numpy()
        ends = np.cumsum([len(row.positions) for row in masked])
        return [
            self.special.sample(
                self.tokenizer, row.inputs, row.original, row._replace(targets=predicted).original
            )
            for row, predicted in zip(masked, np.split(predictions, ends[:-1]), strict=True)
        ]
