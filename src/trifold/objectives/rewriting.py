"""Learning from raw text with an encoder-decoder: the encoder reads a spoilt text, the decoder writes what was lost.

rows -> example    stretches of documents
example -> batch   spoilt, anew each epoch: source and target, each with </s>; then as in translation
loss               - Σ log P(y_t | y_<t, X) over the target tokens
scores             perplexity; how many targets are written exactly, on the first of the validation texts

What is spoilt, and what the target is, says `spoil`: see denoise.py and spans.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trifold.errors import SettingsError
from trifold.generate import GenerationConfig
from trifold.nn import Transformer
from trifold.objectives.measuring import mean_loss, value_of
from trifold.objectives.stretches import Cut, Stretches, stretches
from trifold.objectives.task import Evaluation, Looking, Sample
from trifold.objectives.terms import Term
from trifold.objectives.translate import Batch, Examples, Translate, TranslateSettings
from trifold.predict.writing import write
from trifold.ragged import Ragged
from trifold.scores import exact_match
from trifold.settings import Settings
from trifold.text import Tokenizer
from trifold.text.annotation import AnnotatedTexts
from trifold.text.spans import Flags, Ids, Rng, example_rng

# ids, and where words and sentences start -> what is read, and what is to be written
Spoil = Callable[[Ids, Flags, Flags, Rng], tuple[Ids, Ids]]


class RewritingSettings(Settings):
    """What all tasks of this kind are told."""

    label_smoothing: float = Field(0.0, ge=0, lt=1)
    written: int = Field(
        100, ge=0, description="validation texts that are written, greedily, to see how many come out exactly"
    )
    best_by: Literal["loss", "exact_match"] = Field(
        "loss", description="a score of the validation set, or loss, by which the best weights are chosen"
    )


class Rewriting:
    """The task. width: tokens that the model reads or writes at once. cut: what becomes of longer documents."""

    row_name, read_name, token_name = "texts", "tokens", "target tokens"
    packs = True

    def __init__(
        self,
        settings: RewritingSettings,
        tokenizer: Tokenizer,
        spoil: Spoil,
        width: int,
        cut: Cut = "pieces",
        *,
        start_id: int,
    ) -> None:
        self.settings, self.tokenizer, self.spoil, self.cut = settings, tokenizer, spoil, cut
        if settings.best_by == "exact_match" and not settings.written:
            raise SettingsError(
                "task.best_by: exact_match needs texts that are written: set task.written=100"
            )
        self.room = width - 1  # </s> stands behind
        if self.room < 1:
            raise SettingsError(f"{width} tokens leave no room for a text; raise model.max_positions")
        own = TranslateSettings(label_smoothing=settings.label_smoothing, best_by="loss")
        self._writer = Translate(own, tokenizer, tokenizer, start_id=start_id)

    # rows -> examples

    def examples(self, rows: AnnotatedTexts, draw: int | None = None) -> Stretches:
        """Stretches of the documents that the model can read at once."""
        return stretches(rows, self.room, 1, self.cut, draw)

    # examples -> batch

    def spoilt(
        self, examples: Stretches, rows: NDArray[np.int64], width: int | None = None, *, draw: int = 0
    ) -> Examples:
        """Sources and targets of the chosen examples, each a function of (draw, number of the example)."""
        end = self.tokenizer.required("eos")
        sources, targets = [], []
        for row in rows.tolist():
            ids, words, sentences = examples[row]
            room = len(ids) if width is None else width - 1
            source, target = self.spoil(ids[:room], words[:room], sentences[:room], example_rng(draw, row))
            sources.append([*source.tolist(), end])
            targets.append([*target.tolist(), end])
        return Examples(Ragged.of(sources), Ragged.of(targets))

    def batch(
        self, examples: Stretches, rows: NDArray[np.int64], width: int | None = None, *, draw: int = 0
    ) -> Batch:
        """Spoil the chosen examples and pack them."""
        pairs = self.spoilt(examples, rows, width, draw=draw)
        return self._writer.batch(pairs, np.arange(len(rows)))

    def counts(self, batch: Batch) -> dict[str, int]:
        """What each term will be divided by, known before the forward pass."""
        return self._writer.counts(batch)

    # batch -> loss

    def loss(self, model: Transformer, batch: Batch) -> dict[str, Term]:
        """Cross-entropy over the target tokens, in nats."""
        return self._writer.loss(model, batch)

    # scores

    def evaluate(
        self, model: Transformer, rows: AnnotatedTexts, examples: Stretches, looking: Looking
    ) -> Evaluation:
        """The same texts spoilt in the same way at every validation."""
        loss = mean_loss(self, model, examples, looking)
        scores = {"perplexity": math.exp(min(loss, 700.0))}
        samples: list[Sample] = []
        signatures: list[str] = []
        if count := min(self.settings.written, len(examples.sizes)):
            pairs = self.spoilt(examples, np.arange(count))
            greedy = GenerationConfig(max_new_tokens=int(pairs.targets.lengths.max()) + 8)
            found = write(
                model,
                pairs.sources,
                greedy,
                codec=self.tokenizer,
                on_step=lambda _tokens, _open: looking.poll(),
            )
            source, wanted = (
                self._texts([ragged.ids[a:b].tolist() for a, b in _bounds(ragged)])
                for ragged in (pairs.sources, pairs.targets)
            )
            ours = self._texts([best[0].tokens for best in found])
            score = exact_match(ours, wanted)
            scores["exact_match"] = score.value
            signatures.append(str(score))
            samples = [Sample(*each) for each in zip(source, wanted, ours, strict=True)]
        return Evaluation(loss, scores, value_of(self.settings.best_by, loss, scores), samples, signatures)

    def _texts(self, rows: list[list[int]]) -> list[str]:
        """With masks and sentinels, but for the end."""
        end = self.tokenizer.required("eos")
        plain = [[token for token in row if token != end] for row in rows]
        return self.tokenizer.decode(plain, keep_special=True)

    # disk

    def save(self, folder: Path) -> None:
        """Write the tokenizer."""
        folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save(folder, append_eos=True)


def _bounds(ragged: Ragged) -> list[tuple[int, int]]:
    return list(zip(ragged.starts[:-1].tolist(), ragged.starts[1:].tolist(), strict=True))
