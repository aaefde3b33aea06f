"""Linear layer and cross-entropy in one pass, so that the logits are never stored as a whole.

With logits z = h Wᵀ + b, target y, label smoothing ε (Szegedy et al. 2016) and V classes:

    loss  = log Σ exp z − (1 − ε) z_y − ε mean(z)
    dloss/dz = softmax(z) − (1 − ε) onehot(y) − ε / V

Only softmax(z) has rows × V elements. The one-hot part of the gradient is a look-up in W and the uniform part has rank
one, so both are added without a pass over the logits. The logits are computed in chunks of rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.fast import kernels
from trifold.nn.losses import CHUNK
from trifold.nn.ops import cross_entropy as plain_cross_entropy

LARGEST_LOSS = 60.0  # nats; beyond, a probability comes close to the smallest number that bf16 and fp32 have


def cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """See `nn.ops.cross_entropy`. Exact in fp32; in bf16 the probabilities are rounded, but not the sums."""
    if hidden.dtype is torch.float64:
        return plain_cross_entropy(hidden, weight, bias, targets, smoothing)
    if hidden.requires_grad or weight.requires_grad:
        sums: tuple[Tensor, Tensor] = _LinearCrossEntropy.apply(hidden, weight, bias, targets, smoothing)  # type: ignore[no-untyped-call]
        return sums
    return _sums(hidden, weight, bias, targets, smoothing)


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


def _normalised(
    z: Tensor, hidden: Tensor, targets: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Logits z (V, N) -> in place numbers e with e · inverse = softmax(z) of each column; inverse (N,), and -log p of
    targets (N,).

    Where nothing is asked both are 0.
    """
    if kernels.compiled(z, learning=True) is not None:
        return kernels.exponentials(z, targets)
    torch.softmax(z, dim=0, out=z)
    asked = targets >= 0
    wanted = targets.clamp_min(0)
    picked = torch.where(asked, -z.gather(0, wanted[None]).float().squeeze(0).log(), 0.0)
    if bool((lost := picked > LARGEST_LOSS).any()):  # underflowed: those rows again, by the book
        again = F.linear(hidden[lost], weight, bias).float()
        picked[lost] = F.cross_entropy(again, wanted[lost], reduction="none")
    return asked.float(), picked


class _LinearCrossEntropy(torch.autograd.Function):
    """Computes the gradients in the forward pass, while a chunk's probabilities are at hand."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        asked, wanted = (targets >= 0).float(), targets.clamp_min(0)
        rows, classes = len(hidden), weight.shape[0]
        d_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        d_bias = None if bias is None else torch.zeros(classes, dtype=torch.float32, device=weight.device)
        d_hidden = torch.empty_like(hidden)
        nll = smooth = d_weight.new_zeros(())
        mean_weight = weight.float().mean(0)
        # Of a chunk (classes, rows) the products come out quicker than of its transpose: the matrices lie as they want.
        # Those of fp32 read a turned matrix as it lies, and can be added to dW at once; those of bf16 cannot.
        whole = hidden.dtype is torch.float32
        classes_last = weight.t() if whole else weight.t().contiguous()
        buffer = hidden.new_empty(classes * min(CHUNK, rows))
        # All that is as long as the rows is made in parts that stay in the caches.
        for start in range(0, rows, CHUNK):
            part = slice(start, min(start + CHUNK, rows))
            here, real, of_rows = hidden[part], asked[part], wanted[part]
            z = buffer[: classes * len(here)].view(classes, len(here))
            torch.mm(weight, here.t(), out=z)
            if bias is not None:
                z += bias[:, None]
            inverse, picked = _normalised(z, here, targets[part], weight, bias)
            nll = nll + picked.sum()
            h32 = here.float().mul_(real[:, None])
            if whole:
                d_weight.addmm_(z, h32 * inverse[:, None])
            else:
                kernels.add_to(d_weight, torch.mm(z, (h32 * inverse[:, None]).to(hidden.dtype)))
            if d_bias is not None:
                d_bias += (z * inverse).sum(1)
            d_hidden[part] = torch.mm(classes_last, z).t()
            # What is left has rank one or is a look-up: (1 − ε) onehot(y) and ε / V.
            of_target = weight[of_rows].float()
            d_h = d_hidden[part].float().mul_(inverse[:, None])
            d_h.addcmul_(of_target, real[:, None], value=smoothing - 1)
            d_weight.index_add_(0, of_rows, h32, alpha=smoothing - 1)
            if d_bias is not None:
                d_bias.index_add_(0, of_rows, real, alpha=smoothing - 1)
            if smoothing:
                d_h.addcmul_(mean_weight, real[:, None], value=-smoothing)
                d_weight -= (smoothing / classes) * h32.sum(0)
                # log Σ exp z = z_y − log p_y, and mean(z) = h · mean(W) + mean(b): no pass over the logits.
                above = (h32 * of_target).sum(-1) - h32 @ mean_weight
                if bias is not None and d_bias is not None:
                    above += (bias[of_rows].float() - bias.float().mean()) * real
                    d_bias -= (smoothing / classes) * real.sum()
                smooth = smooth + above.sum()
            d_hidden[part] = d_h
        loss = nll + smoothing * smooth
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
