"""Linear layer and cross-entropy in one pass, so that the logits never stand whole in memory.

With logits z = h Wᵀ + b, target y, label smoothing ε (Szegedy et al. 2016) and V classes:

    loss  = log Σ exp z − (1 − ε) z_y − ε mean(z)
    dloss/dz = softmax(z) − (1 − ε) onehot(y) − ε / V

Only softmax(z) is as large as rows × V. The one-hot part of the gradient is a look-up in W, and the uniform part
has rank one, so both are added without a pass over the logits; and they are made a chunk of rows at a time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK = 512  # rows of logits at a time: 512 × 10,000 in bf16 are 10 MB, which stay in the last-level cache


LARGEST_LOSS = 60.0  # nats; beyond, a probability comes close to the smallest number that bf16 and fp32 have


class LossSums(NamedTuple):
    """Sums over rows: the (smoothed) training loss and the plain negative log-likelihood, both float32 scalars."""

    loss: Tensor
    nll: Tensor


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float = 0.0
) -> LossSums:
    """hidden (N, E), weight (V, E), bias (V,) or None, targets (N,) in [0, V) -> sums over the N rows.

    A target of -1 asks nothing of its row.
    In fp32 the result is exact; in bf16 the probabilities are rounded to bf16, the sums are not. No row: 0.
    """
    if hidden.requires_grad or weight.requires_grad:
        return LossSums(*_LinearCrossEntropy.apply(hidden, weight, bias, targets, smoothing))  # type: ignore[no-untyped-call]
    return LossSums(*_sums(hidden, weight, bias, targets, smoothing))


def plain_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float = 0.0
) -> LossSums:
    """The same by the book: whole logits, the library's cross-entropy. The oracle of the fast one."""
    logits = F.linear(hidden, weight, bias).float()
    loss = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    return LossSums(loss, F.cross_entropy(logits, targets, reduction="sum"))


def _sums(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Without gradients there is no reason to round: logits of a chunk are made in float32."""
    asked = targets >= 0
    if not bool(asked.all()):
        hidden, targets = hidden[asked], targets[asked]
    loss = nll = torch.zeros((), device=hidden.device)
    for rows, wanted in zip(hidden.split(CHUNK), targets.split(CHUNK), strict=True):
        logits = F.linear(rows, weight, bias).float()
        log_likelihood = logits.log_softmax(-1)
        picked = -log_likelihood.gather(-1, wanted[:, None]).sum()
        nll = nll + picked
        loss = loss + (1 - smoothing) * picked - smoothing * log_likelihood.mean(-1).sum()
    return loss, nll


class _LinearCrossEntropy(torch.autograd.Function):
    """Computes the gradients in the forward pass, while a chunk's probabilities are at hand."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        classes = weight.shape[0]
        mean_weight = weight.float().mean(0)
        mean_bias = 0.0 if bias is None else bias.float().mean()
        d_hidden = torch.empty_like(hidden)
        d_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        d_bias = None if bias is None else torch.zeros(classes, dtype=torch.float32, device=weight.device)
        loss, nll = torch.zeros((), device=hidden.device), torch.zeros((), device=hidden.device)
        buffer = hidden.new_empty(min(CHUNK, hidden.shape[0]), classes)
        for start in range(0, hidden.shape[0], CHUNK):
            h, y = hidden[start : start + CHUNK], targets[start : start + CHUNK]
            p = buffer[: h.shape[0]]
            if bias is None:
                torch.mm(h, weight.t(), out=p)
            else:
                torch.addmm(bias, h, weight.t(), out=p)
            torch.softmax(p, dim=-1, out=p)
            h32, asked = h.float(), (y >= 0).float()
            if not bool(asked.all()):
                p[y < 0], h32, y = 0, h32 * asked[:, None], y.clamp_min(0)
            picked = torch.where(asked > 0, -p.gather(-1, y[:, None]).float().squeeze(-1).log(), 0.0)
            if bool((lost := picked > LARGEST_LOSS).any()):  # underflowed: those rows again, by the book
                again = F.linear(h[lost], weight, bias).float()
                picked[lost] = F.cross_entropy(again, y[lost], reduction="none")
            of_target = weight[y].float() * asked[:, None]
            # log Σ exp z = z_y − log p_y, and mean(z) = h · mean(W) + mean(b): no pass over the logits.
            z_target = (h32 * of_target).sum(-1) + (0.0 if bias is None else bias[y].float() * asked)
            z_mean = h32 @ mean_weight + mean_bias * asked
            nll = nll + picked.sum()
            loss = loss + (picked + smoothing * (z_target - z_mean)).sum()

            d_h = torch.mm(p, weight).float()
            d_h -= (1 - smoothing) * of_target + smoothing * mean_weight * asked[:, None]
            d_hidden[start : start + CHUNK] = d_h
            d_weight += torch.mm(p.t(), h)
            d_weight.index_add_(0, y, h32, alpha=smoothing - 1)
            d_weight -= (smoothing / classes) * h32.sum(0)
            if d_bias is not None:
                d_bias += p.sum(0, dtype=torch.float32) - (smoothing / classes) * asked.sum()
                d_bias.index_add_(0, y, asked, alpha=smoothing - 1)
        ctx.save_for_backward(d_hidden, d_weight, d_bias)
        ctx.dtype = weight.dtype
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight, d_bias = ctx.saved_tensors
        scale = gradients[0]
        d_bias = None if d_bias is None else (d_bias * scale).to(ctx.dtype)
        return d_hidden * scale.to(d_hidden.dtype), (d_weight * scale).to(ctx.dtype), d_bias, None, None
