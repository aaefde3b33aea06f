"""Permutation language model with two attention streams (Yang et al. 2019, XLNet).

rows -> example    chunks of documents, with the tokenizer's special tokens
example -> batch   a random factorization order in each epoch; its last 1/K are the targets
loss               - Σ log P(x_{z_t} | x_{z_<t}) over the targets
scores             accuracy and perplexity of the targets

The content stream reads every token. The query stream is at the target positions and does not see
their tokens. Both share their weights, and only the query stream reaches the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.masks import padding_mask
from trifold.nn.parts import EmbeddingsPart, part_of
from trifold.objectives.batch import Batch, LossTerm, measure_tokens, token_loss
from trifold.objectives.documents import (
    Cut,
    DocumentChunks,
    DocumentObjective,
    DocumentObjectiveSettings,
)
from trifold.objectives.evaluation import EvalRun, Evaluation, Sample
from trifold.objectives.objective import ENCODER, FILL_MASK
from trifold.text import Tokenizer
from trifold.text.corruption import PREDICTION_CHOICES, draw_ranks
from trifold.text.spans import Ids, example_rng


class PermutationSettings(DocumentObjectiveSettings):
    """Settings of a permutation language model."""

    pipeline_tag = "fill-mask"
    command = FILL_MASK
    defaults = {**ENCODER, "model": {"preset": "xlnet-base"}}  # noqa: RUF012

    kind: Literal["permutation"] = "permutation"
    best_by: Literal["loss", "accuracy"] = "loss"
    share: int = Field(
        6,
        ge=1,
        description="one in this many tokens, the last in the order, is a target (K of the paper)",
    )
    ask: Literal["spans", "tokens"] = Field(
        "spans",
        description="which tokens are last in the order: spans with context around each, or any "
        "tokens",
    )
    longest: int = Field(5, ge=1, description="spans: largest length in tokens")

    def model_problem(self, config: ModelConfig) -> str | None:
        problem = super().model_problem(config)
        if problem is None and not part_of(EmbeddingsPart, config).has_queries:
            problem = (
                "model.query_stream: the model has no query stream; set model.query_stream=true "
                "model.positions=relative-sinusoidal"
            )
        return problem

    def create(
        self, tokenizer: Tokenizer, config: ModelConfig, width: int, cut: Cut
    ) -> Permutation:
        return Permutation(self, tokenizer, width, cut)


@dataclass(frozen=True)
class PermutedBatch(Batch):
    """Padded rows with the order of their tokens. positions (B, P): of the targets; labels (B, P):
    -1 in padding.
    """

    positions: Tensor


class Permutation(DocumentObjective):
    """Permutation language model. width: tokens that the model reads at once."""

    token_name = "target tokens"
    save_options = {"parse_special": True}  # noqa: RUF012
    packs = False

    def batch(
        self, examples: DocumentChunks, rows: Ids, width: int | None = None, *, draw: int = 0
    ) -> PermutedBatch:
        """Draw an order for each of the given examples, a function of (draw, number of the
        example).
        """
        texts = [self.with_special(examples, int(row), width)[0] for row in rows]
        orders = [self.order(ids, draw, int(row)) for ids, row in zip(texts, rows, strict=True)]
        positions = [np.flatnonzero(order) for order in orders]
        labels = [ids[targets] for ids, targets in zip(texts, positions, strict=True)]
        lengths = torch.tensor([len(ids) for ids in texts])
        tokens = _padded(texts, self.tokenizer.padding_id)
        inputs = Inputs(tokens, padding_mask(lengths, int(lengths.max())), order=_padded(orders, 0))
        return PermutedBatch(
            inputs, _padded(labels, -1), sum(map(len, positions)), _padded(positions, 0)
        )

    def order(self, ids: Ids, draw: int, row: int) -> Ids:
        """The rank of each token in the order, 0 for tokens that are no target; special tokens are
        never targets.
        """
        rng = example_rng(draw, row)
        settings = self.settings
        choose = PREDICTION_CHOICES[settings.ask]
        positions = choose(~self.is_special[ids], settings.share, settings.longest, rng)
        return draw_ranks(positions, len(ids), rng)

    # --- loss, scores -----------------------------------------------------------------------------

    def loss(self, model: Transformer, batch: PermutedBatch) -> dict[str, LossTerm]:
        states = model.query_states(batch.inputs, batch.positions).flatten(0, 1)
        return {"tokens": token_loss(model, states, batch)}

    def measure(self, model: Transformer, batch: PermutedBatch) -> dict[str, Any]:
        states = model.query_states(batch.inputs, batch.positions).flatten(0, 1)
        return measure_tokens(model, states, batch)

    def compute_scores(self, run: EvalRun) -> Evaluation:
        """Accuracy and perplexity. Every validation uses the same orders."""
        return Evaluation(
            self.scores_of_sums(run.sums) | {"perplexity": run.perplexity}, self.samples(run)
        )

    def samples(self, run: EvalRun) -> list[Sample]:
        """Texts without their targets, the original texts, and the texts with the model's
        predictions.
        """
        if not len(run.sample_rows):
            return []
        batch = self.batch(run.examples, run.sample_rows).to(run.device)
        head = run.model.lm_head
        assert head is not None
        states = run.model.query_states(batch.inputs, batch.positions)
        predictions = head(states).argmax(-1).cpu().numpy()
        mask = self.tokenizer.mask_id
        if mask is None:
            mask = -1
        samples = []
        for row, predicted in enumerate(predictions):
            ids, _ = self.with_special(run.examples, row)
            positions = np.flatnonzero(self.order(ids, 0, row))
            source = ids.copy()
            ours = ids.copy()
            source[positions] = mask
            ours[positions] = predicted[: len(positions)]
            samples.append(self.special.sample(self.tokenizer, source, ids, ours))
        return samples


def _padded(rows: list[Ids], value: int) -> Tensor:
    """(B, longest) int64; at least one column."""
    rows = [np.append(row, value) if not len(row) else row for row in rows]
    return pad_sequence(
        [torch.from_numpy(row) for row in rows], batch_first=True, padding_value=value
    )
