"""Keys and values of the tokens already read, so that a decoding step computes one new row.

A cache is an argument owned by the caller. Self-attention's part grows by one token a step; cross-attention's is
filled once from the encoder and then only read, and it keeps one row a sentence however many beams share it.
"""

from __future__ import annotations

import torch
from torch import Tensor


class GrowingKeys:
    """Keys and values (B, H, S, D) of one self-attention; `update` appends in place, doubling its room."""

    def __init__(self) -> None:
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append (B, H, T, D) twice; gives all keys and values so far."""
        end = self.length + keys.shape[2]
        self._keys, self._values = self._room(self._keys, keys, end), self._room(self._values, values, end)
        self._keys[:, :, self.length : end] = keys
        self._values[:, :, self.length : end] = values
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    def _room(self, held: Tensor | None, new: Tensor, end: int) -> Tensor:
        if held is not None and held.shape[2] >= end:
            return held
        rows, heads, _, width = new.shape
        larger = new.new_empty(rows, heads, max(16, 2 * end), width)
        if held is not None:
            larger[:, :, : self.length] = held[:, :, : self.length]
        return larger

    def select(self, rows: Tensor) -> None:
        """Keep (or repeat, or reorder) rows of the batch."""
        if self._keys is not None and self._values is not None:
            self._keys, self._values = self._keys[rows], self._values[rows]

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        self.length = min(self.length, length)


class FixedKeys:
    """Keys and values of the encoder's output: projected once, never longer."""

    def __init__(self) -> None:
        self._held: tuple[Tensor, Tensor] | None = None

    @property
    def filled(self) -> bool:
        return self._held is not None

    def read(self) -> tuple[Tensor, Tensor]:
        assert self._held is not None, "cross-attention keys are read before they were filled"
        return self._held

    def fill(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self._held = (keys, values)
        return self._held

    def select(self, rows: Tensor) -> None:
        if self._held is not None:
            self._held = (self._held[0][rows], self._held[1][rows])


class LayerCache:
    """What one decoder layer keeps."""

    def __init__(self) -> None:
        self.own = GrowingKeys()
        self.memory = FixedKeys()


class Cache:
    """What a whole decoder keeps. Its rows are beams; `sentences` rows of memory are shared by the beams of each.

    Rows of one sentence stand together: row r belongs to sentence r // (rows / sentences).
    """

    def __init__(self, layers: int) -> None:
        self.layers = [LayerCache() for _ in range(layers)]

    @property
    def length(self) -> int:
        """Tokens already read, the same for every row."""
        return self.layers[0].own.length

    def reorder(self, parents: Tensor) -> None:
        """Row i goes on from what was row parents[i]; a parent belongs to the same sentence."""
        for layer in self.layers:
            layer.own.select(parents)

    def select(self, rows: Tensor, sentences: Tensor) -> None:
        """Keep these rows and these sentences (finished ones leave the batch)."""
        for layer in self.layers:
            layer.own.select(rows)
            layer.memory.select(sentences)

    def expand(self, beams: int) -> None:
        """Every row becomes `beams` rows, one after the other; the memory stays one row a sentence."""
        for layer in self.layers:
            if layer.own.length:
                held = layer.own._keys
                assert held is not None
                layer.own.select(torch.arange(held.shape[0], device=held.device).repeat_interleave(beams))

    def truncate(self, length: int) -> None:
        """Forget the tokens after the first `length`."""
        for layer in self.layers:
            layer.own.truncate(length)
