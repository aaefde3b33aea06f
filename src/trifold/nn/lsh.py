"""Attention of chunks: each attends to itself and to the chunks around it (Kitaev et al. 2020, "Reformer").

local    chunks of neighbouring tokens; a text is a circle, so the first chunk is after the last one
lsh      the same after sorting the tokens by bucket, in R rounds; queries and keys are one projection x W

    bucket(k) = argmax [k A; −k A],  A (D, n/2) normal                                    (section 2, "LSH attention")
    out_i = Σ_r exp(z_i^r − logsumexp_r z_i^r) · softmax_j(s_ij) v_j,   z_i^r = logsumexp_j s_ij           (appendix A)
    s_ij = q_i · k_j / (√D |k_j| / √D),  j in the chunks of round r that i reads;  s_ii = −10⁵

so a query attends to itself only if it may attend to nothing else. Sorting costs n log n, all else is linear in n.
Keys after the query are masked, but which of those before it share its chunk depends on the whole text: how later
tokens are sorted changes the states of earlier ones.

A text is padded to a multiple of the chunks of all layers, unless it is shorter than the smallest. A text of one chunk
has full attention. Rows of a batch are computed in groups of one padded length, so a row does not depend on its batch.

Shapes: B batch, T tokens, H heads, D head size, L padded length, R rounds, C chunks of c tokens, N = R·L.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from trifold.nn import ops
from trifold.nn.attention import Attention
from trifold.nn.cache import Choices, LayerCache
from trifold.nn.config import ModelConfig
from trifold.nn.layers import Dropout
from trifold.nn.masks import Mask
from trifold.nn.packing import Packing
from trifold.nn.relative import ScoreBias
from trifold.nn.rng import thread_rng
from trifold.nn.segments import recomputed

LARGEST = 2**22  # scores at once; more are computed again in the backward pass
MASKED, SELF = -1e9, -1e5  # scores; the weight of a query itself is 0 unless all others are masked


class ChunkAttention(Attention):
    """The attention of local layers."""

    excludes_self = False

    def __init__(self, config: ModelConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        lsh = config.lsh
        self.multiple, self.shortest = math.lcm(*lsh.chunks), min(lsh.chunks)
        self.chunk, self.before, self.after = lsh.local_chunk, lsh.local_before, lsh.local_after
        self.drop = Dropout(lsh.local_dropout)

    def weigh(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, cache: LayerCache | None
    ) -> Tensor:
        """See `Attention.weigh`."""
        assert bias is None and mask.order is None, "chunks have no offsets of scores"
        if not self.watched:
            return self._by_length(q, k, v, mask, cache)
        # The weights are the output for values that are the unit vectors; the scores are their logarithms.
        units = torch.eye(v.shape[2], dtype=v.dtype, device=v.device).expand(*v.shape[:2], -1, -1)
        weights = self._by_length(q, k, units, mask, cache)
        scores = self.scores(weights.clamp_min(torch.finfo(weights.dtype).tiny).log())
        return self.pattern(scores.exp()) @ v

    def _by_length(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, cache: LayerCache | None) -> Tensor:
        """Rows of one padded length together, without the padding that they have: (B, H, T, D) -> (B, H, T, D)."""
        real = mask.keys if mask.packing is None else mask.packing.attend
        if real is None:
            real, length = torch.ones(len(v), v.shape[2], dtype=torch.bool, device=v.device), v.shape[2]
            if length <= self.shortest or length % self.multiple == 0:
                return self._attended(q, k, v, real=real, causal=mask.causal, cache=cache)
        counts = real.sum(1)
        short = counts <= self.shortest
        lengths = torch.where(
            short, (counts * short).max().clamp_min(1), -(-counts // self.multiple) * self.multiple
        )
        out = torch.zeros_like(v)
        for length in lengths.unique().tolist():
            rows = (lengths == length).nonzero()
            real_first = (~real[rows[:, 0]]).byte().argsort(stable=True, dim=1)
            columns = real_first[:, :length]
            pad = length - columns.shape[1]
            parts = (F.pad(x[rows, :, columns].transpose(1, 2), (0, 0, 0, pad)) for x in (q, k, v))
            inside = F.pad(real[rows, columns], (0, pad))
            found = self._attended(*parts, real=inside, causal=mask.causal, cache=cache)
            out[rows, :, columns] = found.transpose(1, 2)[:, : columns.shape[1]]
        return out * real[:, None, :, None]

    def _attended(
        self, q: Tensor, k: Tensor, v: Tensor, *, real: Tensor, causal: bool, cache: LayerCache | None
    ) -> Tensor:
        """q, k and v (B, H, L, D), real (B, L) -> (B, H, L, D), a few heads at once if there are many scores."""
        order = self.order(k, real, cache)
        scores = len(q) * order.shape[2] * order.shape[3] * self.chunk * (self.before + 1 + self.after)
        heads = max(1, LARGEST // scores)
        read = partial(self._read, real=real, causal=causal)
        parts = [*zip(*(x.split(heads, 1) for x in (q, self.normalized(k), v, order)), strict=True)]
        if len(parts) == 1:
            return read(*parts[0])
        return torch.cat([recomputed(read, *part) for part in parts], 1)

    def _read(self, q: Tensor, k: Tensor, v: Tensor, order: Tensor, *, real: Tensor, causal: bool) -> Tensor:
        """Attention in rounds of this order (B, H, R, L): q, k and v (B, H, L, D) -> (B, H, L, D)."""
        read, chunk, before, after = order.flatten(2), self.chunk, self.before, self.after
        if q.shape[2] <= chunk:
            chunk, before, after = q.shape[2], 0, 0

        def chunks(x: Tensor) -> Tensor:
            """(B, H, L, …) -> (B, H, C, c, …)."""
            shape = *read.shape, *x.shape[3:]
            return x.gather(2, read.view(*read.shape, *(1 for _ in x.shape[3:])).expand(shape)).unflatten(
                2, (-1, chunk)
            )

        queries, inside = read.unflatten(2, (-1, chunk)), chunks(real[:, None].expand(-1, q.shape[1], -1))
        keys, allowed = (_around(x, before, after)[..., None, :] for x in (queries, inside))
        if causal:
            allowed = allowed & (keys <= queries[..., None])
        wide = torch.promote_types(q.dtype, torch.float32)
        scores = (chunks(q * q.shape[-1] ** -0.5) @ _around(chunks(k), before, after).mT).to(wide)
        scores = scores.masked_fill(~allowed, MASKED)
        if self.excludes_self:
            scores = scores.masked_fill(keys == queries[..., None], SELF)
        z = scores.logsumexp(-1, keepdim=True)
        weights = self.drop((scores - z).exp().to(v.dtype))
        out = weights @ _around(chunks(v), before, after)
        back = order.argsort(-1)[..., None]  # (B, H, R, L, 1)
        out, z = (
            x.flatten(2, 3).unflatten(2, order.shape[2:]).gather(3, back.expand(*order.shape, x.shape[-1]))
            for x in (out, z)
        )
        # Not a softmax: if all rounds have −10⁵, this rounds as in models that were trained so.
        return (out * (z - z.logsumexp(2, keepdim=True)).exp().to(out.dtype)).sum(2)

    def order(self, k: Tensor, real: Tensor, cache: LayerCache | None) -> Tensor:
        """k (B, H, L, D), real (B, L) -> (B, H, R, L) the tokens in the order of each round."""
        return torch.arange(k.shape[2], device=k.device).expand(*k.shape[:2], 1, -1)

    def normalized(self, k: Tensor) -> Tensor:
        """The keys as they enter the scores."""
        return k


class LSHAttention(ChunkAttention):
    """The attention of lsh layers. `q_proj` projects queries and keys; the keys are normalized."""

    excludes_self = True

    def __init__(self, config: ModelConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        del self.k_proj
        lsh, self.layer, self.max_positions = config.lsh, layer, config.max_positions
        self.chunk, self.before, self.after = lsh.chunk, lsh.before, lsh.after
        self.hashes, self.buckets, self.seed = lsh.hashes, lsh.buckets, lsh.seed
        self.drop = Dropout(config.attention_dropout)

    def _projections(self, x: Tensor, packing: Packing | None) -> tuple[Tensor, Tensor, Tensor]:
        qk, v = (self._heads(y, packing) for y in ops.linears(x, (self.q_proj, self.v_proj)))
        return qk, qk, v

    def normalized(self, k: Tensor) -> Tensor:
        """k √D / |k|."""
        return k * torch.rsqrt(k.square().mean(-1, keepdim=True) + 1e-6)

    def order(self, k: Tensor, real: Tensor, cache: LayerCache | None) -> Tensor:
        """See `ChunkAttention.order`."""
        if k.shape[2] <= self.chunk:
            return super().order(k, real, cache)
        # A second run, which repeats the order, draws the seed too: dropout draws from the same generator.
        choose = partial(self.sort, k, real, self.new_seed())
        own = None if cache is None else cache.own
        return own.choice(choose) if isinstance(own, Choices) else choose()

    @torch.no_grad()
    def sort(self, k: Tensor, real: Tensor, seed: int) -> Tensor:
        """k (B, H, L, D), real (B, L) -> (B, H, R, L), the tokens of each round by bucket, then by position; padding is
        last.
        """
        sizes = self.buckets or default_buckets(k.shape[2], self.chunk, self.max_positions)
        shape = (k.shape[1], k.shape[3], self.hashes, sum(sizes) // 2)
        normal = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=k.dtype)
        rotated = torch.einsum("bhtd,hdrn->bhrtn", k, normal.to(k.device))
        found, factor = rotated.new_zeros((), dtype=torch.int64), 1
        for size, part in zip(sizes, rotated.split([size // 2 for size in sizes], -1), strict=True):
            found = found + factor * torch.cat([part, -part], -1).argmax(-1)
            factor *= size
        return found.where(real[:, None, None], factor).argsort(stable=True, dim=-1)

    def new_seed(self) -> int:
        """The seed of the rotations: the configured one, or a new one at each call in training."""
        if self.seed is not None or not self.training:
            return self.layer if self.seed is None else self.seed
        return int(torch.randint(2**32, (), generator=thread_rng()))


def default_buckets(length: int, chunk: int, max_positions: int) -> tuple[int, ...]:
    """Twice as many buckets as chunks, rounded down to a power of two; two factors if they are many."""
    power = (2 * (length // chunk)).bit_length() - 1
    if 2**power <= 2 * max(math.isqrt(max_positions // chunk), chunk):
        return (2**power,)
    return 2 ** (power // 2), 2 ** (power - power // 2)


def _around(x: Tensor, before: int, after: int) -> Tensor:
    """(B, H, C, c, …) -> (B, H, C, (before + 1 + after)·c, …): each chunk with those around it, in a circle."""
    moved = (torch.cat([x[:, :, n:], x[:, :, :n]], 2) for n in range(-before, after + 1))
    return torch.cat([*moved], 3)
