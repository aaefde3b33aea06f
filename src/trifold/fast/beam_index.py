"""The order of rows that the compiled decoder reads, so that beam search moves no keys.

An instruction finds key s of row r in row index[r, s] of the buffers. Moving keys would copy the
whole cache at every step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trifold.nn.cache import Cache, GrowingKeys, SlidingKeys


class BeamIndex:
    """A `nn.cache.RowOrder`.

    index: (R, capacity) the row in which key s of each row is stored; None if each row stores its
        own.
    """

    index: Tensor | None = None

    def reorder(self, cache: Cache, parents: Tensor) -> None:
        """Row i continues row parents[i]."""
        length = cache.length
        index = self.current(cache)
        if index is None:
            index = _own_rows(parents, length + 1)
        index[:, :length] = index[parents, :length]
        self.index = index

    def current(self, cache: Cache) -> Tensor | None:
        """The index with space for one more key; a new key belongs to its own row."""
        length = cache.length
        if self.index is not None and self.index.shape[1] <= length:
            self.index = torch.cat([self.index, _own_rows(self.index, length)], 1)
        return self.index

    def move_keys(self, cache: Cache) -> None:
        """Move all keys to the rows that they belong to."""
        if self.index is None:
            return
        for keys in cache.stored:
            _gather(keys, self.index)
        self.index = None


def current_index(cache: Cache) -> Tensor | None:
    """The index that the next step of a cache reads, and that later calls of `reorder` change; None
    if each row stores its own keys, as it does where windows evict keys.
    """
    order = cache.row_order
    if not isinstance(order, BeamIndex):
        if any(isinstance(layer.past, SlidingKeys) for layer in cache.layers):
            return None
        order = cache.row_order = BeamIndex()
    return order.current(cache)


def _own_rows(like: Tensor, columns: int) -> Tensor:
    """(R, columns) the number of each row; `like` has R rows."""
    return torch.arange(len(like), device=like.device)[:, None].repeat(1, columns)


def _gather(keys: GrowingKeys, index: Tensor) -> None:
    """Key s of row r becomes that of row index[r, s]."""
    if keys.buffers is None:
        return
    filled = keys.filled
    heads = torch.arange(keys.buffers[0].shape[1], device=index.device)
    tokens = torch.arange(filled, device=index.device)
    for buffer in keys.buffers:
        buffer[:, :, :filled] = buffer[index[:, None, :filled], heads[:, None], tokens]
