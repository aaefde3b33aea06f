"""Keys and values of the tokens already read, so that a decoding step computes one new row.

A cache is an argument owned by the caller. Self-attention's part grows by one token a step; cross-attention's is
filled once from the encoder and then only read, and it keeps one row a sentence however many beams share it.

    growing   takes new room as it needs it
    static    has all its room from the beginning, and no more
    sliding   lets go what no window reaches any more, but for some tokens that may be taken back
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

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

    def expand(self, times: int) -> None:
        """Every row becomes `times` rows, one after the other."""
        if self._keys is not None:
            rows = torch.arange(self._keys.shape[0], device=self._keys.device)
            self.select(rows.repeat_interleave(times))

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        self.length = min(self.length, length)


class StaticKeys(GrowingKeys):
    """The same in room for `room` tokens, taken once: what is read lies where it lay, and its shapes are known."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def _room(self, held: Tensor | None, new: Tensor, end: int) -> Tensor:
        """Raises ValueError where the room is too small."""
        if end > self.room:
            raise ValueError(f"{end} tokens do not fit a static cache of {self.room}: make it larger")
        rows, heads, _, width = new.shape
        return new.new_zeros(rows, heads, self.room, width) if held is None else held


class SlidingKeys(GrowingKeys):
    """Keys and values that a window can still reach, after `rollback` tokens were taken back.

    holes: how many of the keys read may be padding, which fills room without being counted by a window.
    """

    def __init__(self, window: int, rollback: int = 0) -> None:
        super().__init__()
        self.window, self.rollback, self.holes = window, rollback, 0

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append (B, H, T, D) twice; gives those still held and the new ones."""
        if self._keys is not None and self._values is not None:
            keys, values = torch.cat([self._keys, keys], 2), torch.cat([self._values, values], 2)
            self.length += keys.shape[2] - self._keys.shape[2]
        else:
            self.length += keys.shape[2]
        kept = self._reach() + self.rollback
        # A copy, so that what is let go is free at once.
        self._keys, self._values = (
            y if y.shape[2] <= kept else y[:, :, y.shape[2] - kept :].clone() for y in (keys, values)
        )
        return keys, values

    def _reach(self) -> int:
        """How many of the tokens before it a new one may look at."""
        return self.window - 1 + self.holes

    def truncate(self, length: int) -> None:
        """Forget the tokens after the first `length`. Raises ValueError where those before them are gone already."""
        if self._keys is None or self._values is None or length >= self.length:
            return
        left = self._keys.shape[2] - (self.length - length)
        if left < min(length, self._reach()):
            raise ValueError(
                f"{self.length - length} tokens cannot be taken back: this cache was made for {self.rollback}"
            )
        self._keys, self._values = self._keys[:, :, :left], self._values[:, :, :left]
        self.length = length


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

    def __init__(self, own: GrowingKeys | None = None) -> None:
        self.own = own or GrowingKeys()
        self.memory = FixedKeys()


class Cache:
    """What a whole decoder keeps. Its rows are beams; `sentences` rows of memory are shared by the beams of each.

    Rows of one sentence stand together: row r belongs to sentence r // (rows / sentences).
    """

    def __init__(self, layers: int | Iterable[GrowingKeys]) -> None:
        """So many growing ones, or those given, one a layer."""
        own = (GrowingKeys() for _ in range(layers)) if isinstance(layers, int) else layers
        self.layers = [LayerCache(keys) for keys in own]

    @property
    def length(self) -> int:
        """Tokens already read, the same for every row."""
        return self.layers[0].own.length

    def mind_padding(self, attend: Tensor | None) -> None:
        """Told of (B, S) all keys so far before new ones come: sliding keys keep room for padding among them."""
        sliding = [layer.own for layer in self.layers if isinstance(layer.own, SlidingKeys)]
        if sliding and attend is not None:
            holes = int((~attend).sum(1).max())
            for own in sliding:
                own.holes = max(own.holes, holes)

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
            layer.own.expand(beams)

    def truncate(self, length: int) -> None:
        """Forget the tokens after the first `length`."""
        for layer in self.layers:
            layer.own.truncate(length)


# kind -> keys of a layer, from its window (None: it sees all), the room asked for, and the tokens to be taken back
KEYS: dict[str, Callable[[int | None, int, int], GrowingKeys]] = {
    "growing": lambda window, room, rollback: GrowingKeys(),
    "static": lambda window, room, rollback: StaticKeys(room),
    "sliding": lambda window, room, rollback: (
        GrowingKeys() if window is None else SlidingKeys(window, rollback)
    ),
}
