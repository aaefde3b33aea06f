"""Attention over short sequences on a CPU, where the library's kernels spend their time on everything but products.

    e = exp(s − m),  l = Σ_j e_j,  out = (e V) / l                     s = Q Kᵀ / √d + mask,  m ≥ max s of the row
    with g = dout / l:   dV = eᵀ g,   ds = e ∘ (g Vᵀ − rowsum(g ∘ out)),   dQ = ds K / √d,   dK = dsᵀ Q / √d

Every division by l is moved from the (T, S) weights to the (T, D) rows, and the maximum is taken over a whole head
instead of a row: passes over rows of some ten numbers cost a library call more than a pass over their product does.
`attention._two_products` is the same by the book.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

# Well above where numbers of bf16 and fp32 lose bits or their reciprocals overflow (1e-38).
LEAST_SUM = 1e-30


def short_attention(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor | None) -> Tensor:
    """q (B, H, T, D), k and v (B, H, S, D), offsets of the scores broadcastable to (B·H, T, S) -> (B, H, T, D).

    A query whose offsets are all -inf gives 0, with gradient 0.
    """
    flat = (x.flatten(0, 1) for x in (q, k, v))
    out: Tensor = _ShortAttention.apply(*flat, offsets)  # type: ignore[no-untyped-call]
    return out.view(q.shape)


def _exponentials(scores: Tensor, offsets: Tensor | None) -> tuple[Tensor, Tensor]:
    """exp(s − m) (N, T, S) and 1 / its row sums (N, T, 1), the latter 0 for rows that attend to nothing."""
    if offsets is not None:
        scores = scores.add_(offsets)
    lowest = torch.finfo(scores.dtype).min
    scores = scores.sub_(scores.amax((-2, -1), keepdim=True).clamp_min_(lowest))
    e = scores.exp()
    sums = e.sum(-1, keepdim=True)
    if bool((sums < LEAST_SUM).any()):  # some row lies far below its head's maximum, or attends to nothing
        e = scores.sub_(scores.amax(-1, keepdim=True).clamp_min_(lowest)).exp_()
        sums = e.sum(-1, keepdim=True)
        return e, torch.where(sums > 0, sums.reciprocal(), 0.0)
    return e, sums.reciprocal_()


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, offsets: Tensor | None) -> Tensor:
        ctx.scale = 1 / math.sqrt(q.shape[-1])
        q = q * ctx.scale
        e, inverse = _exponentials(torch.bmm(q, k.transpose(1, 2)), offsets)
        out = torch.bmm(e, v).mul_(inverse)
        ctx.save_for_backward(q, k, v, e, inverse, out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, e, inverse, out = ctx.saved_tensors
        g = gradients[0] * inverse
        d_v = torch.bmm(e.transpose(1, 2), g)
        d_scores = torch.bmm(g, v.transpose(1, 2)).sub_((g * out).sum(-1, keepdim=True)).mul_(e)
        d_q = torch.bmm(d_scores, k).mul_(ctx.scale)
        d_k = torch.bmm(d_scores.transpose(1, 2), q)
        return d_q, d_k, d_v, None
