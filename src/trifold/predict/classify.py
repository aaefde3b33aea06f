"""Classification: logits of a head -> probabilities of the classes of a text, a pair of texts or an
image.

Next-sentence prediction has the classes yes and no: whether one text follows another (Devlin et al.
2019), or two texts are in order (Lan et al. 2020).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trifold.nn import ModelConfig
from trifold.predict.model_reader import ModelReader

# The values of `problem_type`.
SINGLE, MULTI, REGRESSION = (
    "single_label_classification",
    "multi_label_classification",
    "regression",
)


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
) -> list[list[Label]]:
    """The `top_k` most probable classes of each input, best first; all classes if None."""
    labels, found = reader.config.labels, []
    for logits in reader.run(texts, pairs, reader.head("sequence")):
        scores = activate(logits, reader.config)
        order = torch.argsort(scores, descending=True, stable=True)[:top_k]
        found.append([Label(labels[place], float(scores[place])) for place in order.tolist()])
    return found


def activate(logits: Tensor, config: ModelConfig) -> Tensor:
    """logits (C,) -> scores, by the config's `problem_type` as in the pipelines of transformers."""
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


class Follows(NamedTuple):
    """Whether the second text follows the first, and the probability of this answer, at least ½."""

    follows: bool
    score: float


def next_sentence(reader: ModelReader, texts: Sequence[str], pairs: Sequence[str]) -> list[Follows]:
    """For each of `texts`, whether the text of `pairs` follows it; the first of two logits stands
    for yes.
    """
    logits = reader.run(texts, pairs, reader.head("next-sentence"))
    probabilities = [float(row.softmax(-1)[0]) for row in logits]
    return [Follows(p > 0.5, max(p, 1 - p)) for p in probabilities]
