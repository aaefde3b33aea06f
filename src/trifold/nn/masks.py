"""Who may look at whom. This file is the only author of masks.

One meaning everywhere: True = may attend. A `Mask` is built once a forward pass and still knows what it is
(padding, causal, both), so that `attend` can take the fastest kernel; its dense form broadcasts to
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
    causal: query t sees the keys up to t + offset; offset is the number of keys already in a cache.
    packing, key_packing: how the rows of the queries, and of a memory's keys, lie in one long row; None: they don't.
    """

    keys: Tensor | None = None
    causal: bool = False
    offset: int = 0
    packing: Packing | None = None
    key_packing: Packing | None = None

    def __post_init__(self) -> None:
        if self.keys is not None and self.keys.dtype is not torch.bool:
            raise TypeError(f"a mask is boolean (True = may attend), not {self.keys.dtype}")

    @property
    def is_empty(self) -> bool:
        """True where the mask forbids nothing."""
        return self.keys is None and not self.causal

    @cached_property
    def has_blind_rows(self) -> bool:
        """True where some row has no real key at all, so that its queries may attend to nothing."""
        return self.keys is not None and not bool(self._first_query_sees().all())

    def dense(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """Boolean (B or 1, 1, T or 1, S), or None where nothing is forbidden."""
        allowed = None if self.keys is None else self.keys[:, None, None, :]
        if self.causal and self.offset < keys - 1:
            seen = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(self.offset)
            allowed = seen if allowed is None else allowed & seen
        return allowed if allowed is None or allowed.dim() == 4 else allowed[None, None]

    def additive(self, queries: int, keys: int, like: Tensor) -> Tensor | None:
        """The dense form as offsets of scores: 0 where allowed, -inf elsewhere. Made once, then shared."""
        shape = (queries, keys, like.dtype, like.device)
        if shape not in self._additive:
            allowed = self.dense(queries, keys, like.device)
            self._additive[shape] = None if allowed is None else _offsets(allowed, like.dtype)
        return self._additive[shape]

    def additive_rows(self, q: Tensor, keys: int) -> Tensor | None:
        """The same for heads that lie in one batch dimension: broadcastable to (B·H, T, S), q being (B, H, T, D).

        Spread out where it differs from row to row: added once a layer, a contiguous sum is worth the memory.
        """
        shape = (*q.shape[:3], keys, q.dtype, q.device)
        if shape not in self._additive:
            offsets = self.additive(q.shape[2], keys, q)
            if offsets is not None and offsets.shape[0] > 1:
                offsets = offsets.expand(*q.shape[:3], keys).flatten(0, 1)[None]
            self._additive[shape] = None if offsets is None else offsets[0]
        return self._additive[shape]

    @cached_property
    def _additive(self) -> dict[object, Tensor | None]:
        return {}

    def _first_query_sees(self) -> Tensor:
        """(B,) whether the first query, which sees the fewest keys, sees a real one."""
        assert self.keys is not None
        return self.keys[:, : self.offset + 1].any(-1) if self.causal else self.keys.any(-1)

    def select(self, rows: Tensor) -> Mask:
        """The mask of the chosen rows only."""
        return self if self.keys is None else replace(self, keys=self.keys[rows])


def _offsets(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    zeros = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return zeros.masked_fill_(~allowed, float("-inf"))


def padding(lengths: Tensor, width: int) -> Tensor | None:
    """(B,) lengths in tokens -> (B, S) True at real positions, or None where no row is shorter than `width`."""
    real = torch.arange(width, device=lengths.device) < lengths[:, None]
    return None if bool(real.all()) else real
