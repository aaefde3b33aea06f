"""Key/value caches: a decoding step computes the keys and values of the new token only.

A cache is an argument owned by the caller. The keys of self-attention grow by one token per step.
Those of cross-attention are computed once from the encoder's output; they have one row per source,
shared by all its beams.

    growing   allocates as it needs
    static    allocates everything at the start, and no more
    sliding   evicts what no window reaches, except for some tokens that `truncate` may need
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from trifold.nn.masks import Mask


class GrowingKeys:
    """Keys and values of one self-attention. `update` appends in place; the buffers grow by
    doubling.

    buffers: keys and values (B, H, capacity, D), of which the first `filled` keys are in use.
    length: number of tokens read. evicted: how many of them, from the first on, are no longer
        stored.
    slots_per_token: how many keys a token adds.
    """

    slots_per_token: ClassVar[int] = 1

    def __init__(self) -> None:
        self.length = self.evicted = 0
        self.buffers: tuple[Tensor, Tensor] | None = None

    @property
    def filled(self) -> int:
        """Number of keys that are stored."""
        return self.slots_per_token * (self.length - self.evicted)

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values (B, H, T, D); return views of those stored before and the new
        ones.
        """
        start = self.filled
        tokens = keys.shape[2]
        end = start + tokens
        stored_keys, stored_values = self.reserve(tokens, (keys, values))
        stored_keys[:, :, start:end] = keys
        stored_values[:, :, start:end] = values
        self.advance(tokens)
        return stored_keys[:, :, :end], stored_values[:, :, :end]

    def reserve(self, tokens: int, like: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The buffers, with space for so many more tokens; `like` has the rows, the heads and the
        widths of new buffers.
        """
        end = self.filled + self.slots_per_token * tokens
        if self.buffers is None or self.buffers[0].shape[2] < end:
            self.buffers = self._enlarge(like, like[0].shape[0], self._capacity(end))
        return self.buffers

    def advance(self, tokens: int) -> None:
        """Count tokens that were written into the buffers."""
        self.length += tokens

    def _capacity(self, end: int) -> int:
        """The number of keys to allocate when `end` are needed."""
        return max(16, 2 * end)

    def _enlarge(
        self, like: tuple[Tensor, Tensor], rows: int, capacity: int
    ) -> tuple[Tensor, Tensor]:
        """New buffers, with the current contents if the number of rows is the same."""
        keys, values = (y.new_zeros(rows, y.shape[1], capacity, y.shape[3]) for y in like)
        if self.buffers is not None and self.buffers[0].shape[0] == rows:
            filled = self.filled
            keys[:, :, :filled], values[:, :, :filled] = (y[:, :, :filled] for y in self.buffers)
        return keys, values

    def select(self, rows: Tensor) -> None:
        """Row i becomes row rows[i]; in place unless there are more than before."""
        if self.buffers is None:
            return
        filled = self.filled
        count = len(rows)
        target = self.buffers
        if count > self.buffers[0].shape[0]:
            target = self._enlarge(self.buffers, count, self.buffers[0].shape[2])
        for source, out in zip(self.buffers, target, strict=True):
            out[:count, :, :filled] = source[:, :, :filled].index_select(0, rows)
        self.buffers = target[0][:count], target[1][:count]

    def expand(self, times: int) -> None:
        """Repeat every row `times` times, one after the other."""
        if self.buffers is not None:
            rows = torch.arange(self.buffers[0].shape[0], device=self.buffers[0].device)
            self.select(rows.repeat_interleave(times))

    def truncate(self, length: int) -> None:
        """Remove all but the first `length` tokens."""
        self.length = min(self.length, length)

    def clear(self) -> None:
        """Remove all tokens."""
        self.length = self.evicted = 0


class StaticKeys(GrowingKeys):
    """Buffers for `capacity` tokens, allocated once, so that addresses and shapes stay the same."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity

    def _capacity(self, end: int) -> int:
        """Raises ValueError if the capacity is too small."""
        if end > self.capacity:
            raise ValueError(
                f"{end} tokens exceed the capacity of a static cache ({self.capacity}); enlarge it"
            )
        return self.capacity


class SlidingKeys(GrowingKeys):
    """Stores the keys that a window can reach after `rollback` tokens were removed, and up to an
    eighth more.

    reach: how many of the tokens before it a new token may attend to, including padding.
    """

    def __init__(self, window: int, rollback: int = 0) -> None:
        super().__init__()
        self.window = window
        self.rollback = rollback
        self.reach = window - 1

    def advance(self, tokens: int) -> None:
        super().advance(tokens)
        self._evict()

    @property
    def _most(self) -> int:
        """The largest number of stored tokens; the additional eighth makes evictions rare."""
        kept = self.reach + self.rollback
        return kept + kept // 8

    def _capacity(self, end: int) -> int:
        return max(end, self._most + 1)

    def _evict(self) -> None:
        """Copy what is kept into new buffers, so that the memory of the rest is free at once."""
        filled = self.filled
        kept = self.reach + self.rollback
        if self.buffers is None or filled <= self._most:
            return
        tails = (
            self.buffers[0][:, :, filled - kept : filled],
            self.buffers[1][:, :, filled - kept : filled],
        )
        self.buffers = None
        self.evicted = self.length - kept
        self.buffers = self._enlarge(tails, tails[0].shape[0], self._most + 1)
        for buffer, tail in zip(self.buffers, tails, strict=True):
            buffer[:, :, :kept] = tail

    def truncate(self, length: int) -> None:
        """Remove all but the first `length` tokens. Raises ValueError if the next may attend to an
        evicted one.
        """
        if length - self.evicted < min(length, self.reach):
            raise ValueError(
                f"cannot remove {self.length - length} tokens from a sliding cache that was "
                "created with "
                f"rollback={self.rollback}; raise rollback"
            )
        super().truncate(length)


class History(GrowingKeys):
    """What attention stores that depends on all tokens read, as the inputs (B, 1, T, E) of LSH
    attention: how it sorts a token changes the states of those before it.
    """

    def truncate(self, length: int) -> None:
        """Raises ValueError if a token would be removed."""
        if length < self.length:
            raise ValueError(
                "this attention cannot remove tokens from a cache; use no speculative search"
            )


class RunningState(History):
    """A state (B, …) after all tokens read, instead of their keys: its size does not grow with the
    length.
    """

    def __init__(self) -> None:
        super().__init__()
        self.state: Tensor | None = None

    def add(self, state: Tensor, tokens: int) -> None:
        """Replace the state by the one after so many tokens more."""
        self.state = state
        self.length += tokens

    def clear(self) -> None:
        """Remove all tokens."""
        super().clear()
        self.state = None

    def select(self, rows: Tensor) -> None:
        """Row i becomes row rows[i]."""
        if self.state is not None:
            self.state = self.state.index_select(0, rows)

    def expand(self, times: int) -> None:
        """Repeat every row `times` times, one after the other."""
        if self.state is not None:
            self.state = self.state.repeat_interleave(times, 0)


class StoredInputs(GrowingKeys):
    """The inputs (B, 1, T, E) of a stack that may compute earlier tokens again."""

    def is_prefix(self, mask: Mask, tokens: int, device: torch.device) -> bool:
        """Whether the state of the first of so many next tokens does not depend on the others."""
        raise NotImplementedError


class LayerCache:
    """The keys and values of one decoder layer: of past tokens, and those (B, H, S, D) of the
    memory, once computed.
    """

    def __init__(self, past: GrowingKeys | None = None) -> None:
        self.past = past or GrowingKeys()
        self.memory: tuple[Tensor, Tensor] | None = None


class RowOrder(Protocol):
    """Where the keys of each row are stored, if a decoding step reads them there, so that
    `Cache.reorder` need not move them.
    """

    def reorder(self, cache: Cache, parents: Tensor) -> None:
        """Row i continues row parents[i]."""

    def move_keys(self, cache: Cache) -> None:
        """Move all keys to the rows that they belong to."""


class Cache:
    """The cache of a whole decoder. Its rows are beams; consecutive rows share a row of the memory.
    It belongs to one model, whose weights do not change while it is in use.

    row_order: set by a decoding step that reads keys where they are; before any other step,
        `move_keys` ends it. None if each row stores its own keys.
    """

    def __init__(
        self, layers: int | Iterable[GrowingKeys], inputs: StoredInputs | None = None
    ) -> None:
        """The given keys, one per layer, or a number of growing ones; inputs: of the stack, if it
        computes tokens again.
        """
        if isinstance(layers, int):
            layers = (GrowingKeys() for _ in range(layers))
        self.layers = [LayerCache(keys) for keys in layers]
        self.inputs = inputs
        self.row_order: RowOrder | None = None

    @property
    def length(self) -> int:
        """Tokens read, the same for every row."""
        return self.layers[0].past.length

    @property
    def stored(self) -> list[GrowingKeys]:
        """All that grows with the tokens read."""
        stored = [layer.past for layer in self.layers]
        if self.inputs is not None:
            stored.append(self.inputs)
        return stored

    def note_padding(self, attend: Tensor | None) -> None:
        """attend: (B, S), past and new keys. A window counts real keys only, so padding extends the
        reach.
        """
        sliding = [layer.past for layer in self.layers if isinstance(layer.past, SlidingKeys)]
        if not sliding or attend is None:
            return
        count = attend.long().cumsum(1)
        for window in {keys.window for keys in sliding}:
            # The last `window` real keys and the padding between them.
            near = (count > count[:, -1:] - window) & (count > 0)
            reach = int(near.sum(1).max())
            for keys in sliding:
                if keys.window == window:
                    keys.reach = reach

    def reorder(self, parents: Tensor) -> None:
        """Row i continues row parents[i], which belongs to the same source."""
        rows = torch.arange(len(parents), device=parents.device)
        if torch.equal(parents, rows):
            return
        if self.row_order is not None:
            self.row_order.reorder(self, parents)
            return
        for each in self.stored:
            each.select(parents)

    def move_keys(self) -> None:
        """Store the keys of each row in that row."""
        if self.row_order is not None:
            self.row_order.move_keys(self)
        self.row_order = None

    def select(self, rows: Tensor, sources: Tensor) -> None:
        """Keep these rows, and these rows of the memory (finished ones leave the batch)."""
        self.move_keys()
        for each in self.stored:
            each.select(rows)
        for layer in self.layers:
            if layer.memory is not None:
                layer.memory = layer.memory[0][sources], layer.memory[1][sources]

    def expand(self, beams: int) -> None:
        """Repeat every row `beams` times, one after the other; the memory keeps its rows."""
        self.move_keys()
        for each in self.stored:
            each.expand(beams)

    def truncate(self, length: int) -> None:
        """Remove all but the first `length` tokens."""
        self.move_keys()
        for each in self.stored:
            each.truncate(length)


def _sliding(window: int | None, rollback: int) -> GrowingKeys:
    if window is None:
        return GrowingKeys()
    return SlidingKeys(window, rollback)


# kind -> the keys of one layer, from its window (None: unlimited), capacity, and rollback
KEYS: dict[str, Callable[[int | None, int, int], GrowingKeys]] = {
    "growing": lambda window, capacity, rollback: GrowingKeys(),
    "static": lambda window, capacity, rollback: StaticKeys(capacity),
    "sliding": lambda window, capacity, rollback: _sliding(window, rollback),
}
