"""BP-Transformer: attention to near tokens, and to spans of far ones                (Ye et al. 2019, section 3)

The text is halved again and again: span p of level l has the tokens p·2^l to (p + 1)·2^l − 1; a token is a span of
level 0. The spans of levels 1, 2, … have states, which are 0 before the first layer. In every layer

    a span attends to its tokens;
    a token attends to itself and, on each side (in a decoder only before it), to the nearest k tokens, then to the next
    k spans of level 1, and so on to the end of the text, with scores s_ij = q_i·k_j / √D + b[side, level, place].

If the k spans of a level end inside a span of the next level, its other half has the first place there. So a token
reads every other token once, and all of them k·n·log(n / k) keys. As in the authors' program, far levels share their b;
here b is a number per head, and not the product of the query and a vector.

Shapes: B batch, T tokens, M spans, E model width, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.nn import ops
from trifold.nn.attention import Attention
from trifold.nn.cache import LayerCache
from trifold.nn.config import ModelConfig
from trifold.nn.masks import Mask, PairBias, pair_numbers
from trifold.nn.packing import Packing

LEVELS = 10  # this level and all above it share their b


def level_starts(tokens: int, k: int) -> tuple[int, ...]:
    """Where in a row of tokens and spans each level starts, and the last one ends. Every level covers all tokens; some
    token reads a span of the last one or of the one before it.
    """
    levels = max(tokens // k, 1).bit_length()
    whole = -(-tokens >> levels) << levels
    return (0, *(tokens + whole - (whole >> level) for level in range(levels + 1)))


def walk(tokens: Tensor, k: int, levels: int) -> Iterator[Tensor]:
    """For levels 0, 1, …, (3, T): a token reads the spans low ≤ p < high on its left; p has the place end − p.

    Its right side is the same with ~token and ~p, which are −1 − token and −1 − p.
    """
    high = end = tokens
    for _ in range(levels):
        rest = end - k
        low = rest >> 1 << 1
        yield torch.stack((low, high, end))
        high, end = low >> 1, -(-rest >> 1)


@dataclass(frozen=True)
class Spans:
    """Rows of T tokens, the real ones first, followed by their M spans, level by level; and which of them a token reads.

    starts: those of `level_starts`.
    bounds: (sides, 3, levels, T) of `walk`; a token reads itself, at place 0.
    columns: (B or 1, T, 1) where each token of a row is outside of the stack, unless it is packed.
    """

    k: int
    starts: tuple[int, ...]
    bounds: Tensor
    columns: Tensor
    packing: Packing | None

    @classmethod
    def mask(cls, mask: Mask, x: Tensor, k: int) -> Mask:
        """For tokens x (B, T, E), or packed (1, N, E), with that mask: which keys of their rows are real and read."""
        keys, shape = (mask.keys, x.shape) if mask.packing is None else (mask.packing.attend, mask.packing.shape)
        keys = torch.ones(1, shape[1], dtype=torch.bool, device=x.device) if keys is None else keys
        starts, tokens = level_starts(shape[1], k), torch.arange(shape[1], device=x.device)
        sides = (tokens,) if mask.causal else (tokens, ~tokens)
        bounds = torch.stack([torch.stack([*walk(side, k, len(starts) - 1)], 1) for side in sides])
        bounds[0, 1, 0] += 1
        firsts = [torch.arange(stop - start) << level for level, (start, stop) in enumerate(pairwise(starts))]
        real = torch.cat(firsts).to(x.device) < keys.sum(1, keepdim=True)
        columns = keys.long().argsort(dim=1, descending=True, stable=True)[..., None]
        return Mask(real, spans=cls(k, starts, bounds, columns, mask.packing))

    def rows(self, x: Tensor) -> Tensor:
        """The tokens x (B, T, E), or packed (1, N, E), and their spans, which are 0 -> (B, T + M, E)."""
        x = x.gather(1, self.columns.expand_as(x)) if self.packing is None else self.packing.grid(x)
        return F.pad(x, (0, 0, 0, self.starts[-1] - self.starts[1]))

    def tokens(self, x: Tensor) -> Tensor:
        """(B, T + M, E) -> the tokens, where they were: (B, T, E), or packed (1, N, E)."""
        x = x[:, : self.starts[1]]
        return x.gather(1, self.columns.argsort(1).expand_as(x)) if self.packing is None else self.packing.flat(x)

    def places(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The row of b for tokens (C, 1) and keys (…, 1, S) -> (…, C, S), -1 where a token does not read the key."""
        level = torch.bucketize(keys, torch.tensor(self.starts[1:], device=keys.device), right=True)
        span = keys - torch.tensor(self.starts, device=keys.device)[level]
        found = torch.full((), -1, device=keys.device)
        for side, bounds in enumerate(self.bounds):
            low, high, end = bounds[:, level, queries]
            mirrored = span ^ -side
            row = (side * (LEVELS + 1) + level.clamp_max(LEVELS)) * (self.k + 2) + end - mirrored
            found = row.where((low <= mirrored) & (mirrored < high), found)
        return found

    def bias(self, q: slice, k: slice | Tensor, offsets: Tensor) -> Tensor:
        """b for some tokens and keys; see `PairBias`."""
        rows = self.places(*pair_numbers(q, k, offsets.device)).clamp_min(0)
        return F.embedding(rows.view(1, *rows.shape[-2:]), offsets).permute(0, 3, 1, 2)


class SpanAttention(Attention):
    """Self-attention of rows of tokens and spans. `offsets` (rows, H) is b. Hook points show the queries of tokens."""

    def __init__(self, config: ModelConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        sides = 1 if config.shape == "decoder" else 2
        self.offsets = nn.Parameter(torch.empty(sides * (LEVELS + 1) * (config.span_keys + 2), config.n_heads))

    def weigh(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask,
        bias: Tensor | PairBias | None,
        cache: LayerCache | None,
    ) -> Tensor:
        """See `Attention.weigh`."""
        spans = mask.spans
        assert spans is not None and mask.keys is not None, "the stack adds the spans"
        q, k, v = ops.share_keys(q, k, v)
        tokens = spans.starts[1]
        outs = [super().weigh(q[:, :, :tokens], k, v, mask, PairBias((self.offsets,), spans.bias), cache)]
        # Every span attends to its tokens.
        padding = 2 * (spans.starts[2] - tokens) - tokens
        k, v = (F.pad(y[:, :, :tokens], (0, 0, 0, padding)).contiguous() for y in (k, v))
        real = F.pad(mask.keys[:, :tokens], (0, padding))
        for start, stop in pairwise(spans.starts[1:]):
            own = q[:, :, start:stop, None] * q.shape[-1] ** -0.5
            keys, values = (y.unflatten(2, (stop - start, -1)) for y in (k, v))
            allowed = real.unflatten(1, (stop - start, -1))[:, None, :, None]
            allowed = allowed | ~allowed[..., :1]  # the first token is padding: so are all, and nothing reads the span
            weights = (own @ keys.mT).masked_fill(~allowed, float("-inf")).softmax(-1)
            outs.append((weights @ values)[..., 0, :])
        return torch.cat(outs, 2)
