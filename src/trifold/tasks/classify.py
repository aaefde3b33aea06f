"""Classes of a text, a pair of texts or a picture.

prediction      logits of the sequence head -> a softmax; where several classes may hold at once (or there is one) a
                sigmoid each; where the problem is a number, the number
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trifold.nn import ModelConfig
from trifold.tasks.reading import Reading


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
