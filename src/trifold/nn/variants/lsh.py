"""Attention of chunks: each attends to itself and to the chunk before it (Kitaev et al. 2020,
"Reformer").

local    chunks of neighbouring tokens; a text is a circle, so the first chunk is after the last one
lsh      the same after sorting the tokens by bucket, in R rounds, one after the other in the
         circle; queries and keys are one projection x W

    bucket(k) = argmax [k A; −k A],  A (D, n/2) normal                  (section 2, "LSH attention")
    out_i = Σ_r exp(z_i^r − logsumexp_r z_i^r) · softmax_j(s_ij) v_j,   z_i^r = logsumexp_j s_ij
                                                                                        (appendix A)
    s_ij = q_i · k_j / (√D |k_j| / √D),  j in the chunks of round r that i reads;  s_ii = −10⁵

so a query attends to itself only if it may attend to nothing else. Sorting costs n log n, all else
is linear in n. Keys after the query are masked, but which of those before it share its chunk
depends on the whole text: how later tokens are sorted changes the states of earlier ones.

A text is padded to a multiple of the chunks of all layers, unless it is shorter than the smallest.
A text of one chunk has full attention. Rows of a batch are computed in groups of one padded length,
so a row has the same chunks alone and in any batch.

Shapes: B batch, T tokens, H heads, D head size, L padded length, R rounds, C chunks of c tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.nn import ops
from trifold.nn.attention import Attention, AttentionInputs, Memo
from trifold.nn.cache import Cache, History
from trifold.nn.config import CoreConfig
from trifold.nn.formulas import FormulaRow
from trifold.nn.inputs import Request
from trifold.nn.layers import Dropout
from trifold.nn.masks import Mask, RealFirst
from trifold.nn.parts import UnscoredPart, group
from trifold.nn.precision import widened
from trifold.nn.rng import recompute, thread_rng
from trifold.nn.stack import Stack
from trifold.settings import Settings

Bucket = Annotated[int, Field(gt=0, le=2**20, multiple_of=2)]

MAX_SCORES = 2**24  # of a layer, from which memory matters more than time
MASKED, SELF = -1e9, -1e5  # scores; the weight of a query itself is 0 unless all others are masked


class LSH(Settings):
    """LSH attention: tokens are sorted by hash and divided into chunks, which read themselves and
    the one before.
    """

    chunk: int = Field(64, gt=0, description="tokens of a chunk; shorter texts have full attention")
    hashes: int = Field(
        4, gt=0, le=1024, description="rounds of hashing, each with its own rotations"
    )
    buckets: tuple[Bucket, ...] | None = Field(
        None,
        strict=False,
        min_length=1,
        description="of a round, or factors; default: twice as many as chunks",
    )
    seed: int | None = Field(
        None, ge=0, lt=2**63, description="of rotations; default: a new one in training"
    )
    layers: tuple[Literal["lsh", "local"], ...] = Field(
        ("lsh",),
        strict=False,
        min_length=1,
        description="kinds of layers, repeated; local ones do not sort",
    )
    local_chunk: int = Field(64, gt=0, description="chunk of local layers")
    local_dropout: float = Field(0.0, ge=0, lt=1, description="attention_dropout of local layers")

    def sorts(self, layer: int) -> bool:
        """Whether that layer sorts the tokens."""
        return self.layers[layer % len(self.layers)] == "lsh"

    def size(self, layer: int) -> int:
        """The tokens of a chunk of that layer."""
        return self.chunk if self.sorts(layer) else self.local_chunk


class LSHAttention(Attention):
    """The attention of lsh and local layers. In lsh layers `q_proj` projects queries and keys; keys
    are normalized.
    """

    has_fixed_shapes = False  # they depend on the lengths of rows

    def __init__(self, config: CoreConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        lsh = settings_of(config)
        self.max_positions = config.max_positions
        self.hashes = lsh.hashes
        self.buckets = lsh.buckets
        self.seed = lsh.seed
        chunks = [lsh.size(other) for other in range(len(lsh.layers))]
        self.multiple = math.lcm(*chunks)
        self.shortest = min(chunks)
        self.sorts = lsh.sorts(layer)
        self.chunk = lsh.size(layer)
        if self.sorts:
            del self.k_proj
        else:
            self.drop = Dropout(lsh.local_dropout)

    def projections(self, x: Tensor, mask: Mask) -> tuple[Tensor, Tensor, Tensor]:
        """See `Attention.projections`."""
        if not self.sorts:
            return super().projections(x, mask)
        qk, v = (self.split(mask.grid(y)) for y in ops.linears(x, (self.q_proj, self.v_proj)))
        return qk, qk, v

    def weigh(self, q: Tensor, k: Tensor, v: Tensor, inputs: AttentionInputs) -> Tensor:
        """See `Attention.weigh`."""
        assert inputs.bias is None and inputs.mask.has_only(), "chunks have no biases and rules"
        if not self.watched:
            return self._by_length(q, k, v, inputs)
        # The weights are the output for values that are the unit vectors; the scores are their
        # logarithms.
        units = torch.eye(v.shape[2], dtype=v.dtype, device=v.device).expand(*v.shape[:2], -1, -1)
        weights = self._by_length(q, k, units, inputs)
        scores = self.scores(weights.clamp_min(torch.finfo(weights.dtype).tiny).log())
        return self.pattern(scores.exp()) @ v

    def _by_length(self, q: Tensor, k: Tensor, v: Tensor, inputs: AttentionInputs) -> Tensor:
        """(B, H, T, D) -> (B, H, T, D), the rows of each padded length together."""
        rows, _, tokens, _ = v.shape
        real = inputs.mask.real_keys(tokens, v.device).expand(rows, -1)
        counts = real.sum(1)
        lengths = counts.where(counts <= self.shortest, -(-counts // self.multiple) * self.multiple)
        pad = max(0, int(lengths.max()) - tokens)
        q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
        real = F.pad(real, (0, pad))
        out = torch.zeros_like(v)
        for length in lengths[counts > 0].unique().tolist():
            index = (lengths == length).nonzero()[:, 0]
            found = self._of_length(
                *(x.index_select(0, index) for x in (q, k, v, real)), inputs=inputs, length=length
            )
            out = out.index_copy(0, index, found)
        return out[:, :, :tokens]

    def _of_length(
        self, q: Tensor, k: Tensor, v: Tensor, real: Tensor, *, inputs: AttentionInputs, length: int
    ) -> Tensor:
        """(B, H, T, D) -> (B, H, T, D), where `real` (B, T) tokens count, padded to L = length.

        If there are many scores, one head at a time, and again in the backward pass.
        """
        causal = inputs.mask.causal
        if self.sorts and length > self.chunk:
            order = self.order(k, real, length, inputs.memo)
        else:
            order = RealFirst(real).index[:, None, None]
        order = order.expand(-1, q.shape[1], -1, -1)[..., :length]  # (B, H, R, L)
        if order.numel() * 2 * self.chunk <= MAX_SCORES:
            return self._attended(q, k, v, order, real, causal)
        heads = zip(*(x.split(1, 1) for x in (q, k, v, order)), strict=True)
        return torch.cat([recompute(self._attended, *head, real, causal) for head in heads], 1)

    def _attended(
        self, q: Tensor, k: Tensor, v: Tensor, order: Tensor, real: Tensor, causal: bool
    ) -> Tensor:
        """q, k, v (B, H, T, D), order (B, H, R, L) -> (B, H, T, D)."""
        length = order.shape[-1]
        chunk = min(self.chunk, length)
        is_one = length <= self.chunk
        padding = (torch.arange(length, device=q.device) >= real.sum(1, keepdim=True))[
            :, None, None
        ]

        def chunks(x: Tensor) -> Tensor:
            """(B, H, T, D) -> (B, H, C, c, D)."""
            index = order.flatten(2)[..., None].expand(-1, -1, -1, x.shape[3])
            return x.gather(2, index).unflatten(2, (-1, chunk))

        def around(x: Tensor) -> Tensor:
            """(B, H, C, c, …) -> (B, H, C, 2·c, …), with the chunk before, in a circle."""
            return x if is_one else torch.cat([x.roll(1, 2), x], 3)

        def unsorted(x: Tensor) -> Tensor:
            """(B, H, C, c, D) -> (B, H, R, T, D)."""
            x = x.flatten(2, 3).unflatten(2, order.shape[2:])
            index = order[..., None]
            zeros = x.new_zeros(*order.shape[:3], q.shape[2], x.shape[4])
            return zeros.scatter(3, index.expand(-1, -1, -1, -1, x.shape[4]), x)

        queries = order.flatten(2).unflatten(2, (-1, chunk))[..., None]
        keys = order.masked_fill(padding, real.shape[1]).flatten(2).unflatten(2, (-1, chunk))
        keys = around(keys)[..., None, :]
        if self.sorts:
            k = k * torch.rsqrt(k.square().mean(-1, keepdim=True) + 1e-6)  # k √D / |k|
        scores = chunks(q * q.shape[3] ** -0.5) @ around(chunks(k)).mT
        scores = widened(scores)
        scores = scores.masked_fill_(keys > (queries if causal else real.shape[1] - 1), MASKED)
        if self.sorts:
            scores = scores.masked_fill_(keys == queries, SELF)
        z = scores.logsumexp(-1, keepdim=True)
        out = self.drop((scores - z).exp().to(v.dtype)) @ around(chunks(v))
        out = unsorted(out)
        z = unsorted(z)
        # Not a softmax: if all rounds have −10⁵, this rounds as in models that were trained so.
        return (out * (z - z.logsumexp(2, keepdim=True)).exp().to(out.dtype)).sum(2)

    @torch.no_grad()
    def order(self, k: Tensor, real: Tensor, length: int, memo: Memo | None) -> Tensor:
        """k (B, H, T, D), real (B, T) -> (B, H, R, T), the tokens of each round by bucket, then by
        position; padding is last. memo: the orders of a first run by length, which are repeated.
        """
        # A second run, which repeats the order, draws the seed too: dropout draws from the same
        # generator.
        seed = self.seed or 0
        if self.seed is None and self.training:
            seed = int(torch.randint(2**32, (), generator=thread_rng()))
        orders = {} if memo is None else memo
        if length not in orders:
            sizes = self.buckets or default_buckets(length, self.chunk, self.max_positions)
            shape = (k.shape[1], k.shape[3], self.hashes, sum(sizes) // 2)
            normal = torch.randn(
                shape, generator=torch.Generator().manual_seed(seed), dtype=k.dtype
            )
            rotated = torch.einsum("bhtd,hdrn->bhrtn", k, normal.to(k.device))
            found = rotated.new_zeros((), dtype=torch.int64)
            factor = 1
            for size, part in zip(
                sizes, rotated.split([size // 2 for size in sizes], -1), strict=True
            ):
                found = found + factor * torch.cat([part, -part], -1).argmax(-1)
                factor *= size
            orders[length] = found.where(real[:, None, None], factor).argsort(stable=True, dim=-1)
        return orders[length]


def default_buckets(length: int, chunk: int, max_positions: int) -> tuple[int, ...]:
    """Twice as many buckets as chunks, rounded down to a power of two; two factors if they are
    many.
    """
    power = (2 * (length // chunk)).bit_length() - 1
    if 2**power <= 2 * max(math.isqrt(max_positions // chunk), chunk):
        return (2**power,)
    return 2 ** (power // 2), 2 ** (power - power // 2)


class SortingStack(Stack):
    """A stack with a cache of its inputs. Every step computes all layers again, because new tokens
    change what others read.
    """

    def new_cache(self, kind: str, capacity: int, rollback: int) -> Cache:
        """See `Stack.new_cache`. The cache holds the inputs only."""
        return Cache([History()])

    def run(self, x: Tensor, request: Request, cache: Cache | None) -> Tensor:
        """See `Stack.run`."""
        if cache is None:
            return super().run(x, request, None)
        assert request.positions is None, "the positions of earlier tokens are not stored"
        count = x.shape[1]
        x = cache.layers[0].past.update(x[:, None], x[:, None, :, :0])[0][:, 0]
        request = request._replace(mask=replace(request.mask, offset=0))
        return super().run(x, request, None)[:, -count:]


class LSHPart(UnscoredPart):
    """Attention of chunks of sorted tokens."""

    value = "lsh"
    keys = "lsh"
    excludes = "score_soft_cap attention_sinks n_kv_heads qk_norm d_value"
    can_truncate = False

    def new(self, config: CoreConfig, layer: int) -> nn.Module:
        return LSHAttention(config, layer)

    def new_stack(self, config: CoreConfig) -> type[Stack]:
        return SortingStack

    def parameters(self, config: CoreConfig, side: str, blocks: int) -> FormulaRow:
        """M layers lack a projection."""
        row = super().parameters(config, side, blocks)
        sorting = settings_of(config).sorts
        lacking = "(E·H·D + H·D)" if config.attention_bias else "E·H·D"
        letters = {"L": blocks, "M": sum(map(sorting, range(blocks)))}
        return row._replace(formula=f"{row.formula} - M·{lacking}", letters=letters)

    def keys_read(self, config: CoreConfig, layer: int, keys: int, near: int, side: str) -> int:
        """Two chunks in each round."""
        settings = settings_of(config)
        chunk = settings.size(layer)
        rounds = settings.hashes if settings.sorts(layer) else 1
        return 2 * chunk * rounds if keys > chunk else near

    def score_elements(self, config: CoreConfig, side: str, keys: int, read: Sequence[int]) -> int:
        sorting = sum(map(settings_of(config).sorts, range(config.n_layers)))
        hashing = sorting * self._hashing(config, keys)
        return super().score_elements(config, side, keys, read) + hashing

    def _hashing(self, config: CoreConfig, keys: int) -> int:
        """Elements of the rotations that a token passes in a layer, instead of a projection of
        keys.
        """
        settings = settings_of(config)
        buckets = settings.buckets or default_buckets(keys, settings.chunk, config.max_positions)
        rotations = settings.hashes * sum(buckets) // 2 if keys > settings.chunk else 0
        return config.n_heads * config.head_width * (rotations - config.d_model)

    def cached_elements(self, config: CoreConfig, tokens: int) -> int:
        """The inputs of the stack."""
        return tokens * config.d_model

    def kept_keys(self, config: CoreConfig, keys: int, length: int) -> int:
        return keys

    def saved_weights(self, config: CoreConfig, kept: float, *, is_packed: bool) -> int:
        """Three tensors of weights, and copies of q, k, v and the output in each round."""
        merged = config.n_heads * config.head_width
        copies = round(3 * merged * kept / settings_of(config).chunk)
        return round(config.n_heads * 3 * kept) + copies

    def held_scores(self, config: CoreConfig, keys: int) -> int:
        read = self.keys_read(config, 0, keys, keys, "decoder")
        return self.saved_weights(config, min(read, keys), is_packed=False)

    def phrase(self, config: CoreConfig) -> str:
        return "attention to keys of similar hashes"


def settings_of(config: CoreConfig) -> LSH:
    """The settings of LSH attention."""
    return group(config, "lsh", LSH) or LSH()


PARTS = (LSHPart(),)
