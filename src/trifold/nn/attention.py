"""Attention(Q, K, V) = softmax(Q Kᵀ / √d_k + mask) V              (Vaswani et al. 2017, equation 1)
MultiHead: head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V), concatenated, times W^O    (section 3.2.2)

Equation 1 is `ops.attend`. Shapes: B batch, T queries, S keys, H heads, D head size, E model width.
"""

import math
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from trifold.nn import ops
from trifold.nn.cache import LayerCache, RunningSums, SpanKeys
from trifold.nn.config import ModelConfig
from trifold.nn.hooks import HookPoint
from trifold.nn.layers import Dropout, Linear, new_norm
from trifold.nn.masks import Mask, PairBias
from trifold.nn.packing import Packing
from trifold.nn.relative import (
    SCORES,
    DisentangledScores,
    Distances,
    Relations,
    RelativeScores,
    ScoreBias,
)
from trifold.nn.rotary import Rotation
from trifold.nn.rules import GlobalTokens, Summaries


def split_heads(x: Tensor, width: int) -> Tensor:
    """(B, T, H·D) -> (B, H, T, D)."""
    return x.unflatten(-1, (-1, width)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, T, D) -> (B, T, H·D)."""
    return x.transpose(1, 2).flatten(2)


Memo: TypeAlias = dict[int, Tensor]
"""What a layer remembers of a forward pass that is computed again, as reversible blocks are."""


class AttentionInputs(NamedTuple):
    """What attention reads besides states."""

    mask: Mask
    bias: ScoreBias | None = None
    rotary: Rotation | None = None
    cache: LayerCache | None = None
    memo: Memo | None = None


class Attention(nn.Module):
    """Multi-head self-attention, or cross-attention if `memory` is given. It is stateless: a cache
    is an argument.

    memory_width: of the states that cross-attention reads; it has no relative positions, because
        the keys belong to another sequence.

    Queries and keys may be normalized, each head or all heads together (Henry et al. 2020,
    "QK-norm").

    Hook points: `queries` (B, H, T, D), `keys` and `values` (B, H', S, D) as they enter equation 1;
    `scores` and `pattern` (B, H, T, S) before and after the softmax; `heads` (B, H, T, D), the
    weighted sums.
    """

    watched = False

    def __init__(
        self, config: ModelConfig, layer: int = 0, *, memory_width: int | None = None
    ) -> None:
        super().__init__()
        width, bias, read = config.head_width, config.attention_bias, memory_width or config.d_model
        self.head_width = width
        self.groups = config.n_heads // config.kv_heads
        self.q_proj = Linear(config.d_model, config.n_heads * width, bias=bias)
        self.k_proj = Linear(read, config.kv_heads * width, bias=bias)
        self.v_proj = Linear(read, config.kv_heads * width, bias=bias)
        self.o_proj = Linear(config.n_heads * width, config.d_model, bias=config.out_bias)
        norm_width = {None: 0, "head": width, "width": config.n_heads * width}[config.qk_norm]
        key_width = width if config.qk_norm == "head" else config.kv_heads * width
        self.q_norm = new_norm(config, norm_width) if norm_width else None
        self.k_norm = new_norm(config, key_width) if norm_width else None
        self.sinks = nn.Parameter(torch.empty(config.n_heads)) if config.attention_sinks else None
        relative = None if memory_width else SCORES.get(config.positions)
        self.relative = None if relative is None else relative(config)
        self.drop = Dropout(config.attention_dropout)
        self.queries, self.keys, self.values = HookPoint(), HookPoint(), HookPoint()
        self.scores, self.pattern, self.heads = HookPoint(), HookPoint("pattern"), HookPoint()
        self.soft_cap = config.score_soft_cap
        # `ops.attend` scales scores by 1/√D. Any other scale is reached by scaling the queries.
        scale = 1 / math.sqrt(1 + config.position_terms)
        if config.attention_scale is not None:
            scale = config.attention_scale * math.sqrt(width)
        self.query_scale = scale / (layer + 1) if config.attention_scale_by_layer else scale

    @property
    def scale(self) -> float:
        """The factor of q · k in the scores."""
        return self.query_scale / math.sqrt(self.head_width)

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
        """Project, rotate, cache, attend: x (B, T, E) -> all heads, concatenated (B, T, H·D)."""
        mask, rotary, cache = inputs.mask, inputs.rotary, inputs.cache
        if memory is not None:
            q = self._heads(self.normed(self.q_norm, self.q_proj(x)), mask.packing)
            k, v = self._memory_keys(memory, mask.key_packing, cache)
        else:
            q, k, v = self._projections(x, mask.packing)
            if rotary is not None:
                q, k = rotary(q), rotary(k)
            if cache is not None and not isinstance(cache.own, RunningSums | SpanKeys):
                k, v = cache.own.update(k, v)
        return self.attend_heads(q, k, v, inputs)

    def attend_heads(self, q: Tensor, k: Tensor, v: Tensor, inputs: AttentionInputs) -> Tensor:
        """Queries (B, H, T, D), keys and values (B', H', S, D) -> all heads, concatenated (B, T,
        H·D).
        """
        packing = inputs.mask.packing
        q, bias = self.queries_and_bias(q, k, inputs.bias)
        if self.watched:
            q, k, v = self.queries(q), self.keys(k), self.values(v)
        heads = self.weigh(q, k, v, inputs._replace(bias=bias))
        merged = merge_heads(self.heads(heads) if self.watched else heads)
        return merged if packing is None else packing.flat(merged)

    def weigh(self, q: Tensor, k: Tensor, v: Tensor, inputs: AttentionInputs) -> Tensor:
        """Equation 1 for all heads: q (B, H, T, D), k and v (B', H', S, D) -> (B, H, T, D). The
        bias is final.
        """
        bias = inputs.bias
        assert bias is None or isinstance(bias, Tensor | PairBias), "see `queries_and_bias`"
        hooks, mask = self if self.watched else None, inputs.mask
        return ops.attend(
            q,
            k,
            v,
            mask,
            bias=bias,
            soft_cap=self.soft_cap,
            sinks=self.sinks,
            drop=self.drop,
            hooks=hooks,
        )

    def project(self, x: Tensor, packing: Packing | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, T, E), or packed (1, N, E), -> queries, keys and values (B, H, T, D), with shared
        heads repeated.
        """
        return ops.share_keys(*self._projections(x, packing))

    def queries_and_bias(
        self, q: Tensor, k: Tensor, bias: ScoreBias | None
    ) -> tuple[Tensor, Tensor | PairBias | None]:
        """The scaled queries (B, H, T, D), and the bias of their scores with keys (B, H', S, D)."""
        if isinstance(bias, Distances):
            assert isinstance(self.relative, DisentangledScores), (
                "distances are for disentangled positions"
            )
            bias = self.relative.scores(q, k, bias, self.q_proj, self.k_proj) * self.query_scale
        elif isinstance(bias, Relations):
            assert isinstance(self.relative, RelativeScores), (
                "these are for relative-sinusoidal positions"
            )
            bias = self.relative.scores(q, bias) * self.query_scale
            q = self.relative.content_query(q)
        return q if self.query_scale == 1.0 else q * self.query_scale, bias

    def _projections(self, x: Tensor, packing: Packing | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, D), keys and values (B, H', T, D)."""
        q, k, v = ops.linears(x, (self.q_proj, self.k_proj, self.v_proj))
        q, k = self.normed(self.q_norm, q), self.normed(self.k_norm, k)
        q, k, v = (self._heads(y, packing) for y in (q, k, v))
        return q, k, v

    def normed(self, norm: nn.Module | None, x: Tensor) -> Tensor:
        """x (B, T, H·D), normalized over heads or over all dimensions."""
        return x if norm is None else norm(x.unflatten(-1, (-1, norm.width))).flatten(-2)

    def _memory_keys(
        self, memory: Tensor, packing: Packing | None, cache: LayerCache | None
    ) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H', S, D) of the memory, from the cache if it has them."""
        if cache is not None and cache.memory is not None:
            return cache.memory
        k, v = ops.linears(memory, (self.k_proj, self.v_proj))
        k, v = (self._heads(y, packing) for y in (self.normed(self.k_norm, k), v))
        if cache is not None:
            cache.memory = k, v
        return k, v

    def _heads(self, x: Tensor, packing: Packing | None) -> Tensor:
        """(B, T, H·D), or packed (1, N, H·D), -> (B, H, T, D)."""
        return split_heads(x if packing is None else packing.grid(x), self.head_width)


class GlobalAttention(Attention):
    """Self-attention of an encoder with a window, in which the queries of global tokens, and the
    keys and values that they read, have projections of their own (Beltagy et al. 2020,
    "Longformer", section 3.1).

    Hook points show the pattern of the other tokens.
    """

    def __init__(self, config: ModelConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        size, bias = config.n_heads * self.head_width, config.attention_bias
        self.global_q_proj, self.global_k_proj, self.global_v_proj = (
            Linear(config.d_model, size, bias=bias) for _ in range(3)
        )

    def attend(self, x: Tensor, memory: Tensor | None, inputs: AttentionInputs) -> Tensor:
        """See `Attention.attend`."""
        mask, out = inputs.mask, super().attend(x, memory, inputs)
        rule = mask.rule(GlobalTokens)
        if rule is None or not bool(rule.tokens.any()):
            return out
        grid = x
        if mask.packing is not None:
            grid, out = mask.packing.grid(x), mask.packing.grid(out)
        rows, columns = rule.tokens.expand(len(grid), -1).nonzero(as_tuple=True)
        cells = (rule.tokens.cumsum(1) - 1).expand(len(grid), -1)[rows, columns]
        few = grid.new_zeros(len(grid), int(rule.tokens.sum(1).max()), grid.shape[2])
        q = self.global_q_proj(few.index_put((rows, cells), grid[rows, columns])) * self.query_scale
        q, k, v = (
            split_heads(y, self.head_width)
            for y in (q, self.global_k_proj(grid), self.global_v_proj(grid))
        )
        found = merge_heads(ops.attend(q, k, v, Mask(mask.keys), drop=self.drop))
        out = out.index_put((rows, columns), found[rows, cells])
        return out if mask.packing is None else mask.packing.flat(out)


class SummaryAttention(Attention):
    """Self-attention of an encoder with a window, in which all queries also attend to a summary of
    each block of tokens: the normalized sum of its inputs (Guo et al. 2022, "LongT5", section 3.2,
    transient global attention).
    """

    def __init__(self, config: ModelConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        self.summary_norm = new_norm(config)

    def attend(self, x: Tensor, memory: Tensor | None, inputs: AttentionInputs) -> Tensor:
        """See `Attention.attend`. The mask and the bias have the summaries after the tokens."""
        mask, summaries = inputs.mask, inputs.mask.rule(Summaries)
        assert summaries is not None, "the stack adds summaries to the mask"
        sums = summaries.sums(x if mask.packing is None else mask.packing.grid(x))
        q, k, v = self._projections(x, mask.packing)
        more = self._memory_keys(self.summary_norm(sums), None, None)
        k, v = (torch.cat(both, 2) for both in zip((k, v), more, strict=True))
        return self.attend_heads(q, k, v, inputs)
