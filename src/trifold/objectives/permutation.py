"""A language model of tokens in any order, by two streams (Yang et al. 2019, XLNet).

rows -> example    stretches of documents, the tokenizer's special tokens around each
example -> batch   an order of factorisation drawn anew each epoch; its last 1/K is asked for
loss               - Σ log P(x_{z_t} | x_{z_<t}) over the tokens asked for
prediction         words for the masks of a text (fill_mask.py)
scores             how many of these are guessed; perplexity over them

The stream of contents reads every token; that of questions stands at the places asked for and does not see what is
there. Both have the same weights, and only questions reach the head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from trifold.errors import SettingsError
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.losses import judge, linear_cross_entropy
from trifold.nn.masks import padding
from trifold.objectives.hiding import Around
from trifold.objectives.measuring import every_batch, value_of
from trifold.objectives.stretches import Cut, Stretches, stretches
from trifold.objectives.task import Evaluation, Looking, Sample
from trifold.objectives.terms import Term
from trifold.settings import Settings
from trifold.text import Tokenizer
from trifold.text.annotation import AnnotatedTexts, special_flags
from trifold.text.corruption import PREDICTION_CHOICES, draw_ranks
from trifold.text.spans import Ids, example_rng

HIDDEN = "_"  # what stands for a token that is asked for, in samples of a tokenizer without a mask


class PermutationSettings(Settings):
    """A language model of tokens in any order."""

    kind: Literal["permutation"] = "permutation"
    best_by: Literal["loss", "accuracy"] = Field(
        "loss", description="a score of the validation set, or loss, by which the best weights are chosen"
    )
    share: int = Field(6, ge=1, description="one in so many tokens is asked for, the last of the order (K)")
    ask: Literal["spans", "tokens"] = Field(
        "spans", description="which tokens come last: spans, each in a context of its own, or any"
    )
    longest: int = Field(5, ge=1, description="spans: at most so many tokens")


@dataclass(frozen=True)
class Batch:
    """Rows of one width, with the order of their tokens; asked (B, P) are places, wanted (B, P) the tokens there, -1
    where a row is asked for fewer.
    """

    inputs: Inputs
    asked: Tensor
    wanted: Tensor
    tokens: int

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        asked, wanted = (x.to(device, non_blocking=True) for x in (self.asked, self.wanted))
        return Batch(self.inputs.to(device), asked, wanted, self.tokens)


class Permutation:
    """The task. width: tokens that the model reads at once. cut: what becomes of longer documents."""

    row_name, read_name, token_name = "texts", "tokens", "tokens asked for"
    packs = False

    def __init__(
        self,
        settings: PermutationSettings,
        tokenizer: Tokenizer,
        config: ModelConfig,
        width: int,
        cut: Cut = "pieces",
    ) -> None:
        if not config.query_stream:
            raise SettingsError(
                "model.query_stream: the model has no second stream to ask with; set "
                "model.query_stream=true model.positions=relative-sinusoidal"
            )
        if "lm" not in config.chosen_heads:
            raise SettingsError("model.heads: the model has no head for words; set model.heads=[lm]")
        self.settings, self.tokenizer, self.cut = settings, tokenizer, cut
        self.around = Around.one(tokenizer)
        self.special = special_flags(tokenizer)
        self.room = width - self.around.size
        if self.room < 1:
            raise SettingsError(
                f"{width} tokens leave no room beside special ones; raise model.max_positions"
            )

    # rows -> examples

    def examples(self, rows: AnnotatedTexts, draw: int | None = None) -> Stretches:
        """Stretches of the documents that the model can read at once."""
        return stretches(rows, self.room, self.around.size, self.cut, draw)

    # examples -> batch

    def batch(
        self, examples: Stretches, rows: NDArray[np.int64], width: int | None = None, *, draw: int = 0
    ) -> Batch:
        """Draw an order for each of the chosen examples, a function of (draw, number of the example)."""
        texts = [self._row(examples, int(row), width) for row in rows]
        orders = [self.order(ids, draw, int(row)) for ids, row in zip(texts, rows, strict=True)]
        places = [np.flatnonzero(ranks) for ranks in orders]
        lengths = torch.tensor([len(ids) for ids in texts])
        wanted = [ids[at] for ids, at in zip(texts, places, strict=True)]
        inputs = Inputs(
            _grid(texts, self.tokenizer.required("pad")),
            padding(lengths, int(lengths.max())),
            ranks=_grid(orders, 0),
        )
        return Batch(inputs, _grid(places, 0), _grid(wanted, -1), sum(map(len, places)))

    def order(self, ids: Ids, draw: int, row: int) -> Ids:
        """The ranks of a row's tokens; special ones are never asked for."""
        rng, settings = example_rng(draw, row), self.settings
        places = PREDICTION_CHOICES[settings.ask](~self.special[ids], settings.share, settings.longest, rng)
        return draw_ranks(places, len(ids), rng)

    def _row(self, examples: Stretches, row: int, width: int | None = None) -> Ids:
        ids, _, _ = examples[row]
        room = len(ids) if width is None else max(0, width - self.around.size)
        return np.concatenate([self.around.before, ids[:room], self.around.behind])

    def counts(self, batch: Batch) -> dict[str, int]:
        """What each term will be divided by, known before the forward pass."""
        return {"tokens": batch.tokens}

    # batch -> loss

    def loss(self, model: Transformer, batch: Batch) -> dict[str, Term]:
        """Cross-entropy over the tokens asked for, in nats."""
        head = model.lm_head
        assert head is not None
        features = head.features(model.ask(batch.inputs, batch.asked).flatten(0, 1))
        sums = linear_cross_entropy(features, head.weight, head.bias, batch.wanted.flatten())
        return {"tokens": Term(sums.loss, batch.tokens, nll=sums.nll)}

    # scores

    @torch.no_grad()
    def evaluate(
        self, model: Transformer, rows: AnnotatedTexts, examples: Stretches, looking: Looking
    ) -> Evaluation:
        """The same orders at every validation."""
        head, nll, right, count = model.lm_head, 0.0, 0, 0
        assert head is not None
        for batch in every_batch(self, model, examples, looking):
            features = head.features(model.ask(batch.inputs, batch.asked).flatten(0, 1))
            found = judge(features, head.weight, head.bias, batch.wanted.flatten())
            nll, right, count = nll + float(found.nll), right + int(found.right), count + batch.tokens
        loss = nll / max(count, 1)
        scores = {"accuracy": 100 * right / max(count, 1), "perplexity": math.exp(min(loss, 700.0))}
        samples = self.samples(model, examples, min(looking.samples, len(examples.sizes)))
        return Evaluation(loss, scores, value_of(self.settings.best_by, loss, scores), samples)

    @torch.no_grad()
    def samples(self, model: Transformer, examples: Stretches, count: int) -> list[Sample]:
        """Texts without what is asked for, as they were, and with the answers in its place."""
        if not count:
            return []
        batch = self.batch(examples, np.arange(count)).to(next(model.parameters()).device)
        assert model.lm_head is not None
        answers = model.lm_head(model.ask(batch.inputs, batch.asked)).argmax(-1).cpu().numpy()
        hidden = self.tokenizer.mask_id
        found = []
        for row, answered in enumerate(answers):
            ids = self._row(examples, row)
            places = np.flatnonzero(self.order(ids, 0, row))
            shown, ours = ids.copy(), ids.copy()
            shown[places] = -1 if hidden is None else hidden
            ours[places] = answered[: len(places)]
            inner = slice(len(self.around.before), len(ids) - len(self.around.behind))
            forms = [self._said(form[inner]) for form in (shown, ids, ours)]
            found.append(Sample(*forms))
        return found

    def _said(self, ids: Ids) -> str:
        """Text; -1 is a token that is not to be seen."""
        parts = np.split(ids, np.flatnonzero(ids == -1))
        return HIDDEN.join(
            self.tokenizer.decode([part[part != -1].tolist()], keep_special=True)[0] for part in parts
        )

    # disk

    def save(self, folder: Path) -> None:
        """Write the tokenizer."""
        folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save(folder)


def _grid(rows: list[Ids], filling: int) -> Tensor:
    """(B, longest) int64; of rows without anything, one column of filling."""
    grid = np.full((len(rows), max(1, *map(len, rows))), filling, dtype=np.int64)
    for place, row in enumerate(rows):
        grid[place, : len(row)] = row
    return torch.from_numpy(grid)
