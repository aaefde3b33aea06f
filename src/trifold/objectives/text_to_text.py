"""Several tasks as one: text in, text out (Raffel et al. 2020, sections 2.4 and 3.5.2).

rows -> example    a part's template filled with its columns ("translate English to German: {source}"), and its target;
                   a number is written as text, rounded to a step (STS-B: 0.2)
example -> batch   rows of all parts together, as in translation
loss               - Σ log P(y_t | y_<t, X) over the target tokens
prediction         beam search; a text becomes a number again
scores             each part's own, and their mean

Parts are mixed by their sizes e, of which no more than a limit K counts: in an epoch part m gives min(e_m, K) rows,
or, at a temperature T, shares like min(e_m, K)^(1/T). Which rows of a larger part, is drawn anew each epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from trifold.data.settings import Source
from trifold.generate import GenerationConfig
from trifold.nn import Transformer
from trifold.objectives.measuring import mean_loss
from trifold.objectives.task import Evaluation, Looking, Sample
from trifold.objectives.terms import Term
from trifold.objectives.translate import Batch, Examples, Translate, TranslateSettings
from trifold.predict.writing import write
from trifold.ragged import Ragged
from trifold.scores import SCORES
from trifold.settings import Settings
from trifold.text import Tokenizer
from trifold.text.spans import Ids, example_rng

NO_NUMBER = -1.0  # what a text counts as that is none, in the paper's code too


class PartSettings(Settings):
    """One of the tasks: its data, as `data` names it, and how a row becomes two texts."""

    train: Source = Field(description="where the training rows are, named as data.train names pairs")
    valid: Source = Field(description="… the validation rows")
    input: str = Field(description="what is read, columns in braces: 'stsb sentence1: {sentence1} …'")
    target: str | int = Field("target", description="the column that is to be written")
    number: float | None = Field(
        None, gt=0, description="the target is a number, written in multiples of this"
    )
    score: Literal["exact_match", "bleu", "chrf", "pearson"] = Field(
        "exact_match", description="of its validation rows"
    )
    format: Literal["auto", "text", "tsv", "csv", "jsonl"] = Field("auto", description="as data.format")
    header: bool | None = Field(None, description="as data.header")

    @model_validator(mode="after")
    def _is_scored_by_what_it_has(self) -> Self:
        if self.score == "pearson" and self.number is None:
            raise ValueError("score: pearson compares numbers; set number, to 0.2 say")
        return self


class TextToTextSettings(Settings):
    """Several tasks as one."""

    kind: Literal["text-to-text"] = "text-to-text"
    parts: dict[str, PartSettings] = Field(default={}, description="the tasks, by name")
    limit: int = Field(2**19, ge=1, description="rows beyond which a part weighs no more: K of the paper")
    temperature: float = Field(
        1.0,
        ge=1,
        description="shares are sizes to the power of 1 / this: larger, and they come closer together",
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    best_by: Literal["mean", "loss"] = Field(
        "mean", description="the mean of the parts' scores, or loss, by which the best weights are chosen"
    )

    @model_validator(mode="after")
    def _has_parts(self) -> Self:
        if not self.parts:
            raise ValueError("parts: no task is named; name one or more")
        if "mean" in self.parts:
            raise ValueError("parts: `mean` is what the mean of the scores is called; choose another name")
        return self


def number_text(value: float, step: float) -> str:
    """The multiple of `step` that is nearest, with as many decimals as the step has: 2.57 -> "2.6"."""
    decimals = len(f"{step:.10f}".rstrip("0").partition(".")[2])
    return f"{round(value / step) * step:.{decimals}f}"


def text_number(text: str) -> float:
    """The number that a text is, or NO_NUMBER."""
    try:
        value = float(text.strip())
    except ValueError:
        return NO_NUMBER
    return value if np.isfinite(value) else NO_NUMBER


def pearson(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Pearson's correlation in percent; 0 where one side never varies."""
    a, b = np.array(ours) - np.mean(ours), np.array(theirs) - np.mean(theirs)
    size = float(np.sqrt((a @ a) * (b @ b)))
    return 100 * float(a @ b) / size if size > 0 else 0.0


def rows_each(sizes: Sequence[int], limit: int, temperature: float = 1.0) -> list[int]:
    """How many rows each part gives an epoch, which has Σ min(e, K) of them in all."""
    capped = np.minimum(np.array(sizes, dtype=np.float64), limit)
    shares = capped ** (1 / temperature)
    wanted = capped.sum() * shares / shares.sum()
    counts = np.floor(wanted + 1e-9).astype(np.int64)
    largest = np.argsort(counts - wanted, kind="stable")[: int(capped.sum()) - int(counts.sum())]
    counts[largest] += 1
    return [int(count) for count in counts]


@dataclass(frozen=True)
class Rows:
    """All rows of all parts, one part after the other: (name, first row, row behind its last) and their texts."""

    parts: Sequence[tuple[str, int, int]]
    sources: Sequence[str]
    targets: Sequence[str]
    examples: Examples
    mixed: bool  # in an epoch, parts in their shares; else every row once


@dataclass(frozen=True)
class Mixture:
    """Examples: numbers of rows."""

    rows: Rows
    chosen: Ids

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N, 2) tokens of source and target, </s> included."""
        return self.rows.examples.lengths[self.chosen]


class TextToText:
    """The task."""

    row_name, read_name, token_name = "rows", "target tokens", "target tokens"
    packs = True

    def __init__(self, settings: TextToTextSettings, tokenizer: Tokenizer, *, start_id: int) -> None:
        self.settings, self.tokenizer = settings, tokenizer
        own = TranslateSettings(label_smoothing=settings.label_smoothing, best_by="loss")
        self._writer = Translate(own, tokenizer, tokenizer, start_id=start_id)

    # rows -> examples

    def encoded(self, sources: Sequence[str], targets: Sequence[str]) -> Examples:
        """Both sides as tokens, each with its </s>."""
        end = self.tokenizer.required("eos")
        sides = [[[*ids, end] for ids in self.tokenizer.encode(texts)] for texts in (sources, targets)]
        return Examples(*map(Ragged.of, sides))

    def rows_an_epoch(self, rows: Rows) -> list[int]:
        """How many rows each part gives an epoch."""
        sizes = [end - first for _, first, end in rows.parts]
        return rows_each(sizes, self.settings.limit, self.settings.temperature)

    def examples(self, rows: Rows, draw: int | None = None) -> Mixture:
        """Of each part its share of the epoch: every row as often as every other, or one time more, by the draw."""
        if not rows.mixed:
            return Mixture(rows, np.arange(len(rows.sources)))
        wanted, chosen = self.rows_an_epoch(rows), []
        for number, (_, first, end) in enumerate(rows.parts):
            whole, more = divmod(wanted[number], end - first)
            some = example_rng(draw or 0, number).permutation(end - first)[:more]
            chosen += [np.tile(np.arange(first, end), whole), first + np.sort(some)]
        return Mixture(rows, np.concatenate(chosen))

    # examples -> batch

    def batch(
        self, examples: Mixture, rows: NDArray[np.int64], width: int | None = None, *, draw: int = 0
    ) -> Batch:
        """Pack the chosen rows, cut at `width` tokens where that is given. Nothing in it is random."""
        return self._writer.batch(examples.rows.examples, examples.chosen[rows], width)

    def counts(self, batch: Batch) -> dict[str, int]:
        """What each term will be divided by, known before the forward pass."""
        return self._writer.counts(batch)

    # batch -> loss

    def loss(self, model: Transformer, batch: Batch) -> dict[str, Term]:
        """Cross-entropy over the target tokens, in nats."""
        return self._writer.loss(model, batch)

    # scores

    def evaluate(self, model: Transformer, rows: Rows, examples: Mixture, looking: Looking) -> Evaluation:
        """Loss, and the scores of what is written greedily, a part at a time."""
        loss = mean_loss(self, model, examples, looking)
        greedy = GenerationConfig(max_new_tokens=looking.generation.max_new_tokens)
        found = write(
            model,
            rows.examples.sources,
            greedy,
            codec=self.tokenizer,
            on_step=lambda _tokens, _open: looking.poll(),
        )
        outputs = self.tokenizer.decode([best[0].tokens for best in found])
        scores, signatures = {}, []
        for name, first, end in rows.parts:
            value, signature = self._score(name, outputs[first:end], rows.targets[first:end])
            scores[name] = value
            signatures.append(f"{name}: {signature}")
        scores["mean"] = sum(scores.values()) / len(scores)
        value = -loss if self.settings.best_by == "loss" else scores["mean"]
        samples = [Sample(*each) for each in zip(rows.sources, rows.targets, outputs, strict=True)]
        return Evaluation(loss, scores, value, self._in_turn(rows, samples), signatures)

    def _score(self, name: str, ours: Sequence[str], theirs: Sequence[str]) -> tuple[float, str]:
        kind = self.settings.parts[name].score
        if kind == "pearson":
            numbers = ([text_number(text) for text in side] for side in (ours, theirs))
            value = pearson(*numbers)
            wrong = sum(text_number(text) == NO_NUMBER for text in ours)
            return value, f"Pearson {value:.2f} ({wrong} of {len(ours)} outputs are no number)"
        score = SCORES[kind](ours, theirs)
        return score.value, str(score)

    def _in_turn(self, rows: Rows, samples: Sequence[Sample]) -> list[Sample]:
        """The first of every part, then the second of every part: a few lines show them all."""
        place = np.concatenate([np.arange(end - first) for _, first, end in rows.parts])
        return [samples[row] for row in np.argsort(place, kind="stable")]

    # disk

    def save(self, folder: Path) -> None:
        """Write the tokenizer."""
        folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save(folder, append_eos=True)
