"""Attention(Q, K, V) = softmax(Q Kᵀ / √d_k + mask) V                      (Vaswani et al. 2017, equation 1)
MultiHead: head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V), concatenated, times W^O          (section 3.2.2)

Shapes: B batch, T queries, S keys, H heads, D head width, E model width.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.fast.kernels import compiled, short_attention
from trifold.fast.packed_attention import packed_attention
from trifold.fast.single_query import asks_once, attend_once
from trifold.nn.cache import LayerCache
from trifold.nn.config import ModelConfig
from trifold.nn.hooks import Place
from trifold.nn.layers import Dropout
from trifold.nn.linear import Linear, fused, stacked
from trifold.nn.masks import Mask
from trifold.nn.offsets import Offsets
from trifold.nn.packing import Packing
from trifold.nn.relative import Relations, RelativeScores
from trifold.nn.rotary import Turns

Kernel: TypeAlias = Literal["plain", "short", "fused"]

SHORT = 128 * 128  # queries times keys up to which a CPU is quicker with the products of kernels.py
LOOPED = 512 * 512  # … and while learning from packed rows, whose weights are then kept for the way back


def split_heads(x: Tensor, width: int) -> Tensor:
    """(B, T, H·D) -> (B, H, T, D)."""
    return x.unflatten(-1, (-1, width)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, T, D) -> (B, T, H·D)."""
    return x.transpose(1, 2).flatten(2)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    *,
    bias: Tensor | None = None,
    soft_cap: float | None = None,
    drop: Dropout | None = None,
    pattern: Place | None = None,
    kernel: Kernel | None = None,
) -> Tensor:
    """Scaled dot-product attention by the kernel that suits: q (B, H, T, D), k and v (B, H, S, D) -> (B, H, T, D).

    `bias` (B or 1, H, T or 1, S) is added to the scores; a soft cap c makes c·tanh(s / c) of them before (Gemma 2).
    A query that may attend to nothing gives 0. `kernel` forces one of "plain" (the equation, with weights that can
    be watched and dropped), "short" and "fused"; left open, the fastest that can do what is asked is taken.
    """
    learns = bias is not None and bias.requires_grad and torch.is_grad_enabled()
    by_the_book = learns or soft_cap is not None or (pattern and pattern.watched) or (drop and drop.active)
    match kernel or ("plain" if by_the_book else _fastest(q, k)):
        case "plain":
            return _two_products(q, k, v, mask, bias, soft_cap, drop, pattern)
        case "short":
            return short_attention(q, k, v, mask.additive_rows(q, k.shape[2], bias))
        case "fused":
            return _library(q, k, v, mask, bias)


def _library(q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None) -> Tensor:
    queries, keys = q.shape[2], k.shape[2]
    if bias is not None:
        offsets = mask.additive(queries, keys, q, bias)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=offsets)
    windowed = mask.window is not None and mask.window < keys
    plain_causal = mask.causal and mask.keys is None and queries == keys and not windowed
    allowed = None if plain_causal else mask.dense(queries, keys, q.device)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=plain_causal)


def _fastest(q: Tensor, k: Tensor) -> Kernel:
    if q.device.type != "cpu" or torch.compiler.is_compiling():
        return "fused"
    return "short" if q.shape[2] * k.shape[2] <= SHORT else "fused"


def _two_products(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    bias: Tensor | None,
    soft_cap: float | None,
    drop: Dropout | None,
    pattern: Place | None,
) -> Tensor:
    """The equation as it stands."""
    scores = torch.matmul(q * (1 / math.sqrt(q.shape[-1])), k.transpose(-1, -2))
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    offsets = mask.additive(scores.shape[-2], scores.shape[-1], scores, bias)
    if offsets is not None:
        scores = scores + offsets
    # Rows that may attend to nothing are taken out before the softmax: after it, their gradients would be NaN.
    blind = (
        (offsets == float("-inf")).all(-1, keepdim=True)
        if offsets is not None and (torch.compiler.is_compiling() or mask.has_blind_rows)
        else None
    )
    weights = torch.softmax(scores if blind is None else scores.masked_fill(blind, 0.0), dim=-1)
    if blind is not None:
        weights = weights.masked_fill(blind, 0.0)
    if pattern is not None:
        weights = pattern(weights)
    if drop is not None:
        weights = drop(weights)
    return torch.matmul(weights, v)


class Attention(nn.Module):
    """Self-attention, or cross-attention where `memory` is given. It remembers nothing: a cache is an argument.

    `crosses`: what it reads is another text, so that no token of it stands at a distance.
    """

    def __init__(self, config: ModelConfig, layer: int = 0, *, crosses: bool = False) -> None:
        super().__init__()
        width, bias = config.head_width, config.attention_bias
        self.head_width = width
        self.groups = config.n_heads // config.kv_heads
        self.q_proj = Linear(config.d_model, config.n_heads * width, bias=bias)
        self.k_proj = Linear(config.d_model, config.kv_heads * width, bias=bias)
        self.v_proj = Linear(config.d_model, config.kv_heads * width, bias=bias)
        self.o_proj = Linear(config.n_heads * width, config.d_model, bias=config.out_bias)
        related = config.positions == "relative-sinusoidal" and not crosses
        self.relative = RelativeScores(config) if related else None
        self.drop = Dropout(config.attention_dropout)
        self.pattern = Place()
        self.soft_cap = config.score_soft_cap
        # The kernels scale by 1/√D; where another scale is asked for, queries are brought to it.
        scale = 1.0 if config.attention_scale is None else config.attention_scale * math.sqrt(width)
        self.stretch = scale / (layer + 1) if config.attention_scale_by_layer else scale

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Mask,
        bias: Offsets | None = None,
        rotary: Turns | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """x (B, T, E) -> (B, T, E), or (1, N, E) -> (1, N, E) where the mask says that rows lie packed.

        With a filled cache, `memory` is not looked at again.
        """
        if bias is None and rotary is None and self._loops_fit(x, mask):
            return self.o_proj(self._packed(x, memory, mask))
        if memory is None:
            q, k, v = (
                self._heads(y, mask.packing) for y in fused(x, (self.q_proj, self.k_proj, self.v_proj))
            )
            if rotary is not None:
                q = rotary.queries(q)
                k = k if rotary.late else rotary.keys(k)
            if cache is not None:
                k, v = cache.own.update(k, v)
            if rotary is not None and rotary.late:
                k = rotary.keys(k)
        else:
            q = self._heads(self.q_proj(x), mask.packing)
            k, v = self._memory_keys(memory, mask.key_packing, cache)
        q, bias = self.placed(q, bias)
        by_the_book = self.pattern.watched or self.drop.active
        if not by_the_book and asks_once(q, k, mask, q.shape[-1] * q.shape[1] * x.shape[-1]):
            return self.o_proj(attend_once(q, k, v, mask, bias, self.soft_cap))
        if self.groups > 1:
            k, v = (y.repeat_interleave(self.groups, dim=1) for y in (k, v))
        beams = q.shape[0] // k.shape[0]
        if beams > 1:
            seen = merge_heads(self._shared(q, k, v, mask, beams))
        else:
            seen = merge_heads(
                attend(q, k, v, mask, bias=bias, soft_cap=self.soft_cap, drop=self.drop, pattern=self.pattern)
            )
        return self.o_proj(seen if mask.packing is None else mask.packing.flat(seen))

    def project(self, x: Tensor, packing: Packing | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, T, E), or packed (1, N, E), -> queries, keys and values (B, H, T, D), shared ones for every head."""
        q, k, v = (self._heads(y, packing) for y in fused(x, (self.q_proj, self.k_proj, self.v_proj)))
        if self.groups > 1:
            k, v = (y.repeat_interleave(self.groups, dim=1) for y in (k, v))
        return q, k, v

    def placed(self, q: Tensor, bias: Offsets | None) -> tuple[Tensor, Tensor | None]:
        """Queries as they are multiplied with keys, on the config's scale, and the offsets of those scores."""
        if isinstance(bias, Relations):
            assert self.relative is not None, "relations are for relative-sinusoidal positions"
            bias = self.relative.scores(q, bias) * self.stretch
            q = self.relative.content_query(q)
        return q if self.stretch == 1.0 else q * self.stretch, bias

    def _loops_fit(self, x: Tensor, mask: Mask) -> bool:
        """Whether packed rows can be attended to without being laid out on the grid first."""
        if mask.packing is None or mask.window is not None or self.pattern.watched or self.drop.active:
            return False
        if self.groups > 1 or self.soft_cap is not None or self.stretch != 1.0:
            return False
        queries, keys = mask.packing.shape[1], (mask.key_packing or mask.packing).shape[1]
        return queries * keys <= LOOPED and compiled(x) is not None

    def _packed(self, x: Tensor, memory: Tensor | None, mask: Mask) -> Tensor:
        """(1, N, E) -> (1, N, H·D)."""
        assert mask.packing is not None
        if memory is None:
            q, kv = stacked(x[0], (self.q_proj, self.k_proj, self.v_proj)), None
        else:
            q, kv = self.q_proj(x[0]), stacked(memory[0], (self.k_proj, self.v_proj))
        keys = mask.key_packing or mask.packing
        return packed_attention(q, kv, mask.packing, keys, self.head_width, causal=mask.causal)[None]

    def _heads(self, x: Tensor, packing: Packing | None) -> Tensor:
        """(B, T, H·D), or packed (1, N, H·D), -> (B, H, T, D)."""
        return split_heads(x if packing is None else packing.grid(x), self.head_width)

    def _memory_keys(
        self, memory: Tensor, packing: Packing | None, cache: LayerCache | None
    ) -> tuple[Tensor, Tensor]:
        if cache is not None and cache.memory.filled:
            return cache.memory.read()
        k, v = (self._heads(y, packing) for y in fused(memory, (self.k_proj, self.v_proj)))
        return (k, v) if cache is None else cache.memory.fill(k, v)

    def _shared(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, beams: int) -> Tensor:
        """All beams of a sentence ask the same memory: they become queries of one row, and rows again."""
        rows, heads, steps, width = q.shape
        together = q.view(rows // beams, beams, heads, steps, width).transpose(1, 2).flatten(2, 3)
        seen = attend(together, k, v, mask, soft_cap=self.soft_cap, pattern=self.pattern)
        return seen.unflatten(2, (beams, steps)).transpose(1, 2).flatten(0, 1)
