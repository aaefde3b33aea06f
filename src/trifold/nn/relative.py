"""Scores that look at what a key says, how far it stands from the query, and whether they are of one segment.

    s_ij = [ (q_i + u)·k_j  +  (q_i + v)·(W R_{i−j})  +  (q_i + w)·z_ij ] / √D

u, v, w, W and z are learnt, a set a layer; R are the waves of a distance, which is negative where the key stands behind
the query (Dai et al. 2019, section 3.3); z_ij is one of two vectors, for a key of the query's segment and for any other
(Yang et al. 2019, section 2.5). The first product is attention's own; the other two are an offset of its scores that
depends on the query.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trifold.nn.config import ModelConfig
from trifold.nn.layers import Dropout, Linear
from trifold.nn.masks import Mask
from trifold.nn.positions import waves


@dataclass(frozen=True)
class Relations:
    """How the queries stand to the keys, for all layers of a stack.

    waves: (R, E) of every distance that occurs. distances: (B or 1, T, S) which of these lies between query and key.
    akin: (B, T, S) whether they are of one segment; None where no segments are told.
    """

    waves: Tensor
    distances: Tensor
    akin: Tensor | None = None


class Waves(nn.Module):
    """Sines before cosines of the distances, with dropout; nothing here is learnt."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.width, self.clamp = config.d_model, config.relative_clamp
        self.drop = Dropout(config.dropout)

    def forward(
        self, mask: Mask, queries: int, device: torch.device, segments: Tensor | None = None
    ) -> Relations:
        """segments (B, S) of the keys; S is all keys that the mask speaks of, T the queries."""
        before = -mask.distances(queries, device)
        if self.clamp is not None:
            before = before.clamp(-self.clamp, self.clamp)
        first = before.min()
        occurring = torch.arange(int(first), int(before.max()) + 1, device=device)
        return Relations(
            self.drop(waves(occurring, self.width, halves=True)),
            before - first,
            None if segments is None else akin(segments, mask.asked),
        )


def akin(segments: Tensor, asked: Tensor | None = None) -> Tensor:
    """segments (B, S) -> (B, T, S) whether a query's is the key's; the queries stand at the keys `asked` (B, T)."""
    own = segments if asked is None else segments.gather(1, asked)
    return own[..., None] == segments[:, None, :]


class RelativeScores(nn.Module):
    """What a layer learns: u, v and w (H·D,) are `content`, `distance` and `segment`; z (2, H·D) is `segments`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.n_heads
        inner, tells = config.n_heads * config.head_width, config.segment_offsets
        self.r_proj = Linear(config.d_model, inner, bias=False)
        self.content = nn.Parameter(torch.empty(inner))
        self.distance = nn.Parameter(torch.empty(inner))
        self.segment = nn.Parameter(torch.empty(inner)) if tells else None
        self.segments = nn.Parameter(torch.empty(2, inner)) if tells else None

    def content_query(self, q: Tensor) -> Tensor:
        """q + u: what is multiplied with the keys. q (B, H, T, D)."""
        return q + self._by_head(self.content)

    def scores(self, q: Tensor, relations: Relations) -> Tensor:
        """The offsets (B, H, T, S) of the scores of q (B, H, T, D), already divided by √D."""
        turned = self._by_head(self.r_proj(relations.waves.to(q.dtype)))
        of_distances = (q + self._by_head(self.distance)) @ turned.transpose(-1, -2)  # (B, H, T, R)
        rows = relations.distances[:, None].expand(len(q), self.heads, -1, -1)
        offsets = of_distances.gather(-1, rows)
        if self.segment is not None and self.segments is not None and relations.akin is not None:
            asking = q + self._by_head(self.segment)
            same, other = (asking @ self._by_head(self.segments).transpose(-1, -2)).split(1, dim=-1)
            offsets = offsets + torch.where(relations.akin[:, None], same, other)
        return offsets / math.sqrt(q.shape[-1])

    def _by_head(self, x: Tensor) -> Tensor:
        """(N, H·D) or (H·D,) -> (H, N or 1, D)."""
        return (
            x.unflatten(-1, (self.heads, -1))
            .movedim(-2, 0)
            .reshape(self.heads, -1, x.shape[-1] // self.heads)
        )
