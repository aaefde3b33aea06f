"""What a CPU does faster by other means than the library's operators; each has its slow, obvious twin elsewhere.

Short attention, where the library's kernels spend their time on everything but products:

    e = exp(s − m),  l = Σ_j e_j,  out = (e V) / l                     s = Q Kᵀ / √d + mask,  m ≥ max s of the row
    with g = dout / l:   dV = eᵀ g,   ds = e ∘ (g Vᵀ − rowsum(g ∘ out)),   dQ = ds K / √d,   dK = dsᵀ Q / √d

Every division by l is moved from the (T, S) weights to the (T, D) rows, and the maximum is taken over a whole head
instead of a row: passes over rows of some ten numbers cost a library call more than a pass over their product does.
`attention._two_products` is the same by the book.

And the compiled loops (loops.py), where numba is installed: dropout, layer norm, attention over packed rows, and the
softmax over the vocabulary. They serve learning, in bf16 and fp32.
"""

from __future__ import annotations

import importlib
import math
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trifold.nn.packing import Packing

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
        return importlib.import_module("trifold.nn.loops")
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


def _loops() -> Any:
    found = loops()
    assert found is not None
    return found


def _array(x: Tensor) -> NDArray[Any]:
    """The same memory, contiguous, as the loops take it: bf16 as uint16."""
    x = x.detach().contiguous()
    return (x.view(torch.uint16) if x.dtype is torch.bfloat16 else x).numpy()


def copied(parameter: Tensor) -> Tensor:
    """What loops read of a parameter: an array holds on to its storage, which is to be freed where it is sharded."""
    return parameter.detach().clone()


_thread = threading.local()


@contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """Dropout in this thread draws from this generator, not from the one that all threads share."""
    before = own_generator()
    _thread.generator = generator
    try:
        yield
    finally:
        _thread.generator = before


def own_generator() -> torch.Generator | None:
    """The generator of this thread, if it has one."""
    return getattr(_thread, "generator", None)


class Redrawing(AbstractContextManager[None]):
    """Made before a computation; under it the same computation draws the same again, in any thread, however often.

    It knows of this thread's own generator only. Without one it does nothing: the common ones are the library's.
    """

    def __init__(self) -> None:
        generator = own_generator()
        self._state = None if generator is None else generator.get_state()
        self._before: torch.Generator | None = None

    def __enter__(self) -> None:
        self._before = own_generator()
        if self._state is not None:
            _thread.generator = torch.Generator().set_state(self._state)

    def __exit__(self, *_: object) -> None:
        _thread.generator = self._before


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
    seed = int(torch.randint(2**32, (), generator=own_generator()))
    return np.uint32(seed), np.uint32(min(round(p * 2**32), 2**32 - 1)), np.float32(1 / (1 - p))


class _Dropped(torch.autograd.Function):
    """The mask is never written down: the way back hashes it again from the seed."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor | None, y: Tensor, seed: np.uint32, threshold: np.uint32, scale: np.float32
    ) -> Tensor:
        ctx.chance, ctx.adds = (seed, threshold, scale), x is not None
        out = torch.empty(y.shape, dtype=y.dtype)
        into = _array(out).reshape(-1)
        if x is None:
            _loops().dropped(_array(y).reshape(-1), *ctx.chance, into)
        else:
            _loops().added_dropped(_array(x).reshape(-1), _array(y).reshape(-1), *ctx.chance, into)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        out = torch.empty(gradients[0].shape, dtype=gradients[0].dtype)
        _loops().dropped(_array(gradients[0]).reshape(-1), *ctx.chance, _array(out).reshape(-1))
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
        _loops().gelu_tanh(_array(x).reshape(-1), _array(out).reshape(-1))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        out = torch.empty(x.shape, dtype=x.dtype)
        _loops().gelu_tanh_backward(
            _array(gradients[0]).reshape(-1), _array(x).reshape(-1), _array(out).reshape(-1)
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
        _loops().layer_norm(_array(x), _array(weight), _array(bias), epsilon, _array(out), mean, inverse)
        ctx.save_for_backward(x, weight)
        ctx.moments = mean, inverse
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        out = torch.empty(x.shape, dtype=x.dtype)
        sums = torch.empty(2, x.shape[1])
        _loops().layer_norm_backward(
            _array(gradients[0]), _array(x), _array(weight), *ctx.moments, _array(out), *sums.numpy()
        )
        d_weight, d_bias = sums.to(weight.dtype)
        return out, d_weight, d_bias, None


def exponentials(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """logits (V, N) -> exp(z − max of the column) in place; one over their sums, and -log p of targets: (N,) fp32.

    Of a column with target -1 both are 0.
    """
    inverse, picked = torch.empty(2, len(targets))
    _loops().exponentials(_array(logits), targets.numpy(), inverse.numpy(), picked.numpy())
    return inverse, picked


def add_to(total: Tensor, part: Tensor) -> None:
    """total += part, fp32 += bf16 or fp32: without the copy in fp32 that the operator makes of a bf16 part."""
    if part.dtype is torch.bfloat16 and compiled(part, learning=True) is not None:
        _loops().added_to(_array(total).reshape(-1), _array(part).reshape(-1))
    else:
        total += part


def rows_to_bytes(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (R, K) ≈ bytes (R, K) int8 · scales (R,) fp32 of its rows."""
    small, scales = torch.empty(x.shape, dtype=torch.int8), torch.empty(x.shape[0])
    _loops().rows_to_bytes(_array(x), small.numpy(), scales.numpy())
    return small, scales


def columns_to_bytes(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (R, K) ≈ bytes (R, K) int8 · scales (K,) fp32 of its columns."""
    small, scales = torch.empty(x.shape, dtype=torch.int8), torch.empty(x.shape[1])
    _loops().columns_to_bytes(_array(x), small.numpy(), scales.numpy())
    return small, scales


def both_to_bytes(x: Tensor, by_rows: Tensor, its: Tensor, by_columns: Tensor, scales: Tensor) -> None:
    """x (R, K) ≈ by_rows (R, K) int8 · its (R,) fp32 of its rows ≈ by_columns (R, K) int8 · scales (K,) fp32."""
    _loops().both_to_bytes(_array(x), *(each.numpy() for each in (by_rows, its, by_columns, scales)))


def from_bytes(sums: Tensor, rows: Tensor, columns: Tensor, bias: Tensor, out: Tensor) -> None:
    """sums (R, N) int32 · rows (R,) · columns (N,) + bias (N,), all fp32 -> out (R, N)."""
    _loops().from_bytes(*(each.numpy() for each in (sums, rows, columns, bias)), _array(out))


def added_from_bytes(sums: Tensor, rows: Tensor, columns: Tensor, total: Tensor) -> None:
    """total (R, N) += sums (R, N) int32 · rows (R,) · columns (N,), all fp32."""
    _loops().added_from_bytes(*(each.numpy() for each in (sums, rows, columns, total)))


def summed_columns(x: Tensor, total: Tensor) -> None:
    """total (K,) fp32 += the sums of the columns of x (R, K)."""
    _loops().summed_columns(_array(x), total.numpy())


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


class _PackedAttention(torch.autograd.Function):
    """The products of all rows and heads at once on a grid; between them the loops, which know where the rows end."""

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
        given = [_array(x) for x in (q, kv) if x is not None]
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
            _loops().to_heads(given[which], column, starts, factor, _array(grid))
            laid.append(grid.flatten(0, 1))
        qs, ks, vs = laid
        weights = torch.bmm(qs, ks.transpose(1, 2))
        _loops().softmax_rows(_array(weights.view(rows, heads, steps, memory)), q_starts, k_starts, causal)
        seen = torch.bmm(weights, vs).view(rows, heads, steps, width)
        out = q.new_empty(q.shape[0], heads * width)
        _loops().from_heads(_array(seen), q_starts, 1.0, _array(out), 0)
        ctx.save_for_backward(qs, ks, vs, weights)
        ctx.grid = rows, heads
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        qs, ks, vs, weights = ctx.saved_tensors
        q_starts, k_starts = ctx.starts
        gs = torch.empty_like(qs)
        grid = (*ctx.grid, qs.shape[1], qs.shape[2])
        _loops().to_heads(_array(gradients[0]), 0, q_starts, 1.0, _array(gs.view(grid)))
        d_v = torch.bmm(weights.transpose(1, 2), gs)
        d_scores = torch.bmm(gs, vs.transpose(1, 2))
        _loops().softmax_rows_backward(_array(weights.flatten(0, 1)), _array(d_scores.flatten(0, 1)))
        d_q, d_k = torch.bmm(d_scores, ks), torch.bmm(d_scores.transpose(1, 2), qs)
        out = [torch.empty(size, dtype=qs.dtype) for size in ctx.sizes]
        arrays = [_array(x) for x in out]
        for (which, column), starts, gradient, factor in zip(
            ctx.places, (q_starts, k_starts, k_starts), (d_q, d_k, d_v), (ctx.scale, 1.0, 1.0), strict=True
        ):
            laid = _array(gradient.unflatten(0, ctx.grid))
            _loops().from_heads(laid, starts, factor, arrays[which], column)
        return out[0], out[1] if len(out) > 1 else None, None, None, None, None
