"""A masked language model (Devlin et al. 2019; Joshi et al. 2020 for spans and their boundaries).

rows -> example    stretches of documents, the tokenizer's special tokens around each
example -> batch   15 % of the tokens hidden, anew each epoch; only these are asked for
loss               - Σ log P(w_i | what is left) over the hidden tokens [ - Σ log P(w_i | both sides of its span) ]
prediction         words for the masks of a text (fill_mask.py)
scores             how many hidden tokens are guessed; perplexity over them; pseudo-perplexity (Salazar et al. 2020)
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from trifold.errors import SettingsError
from trifold.nn import ModelConfig, Transformer
from trifold.objectives.hiding import Around, Hidden, Hiding, HidingSettings
from trifold.objectives.measuring import every_batch, value_of
from trifold.objectives.stretches import Cut, Stretches, stretches
from trifold.objectives.task import Evaluation, Looking, Sample
from trifold.objectives.terms import Term
from trifold.text import Tokenizer
from trifold.text.annotation import AnnotatedTexts
from trifold.text.corruption import MaskedRow
from trifold.text.spans import Ids


class MaskedSettings(HidingSettings):
    """A masked language model."""

    kind: Literal["masked"] = "masked"
    best_by: Literal["loss", "accuracy"] = Field(
        "loss", description="a score of the validation set, or loss, by which the best weights are chosen"
    )
    pseudo_perplexity: int = Field(
        0, ge=0, description="validation texts of which every token is hidden in its turn, for this score"
    )


class MaskedWords:
    """The task. width: tokens that the model reads at once. cut: what becomes of longer documents."""

    row_name, read_name, token_name = "texts", "tokens", "hidden tokens"
    packs = True

    def __init__(
        self,
        settings: MaskedSettings,
        tokenizer: Tokenizer,
        config: ModelConfig,
        width: int,
        cut: Cut = "pieces",
    ) -> None:
        self.settings, self.tokenizer, self.cut = settings, tokenizer, cut
        self.hiding = Hiding(settings, tokenizer, config)
        self.around = Around.one(tokenizer)
        self.room = width - self.around.size
        if self.room < 1:
            raise SettingsError(
                f"{width} tokens leave no room beside special ones; raise model.max_positions"
            )
        if settings.boundary and not (len(self.around.before) and len(self.around.behind)):
            raise SettingsError(
                "task.boundary: a span at the end of a text has no token beside it, because the tokenizer puts none "
                "around a text; set tokenizer.special=[cls, sep, mask]"
            )

    # rows -> examples

    def examples(self, rows: AnnotatedTexts, draw: int | None = None) -> Stretches:
        """Stretches of the documents that the model can read at once."""
        return stretches(rows, self.room, self.around.size, self.cut, draw)

    # examples -> batch

    def batch(
        self, examples: Stretches, rows: NDArray[np.int64], width: int | None = None, *, draw: int = 0
    ) -> Hidden:
        """Hide tokens of the chosen examples, a function of (draw, number of the example), and pack them."""
        return self.hiding.packed([self.hidden(examples, int(row), width, draw) for row in rows])

    def hidden(self, examples: Stretches, row: int, width: int | None = None, draw: int = 0) -> MaskedRow:
        """One example with its special tokens and some others hidden."""
        ids, words, _ = examples[row]
        room = len(ids) if width is None else max(0, width - self.around.size)
        ids, words = ids[:room], words[:room]
        whole = np.concatenate([self.around.before, ids, self.around.behind])
        starts = np.zeros(len(whole), np.bool_)
        starts[len(self.around.before) :][: len(words)] = words
        return self.hiding.hide(whole, starts, draw, row)

    def counts(self, batch: Hidden) -> dict[str, int]:
        """What each term will be divided by, known before the forward pass."""
        return self.hiding.counts(batch)

    # batch -> loss

    def loss(self, model: Transformer, batch: Hidden) -> dict[str, Term]:
        """Of the hidden tokens; and with the boundary objective a second time, from both sides of their spans."""
        return self.hiding.loss(model, batch, model(batch.inputs)[0])

    # scores

    @torch.no_grad()
    def evaluate(
        self, model: Transformer, rows: AnnotatedTexts, examples: Stretches, looking: Looking
    ) -> Evaluation:
        """The same tokens hidden at every validation."""
        nll, right, count = 0.0, 0, 0
        for batch in every_batch(self, model, examples, looking):
            each, good = self.hiding.right(model, batch, model(batch.inputs)[0])
            nll, right, count = nll + each, right + good, count + batch.tokens
        loss = nll / max(count, 1)
        scores = {"accuracy": 100 * right / max(count, 1), "perplexity": math.exp(min(loss, 700.0))}
        if asked := min(self.settings.pseudo_perplexity, len(examples.sizes)):
            scores["pseudo_perplexity"] = self.pseudo_perplexity(model, examples, np.arange(asked), looking)
        samples = self.samples(model, examples, min(looking.samples, len(examples.sizes)))
        return Evaluation(loss, scores, value_of(self.settings.best_by, loss, scores), samples)

    @torch.no_grad()
    def pseudo_perplexity(
        self, model: Transformer, examples: Stretches, rows: Ids, looking: Looking
    ) -> float:
        """exp of the mean - log P(w_i | all other tokens) over every token of the chosen examples, one pass for each.

        Salazar et al. 2020, equation 3.
        """
        device, total, count = next(model.parameters()).device, 0.0, 0
        for row in rows.tolist():
            looking.poll()
            ids = np.concatenate([self.around.before, examples[row][0], self.around.behind])
            places = np.flatnonzero(~self.hiding.special[ids])
            each = max(1, looking.batches.tokens // len(ids))
            for start in range(0, len(places), each):
                one = [self._only(ids, place) for place in places[start : start + each]]
                batch = self.hiding.packed(one).to(device)
                total += self.hiding.right(model, batch, model(batch.inputs)[0])[0]
            count += len(places)
        return math.exp(min(total / max(count, 1), 700.0))

    def _only(self, ids: Ids, place: int) -> MaskedRow:
        inputs = ids.copy()
        inputs[place] = self.hiding.to.mask
        at = np.array([place], dtype=np.int64)
        return MaskedRow(inputs, at, ids[at], np.array([[place, place + 1]], dtype=np.int64))

    @torch.no_grad()
    def samples(self, model: Transformer, examples: Stretches, count: int) -> list[Sample]:
        """Texts with masks, as they were, and as the model fills them."""
        if not count:
            return []
        batch = self.batch(examples, np.arange(count)).to(next(model.parameters()).device)
        assert model.lm_head is not None
        states = model(batch.inputs)[0].index_select(0, batch.places[: batch.tokens])
        filled = batch.inputs.tokens[0].clone()
        filled[batch.places[: batch.tokens]] = model.lm_head(states).argmax(-1)
        found, start = [], 0
        for row in range(count):
            masked = self.hidden(examples, row)
            end = start + len(masked.inputs)
            inner = slice(len(self.around.before), len(masked.inputs) - len(self.around.behind))
            forms = masked.inputs, masked.original, filled[start:end].cpu().numpy()
            source, reference, ours = (
                self.tokenizer.decode([form[inner].tolist()], keep_special=True)[0] for form in forms
            )
            found.append(Sample(source, reference, ours))
            start = end
        return found

    # disk

    def save(self, folder: Path) -> None:
        """Write the tokenizer."""
        folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save(folder)
