"""Classes of a text, a pair of texts or a picture (Radford et al. 2018; Devlin et al. 2019, section 4.1).

rows -> example    a text and its label: tokens with the tokenizer's special ones around them, and a number
example -> batch   texts packed, one behind the other; of each, the place of the state that stands for it
loss               - Σ log P(label | that state), over texts
prediction         logits of the sequence head -> a softmax; where several classes may hold at once (or there is one) a
                   sigmoid each; where the problem is a number, the number
scores             accuracy; macro F1, the mean over the labels that occur
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from trifold.data import Pairs
from trifold.errors import DataError, SettingsError
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.packing import Packing
from trifold.objectives.measuring import every_batch, value_of
from trifold.objectives.task import Evaluation, Looking, Sample
from trifold.objectives.terms import Term
from trifold.predict.reading import Reading
from trifold.ragged import Ragged
from trifold.settings import Settings
from trifold.text import Tokenizer, report


class ClassifySettings(Settings):
    """One label a text: the columns that `data.source` and `data.target` name."""

    kind: Literal["classify"] = "classify"
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="share of the probability that is spread over all labels"
    )
    best_by: Literal["loss", "accuracy", "macro_f1"] = Field(
        "accuracy", description="a score of the validation set, or loss, by which the best weights are chosen"
    )


@dataclass(frozen=True)
class Examples:
    """Texts as tokens, and the number of each one's label."""

    texts: Ragged
    labels: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N, 1) tokens, special ones included."""
        return self.texts.lengths[:, None]


@dataclass(frozen=True)
class Batch:
    """Packed texts. places (B,): of the states that stand for them, in the long row; labels (B,)."""

    inputs: Inputs
    places: Tensor
    labels: Tensor

    @property
    def tokens(self) -> int:
        """How many labels are asked for."""
        return len(self.labels)

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return Batch(self.inputs.to(device), self.places.to(device), self.labels.to(device))


class Classify:
    """The task. width: where longer texts are cut; None: they stay as they are. say: hears of what was cut."""

    row_name, read_name, token_name = "texts", "tokens", "texts"
    packs = True

    def __init__(
        self,
        settings: ClassifySettings,
        tokenizer: Tokenizer,
        config: ModelConfig,
        width: int | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.settings, self.tokenizer, self.width, self.say = settings, tokenizer, width, say
        self.names = config.labels
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.reads, self.eos_id = config.classifier_input, config.eos_id
        needed = ("pooler", "sequence") if self.reads == "pooler" else ("sequence",)
        if missing := set(needed).difference(config.chosen_heads):
            raise SettingsError(
                f"model.heads: {', '.join(sorted(missing))} is missing; set model.heads=[{', '.join(needed)}]"
            )

    # rows -> examples

    def examples(self, rows: Pairs, draw: int | None = None) -> Examples:
        """Encode, and number the labels. Raises DataError for a label that training did not know."""
        for label, line in zip(rows.targets, rows.lines, strict=True):
            if label not in self.numbers:
                raise DataError(
                    f"{rows.report.name}:{line}: the label {label!r} is not among those of the training data: "
                    f"{', '.join(self.names[:20])}"
                )
        encoded = self.tokenizer.rows(rows.sources, max_length=self.width)
        if self.say is not None and (cut := report(encoded)):
            self.say(f"{rows.report.name}: {cut}")
        labels = np.array([self.numbers[label] for label in rows.targets], dtype=np.int64)
        return Examples(Ragged.of([row.ids for row in encoded]), labels)

    # examples -> batch

    def batch(
        self, examples: Examples, rows: NDArray[np.int64], width: int | None = None, *, draw: int = 0
    ) -> Batch:
        """Pack the chosen texts, cut at `width` tokens where that is given. Nothing in it is random."""
        lengths = examples.texts.lengths[rows]
        lengths = lengths if width is None else np.minimum(lengths, width)
        ids = examples.texts.joined(rows, lengths)
        packing = Packing.of(torch.from_numpy(lengths))
        tokens = np.full(packing.filled, self.tokenizer.required("pad"), dtype=np.int64)
        tokens[: packing.real] = ids
        inputs = Inputs(torch.from_numpy(tokens)[None], packing=packing)
        return Batch(
            inputs,
            torch.from_numpy(self._places(ids, lengths)),
            torch.from_numpy(examples.labels[rows]),
        )

    def _places(self, ids: NDArray[np.int32], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of each text the token whose state the head reads: its first, its last, or its last </s>."""
        ends = np.cumsum(lengths)
        if self.reads == "last":
            return ends - 1
        if self.reads != "eos":
            return ends - lengths
        found = np.flatnonzero(ids == self.eos_id)
        last = np.searchsorted(found, ends) - 1  # of all ends before the text's own end
        places = found[np.maximum(last, 0)] if len(found) else np.full(len(ends), -1)
        if (places < ends - lengths).any() or (last < 0).any():
            raise SettingsError(
                "model.classifier_input: eos, and a text has no </s>: its tokenizer puts none behind texts; "
                "set model.classifier_input=first or last"
            )
        return places

    def counts(self, batch: Batch) -> dict[str, int]:
        """What each term will be divided by, known before the forward pass."""
        return {"tokens": batch.tokens}

    # batch -> loss

    def loss(self, model: Transformer, batch: Batch) -> dict[str, Term]:
        """Label-smoothed cross-entropy over the texts, in nats."""
        logits, smoothing = self.logits(model, batch), self.settings.label_smoothing
        loss = F.cross_entropy(logits, batch.labels, reduction="sum", label_smoothing=smoothing)
        plain = (
            F.cross_entropy(logits.detach(), batch.labels, reduction="sum") if smoothing else loss.detach()
        )
        return {"tokens": Term(loss, batch.tokens, nll=plain)}

    def logits(self, model: Transformer, batch: Batch) -> Tensor:
        """(B, C)."""
        states = model(batch.inputs)[0].index_select(0, batch.places)[:, None]
        chosen = Inputs(batch.inputs.tokens[0].index_select(0, batch.places)[:, None])
        pooled = model.heads["pooler"](states, chosen, None) if self.reads == "pooler" else None
        logits: Tensor = model.heads["sequence"](states, chosen, pooled)
        return logits

    # scores

    @torch.no_grad()
    def evaluate(self, model: Transformer, rows: Pairs, examples: Examples, looking: Looking) -> Evaluation:
        """Loss and scores over all texts."""
        nll, told, wanted = 0.0, [], []
        for batch in every_batch(self, model, examples, looking):
            logits = self.logits(model, batch)
            nll += float(F.cross_entropy(logits, batch.labels, reduction="sum"))
            told.append(logits.argmax(-1).cpu().numpy())
            wanted.append(batch.labels.cpu().numpy())
        table = confusion(np.concatenate(wanted), np.concatenate(told), len(self.names))
        loss = nll / max(int(table.sum()), 1)
        scores = {"accuracy": accuracy(table), "macro_f1": macro_f1(table)}
        value = value_of(self.settings.best_by, loss, scores)
        return Evaluation(loss, scores, value, self.samples(model, rows, examples, looking))

    def samples(self, model: Transformer, rows: Pairs, examples: Examples, looking: Looking) -> list[Sample]:
        """The first texts, with their labels and ours."""
        chosen = np.arange(min(looking.samples, len(rows)))
        if not len(chosen):
            return []
        batch = self.batch(examples, chosen).to(next(model.parameters()).device)
        ours = [self.names[number] for number in self.logits(model, batch).argmax(-1).tolist()]
        return [Sample(rows.sources[n], rows.targets[n], ours[n]) for n in chosen]

    # disk

    def save(self, folder: Path) -> None:
        """Write the tokenizer."""
        folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save(folder)


# --- prediction -------------------------------------------------------------------------------------------


class Label(NamedTuple):
    """A class, and its probability (of a regression: the number)."""

    label: str
    score: float


def classify(
    reading: Reading, texts: Sequence[Any], pairs: Sequence[str] | None = None, *, top_k: int | None = 5
) -> list[list[Label]]:
    """The `top_k` likeliest classes of each input, best first; all of them for None."""
    logits = reading.each(texts, pairs, reading.head("sequence"))
    return [_best(scores(row, reading.config), reading.config.labels, top_k) for row in logits]


def scores(logits: Tensor, config: ModelConfig) -> Tensor:
    """logits (C,) -> what they mean by the config's `problem_type`, as the reference's pipelines decide it."""
    if config.problem_type == "regression":
        return logits
    if config.problem_type == "multi_label_classification" or config.n_labels == 1:
        return logits.sigmoid()
    return logits.softmax(-1)


def _best(values: Tensor, names: Sequence[str], top_k: int | None) -> list[Label]:
    order = torch.argsort(values, descending=True, stable=True)[:top_k]
    return [Label(names[place], float(values[place])) for place in order.tolist()]


# --- labels -----------------------------------------------------------------------------------------------


def in_order(labels: Sequence[str]) -> tuple[str, ...]:
    """Each once, in the order of names, numbers in them by size: "2 stars" before "10 stars"."""

    def key(label: str) -> list[Any]:
        parts = re.split(r"([0-9]+)", label)  # text and number in turns
        return [int(part) if place % 2 else part for place, part in enumerate(parts)]

    return tuple(sorted(set(labels), key=lambda label: (key(label), label)))


def confusion(wanted: NDArray[np.int64], told: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """(C, C) how often a text of the row's class was told to be of the column's."""
    return np.bincount(wanted * classes + told, minlength=classes * classes).reshape(classes, classes)


def accuracy(table: NDArray[np.int64]) -> float:
    """Percent of the texts that are told right."""
    return 100 * float(np.trace(table)) / max(int(table.sum()), 1)


def macro_f1(table: NDArray[np.int64]) -> float:
    """Percent: 2 right / (there are + are told), mean over the classes that there are or are told."""
    both = table.sum(0) + table.sum(1)
    seen = both > 0
    return 100 * float((2 * np.diag(table)[seen] / both[seen]).mean()) if seen.any() else 0.0
