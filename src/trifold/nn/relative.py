"""Biases of attention scores that depend on the distance between query and key.

relative             s_ij + b[bucket(j − i)], learned per head, shared by all layers
                                                                 (Raffel et al. 2020, section 2.1)
alibi                s_ij − m·|i − j| with a fixed slope m per head (Press et al. 2022, section 3)
relative-sinusoidal  s_ij = [ (q_i + u)·k_j + (q_i + v)·(W R_{i−j}) + (q_i + w)·z_ij ] / √D
disentangled         s_ij = [ q_i·k_j + q_i·(W_k P_δ) + k_j·(W_q P_δ) ] / √(3 D),  δ = δ(i − j)
                                                     (He et al. 2021, "DeBERTa", equations 2 to 4)

In the third, u, v, w, W and z are learned per layer. R are sinusoids of the distance (Dai et al.
2019, section 3.3). z_ij is one of two vectors, for a key of the query's segment and for others
(Yang et al. 2019, section 2.5). The first product is that of ordinary attention; the other two are
an offset that depends on the query.

In the last, P is a learned table of the distances, shared by all layers, and δ the bucket of a
distance. The products are of content with content, content with position, and position with
content. W_k and W_q are learned per layer, or are the projections of the content.

Shapes: B batch, T queries, S keys, H heads, D head size, E model width; N: the distances that
occur.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn

from trifold.nn.config import ModelConfig
from trifold.nn.layers import Dropout, Linear, new_norm
from trifold.nn.masks import Mask, PairBias, at_pairs
from trifold.nn.positions import sinusoids
from trifold.nn.rules import Summaries

# --- relative: learned buckets --------------------------------------------------------------------


def buckets(distances: Tensor, count: int, farthest: int, *, both_ways: bool) -> Tensor:
    """Distances j − i -> buckets in [0, count): near distances have one each, others share on a
    logarithmic scale.

    With `both_ways` the upper half of the buckets is for keys after the query; otherwise those are
    in bucket 0.
    """
    after = torch.zeros_like(distances)
    if both_ways:
        count //= 2
        after = (distances > 0).long() * count
        apart = distances.abs()
    else:
        apart = (-distances).clamp_min(0)
    exact = count // 2
    growth = torch.log(apart.clamp_min(1).float() / exact) / math.log(farthest / exact)
    far = (exact + (growth * (count - exact)).long()).clamp_max(count - 1)
    return after + torch.where(apart < exact, apart, far)


class RelativeOffsets(nn.Module):
    """A learned bias per bucket of distances and head: weight (buckets, H).

    For summaries of blocks of tokens, the distance is that of blocks, with a bias of its own:
    summary_weight.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.window = max(config.window(layer) or math.inf for layer in range(config.n_layers))
        self.weight = nn.Parameter(torch.empty(config.relative_buckets, config.n_heads))
        self.summary_weight = (
            nn.Parameter(torch.empty_like(self.weight)) if config.summary_block else None
        )
        self.farthest = config.relative_distance

    def forward(
        self, mask: Mask, queries: int, device: torch.device, segments: Tensor | None
    ) -> Tensor | PairBias:
        """-> (B or 1, H, T, S)."""
        is_long = queries > self.window and not mask.offset
        if is_long or self.summary_weight is not None:
            weights = tuple(w for w in (self.weight, self.summary_weight) if w is not None)
            bias = PairBias(weights, partial(self._of_pairs, mask, mask.positions(queries, device)))
            keys = queries if mask.keys is None else mask.keys.shape[1]
            return bias if is_long else bias.dense(queries, keys)
        distances = mask.distances(queries, device)
        return self.weight[self._buckets(distances, mask)].permute(0, 3, 1, 2)

    def _of_pairs(
        self, mask: Mask, positions: Tensor, q: slice | Tensor, k: slice | Tensor, *weights: Tensor
    ) -> Tensor:
        own, others = at_pairs(positions, q, k)
        index = self._buckets(others - own, mask)
        if (summaries := mask.rule(Summaries)) is not None:
            blocks = summaries.blocks
            own, others = at_pairs(blocks, q, k)
            numbers = torch.arange(blocks.shape[1], device=blocks.device)[None]
            is_summary = at_pairs(numbers, q, k)[1] >= summaries.tokens
            index = torch.where(
                is_summary, len(weights[0]) + self._buckets(others - own, mask), index
            )
        return torch.cat(weights)[index[:, 0]].permute(0, 3, 1, 2)

    def _buckets(self, distances: Tensor, mask: Mask) -> Tensor:
        return buckets(distances, len(self.weight), self.farthest, both_ways=not mask.causal)


# --- alibi: fixed slopes --------------------------------------------------------------------------


def slopes(heads: int) -> Tensor:
    """(H,) m_h = 2^(−8h/n) for the largest power of two n; the other heads take every second slope
    of 2n heads.
    """
    whole = 2 ** math.floor(math.log2(heads))
    powers = [2.0 ** (-8 * h / whole) for h in range(1, whole + 1)]
    powers += [2.0 ** (-4 * h / whole) for h in range(1, 2 * (heads - whole) + 1, 2)]
    return torch.tensor(powers, dtype=torch.float64, device="cpu").float()


class AlibiOffsets(nn.Module):
    """The biases −m·|i − j|; no parameters. Under a causal mask they are m·j: softmax ignores a
    constant per row, but a sink does not.

    rounded: m and m·j are bfloat16, as in models that were trained so.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.scale, self.rounded = (
            config.n_heads,
            config.alibi_scale,
            config.alibi_rounded,
        )
        self.has_sinks = config.attention_sinks

    def forward(
        self, mask: Mask, queries: int, device: torch.device, segments: Tensor | None
    ) -> Tensor:
        """-> (B or 1, H, T or 1, S)."""
        m = slopes(self.heads).to(device)[:, None, None]
        if not mask.causal or self.has_sinks:
            return -m * mask.distances(queries, device).abs()[:, None] * self.scale
        positions = mask.positions(queries, device)[:, None, None]
        if self.rounded:
            return (m.bfloat16() * positions.bfloat16()).float() * self.scale
        # Relative to the last key, so that the numbers near the query, which matter most, are
        # small.
        return m * (positions - positions[..., -1:]) * self.scale


# --- relative-sinusoidal: offsets that depend on the query ----------------------------------------


@dataclass(frozen=True)
class Relations:
    """The relation of queries to keys, for all layers of a stack.

    sinusoids: (N, E) of every distance that occurs. distances: (B or 1, T, S) the row of each pair
        in `sinusoids`.
    same_segment: (B, 1, T, S) whether query and key are in the same segment; None without segments.
    """

    sinusoids: Tensor
    distances: Tensor
    same_segment: Tensor | None = None


class RelativeSinusoids(nn.Module):
    """Sines, then cosines, of the distances, with dropout; no parameters."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.width, self.clamp = config.d_model, config.relative_clamp
        self.drop = Dropout(config.dropout)

    def forward(
        self, mask: Mask, queries: int, device: torch.device, segments: Tensor | None
    ) -> Relations:
        """segments: (B, S), of the keys."""
        distances = -mask.distances(queries, device)
        if self.clamp is not None:
            distances = distances.clamp(-self.clamp, self.clamp)
        first = distances.min()
        occurring = torch.arange(int(first), int(distances.max()) + 1, device=device)
        encoded = self.drop(sinusoids(occurring, self.width, "sinusoidal-halves"))
        same = None if segments is None else torch.eq(*mask.pairs(segments, queries))
        return Relations(encoded, distances - first, same)


class RelativeScores(nn.Module):
    """The parameters of a layer: u, v, w are `content`, `distance`, `segment`; W is `r_proj`, z is
    `segments`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.n_heads
        inner, has_segments = config.n_heads * config.head_width, config.segment_offsets
        self.r_proj = Linear(config.d_model, inner, bias=False)
        self.content = nn.Parameter(torch.empty(inner))
        self.distance = nn.Parameter(torch.empty(inner))
        self.segment = nn.Parameter(torch.empty(inner)) if has_segments else None
        self.segments = nn.Parameter(torch.empty(2, inner)) if has_segments else None

    def content_query(self, q: Tensor) -> Tensor:
        """q + u, which is multiplied with the keys. q (B, H, T, D)."""
        return q + self._by_head(self.content)

    def scores(self, q: Tensor, relations: Relations) -> Tensor:
        """The second and third product, divided by √D: q (B, H, T, D) -> (B, H, T, S)."""
        encoded = self._by_head(self.r_proj(relations.sinusoids.to(q.dtype)))
        by_distance = (q + self._by_head(self.distance)) @ encoded.transpose(-1, -2)  # (B, H, T, N)
        index = relations.distances[:, None].expand(len(q), self.heads, -1, -1)
        offsets = by_distance.gather(-1, index)
        if (
            self.segment is not None
            and self.segments is not None
            and relations.same_segment is not None
        ):
            by_segment = (q + self._by_head(self.segment)) @ self._by_head(self.segments).transpose(
                -1, -2
            )
            same, other = by_segment.split(1, dim=-1)
            offsets = offsets + torch.where(relations.same_segment, same, other)
        return offsets / math.sqrt(q.shape[-1])

    def _by_head(self, x: Tensor) -> Tensor:
        """(N, H·D) or (H·D,) -> (H, N or 1, D)."""
        heads = x.unflatten(-1, (self.heads, -1)).movedim(-2, 0)
        return heads.reshape(self.heads, -1, x.shape[-1] // self.heads)


# --- disentangled: content and position -----------------------------------------------------------


def log_buckets(distances: Tensor, count: int, farthest: int) -> Tensor:
    """Signed distances -> signed buckets: equal up to count / 2; from there to count − 1, which
    begins at the distance `farthest` − 1, on a logarithmic scale.
    """
    exact = count // 2
    apart = distances.abs().clamp_min(exact)
    growth = torch.log(apart / exact) / torch.log(torch.tensor((farthest - 1) / exact))
    far = distances.sign() * ((growth * (exact - 1)).ceil() + exact).long()
    return torch.where(distances.abs() <= exact, distances, far)


@dataclass(frozen=True)
class Distances:
    """The vectors (N, E) of the buckets that occur, and the row in it for each pair (B or 1, T,
    S).
    """

    vectors: Tensor
    rows: Tensor


class DistanceVectors(nn.Module):
    """The table P (buckets, E), optionally normalized. Half of its rows are for keys after the
    query.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.relative_buckets, config.d_model))
        self.norm = new_norm(config) if config.relative_norm else None
        self.farthest = config.relative_distance if config.relative_log else None

    def forward(
        self, mask: Mask, queries: int, device: torch.device, segments: Tensor | None
    ) -> Distances:
        distances, span = -mask.distances(queries, device), len(self.weight) // 2
        if self.farthest is not None:
            distances = log_buckets(distances, span, self.farthest)
        rows = (distances + span).clamp(0, 2 * span - 1)
        first = rows.min()
        vectors = self.weight[int(first) : int(rows.max()) + 1]
        return Distances(
            vectors if self.norm is None else self.norm(vectors[None])[0], rows - first
        )


class DisentangledScores(nn.Module):
    """The projections of distances in a layer: W_k is `k_proj`, W_q is `q_proj`; None if those of
    content are shared.

    Equation 4 has δ(j − i) in the third product; the authors' program has δ(i − j), as in the
    second.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        sizes = config.d_model, config.n_heads * config.head_width
        self.to_position = config.relative_scores != "position-to-content"
        self.to_content = config.relative_scores != "content-to-position"
        own, bias = not config.relative_shared, config.attention_bias
        self.k_proj = Linear(*sizes, bias=bias) if own and self.to_position else None
        self.q_proj = Linear(*sizes, bias=bias) if own and self.to_content else None
        self.drop = Dropout(config.dropout)

    def scores(
        self, q: Tensor, k: Tensor, distances: Distances, q_proj: nn.Module, k_proj: nn.Module
    ) -> Tensor:
        """The second and third product, divided by √D: q (B, H, T, D), k (B, H, S, D) -> (B, H, T,
        S).

        q_proj, k_proj: the projections of content.
        """
        vectors = self.drop(distances.vectors)
        rows = distances.rows[:, None].expand(len(q), q.shape[1], -1, -1)
        offsets = q.new_zeros(())
        if self.to_position:
            by_row = q @ _by_head(self.k_proj or k_proj, vectors, q).mT
            offsets = offsets + by_row.gather(-1, rows)
        if self.to_content:
            by_row = k @ _by_head(self.q_proj or q_proj, vectors, k).mT
            offsets = offsets + by_row.gather(-1, rows.mT).mT
        return offsets / math.sqrt(q.shape[-1])


def _by_head(project: nn.Module, vectors: Tensor, like: Tensor) -> Tensor:
    """(N, E) -> (H, N, D), with the heads of `like` (B, H, T, D)."""
    return project(vectors.to(like.dtype)).unflatten(-1, (like.shape[1], -1)).transpose(0, 1)


ScoreBias: TypeAlias = Tensor | PairBias | Relations | Distances
"""A tensor that is added to the scores, or what it is computed from."""

OFFSETS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "relative": RelativeOffsets,
    "alibi": AlibiOffsets,
    "relative-sinusoidal": RelativeSinusoids,
    "disentangled": DistanceVectors,
}
SCORES: dict[str, Callable[[ModelConfig], RelativeScores | DisentangledScores]] = {
    "relative-sinusoidal": RelativeScores,
    "disentangled": DisentangledScores,
}
"""The parameters in a layer, of the kinds that have any."""
