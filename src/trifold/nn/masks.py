"""Attention masks; the only file that builds them.

Everywhere True means "may attend". A `Mask` is built once per forward pass and keeps its structure (causal, padding,
window, order), so that `attend` can choose the fastest kernel; its dense form broadcasts to (B, H, T, S). A query that
may attend to nothing gives 0, with finite gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, reduce

import torch
from torch import Tensor

from trifold.nn.packing import Packing


@dataclass(frozen=True)
class Mask:
    """Which keys a query may attend to: all that every field allows.

    keys: (B, S) boolean, True at real keys; None if all are.
    causal: query t attends to the keys up to t + offset; offset is the number of keys already in a cache. If there are
        fewer keys than were read, they are the last ones.
    window: a query attends to keys at a distance of less than `window` real keys.
    order: (B, S) the rank of each key in a factorization order; a query attends to the keys up to its own rank.
    query_index: (B, T) the keys whose content the query stream predicts: query t attends to the keys of a lower rank
        than key query_index[t], and not to that key.
    packing, key_packing: how the rows of the queries, and those of a memory's keys, are packed.
    """

    keys: Tensor | None = None
    causal: bool = False
    offset: int = 0
    window: int | None = None
    order: Tensor | None = None
    query_index: Tensor | None = None
    packing: Packing | None = None
    key_packing: Packing | None = None

    def __post_init__(self) -> None:
        if self.keys is not None and self.keys.dtype is not torch.bool:
            raise TypeError(f"a mask is boolean (True = may attend), not {self.keys.dtype}")

    @property
    def has_fully_masked_rows(self) -> bool:
        """True if some query may attend to nothing: its row has no real key, or it is the first in the order.

        Also True while a graph is traced, which must not depend on the values of a mask.
        """
        return torch.compiler.is_compiling() or self._has_fully_masked_rows

    @cached_property
    def _has_fully_masked_rows(self) -> bool:
        if self.order is not None:
            index = self.order if self.query_index is None else self.query_index
            allowed = self.dense(index.shape[1], self.order.shape[1], self.order.device)
            return allowed is not None and not bool(allowed.any(-1).all())
        if self.keys is None:
            return False
        # The first query has the fewest keys.
        keys = self.keys[:, : self.offset + 1] if self.causal else self.keys
        return not bool(keys.any(-1).all())

    def positions(self, queries: int, device: torch.device) -> Tensor:
        """(B or 1, S) the position of each key among the real keys of its row; the first query is key `offset`."""
        real = self.packing.attend if self.keys is None and self.packing is not None else self.keys
        if real is not None:
            return real_positions(real)
        keys = self.offset + queries if self.order is None else self.order.shape[1]
        return torch.arange(keys, device=device)[None]

    def distances(self, queries: int, device: torch.device) -> Tensor:
        """(B or 1, T, S) position of the key minus position of the query."""
        keys = self.positions(queries, device)
        if self.query_index is not None:
            return (
                keys[:, None] - keys.expand(len(self.query_index), -1).gather(1, self.query_index)[..., None]
            )
        return keys[:, None] - keys[:, self.offset : self.offset + queries, None]

    def dense(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """Boolean (B or 1, 1, T or 1, S), or None if nothing is forbidden."""
        evicted = self._evicted(queries, keys)
        start = self.offset - evicted  # the key at the position of the first query
        allowed = [] if self.keys is None else [self.keys[:, None, None, evicted:]]
        if self.order is not None:
            ranks = self.order[:, None, None]
            if self.query_index is None:
                allowed.append(ranks <= self.order[:, None, :, None])
            else:
                allowed.append(ranks < self.order.gather(1, self.query_index)[:, None, :, None])
        if self.causal and start < keys - 1:
            allowed.append(torch.ones(1, 1, queries, keys, dtype=torch.bool, device=device).tril(start))
        if self.window is not None and max(start + queries, keys) > self.window:
            allowed.append(self.distances(queries, device)[:, None, :, evicted:].abs() < self.window)
        return reduce(torch.logical_and, allowed) if allowed else None

    def _evicted(self, queries: int, keys: int) -> int:
        """How many of the first keys a cache no longer holds."""
        return max(0, self.offset + queries - keys) if self.causal else 0

    def additive(self, queries: int, keys: int, like: Tensor, bias: Tensor | None = None) -> Tensor | None:
        """The dense form to be added to scores: 0 or the bias where allowed, -inf elsewhere; cached for the last bias.

        bias: (B or 1, H, T or 1, S), for all keys that were read.
        """
        if torch.compiler.is_compiling():  # a graph would depend on the sizes in the cache
            return self._new_additive(queries, keys, like, bias)
        key = (queries, keys, like.dtype, like.device, bias is None)
        if not self._has(key, bias):
            self._additive[key] = self._new_additive(queries, keys, like, bias), bias
        return self._additive[key][0]

    def _new_additive(self, queries: int, keys: int, like: Tensor, bias: Tensor | None) -> Tensor | None:
        allowed = self.dense(queries, keys, like.device)
        if bias is not None:
            offsets = bias[..., self._evicted(queries, keys) :].to(like.dtype)
            return offsets if allowed is None else offsets.masked_fill(~allowed, float("-inf"))
        if allowed is None:
            return None
        zeros = torch.zeros(allowed.shape, dtype=like.dtype, device=allowed.device)
        return zeros.masked_fill_(~allowed, float("-inf"))

    def additive_rows(self, q: Tensor, keys: int, bias: Tensor | None = None) -> Tensor | None:
        """As `additive`, for q (B, H, T, D) with heads in the batch dimension: broadcastable to (B·H, T, S).

        Expanded and contiguous if it differs between rows, which is faster, because every layer adds it.
        """
        key = (*q.shape[:3], keys, q.dtype, q.device, bias is None)
        if not self._has(key, bias):
            offsets = self.additive(q.shape[2], keys, q, bias)
            if offsets is not None and (offsets.shape[0] > 1 or bias is not None):
                offsets = offsets.expand(*q.shape[:3], keys).flatten(0, 1)[None]
            self._additive[key] = None if offsets is None else offsets[0], bias
        return self._additive[key][0]

    def _has(self, key: object, bias: Tensor | None) -> bool:
        return key in self._additive and self._additive[key][1] is bias

    @cached_property
    def _additive(self) -> dict[object, tuple[Tensor | None, Tensor | None]]:
        return {}


def real_positions(attend: Tensor) -> Tensor:
    """(B, S) the position of each token among the real ones of its row; padding has that of the last one."""
    return (attend.long().cumsum(1) - 1).clamp_min(0)


def padding_mask(lengths: Tensor, width: int) -> Tensor | None:
    """(B,) lengths in tokens -> (B, S) True at real positions, or None if no row is shorter than `width`."""
    real = torch.arange(width, device=lengths.device) < lengths[:, None]
    return None if bool(real.all()) else real
