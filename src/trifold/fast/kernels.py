"""What a CPU does faster by other means than the library's operators; each has its slow, obvious twin elsewhere.

Short attention, where the library's kernels spend their time on everything but products:

    e = exp(s − m),  l = Σ_j e_j,  out = (e V) / l                     s = Q Kᵀ / √d + mask,  m ≥ max s of the row
    with g = dout / l:   dV = eᵀ g,   ds = e ∘ (g Vᵀ − rowsum(g ∘ out)),   dQ = ds K / √d,   dK = dsᵀ Q / √d

Every division by l is moved from the (T, S) weights to the (T, D) rows, and the maximum is taken over a whole head
instead of a row: passes over rows of some ten numbers cost a library call more than a pass over their product does.
`attention._two_products` is the same by the book.

And the compiled loops (loops.py), where numba is installed: dropout, GELU, layer norm and the softmax over the
vocabulary, beside what packed_attention.py and bytes_learning.py make of them. They serve learning, in bf16 and fp32.
"""

from __future__ import annotations

import importlib
import math
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trifold.nn.rng import thread_rng

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


# --- the compiled loops --------------------------------------------------------------------------------


@cache
def loops() -> ModuleType | None:
    """The module of compiled loops, or None where numba is not installed."""
    try:
        return importlib.import_module("trifold.fast.loops")
    except ImportError:
        return None


def compiled(x: Tensor, *, learning: bool | None = None) -> ModuleType | None:
    """The loops, where they suit: a CPU, bf16 or fp32, and gradients wanted (`learning`, or as x says)."""
    if torch.compiler.is_compiling():
        return None  # what stands in a graph, the graph's own compiler fuses
    if x.device.type != "cpu" or x.dtype not in (torch.bfloat16, torch.float32):
        return None
    wanted = torch.is_grad_enabled() and x.requires_grad if learning is None else learning
    return loops() if wanted else None


def present() -> Any:
    """The loops, where it is known that they are there."""
    found = loops()
    assert found is not None
    return found


def array(x: Tensor) -> NDArray[Any]:
    """The same memory, contiguous, as the loops take it: bf16 as uint16."""
    x = x.detach().contiguous()
    return (x.view(torch.uint16) if x.dtype is torch.bfloat16 else x).numpy()


def copied(parameter: Tensor) -> Tensor:
    """What loops read of a parameter: an array holds on to its storage, which is to be freed where it is sharded."""
    return parameter.detach().clone()


def dropped(y: Tensor, p: float) -> Tensor:
    """Each element 0 with probability p, else times 1 / (1 − p)."""
    out: Tensor = _Dropped.apply(None, y, *_chance(p))  # type: ignore[no-untyped-call]
    return out


def added_dropped(x: Tensor, y: Tensor, p: float) -> Tensor:
    """x + dropped(y), in one pass."""
    out: Tensor = _Dropped.apply(x, y, *_chance(p))  # type: ignore[no-untyped-call]
    return out


def _chance(p: float) -> tuple[np.uint32, np.uint32, np.float32]:
    """Seed, threshold of its hashes, and scale."""
    seed = int(torch.randint(2**32, (), generator=thread_rng()))
    return np.uint32(seed), np.uint32(min(round(p * 2**32), 2**32 - 1)), np.float32(1 / (1 - p))


class _Dropped(torch.autograd.Function):
    """The mask is never written down: the way back hashes it again from the seed."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor | None, y: Tensor, seed: np.uint32, threshold: np.uint32, scale: np.float32
    ) -> Tensor:
        ctx.chance, ctx.adds = (seed, threshold, scale), x is not None
        out = torch.empty(y.shape, dtype=y.dtype)
        into = array(out).reshape(-1)
        if x is None:
            present().dropped(array(y).reshape(-1), *ctx.chance, into)
        else:
            present().added_dropped(array(x).reshape(-1), array(y).reshape(-1), *ctx.chance, into)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        out = torch.empty(gradients[0].shape, dtype=gradients[0].dtype)
        present().dropped(array(gradients[0]).reshape(-1), *ctx.chance, array(out).reshape(-1))
        return gradients[0] if ctx.adds else None, out, None, None, None


def gelu_tanh(x: Tensor) -> Tensor:
    """0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))."""
    out: Tensor = _GeluTanh.apply(x)  # type: ignore[no-untyped-call]
    return out


class _GeluTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        out = torch.empty(x.shape, dtype=x.dtype)
        present().gelu_tanh(array(x).reshape(-1), array(out).reshape(-1))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        out = torch.empty(x.shape, dtype=x.dtype)
        present().gelu_tanh_backward(
            array(gradients[0]).reshape(-1), array(x).reshape(-1), array(out).reshape(-1)
        )
        return out


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """x (…, E) -> (…, E)."""
    out: Tensor = _LayerNorm.apply(x.reshape(-1, x.shape[-1]), weight, bias, epsilon)  # type: ignore[no-untyped-call]
    return out.view(x.shape)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        weight, bias = copied(weight), copied(bias)
        out = torch.empty(x.shape, dtype=x.dtype)
        mean, inverse = np.empty(len(x), np.float32), np.empty(len(x), np.float32)
        present().layer_norm(array(x), array(weight), array(bias), epsilon, array(out), mean, inverse)
        ctx.save_for_backward(x, weight)
        ctx.moments = mean, inverse
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        out = torch.empty(x.shape, dtype=x.dtype)
        sums = torch.empty(2, x.shape[1])
        present().layer_norm_backward(
            array(gradients[0]), array(x), array(weight), *ctx.moments, array(out), *sums.numpy()
        )
        d_weight, d_bias = sums.to(weight.dtype)
        return out, d_weight, d_bias, None


def exponentials(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """logits (V, N) -> exp(z − max of the column) in place; one over their sums, and -log p of targets: (N,) fp32.

    Of a column with target -1 both are 0.
    """
    inverse, picked = torch.empty(2, len(targets))
    present().exponentials(array(logits), targets.numpy(), inverse.numpy(), picked.numpy())
    return inverse, picked


def add_to(total: Tensor, part: Tensor) -> None:
    """total += part, fp32 += bf16 or fp32: without the copy in fp32 that the operator makes of a bf16 part."""
    if part.dtype is torch.bfloat16 and compiled(part, learning=True) is not None:
        present().added_to(array(total).reshape(-1), array(part).reshape(-1))
    else:
        total += part


def rows_to_bytes(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (R, K) ≈ bytes (R, K) int8 · scales (R,) fp32 of its rows."""
    small, scales = torch.empty(x.shape, dtype=torch.int8), torch.empty(x.shape[0])
    present().rows_to_bytes(array(x), small.numpy(), scales.numpy())
    return small, scales


def columns_to_bytes(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (R, K) ≈ bytes (R, K) int8 · scales (K,) fp32 of its columns."""
    small, scales = torch.empty(x.shape, dtype=torch.int8), torch.empty(x.shape[1])
    present().columns_to_bytes(array(x), small.numpy(), scales.numpy())
    return small, scales


def both_to_bytes(x: Tensor, by_rows: Tensor, its: Tensor, by_columns: Tensor, scales: Tensor) -> None:
    """x (R, K) ≈ by_rows (R, K) int8 · its (R,) fp32 of its rows ≈ by_columns (R, K) int8 · scales (K,) fp32."""
    present().both_to_bytes(array(x), *(each.numpy() for each in (by_rows, its, by_columns, scales)))


def from_bytes(sums: Tensor, rows: Tensor, columns: Tensor, bias: Tensor, out: Tensor) -> None:
    """sums (R, N) int32 · rows (R,) · columns (N,) + bias (N,), all fp32 -> out (R, N)."""
    present().from_bytes(*(each.numpy() for each in (sums, rows, columns, bias)), array(out))


def added_from_bytes(sums: Tensor, rows: Tensor, columns: Tensor, total: Tensor) -> None:
    """total (R, N) += sums (R, N) int32 · rows (R,) · columns (N,), all fp32."""
    present().added_from_bytes(*(each.numpy() for each in (sums, rows, columns, total)))


def summed_columns(x: Tensor, total: Tensor) -> None:
    """total (K,) fp32 += the sums of the columns of x (R, K)."""
    present().summed_columns(array(x), total.numpy())
