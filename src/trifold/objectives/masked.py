"""Masked language model (Devlin et al. 2019; Joshi et al. 2020 for spans and their boundaries).

rows -> example    chunks of documents, with the tokenizer's special tokens
example -> batch   15 % of the tokens masked, others in each epoch; only these are labels
loss               - Σ log P(w_i | the unmasked tokens) over the masked tokens
                   [ - Σ log P(w_i | both ends of its span) ]
scores             accuracy and perplexity of the masked tokens; pseudo-perplexity (Salazar et al. 2020)
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from pydantic import Field

from trifold.errors import SettingsError
from trifold.nn import ModelConfig, Transformer
from trifold.objectives.documents import Cut, DocumentChunks, DocumentObjective, SpecialTokens
from trifold.objectives.evaluation import EvalRun, Sample, Scores
from trifold.objectives.masking import MaskedBatch, Masking, MaskingSettings
from trifold.objectives.objective import FILL_MASK, LossTerm
from trifold.text import Tokenizer
from trifold.text.corruption import MaskedRow
from trifold.text.spans import Ids


class MaskedSettings(MaskingSettings):
    """Settings of a masked language model."""

    command = FILL_MASK

    kind: Literal["masked"] = "masked"
    best_by: Literal["loss", "accuracy"] = "loss"
    pseudo_perplexity: int = Field(
        0,
        ge=0,
        description="validation texts for the pseudo-perplexity, which masks each of their tokens in turn",
    )

    def create(self, tokenizer: Tokenizer, config: ModelConfig, width: int, cut: Cut) -> MaskedLM:
        return MaskedLM(self, tokenizer, config, width, cut)


class MaskedLM(DocumentObjective):
    """Masked language model. width: tokens that the model reads at once."""

    token_name = "masked tokens"

    def __init__(
        self, settings: Any, tokenizer: Tokenizer, config: ModelConfig, width: int, cut: Cut = "pieces"
    ) -> None:
        self.masking = Masking(settings, tokenizer, config)
        super().__init__(settings, tokenizer, width, SpecialTokens.of(tokenizer), cut)
        if settings.boundary and not (len(self.special.before) and len(self.special.after)):
            raise SettingsError(
                "task.boundary: a span at the end of a text has no neighbor, because the tokenizer adds no special "
                "tokens; set tokenizer.special=[cls, sep, mask]"
            )

    def batch(
        self, examples: DocumentChunks, rows: Ids, width: int | None = None, *, draw: int = 0
    ) -> MaskedBatch:
        """Mask tokens of the given examples, as a function of (draw, number of the example), and pack them."""
        return self.masking.pack([self.mask(examples, int(row), width, draw) for row in rows])

    def mask(self, examples: DocumentChunks, row: int, width: int | None = None, draw: int = 0) -> MaskedRow:
        """One example with special tokens and masks."""
        whole, starts = self.with_special(examples, row, width)
        return self.masking.mask(whole, starts, draw, row)

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        return self.masking.counts(batch)

    def loss(self, model: Transformer, batch: MaskedBatch) -> dict[str, LossTerm]:
        """Cross-entropy of the masked tokens, and of the span-boundary objective."""
        return self.masking.loss(model, batch, model(batch.inputs)[0])

    def measure(self, model: Transformer, batch: MaskedBatch) -> dict[str, Any]:
        """Negative log-likelihood and correct predictions of the masked tokens."""
        return self.masking.measure(model, batch, model(batch.inputs)[0])

    def compute_scores(self, run: EvalRun) -> Scores:
        """Accuracy and perplexity. Every validation masks the same tokens."""
        scores = {"accuracy": run.percent(), "perplexity": run.perplexity}
        if count := min(self.settings.pseudo_perplexity, len(run.examples)):
            scores["pseudo_perplexity"] = self.pseudo_perplexity(run, count)
        return Scores(scores, self.samples(run))

    def pseudo_perplexity(self, run: EvalRun, count: int) -> float:
        """exp of the mean - log P(w_i | all other tokens) over all tokens of the first `count` examples.

        Salazar et al. 2020, equation 3. Each token is masked in a copy of its row.
        """
        nll, tokens = 0.0, 0
        for row in range(count):
            run.context.poll()
            ids = self.special.around(run.examples[row][0])
            positions = np.flatnonzero(~self.masking.special[ids]).tolist()
            size = max(1, run.context.batches.tokens // len(ids))
            for start in range(0, len(positions), size):
                copies = [self.masking.mask_single(ids, at) for at in positions[start : start + size]]
                nll += self.measure(run.model, self.masking.pack(copies).to(run.device))["nll"]
            tokens += len(positions)
        return math.exp(min(nll / max(tokens, 1), 700.0))

    def samples(self, run: EvalRun) -> list[Sample]:
        """Masked texts, the original texts, and the texts with the model's predictions."""
        masked = [self.mask(run.examples, row) for row in run.sample_rows]
        if not masked:
            return []
        batch, head = self.masking.pack(masked).to(run.device), run.model.lm_head
        assert head is not None
        states = run.model(batch.inputs)[0].index_select(0, batch.positions[: batch.tokens])
        predictions = head(states).argmax(-1).cpu().numpy()
        samples, start = [], 0
        for row in masked:
            end = start + len(row.positions)
            predicted = row._replace(targets=predictions[start:end]).original
            samples.append(self.special.sample(self.tokenizer, row.inputs, row.original, predicted))
            start = end
        return samples
