"""Scores of content and position: s_ij = [ q_i·k_j + q_i·(W_k P_δ) + k_j·(W_q P_δ) ] / √(3 D)
                                                     (He et al. 2021, "DeBERTa", equations 2 to 4)

P is a learned table of the distances, shared by all layers, and δ = δ(i − j) the bucket of a
distance. The products are of content with content, content with position, and position with
content; with one of the last two alone, the divisor is √(2 D). W_k and W_q are learned per layer,
or are the projections of the content.

Shapes: B batch, T queries, S keys, H heads, D head size, E model width; N: the distances that
occur.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from trifold.nn import formulas
from trifold.nn.attention import Attention
from trifold.nn.config import CoreConfig
from trifold.nn.formulas import FormulaRow
from trifold.nn.layers import Dropout, Linear
from trifold.nn.masks import LayerBias, Mask
from trifold.nn.norms import new_norm
from trifold.nn.parts import ScoresPart
from trifold.nn.problems import Problems, excluded


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
class Distances(LayerBias):
    """The vectors (N, E) of the buckets that occur, and the row in it for each pair (B or 1, T,
    S).
    """

    vectors: Tensor
    rows: Tensor


class DistanceVectors(nn.Module):
    """The table P (buckets, E), optionally normalized. Half of its rows are for keys after the
    query.
    """

    def __init__(self, config: CoreConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.relative_buckets, config.d_model))
        self.norm = new_norm(config) if config.relative_norm else nn.Identity()
        self.is_logarithmic = config.relative_log
        self.farthest = config.relative_distance

    def forward(
        self, mask: Mask, queries: int, device: torch.device, segments: Tensor | None
    ) -> Distances:
        distances = -mask.distances(queries, device)
        span = len(self.weight) // 2
        if self.is_logarithmic:
            distances = log_buckets(distances, span, self.farthest)
        rows = (distances + span).clamp(0, 2 * span - 1)
        first = rows.min()
        vectors = self.weight[int(first) : int(rows.max()) + 1]
        return Distances(self.norm(vectors[None])[0], rows - first)


class DisentangledScores(nn.Module):
    """The projections of distances in a layer: W_k is `k_proj`, W_q is `q_proj`; None if those of
    content are shared.

    Equation 4 has δ(j − i) in the third product; the authors' program has δ(i − j), as in the
    second.
    """

    def __init__(self, config: CoreConfig) -> None:
        super().__init__()
        sizes = config.d_model, config.n_heads * config.head_width
        self.to_position = config.relative_scores != "position-to-content"
        self.to_content = config.relative_scores != "content-to-position"
        own = not config.relative_shared
        bias = config.attention_bias
        self.k_proj = Linear(*sizes, bias=bias) if own and self.to_position else None
        self.q_proj = Linear(*sizes, bias=bias) if own and self.to_content else None
        self.drop = Dropout(config.dropout)

    def forward(
        self, attention: Attention, q: Tensor, k: Tensor, bias: LayerBias
    ) -> tuple[Tensor, Tensor]:
        """The queries (B, H, T, D), and the second and third product (B, H, T, S)."""
        assert isinstance(bias, Distances), "distances are for disentangled positions"
        return q, self.scores(q, k, bias, attention.q_proj, attention.k_proj)

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


class DisentangledPart(ScoresPart):
    """Scores of content and position."""

    key = "positions"
    value = "disentangled"
    keys = (
        "learned_positions relative_buckets relative_distance relative_log relative_scores "
        "relative_shared relative_norm"
    )
    needs: ClassVar = {"shape": ("encoder",)}
    conflicts = "latent"
    is_limited = knows_distances = False
    has_offsets = learns_offsets = True

    def new_offsets(self, config: CoreConfig) -> nn.Module:
        return DistanceVectors(config)

    def new_relative(self, config: CoreConfig) -> nn.Module:
        return DisentangledScores(config)

    def terms(self, config: CoreConfig) -> int:
        return 2 if config.relative_scores == "both" else 1

    def problems(self, config: CoreConfig) -> Problems:
        if config.kv_heads != config.n_heads:
            yield from excluded(config, self.label(config), "n_kv_heads")
        buckets = config.relative_buckets
        farthest = config.relative_distance
        if buckets < 4 or buckets % 2 or (config.relative_log and farthest <= buckets // 4 + 1):
            yield (
                "disentangled positions need an even number of at least 4 relative_buckets, not "
                f"{buckets}, and relative_distance {farthest} above a quarter of them"
            )

    def parameters(self, config: CoreConfig, side: str, blocks: int) -> Iterator[FormulaRow]:
        norm = f" + {formulas.norm(config, 'E')}" if config.relative_norm else ""
        yield FormulaRow(f"{side} relative vectors", f"b·E{norm}", {"b": config.relative_buckets})
        if not config.relative_shared:
            each = f"(E·H·D{' + H·D' if config.attention_bias else ''})"
            yield FormulaRow(
                f"{side} relative scores", f"L·{self.terms(config)}·{each}", {"L": blocks}
            )

    def distance_elements(self, config: CoreConfig, read: Sequence[int], keys: int) -> int:
        distances = sum(min(2 * each - 1, config.relative_buckets) for each in read)
        return self.terms(config) * distances * config.n_heads * config.head_width

    def held_offsets(self, config: CoreConfig, near: int, keys: int) -> int:
        """Products with the vectors of distances, at all pairs, and their sums."""
        return (3 + self.terms(config)) * config.n_heads * keys

    def phrase(self, config: CoreConfig) -> str:
        return "disentangled content and position in the scores"


PARTS = (DisentangledPart(),)
