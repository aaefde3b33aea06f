"""Classification: logits of a head -> probabilities of the classes of a text, a pair of texts or an
image.

Next-sentence prediction has the classes yes and no: whether one text follows another (Devlin et al.
2019), or two texts are in order (Lan et al. 2020).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from trifold.errors import UsageError
from trifold.nn import ModelConfig, Transformer
from trifold.nn.config import MULTI, REGRESSION
from trifold.predict.model_reader import ModelReader
from trifold.settings import nearest

BOTH_ORDERS = "reads_both_orders"  # setting of a tokenizer: whether pairs are read in both orders
# The least probability of a label: of each, or by label.
Threshold: TypeAlias = float | Mapping[str, float]


class Label(NamedTuple):
    """A class and its probability; of a regression, the predicted number."""

    label: str
    score: float


def classify(
    reader: ModelReader,
    texts: Sequence[Any],
    pairs: Sequence[str] | None = None,
    *,
    top_k: int | None = 5,
    threshold: Threshold | None = None,
) -> list[list[Label]]:
    """The `top_k` most probable classes of each input, best first; all classes if None. Pairs are
    read in both orders if the model was trained so.

    threshold: see `apply_threshold`.
    """
    config = reader.config
    if threshold is not None:
        if config.problem_type == REGRESSION:
            raise UsageError("threshold: the model predicts a number, which has no probability")
        check_threshold(threshold, config.labels)
    predictions = []
    rows = reader.run(texts, pairs, reader.head("sequence"))
    if pairs is not None and reader.required_tokenizer.settings.get(BOTH_ORDERS):
        quiet = replace(reader, on_done=None, on_cut=None)  # each pair is reported once
        swapped = quiet.run(pairs, texts, reader.head("sequence"))
        rows = [*map(partial(add_orders, reader.model), rows, swapped)]
    count = top_k
    if threshold is not None:
        count = None
    for labels in _sorted_labels(rows, config, count):
        if threshold is not None:
            labels = apply_threshold(labels, threshold, several=config.problem_type == MULTI)
        predictions.append(labels[:top_k])
    return predictions


def _sorted_labels(
    rows: list[Tensor], config: ModelConfig, count: int | None
) -> Iterator[list[Label]]:
    """The first `count` labels of each row of logits (C,), best first; all if None."""
    if not rows:
        return
    scores = activate(torch.stack(rows), config)
    order = scores.argsort(dim=-1, descending=True, stable=True)[:, :count]
    names = config.labels
    for numbers, values in zip(order.tolist(), scores.gather(1, order).tolist(), strict=True):
        yield [*map(Label, map(names.__getitem__, numbers), values)]


def add_orders(model: Transformer, one: Tensor, other: Tensor) -> Tensor:
    """The logits (…, C) of the sum of two states, from the logits of each.

    W (h1 + h2) + b = (W h1 + b) + (W h2 + b) - b (Radford et al. 2018, section 3.3).
    """
    head: Any = model.heads["sequence"]
    total = one + other
    if head.out_proj.bias is None:
        return total
    bias: Tensor = head.out_proj.bias
    return total - bias.to(total)


def check_threshold(threshold: Threshold, labels: Sequence[str]) -> None:
    """Raises UsageError for a label that is none of these, and a number that is no probability."""
    if not isinstance(threshold, Mapping):  # one label suffices to check the number
        threshold = dict.fromkeys(labels[:1], threshold)
    for label, value in threshold.items():
        if label not in labels:
            near = nearest(label, list(labels), "labels")
            raise UsageError(f"threshold: {label!r:.60} is not a label{near}")
        if not 0 <= value <= 1:
            raise UsageError(f"threshold: {value:g} is not between 0 and 1")


def apply_threshold(
    labels: Sequence[Label], threshold: Threshold, *, several: bool = False
) -> list[Label]:
    """Choose from all labels of one input, which are sorted.

    A number keeps the labels with at least this probability. A mapping has numbers for some labels.
    If a text has `several` labels, ½ holds for the others. If it has one, a label that reaches its
    number comes first, then those without a number; one that does not reach it is left out.
    """
    if not isinstance(threshold, Mapping):
        return [label for label in labels if label.score >= threshold]
    if several:
        return [label for label in labels if label.score >= threshold.get(label.label, 0.5)]
    # A label without a number is never reached: no probability is 2.
    reached = [label for label in labels if label.score >= threshold.get(label.label, 2.0)]
    without_number = [label for label in labels if label.label not in threshold]
    return reached + without_number


def activate(logits: Tensor, config: ModelConfig) -> Tensor:
    """logits (…, C) -> scores, by the config's `problem_type` as transformers' pipelines do."""
    if config.problem_type == REGRESSION:
        return logits
    if config.problem_type == MULTI or config.n_labels == 1:
        return logits.sigmoid()
    return logits.softmax(-1)


def choose_labels(logits: Tensor, config: ModelConfig) -> Tensor:
    """logits (B, C) -> classes (B,), whether each class applies (B, C), or the numbers (B,) of a
    regression.
    """
    if config.problem_type == REGRESSION:
        return logits[:, 0]
    if config.problem_type == MULTI:
        return logits > 0  # a probability above ½
    return logits.argmax(-1)


def confidences(logits: Tensor, config: ModelConfig) -> Tensor:
    """(B,) the probability of what `choose_labels` chooses; of a regression 1."""
    if config.problem_type == REGRESSION:
        return torch.ones(len(logits))
    scores = activate(logits, config)
    if config.problem_type == MULTI:
        return torch.maximum(scores, 1 - scores).prod(-1)
    return scores.amax(-1)


# Whether a text follows another, in words.
ANSWERS = {True: "follows", False: "does not follow"}


class Follows(NamedTuple):
    """Whether the second text follows the first, and the probability of this answer."""

    follows: bool
    score: float

    @property
    def label(self) -> str:
        """The answer in words."""
        return ANSWERS[self.follows]

    @property
    def labels(self) -> list[Label]:
        """Both answers with their probabilities, this one first."""
        return [Label(self.label, self.score), Label(ANSWERS[not self.follows], 1 - self.score)]

    def choose(self, threshold: Threshold) -> Follows | None:
        """The answer that a threshold allows, as in `apply_threshold`; None if it is neither."""
        allowed = apply_threshold(self.labels, threshold)
        if not allowed:
            return None
        best = allowed[0]
        return Follows(best.label == ANSWERS[True], best.score)


def next_sentence(
    reader: ModelReader,
    texts: Sequence[str],
    pairs: Sequence[str],
    *,
    threshold: Threshold | None = None,
) -> list[Follows | None]:
    """For each of `texts`, whether the text of `pairs` follows it; the first of two logits stands
    for yes.

    threshold: the least probability of the answer, or by "follows" and "does not follow"; an input
    without such an answer has None. By default the answer is the more probable one.
    """
    if threshold is not None:
        check_threshold(threshold, [*ANSWERS.values()])
    logits = [*reader.run(texts, pairs, reader.head("next-sentence"))]
    if not logits:
        return []
    probabilities = torch.stack(logits).softmax(-1)[:, 0].tolist()
    # Equal logits mean yes, as in the accuracy of a training.
    answers = [Follows(p >= 0.5, max(p, 1 - p)) for p in probabilities]
    if threshold is None:
        return [*answers]
    return [answer.choose(threshold) for answer in answers]
