"""Attention of packed rows on a CPU: products of all rows and heads at once on a grid, and compiled loops between them,
which know where the rows end.

A causal query sees no later key. So queries are taken in parts of about PART, each of which is multiplied with the keys
up to its own end only: of 128, 256 and 512 tokens, 25, 38 and 44 % of all products and weights are never made.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from trifold.fast.kernels import array, present
from trifold.nn.packing import Packing

PART = 64  # fewer queries save little more, and their products are too small to be quick


def packed_attention(
    q: Tensor, kv: Tensor | None, queries: Packing, keys: Packing, width: int, *, causal: bool
) -> Tensor:
    """Attention of packed rows with heads of `width`, each row to itself or to its row of a memory -> (N, H·D).

    q (N, H·D) and kv (M, 2·H·D): keys, then values; or q (N, 3·H·D) and no kv: queries, keys, values.
    """
    out: Tensor = _PackedAttention.apply(q, kv, queries, keys, width, causal)  # type: ignore[no-untyped-call]
    return out


def _roomy(packing: Packing) -> tuple[int, int]:
    """Rows and steps of the grid, a little rounded up: products of few different shapes, of widths that suit."""
    rows, steps = packing.shape
    coarse = 1 << max(0, rows.bit_length() - 4)  # an eighth at most
    return -(-rows // coarse) * coarse, -(-steps // 8) * 8


def _parts(steps: int, memory: int, causal: bool) -> list[tuple[slice, slice]]:
    """Queries, and the keys that some of them may see; steps is a multiple of 8."""
    if not causal:
        return [(slice(0, steps), slice(0, memory))]
    count = max(1, round(steps / PART))
    ends = [steps * part // count // 8 * 8 for part in range(count + 1)]
    return [(slice(first, end), slice(0, end)) for first, end in pairwise(ends)]


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, kv: Tensor | None, queries: Packing, keys: Packing, width: int, causal: bool
    ) -> Tensor:
        own = kv is None
        heads = q.shape[1] // (3 * width if own else width)
        ctx.places = [(0, 0), (0, heads * width), (0, 2 * heads * width)]  # (tensor, column) of q, k, v
        if not own:
            ctx.places = [(0, 0), (1, 0), (1, heads * width)]
        ctx.sizes = [x.shape for x in (q, kv) if x is not None]
        ctx.starts = q_starts, k_starts = queries.starts.numpy(), keys.starts.numpy()
        ctx.scale = 1 / math.sqrt(width)
        given = [array(x) for x in (q, kv) if x is not None]
        (rows, steps), (_, memory) = _roomy(queries), _roomy(keys)
        laid = []
        for (which, column), starts, length, factor in zip(
            ctx.places,
            (q_starts, k_starts, k_starts),
            (steps, memory, memory),
            (ctx.scale, 1.0, 1.0),
            strict=True,
        ):
            grid = q.new_empty(rows, heads, length, width)
            present().to_heads(given[which], column, starts, factor, array(grid))
            laid.append(grid.flatten(0, 1))
        qs, ks, vs = laid
        ctx.parts, weights, seen = _parts(steps, memory, causal), [], torch.empty_like(qs)
        for asks, sees in ctx.parts:
            part = torch.bmm(qs[:, asks], ks[:, sees].transpose(1, 2))
            scores = array(part.unflatten(0, (rows, heads)))
            present().softmax_rows(scores, q_starts, k_starts, asks.start, causal)
            torch.bmm(part, vs[:, sees], out=seen[:, asks])
            weights.append(part)
        out = q.new_empty(q.shape[0], heads * width)
        present().from_heads(array(seen.unflatten(0, (rows, heads))), q_starts, 1.0, array(out), 0)
        ctx.save_for_backward(qs, ks, vs, *weights)
        ctx.grid = rows, heads
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        qs, ks, vs, *weights = ctx.saved_tensors
        q_starts, k_starts = ctx.starts
        gs = torch.empty_like(qs)
        present().to_heads(array(gradients[0]), 0, q_starts, 1.0, array(gs.unflatten(0, ctx.grid)))
        d_q, d_k, d_v = torch.empty_like(qs), torch.zeros_like(ks), torch.zeros_like(vs)
        for (asks, sees), part in zip(ctx.parts, weights, strict=True):  # in bf16 each part's sum is rounded
            d_v[:, sees].baddbmm_(part.transpose(1, 2), gs[:, asks])
            d_scores = torch.bmm(gs[:, asks], vs[:, sees].transpose(1, 2))
            present().softmax_rows_backward(array(part.flatten(0, 1)), array(d_scores.flatten(0, 1)))
            torch.bmm(d_scores, ks[:, sees], out=d_q[:, asks])
            d_k[:, sees].baddbmm_(d_scores.transpose(1, 2), qs[:, asks])
        out = [torch.empty(size, dtype=qs.dtype) for size in ctx.sizes]
        arrays = [array(x) for x in out]
        for (which, column), starts, gradient, factor in zip(
            ctx.places, (q_starts, k_starts, k_starts), (d_q, d_k, d_v), (ctx.scale, 1.0, 1.0), strict=True
        ):
            laid = array(gradient.unflatten(0, ctx.grid))
            present().from_heads(laid, starts, factor, arrays[which], column)
        return out[0], out[1] if len(out) > 1 else None, None, None, None, None
