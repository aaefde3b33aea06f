"""The loss over a whole set of rows, as every task's validation needs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from trifold.batches import plan_epoch
from trifold.nn import Transformer
from trifold.objectives.task import Examples, Looking, Task


def every_batch(task: Task, model: Transformer, examples: Examples, looking: Looking) -> Iterator[Any]:
    """All examples in batches, none left out or cut, whatever becomes of long ones in training."""
    device = next(model.parameters()).device
    whole = looking.batches.model_copy(update={"max_length": None, "on_overflow": "drop"})
    for rows in plan_epoch(examples.lengths, whole, seed=0, epoch=0, shuffle=False):
        looking.poll()
        yield task.batch(examples, rows).to(device)


@torch.no_grad()
def mean_loss(task: Task, model: Transformer, examples: Examples, looking: Looking) -> float:
    """Negative log-likelihood a token of the term "tokens", without smoothing, in nats."""
    total, count = 0.0, 0
    for batch in every_batch(task, model, examples, looking):
        term = task.loss(model, batch)["tokens"]
        total, count = total + float(term.nll if term.nll is not None else term.sum), count + term.count
    return total / max(count, 1)


def value_of(best_by: str, loss: float, scores: dict[str, float]) -> float:
    """The number by which the best weights are chosen, larger being better."""
    return -loss if best_by == "loss" else scores[best_by]
