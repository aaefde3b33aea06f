"""Comparison of two language models on the same examples: the divergence of their predictions.

Both models read each batch once. Their logits are compared a few rows at a time, so that memory
does not grow with the text or the batch. Shapes: N tokens, E width, V vocabulary.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.batches import BatchSettings
from trifold.batches.plan import plan_all
from trifold.nn import Transformer
from trifold.nn.precision import widened
from trifold.objectives.objective import Objective
from trifold.scores.divergence import DivergenceScore

CHUNK = 2**22  # logits of a model that are compared at once


class TokenDivergence(NamedTuple):
    """Of each token (N,): KL divergence in nats, whether both models have the same most probable
    token, and −log P(label) of the model and of the reference.
    """

    divergence: Tensor
    equal: Tensor
    ours: Tensor
    theirs: Tensor


def compare_logits(ours: Tensor, theirs: Tensor, labels: Tensor) -> TokenDivergence:
    """Compare the logits (N, V) of a model with those of the reference. labels (N,)."""
    p = torch.log_softmax(widened(ours), -1)
    q = torch.log_softmax(widened(theirs), -1)
    # Sums of many rounded terms may be slightly below 0.
    divergence = F.kl_div(p, q, reduction="none", log_target=True).sum(-1).clamp_min(0)
    equal = p.argmax(-1) == q.argmax(-1)
    of_labels = (-each.gather(-1, labels[:, None])[:, 0] for each in (p, q))
    return TokenDivergence(divergence, equal, *of_labels)


@torch.no_grad()
def measure_divergence(
    task: Objective,
    model: Transformer,
    reference: Transformer,
    examples: Any,
    batches: BatchSettings,
    on_done: Callable[[int], None],
) -> DivergenceScore:
    """Compare the predictions of two models for the labels of all examples of a task that
    `predicts_tokens`. on_done: is called with the number of examples of each finished batch.
    """
    score = DivergenceScore()
    for rows in plan_all(examples.lengths, batches):
        batch = task.batch(examples, rows)
        add_batch(score, task, (model, reference), batch)
        on_done(len(rows))
    return score


def add_batch(
    score: DivergenceScore, task: Objective, models: tuple[Transformer, Transformer], batch: Any
) -> None:
    """Add the labels of a batch; `models` are the model and the reference."""
    states = []
    for model in models:
        moved = batch.to(next(model.parameters()).device)
        has_label = moved.labels.flatten() >= 0
        states.append(task.token_states(model, moved)[has_label])
    labels = moved.labels.flatten()[has_label]
    size = max(1, CHUNK // models[0].config.output_vocab_size)
    for ours, theirs, targets in zip(
        states[0].split(size), states[1].split(size), labels.split(size), strict=True
    ):
        logits = [_logits(models[0], ours), _logits(models[1], theirs)]
        compared = compare_logits(logits[0], logits[1], targets)
        score.add(*(column.cpu().numpy() for column in compared))


def _logits(model: Transformer, states: Tensor) -> Tensor:
    """states (N, E) -> logits (N, V)."""
    assert model.lm_head is not None, "see `Objective.predicts_tokens`"
    logits: Tensor = model.lm_head(states)
    return logits
