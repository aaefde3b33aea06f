"""Classification of texts: one label per text.

rows -> example    a text with the tokenizer's special tokens, and the number of its label
example -> batch   packed texts
loss               - Σ log P(label | text), label-smoothed
scores             accuracy; macro F1, the mean over the labels that occur
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from trifold.data import Pairs, read_pairs
from trifold.errors import DataError, SettingsError
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.objectives.evaluation import EvalRun, Sample, Scores
from trifold.objectives.objective import (
    ENCODER,
    Batch as BaseBatch,
    BuildContext,
    LossTerm,
    Objective,
    ObjectiveSettings,
    TaskBundle,
    pack_rows,
    select_readable,
)
from trifold.ragged import Ragged
from trifold.scores.classification import accuracy, confusion_matrix, macro_f1
from trifold.text import Tokenizer, report
from trifold.text.spans import Ids

# --- settings -> rows ------------------------------------------------------------------------------------


class ClassifySettings(ObjectiveSettings):
    """Settings of classification; `data.source` and `data.target` name the columns of texts and labels."""

    data_kind = "table"
    command = 'predict {folder} "your text"'
    shapes = ("encoder", "decoder")
    heads = ("sequence",)
    defaults = {**ENCODER, "batch": {"on_overflow": "truncate"}}  # noqa: RUF012

    kind: Literal["classify"] = "classify"
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="probability mass spread over all labels")
    best_by: Literal["loss", "accuracy", "macro_f1"] = "accuracy"

    @classmethod
    def with_heads(cls, config: ModelConfig) -> ModelConfig:
        """The config; without a classifier, with the one of BERT, or one of the last state of a decoder."""
        if "sequence" in config.chosen_heads:
            return config
        reads = "last" if config.shape == "decoder" else "pooler"
        heads = cls.heads if reads == "last" else ("pooler", *cls.heads)
        unused = {"lm_head_transform": None, "lm_head_bias": False}
        return config.model_copy(update={"heads": heads, "classifier_input": reads, **unused})

    def build(self, context: BuildContext) -> TaskBundle:
        train, valid = context.read(read_pairs)
        tokenizer = context.load_or_train_tokenizer(lambda: train.sources)
        held_out = valid.targets if context.data.holdout else []  # a rare label may be there only
        config = _with_labels(context.config_for(tokenizer), train, held_out)
        labels = ", ".join(f"{name:.40}" for name in config.labels)
        context.report(shorten(f"labels: {labels}", 80, placeholder=f" … ({len(config.labels):,} labels)"))
        if context.data.header is None and train.report.header and context.model.label_names is None:
            rows = [*zip(train.lines + valid.lines, train.targets + valid.targets, strict=True)]
            first = {label for line, label in rows if line == 1}
            for label in first.difference(label for line, label in rows if line > 1):
                context.report(
                    f"warning: the label {label!r:.40} is in row 1 only; if that is a header, data.header=true skips it"
                )
        truncates = context.batches.on_overflow == "truncate"
        objective = Classify(self, tokenizer, config, context.width if truncates else None, context.report)
        if not truncates:
            remedy = ", or set batch.on_overflow=truncate"
            valid = select_readable(valid, objective.examples(valid), context, "texts", remedy)
        return TaskBundle(objective, config, train, valid)


def _with_labels(config: ModelConfig, rows: Pairs, more: Sequence[str]) -> ModelConfig:
    """The config with the labels of the rows, and `more`, unless it names them already."""
    if config.problem_type in ("regression", "multi_label_classification"):
        raise SettingsError(
            f"model.problem_type: {config.problem_type} does not support task.kind: classify, which predicts one of "
            "several classes; remove it"
        )
    labels = sort_labels([*rows.targets, *more])
    if config.label_names is not None or set(labels) <= set(config.labels):
        return config
    if (count := len(set(rows.targets))) > len(set(rows.sources)):
        raise DataError(
            f"{rows.report.name}: {len(set(rows.sources)):,} different texts with {count:,} different labels; "
            "the columns are likely swapped; set data.source to that of the texts and data.target to that of the "
            "labels, by name or by number from 0"
        )
    if len(labels) < 2:
        raise DataError(
            f"{rows.report.name}: the only label is {labels[0]!r}, and classification requires two; is data.target the "
            "column of the labels?"
        )
    return config.model_copy(update={"n_labels": len(labels), "label_names": labels})


def sort_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """The distinct labels in alphabetical order, numbers in them by value: "2 stars" before "10 stars"."""

    def key(label: str) -> list[Any]:
        parts = re.split(r"([0-9]+)", label)  # text and number alternate
        return [int(part) if place % 2 else part for place, part in enumerate(parts)]

    return tuple(sorted(set(labels), key=lambda label: (key(label), label)))


# --- examples, batches -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Examples:
    """Texts as tokens, and the numbers of their labels."""

    texts: Ragged
    labels: Ids

    @property
    def lengths(self) -> Ids:
        """(N, 1) tokens, including special tokens."""
        return self.texts.lengths[:, None]


@dataclass(frozen=True)
class Batch(BaseBatch):
    """Packed texts. positions (B,): of the state that represents each text; labels (B,)."""

    inputs: Inputs
    positions: Tensor
    labels: Tensor

    @property
    def tokens(self) -> int:
        """Number of labels."""
        return len(self.labels)


class Classify(Objective):
    """Classification. width: texts are truncated to it, unless None. report: receives the number of truncated texts."""

    token_name = "texts"

    def __init__(
        self,
        settings: ClassifySettings,
        tokenizer: Tokenizer,
        config: ModelConfig,
        width: int | None = None,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self.settings: ClassifySettings = settings
        self.tokenizer, self.width, self.report = tokenizer, width, report
        self.names = config.labels
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.classifier_input, self.eos_id = config.classifier_input, config.eos_id

    def examples(self, rows: Pairs, draw: int | None = None) -> Examples:
        """Encode texts and number labels. Raises DataError for a label that is not in the training data."""
        for label, line in zip(rows.targets, rows.lines, strict=True):
            if label not in self.numbers:
                raise DataError(
                    f"{rows.report.name}:{line}: the label {label!r} is not among those of the training data: "
                    f"{', '.join(self.names[:20])}"
                )
        encoded = self.tokenizer.rows(rows.sources, max_length=self.width)
        if self.report is not None and (truncated := report(encoded)):
            self.report(f"{rows.report.name}: {truncated}")
        labels = np.array([self.numbers[label] for label in rows.targets], dtype=np.int64)
        return Examples(Ragged.of([row.ids for row in encoded]), labels)

    def batch(self, examples: Examples, rows: Ids, width: int | None = None, *, draw: int = 0) -> Batch:
        """Pack the given texts, truncated to `width` tokens if given. Not random."""
        inputs, packing = pack_rows(examples.texts, rows, width, self.tokenizer)
        positions = self._positions(inputs.tokens[0].numpy(), packing.starts.numpy())
        return Batch(inputs, torch.from_numpy(positions), torch.from_numpy(examples.labels[rows]))

    def _positions(self, ids: Ids, starts: Ids) -> Ids:
        """Of each text the token whose state the head reads: its first, its last, or its last </s>."""
        begins, ends = starts[:-1], starts[1:]
        if self.classifier_input == "last":
            return ends - 1
        if self.classifier_input != "eos":
            return begins
        found = np.flatnonzero(ids == self.eos_id)
        last = np.searchsorted(found, ends) - 1  # index of the last </s> before the end of each text
        positions = found[np.maximum(last, 0)] if len(found) else np.full(len(ends), -1)
        if (positions < begins).any() or (last < 0).any():
            raise SettingsError(
                "model.classifier_input: eos, but a text has no </s>, because its tokenizer appends none; "
                "set model.classifier_input=first or last"
            )
        return positions

    # --- loss, scores ------------------------------------------------------------------------------------

    def loss(self, model: Transformer, batch: Batch) -> dict[str, LossTerm]:
        """Label-smoothed cross-entropy over the texts, in nats."""
        logits, smoothing = self.logits(model, batch), self.settings.label_smoothing
        loss = F.cross_entropy(logits, batch.labels, reduction="sum", label_smoothing=smoothing)
        nll = F.cross_entropy(logits.detach(), batch.labels, reduction="sum") if smoothing else loss.detach()
        return {"tokens": LossTerm(loss, batch.tokens, nll=nll)}

    def logits(self, model: Transformer, batch: Batch) -> Tensor:
        """(B, C)."""
        states = model(batch.inputs)[0].index_select(0, batch.positions)[:, None]
        inputs = Inputs(batch.inputs.tokens[0].index_select(0, batch.positions)[:, None])
        pooled = model.heads["pooler"](states, inputs, None) if self.classifier_input == "pooler" else None
        logits: Tensor = model.heads["sequence"](states, inputs, pooled)
        return logits

    def measure(self, model: Transformer, batch: Batch) -> dict[str, Any]:
        """Negative log-likelihood and confusion matrix."""
        logits = self.logits(model, batch)
        nll = float(F.cross_entropy(logits, batch.labels, reduction="sum"))
        labels, predictions = batch.labels.cpu().numpy(), logits.argmax(-1).cpu().numpy()
        table = confusion_matrix(labels, predictions, len(self.names))
        return {"nll": nll, "confusion": table, "tokens": batch.tokens}

    def compute_scores(self, run: EvalRun) -> Scores:
        """Accuracy and macro F1, and the first texts with their labels and predictions."""
        table, rows = run.sums["confusion"], run.rows
        scores = {"accuracy": accuracy(table), "macro_f1": macro_f1(table)}
        if not len(run.sample_rows):
            return Scores(scores)
        batch = self.batch(run.examples, run.sample_rows).to(run.device)
        predictions = [self.names[number] for number in self.logits(run.model, batch).argmax(-1).tolist()]
        samples = zip(rows.sources, rows.targets, predictions, strict=False)  # the first ones
        return Scores(scores, [Sample(*each) for each in samples])
