"""Linear layer and cross-entropy in one pass, so that the logits never stand whole in memory.

With logits z = h Wᵀ + b, target y, label smoothing ε (Szegedy et al. 2016) and V classes:

    loss  = log Σ exp z − (1 − ε) z_y − ε mean(z)
    dloss/dz = softmax(z) − (1 − ε) onehot(y) − ε / V

Only softmax(z) is as large as rows × V. The one-hot part of the gradient is a look-up in W, and the uniform part
has rank one, so both are added without a pass over the logits; and they are made a chunk of rows at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.nn import ops

CHUNK = 512  # rows of logits made at once; each chunk costs a pass over the weight's whole gradient
LARGEST_LOSS = 60.0  # nats; beyond, a probability comes close to the smallest number that bf16 and fp32 have


class LossSums(NamedTuple):
    """Sums over rows: the (smoothed) training loss and the plain negative log-likelihood, both float32 scalars; float64
    of float64.
    """

    loss: Tensor
    nll: Tensor


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float = 0.0
) -> LossSums:
    """hidden (N, E), weight (V, E), bias (V,) or None, targets (N,) in [0, V) -> sums over the N rows.

    A row with target -1 has no loss. Without rows the sums are 0.
    """
    return LossSums(*ops.cross_entropy(hidden, weight, bias, targets, smoothing))


class TargetScores(NamedTuple):
    """Sums over rows: the negative log-likelihood in nats, and how often the likeliest class was the wanted one."""

    nll: Tensor
    correct: Tensor


@torch.no_grad()
def score_targets(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> TargetScores:
    """What a model says of the targets it is asked for, a chunk of logits at a time; arguments as above."""
    asked = targets >= 0
    nll, right = (
        torch.zeros((), device=hidden.device),
        torch.zeros((), dtype=torch.int64, device=hidden.device),
    )
    for rows, wanted in zip(hidden[asked].split(CHUNK), targets[asked].split(CHUNK), strict=True):
        logits = F.linear(rows, weight, bias).float()
        nll = nll + F.cross_entropy(logits, wanted, reduction="sum")
        right = right + (logits.argmax(-1) == wanted).sum()
    return TargetScores(nll, right)
