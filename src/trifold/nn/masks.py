"""Who may look at whom. This file is the only author of masks.

One meaning everywhere: True = may attend. A `Mask` is built once a forward pass and still knows what it is
(padding, causal, window), so that `attend` can take the fastest kernel; its dense form broadcasts to
(B, H, T, S). A query that may attend to nothing gets 0, with finite gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from trifold.nn.packing import Packing


@dataclass(frozen=True)
class Mask:
    """Keys that are real, and whether position i sees only keys ≤ i.

    keys: (B, S) boolean, or None where every key is real.
    causal: query t sees the keys up to t + offset; offset is the number of keys already in a cache. Where fewer keys
        are there than were read, they are the last ones.
    window: … and only those less than so many real keys away; None: however far.
    ranks: (B, S) where each key comes in an order of factorisation; a query sees the keys up to its own.
    asked: (B, T) the keys at which the queries stand, if they ask what stands there: they see only the keys before it
        in that order, and not itself.
    packing, key_packing: how the rows of the queries, and of a memory's keys, lie in one long row; None: they don't.
    """

    keys: Tensor | None = None
    causal: bool = False
    offset: int = 0
    window: int | None = None
    ranks: Tensor | None = None
    asked: Tensor | None = None
    packing: Packing | None = None
    key_packing: Packing | None = None

    def __post_init__(self) -> None:
        if self.keys is not None and self.keys.dtype is not torch.bool:
            raise TypeError(f"a mask is boolean (True = may attend), not {self.keys.dtype}")

    @property
    def is_empty(self) -> bool:
        """True where the mask forbids nothing."""
        return self.keys is None and not self.causal and self.window is None and self.ranks is None

    @property
    def has_blind_rows(self) -> bool:
        """True where some query may attend to nothing: its row has no real key, or it comes first in the order.

        Also True while a graph is traced, which must not depend on the values of a mask.
        """
        return torch.compiler.is_compiling() or self._has_blind_rows

    @cached_property
    def _has_blind_rows(self) -> bool:
        if self.ranks is not None:
            queries, keys = (self.ranks if self.asked is None else self.asked).shape[1], self.ranks.shape[1]
            allowed = self.dense(queries, keys, self.ranks.device)
            return allowed is not None and not bool(allowed.any(-1).all())
        return self.keys is not None and not bool(self._first_query_sees().all())

    def places(self, queries: int, device: torch.device) -> Tensor:
        """(B or 1, S) which real key of its row each of all keys is, from 0; the first query is key `offset`."""
        real = self.packing.attend if self.keys is None and self.packing is not None else self.keys
        if real is None:
            keys = self.offset + queries if self.ranks is None else self.ranks.shape[1]
            return torch.arange(keys, device=device)[None]
        return places(real)

    def distances(self, queries: int, device: torch.device) -> Tensor:
        """(B or 1, T, S) how many real keys a key stands behind the query; below 0: before it."""
        keys = self.places(queries, device)
        if self.asked is not None:
            return keys[:, None, :] - keys.expand(len(self.asked), -1).gather(1, self.asked)[..., None]
        return keys[:, None, :] - keys[:, self.offset : self.offset + queries, None]

    def dense(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """Boolean (B or 1, 1, T or 1, S), or None where nothing is forbidden."""
        gone = self._gone(queries, keys)
        start = self.offset - gone  # the key at which the first query stands
        allowed = None if self.keys is None else self.keys[:, None, None, gone:]
        if self.ranks is not None:
            known = self._known(self.ranks)[:, None]
            allowed = known if allowed is None else allowed & known
        if self.causal and start < keys - 1:
            seen = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(start)
            allowed = seen if allowed is None else allowed & seen
        if self.window is not None and max(start + queries, keys) > self.window:
            near = self.distances(queries, device)[:, None, :, gone:].abs() < self.window
            allowed = near if allowed is None else allowed & near
        return allowed if allowed is None or allowed.dim() == 4 else allowed[None, None]

    def _known(self, ranks: Tensor) -> Tensor:
        """(B, T, S) which keys come early enough in the order for a query."""
        if self.asked is None:
            return ranks[:, None, :] <= ranks[..., None]
        return ranks[:, None, :] < ranks.gather(1, self.asked)[..., None]

    def _gone(self, queries: int, keys: int) -> int:
        """How many of the first keys a cache has let go."""
        return max(0, self.offset + queries - keys) if self.causal else 0

    def additive(self, queries: int, keys: int, like: Tensor, bias: Tensor | None = None) -> Tensor | None:
        """The dense form as offsets of scores: 0 or the bias where allowed, -inf elsewhere. Made once, then shared,
        until another bias comes.

        bias: (B or 1, H, T or 1, S) for all keys that were read.
        """
        if torch.compiler.is_compiling():  # a table of sizes would make a graph for each of them
            return self._freshly(queries, keys, like, bias)
        shape = (queries, keys, like.dtype, like.device, bias is None)
        if not self._has(shape, bias):
            self._additive[shape] = self._freshly(queries, keys, like, bias), bias
        return self._additive[shape][0]

    def _freshly(self, queries: int, keys: int, like: Tensor, bias: Tensor | None) -> Tensor | None:
        allowed = self.dense(queries, keys, like.device)
        if bias is None:
            return None if allowed is None else _offsets(allowed, like.dtype)
        offsets = bias[..., self._gone(queries, keys) :].to(like.dtype)
        return offsets if allowed is None else offsets.masked_fill(~allowed, float("-inf"))

    def additive_rows(self, q: Tensor, keys: int, bias: Tensor | None = None) -> Tensor | None:
        """The same for heads that lie in one batch dimension: broadcastable to (B·H, T, S), q being (B, H, T, D).

        Spread out where it differs from row to row: added once a layer, a contiguous sum is worth the memory.
        """
        shape = (*q.shape[:3], keys, q.dtype, q.device, bias is None)
        if not self._has(shape, bias):
            offsets = self.additive(q.shape[2], keys, q, bias)
            if offsets is not None and (offsets.shape[0] > 1 or bias is not None):
                offsets = offsets.expand(*q.shape[:3], keys).flatten(0, 1)[None]
            self._additive[shape] = None if offsets is None else offsets[0], bias
        return self._additive[shape][0]

    def _has(self, shape: object, bias: Tensor | None) -> bool:
        return shape in self._additive and self._additive[shape][1] is bias

    @cached_property
    def _additive(self) -> dict[object, tuple[Tensor | None, Tensor | None]]:
        return {}

    def _first_query_sees(self) -> Tensor:
        """(B,) whether the first query, which sees the fewest keys, sees a real one."""
        assert self.keys is not None
        return self.keys[:, : self.offset + 1].any(-1) if self.causal else self.keys.any(-1)

    def select(self, rows: Tensor) -> Mask:
        """The mask of the chosen rows only."""
        chosen = {name: getattr(self, name) for name in ("keys", "ranks", "asked")}
        return replace(self, **{name: x[rows] for name, x in chosen.items() if x is not None})


def _offsets(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    zeros = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return zeros.masked_fill_(~allowed, float("-inf"))


def places(attend: Tensor) -> Tensor:
    """(B, S) which real position of its row each is, from 0; padding has that of the real one before it."""
    return (attend.long().cumsum(1) - 1).clamp_min(0)


def padding(lengths: Tensor, width: int) -> Tensor | None:
    """(B,) lengths in tokens -> (B, S) True at real positions, or None where no row is shorter than `width`."""
    real = torch.arange(width, device=lengths.device) < lengths[:, None]
    return None if bool(real.all()) else real
