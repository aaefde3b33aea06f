"""Scores of sinusoids of distances: s_ij = [ (q_i + u)·k_j + (q_i + v)·(W R_{i−j})
                                                    + (q_i + w)·z_ij ] / √D

u, v, w, W and z are learned per layer. R are sinusoids of the distance (Dai et al. 2019, section
3.3). z_ij is one of two vectors, for a key of the query's segment and for others (Yang et al. 2019,
section 2.5). The first product is that of ordinary attention; the other two are an offset that
depends on the query.

Shapes: B batch, T queries, S keys, H heads, D head size, E model width; N: the distances that
occur.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trifold.nn.attention import Attention
from trifold.nn.config import CoreConfig
from trifold.nn.formulas import FormulaRow
from trifold.nn.layers import Dropout, Linear
from trifold.nn.masks import LayerBias, Mask
from trifold.nn.parts import ScoresPart
from trifold.nn.positions import sinusoids
from trifold.nn.problems import Problems, unmet


@dataclass(frozen=True)
class Relations(LayerBias):
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

    def __init__(self, config: CoreConfig) -> None:
        super().__init__()
        self.width = config.d_model
        self.clamp = config.relative_clamp
        self.has_segments = config.segment_offsets
        self.drop = Dropout(config.dropout)

    def forward(
        self, mask: Mask, queries: int, device: torch.device, segments: Tensor | None
    ) -> Relations:
        """segments: (B, S), or packed (1, N), of the keys."""
        distances = -mask.distances(queries, device)
        if self.clamp is not None:
            distances = distances.clamp(-self.clamp, self.clamp)
        first = distances.min()
        occurring = torch.arange(int(first), int(distances.max()) + 1, device=device)
        encoded = self.drop(sinusoids(occurring, self.width, "sinusoidal-halves"))
        same = None
        if self.has_segments and segments is not None:
            segments = mask.grid(segments[..., None])[..., 0]
            same = torch.eq(*mask.pairs(segments, queries))
        return Relations(encoded, distances - first, same)


class RelativeScores(nn.Module):
    """The parameters of a layer: u, v, w are `content`, `distance`, `segment`; W is `r_proj`, z is
    `segments`.
    """

    query_formula = "(q + u)"

    def __init__(self, config: CoreConfig) -> None:
        super().__init__()
        self.heads = config.n_heads
        inner = config.n_heads * config.head_width
        has_segments = config.segment_offsets
        self.r_proj = Linear(config.d_model, inner, bias=False)
        self.content = nn.Parameter(torch.empty(inner))
        self.distance = nn.Parameter(torch.empty(inner))
        self.segment = nn.Parameter(torch.empty(inner)) if has_segments else None
        self.segments = nn.Parameter(torch.empty(2, inner)) if has_segments else None

    def forward(
        self, attention: Attention, q: Tensor, k: Tensor, bias: LayerBias
    ) -> tuple[Tensor, Tensor]:
        """The queries (B, H, T, D) of the first product, and the others (B, H, T, S)."""
        assert isinstance(bias, Relations), "these are for relative-sinusoidal positions"
        offsets = self.scores(q, bias)
        return self.content_query(q), offsets

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


class RelativeSinusoidsPart(ScoresPart):
    """Scores of sinusoids of distances, and of segments."""

    key = "positions"
    value = "relative-sinusoidal"
    keys = "relative_clamp segment_offsets"
    has_sizes = True
    is_limited = knows_distances = False
    has_offsets = learns_offsets = True

    def new_offsets(self, config: CoreConfig) -> nn.Module:
        return RelativeSinusoids(config)

    def new_relative(self, config: CoreConfig) -> nn.Module:
        return RelativeScores(config)

    def problems(self, config: CoreConfig) -> Problems:
        yield from unmet(config, "segment_offsets", "shape", "encoder")
        if config.d_model % 2:
            yield f"relative-sinusoidal positions need an even d_model, not {config.d_model}"

    def parameters(self, config: CoreConfig, side: str, blocks: int) -> Iterator[FormulaRow]:
        # A matrix for the distance encodings, a vector each for content and distance; three for
        # segments.
        vectors = 5 if config.segment_offsets else 2
        yield FormulaRow(f"{side} relative scores", f"L·(E·H·D + {vectors}·H·D)", {"L": blocks})

    def distance_elements(self, config: CoreConfig, read: Sequence[int], keys: int) -> int:
        farthest = keys if config.relative_clamp is None else config.relative_clamp
        distances = sum(min(2 * each - 1, 2 * farthest + 1) for each in read)
        return distances * config.n_heads * config.head_width

    def held_offsets(self, config: CoreConfig, near: int, keys: int) -> int:
        """Products with the vectors of all distances, shifted, and of segments."""
        return (4 + 2 * config.segment_offsets) * config.n_heads * keys

    def phrase(self, config: CoreConfig) -> str:
        return "relative sinusoidal positions in the scores"

    def differences(self, config: CoreConfig) -> Iterator[str]:
        yield from super().differences(config)
        if config.segment_offsets:
            yield "bias for tokens of the same segment"

    def reads_segments(self, config: CoreConfig) -> bool:
        return config.segment_offsets


PARTS = (RelativeSinusoidsPart(),)
