"""Cross-entropy of a linear layer's logits z = h Wᵀ + b, with label smoothing (Szegedy et al.
2016):

    loss = log Σ exp z − (1 − ε) z_y − ε mean(z)                        for the target class y

All results are sums over rows. Shapes: N rows, E width of h, V classes.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.nn import ops
from trifold.nn.precision import widened

CHUNK = 512  # rows whose logits are computed at once


class LossSums(NamedTuple):
    """Sums over rows: the (smoothed) training loss, and the negative log-likelihood, without
    gradient.

    float32 scalars; float64 for float64 inputs.
    """

    loss: Tensor
    nll: Tensor


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float = 0.0
) -> LossSums:
    """hidden (N, E), weight (V, E), bias (V,) or None, targets (N,) in [0, V), or -1 for a row
    without loss.
    """
    return LossSums(*ops.cross_entropy(hidden, weight, bias, targets, smoothing))


class TargetScores(NamedTuple):
    """Sums over rows: the negative log-likelihood in nats, and how often the target has the largest
    logit.
    """

    nll: Tensor
    correct: Tensor


@torch.no_grad()
def score_targets(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    soft_cap: float | None = None,
) -> TargetScores:
    """Evaluate the targets, one chunk of logits at a time. Arguments as for
    `linear_cross_entropy`; soft_cap: see `soft_capped`.
    """
    has_target = targets >= 0
    device = hidden.device
    nll = torch.zeros((), device=device)
    correct = torch.zeros((), dtype=torch.int64, device=device)
    for rows, labels in zip(
        hidden[has_target].split(CHUNK), targets[has_target].split(CHUNK), strict=True
    ):
        logits = soft_capped(widened(F.linear(rows, weight, bias)), soft_cap)
        nll = nll + F.cross_entropy(logits, labels, reduction="sum")
        correct = correct + (logits.argmax(-1) == labels).sum()
    return TargetScores(nll, correct)


def soft_capped(logits: Tensor, cap: float | None) -> Tensor:
    """cap · tanh(logits / cap), which stays within ±cap (Gemma 2, 2024, section 2); the logits
    without a cap.
    """
    if cap is None:
        return logits
    return cap * torch.tanh(logits / cap)
