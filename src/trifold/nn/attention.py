"""Attention(Q, K, V) = softmax(Q Kᵀ / √d_k + mask) V              (Vaswani et al. 2017, equation 1)
MultiHead: head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V), concatenated, times W^O    (section 3.2.2)

Equation 1 is `ops.attend`. Shapes: B batch, T queries, S keys, H heads, D head size, Y value size
(by default D), E model width.
"""

import math
from collections.abc import Hashable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from trifold.nn import ops
from trifold.nn.cache import LayerCache
from trifold.nn.config import CoreConfig
from trifold.nn.hooks import HookPoint
from trifold.nn.layers import Dropout, Linear, scaled
from trifold.nn.masks import LayerBias, Mask, PairBias
from trifold.nn.norms import new_norm
from trifold.nn.parts import AttentionPart, ScoresPart, part_of
from trifold.nn.registry import set_classical
from trifold.nn.rotary import Rotation

ScoreBias: TypeAlias = Tensor | PairBias | LayerBias
"""A tensor that is added to the scores, or what it is computed from."""


def split_heads(x: Tensor, width: int) -> Tensor:
    """(B, T, H·D) -> (B, H, T, D)."""
    return x.unflatten(-1, (-1, width)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, T, Y) -> (B, T, H·Y)."""
    return x.transpose(1, 2).flatten(2)


Memo: TypeAlias = dict[int, Tensor]
"""What a layer remembers of a forward pass that is computed again, as reversible blocks are."""


class AttentionInputs(NamedTuple):
    """What attention reads besides states. memo: of a layer that is computed again."""

    mask: Mask
    bias: ScoreBias | None = None
    rotary: Rotation | None = None
    cache: LayerCache | None = None
    memo: Memo | None = None


class AttentionLayer(nn.Module):
    """How every kind of attention is called. It is stateless: a cache is an argument.

    watched: whether something reads one of its hook points (`Hookable`).
    """

    watched = False
    o_proj: Linear

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Mask,
        bias: ScoreBias | None = None,
        rotary: Rotation | None = None,
        cache: LayerCache | None = None,
        memo: Memo | None = None,
    ) -> Tensor:
        """x (B, T, E) -> (B, T, E), or packed (1, N, E) -> (1, N, E) if the mask has a packing.

        `memory` is not read if the cache already holds its keys and values.
        """
        inputs = AttentionInputs(mask, bias, rotary, cache, memo)
        return self.o_proj(ops.attention(self, x, memory, inputs))

    def attend(self, x: Tensor, memory: Tensor | None, inputs: AttentionInputs) -> Tensor:
        """Project, rotate, cache, attend: x (B, T, E) -> all heads, concatenated (B, T, H·Y), or
        packed (1, N, H·Y).
        """
        raise NotImplementedError


class Attention(AttentionLayer):
    """Multi-head self-attention, or cross-attention if `memory` is given.

    memory_width: of the states that cross-attention reads; it has no relative positions, because
        the keys belong to another sequence.

    Queries and keys may be normalized, each head or all heads together (Henry et al. 2020,
    "QK-norm").

    Hook points: `queries` (B, H, T, D), `keys` (B, H', S, D) and `values` (B, H', S, Y) as they
    enter equation 1;
    `scores` and `pattern` (B, H, T, S) before and after the softmax; `heads` (B, H, T, Y), the
    weighted sums. Rows that share a row of keys, as beams share a memory, count as its queries:
    scores are then (B', H, B / B' · T, S).
    """

    stores_keys = True
    """Whether a cache stores keys and values; otherwise `weigh` stores what it needs."""

    def __init__(
        self, config: CoreConfig, layer: int = 0, *, memory_width: int | None = None
    ) -> None:
        super().__init__()
        width = config.head_width
        bias = config.attention_bias
        read = memory_width or config.d_model
        self.head_width = width
        self.value_width = config.value_width
        self.groups = config.n_heads // config.kv_heads
        self.q_proj = Linear(config.d_model, config.n_heads * width, bias=bias)
        self.k_proj = Linear(read, config.kv_heads * width, bias=bias)
        self.v_proj = Linear(read, config.kv_heads * self.value_width, bias=bias)
        merged = config.n_heads * self.value_width
        self.o_proj = Linear(merged, config.d_model, bias=config.out_bias)
        self.q_norm = _new_qk_norm(config, config.n_heads)
        self.k_norm = _new_qk_norm(config, config.kv_heads)
        self.sinks = nn.Parameter(torch.empty(config.n_heads)) if config.attention_sinks else None
        scores = part_of(ScoresPart, config)
        self.relative = None if memory_width else scores.new_relative(config)
        self.drop = Dropout(config.attention_dropout)
        self.queries = HookPoint()
        self.keys = HookPoint()
        self.values = HookPoint()
        self.scores = HookPoint()
        self.pattern = HookPoint("pattern")
        self.heads = HookPoint()
        self.soft_cap = config.score_soft_cap
        # `ops.attend` scales scores by 1/√D. Any other scale is reached by scaling the queries: a
        # score that is a sum of n products is divided by √(n·D).
        scale = 1 / math.sqrt(1 + scores.terms(config))
        if config.attention_scale is not None:
            scale = config.attention_scale * math.sqrt(width)
        if config.attention_scale_by_layer:
            scale /= layer + 1
        self.query_scale = scale

    @property
    def scale(self) -> float:
        """The factor of q · k in the scores."""
        return self.query_scale / math.sqrt(self.head_width)

    def attend(self, x: Tensor, memory: Tensor | None, inputs: AttentionInputs) -> Tensor:
        """See `AttentionLayer.attend`."""
        mask = inputs.mask
        rotary = inputs.rotary
        cache = inputs.cache
        if memory is not None:
            q = self.split(mask.grid(self.normed(self.q_norm, self.q_proj(x))))
            k, v = self.memory_keys(memory, mask, cache)
        else:
            q, k, v = self.projections(x, mask)
            if rotary is not None:
                q = rotary(q)
                k = rotary(k)
            if cache is not None and self.stores_keys:
                k, v = cache.past.update(k, v)
        return self.attend_heads(q, k, v, inputs)

    def attend_heads(self, q: Tensor, k: Tensor, v: Tensor, inputs: AttentionInputs) -> Tensor:
        """Queries (B, H, T, D), keys (B', H', S, D) and values (B', H', S, Y) -> all heads,
        concatenated (B, T, H·Y), or packed (1, N, H·Y).
        """
        q, bias = self.queries_and_bias(q, k, inputs.bias)
        if self.watched:
            q = self.queries(q)
            k = self.keys(k)
            v = self.values(v)
        heads = self.weigh(q, k, v, inputs._replace(bias=bias))
        if self.watched:
            heads = self.heads(heads)
        return inputs.mask.flat(merge_heads(heads))

    def weigh(self, q: Tensor, k: Tensor, v: Tensor, inputs: AttentionInputs) -> Tensor:
        """Equation 1 for all heads: q (B, H, T, D), k (B', H', S, D), v (B', H', S, Y) ->
        (B, H, T, Y). The bias is final.
        """
        bias = inputs.bias
        assert bias is None or isinstance(bias, Tensor | PairBias), "see `queries_and_bias`"
        return ops.attend(
            q,
            k,
            v,
            inputs.mask,
            bias=bias,
            soft_cap=self.soft_cap,
            sinks=self.sinks,
            drop=self.drop,
            hooks=self if self.watched else None,
        )

    def project(self, x: Tensor, mask: Mask | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, T, E), or packed (1, N, E), -> queries, keys and values (B, H, T, D), with shared
        heads repeated.
        """
        return ops.share_keys(*self.projections(x, mask or Mask()))

    def queries_and_bias(
        self, q: Tensor, k: Tensor, bias: ScoreBias | None
    ) -> tuple[Tensor, Tensor | PairBias | None]:
        """The scaled queries (B, H, T, D), and the bias of their scores with keys (B, H', S, D)."""
        if isinstance(bias, LayerBias):
            assert self.relative is not None, "this attention has no scores of distances"
            q, offsets = self.relative(self, q, k, bias)
            return scaled(q, self.query_scale), offsets * self.query_scale
        return scaled(q, self.query_scale), bias

    def projections(self, x: Tensor, mask: Mask) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, D), keys and values (B, H', T, D)."""
        q, k, v = ops.linears(x, (self.q_proj, self.k_proj, self.v_proj))
        q = self.normed(self.q_norm, q)
        k = self.normed(self.k_norm, k)
        q, k = (self.split(mask.grid(y)) for y in (q, k))
        return q, k, split_heads(mask.grid(v), self.value_width)

    def normed(self, norm: nn.Module | None, x: Tensor) -> Tensor:
        """x (B, T, H·D), normalized over heads or over all dimensions."""
        if norm is None:
            return x
        normed: Tensor = norm(x.unflatten(-1, (-1, norm.width)))
        return normed.flatten(-2)

    def memory_keys(
        self, memory: Tensor, mask: Mask, cache: LayerCache | None = None
    ) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H', S, D) of the memory, from the cache if it has them."""
        if cache is not None and cache.memory is not None:
            return cache.memory
        k, v = ops.linears(memory, (self.k_proj, self.v_proj))
        k = self.split(mask.key_grid(self.normed(self.k_norm, k)))
        v = split_heads(mask.key_grid(v), self.value_width)
        if cache is not None:
            cache.memory = k, v
        return k, v

    def split(self, x: Tensor) -> Tensor:
        """(B, T, H·D) -> (B, H, T, D)."""
        return split_heads(x, self.head_width)


def _new_qk_norm(config: CoreConfig, heads: int) -> nn.Module | None:
    """The norm of the queries or keys of so many heads."""
    if config.qk_norm is None:
        return None
    widths = {"head": config.head_width, "width": heads * config.head_width}
    return new_norm(config, widths[config.qk_norm])


class SoftmaxPart(AttentionPart):
    """Attention as in the paper."""

    is_packed = True
    crosses = True

    def new(self, config: CoreConfig, layer: int) -> nn.Module:
        return Attention(config, layer)

    def new_cross(self, config: CoreConfig, layer: int, memory_width: int) -> nn.Module:
        return Attention(config, layer, memory_width=memory_width)

    def kind_of_layer(self, config: CoreConfig, layer: int) -> Hashable:
        return layer if config.attention_scale_by_layer else None


set_classical(SoftmaxPart())
