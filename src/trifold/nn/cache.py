"""Key/value caches: a decoding step computes the keys and values of the new token only.

A cache is an argument owned by the caller. The keys of self-attention grow by one token per step.
Those of cross-attention are computed once from the encoder's output; they have one row per source,
shared by all its beams.

    growing   allocates as it needs
    static    allocates everything at the start, and no more
    sliding   evicts what no window reaches, except for some tokens that `truncate` may need
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from trifold.nn.masks import Mask


class GrowingKeys:
    """Keys and values of one self-attention. `update` appends in place; the buffers grow by
    doubling.

    buffers: keys and values (B, H, capacity, D), of which the first `length - evicted` tokens are
        filled.
    length: number of tokens read. evicted: how many of them, from the first on, are no longer
    stored.
    """

    def __init__(self) -> None:
        self.length = self.evicted = 0
        self.buffers: tuple[Tensor, Tensor] | None = None

    @property
    def _filled(self) -> int:
        return self.length - self.evicted

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values (B, H, T, D); return views of all that are stored."""
        start = self._filled
        end = start + keys.shape[2]
        if self.buffers is None or self.buffers[0].shape[2] < end:
            self.buffers = self._enlarge((keys, values), keys.shape[0], self._capacity(end))
        for buffer, new in zip(self.buffers, (keys, values), strict=True):
            buffer[:, :, start:end] = new
        self.length += keys.shape[2]
        return self.buffers[0][:, :, :end], self.buffers[1][:, :, :end]

    def next_slot(self) -> int:
        """Where in the buffers the next token belongs, for a caller that writes it there and then
        calls `advance`.
        """
        assert self.buffers is not None, "the first tokens are appended by update"
        start = self._filled
        if self.buffers[0].shape[2] <= start:
            self.buffers = self._enlarge(
                self.buffers, self.buffers[0].shape[0], self._capacity(start + 1)
            )
        return start

    def advance(self) -> None:
        """Count the token that was written into `next_slot`."""
        self.length += 1

    def _capacity(self, end: int) -> int:
        """The number of tokens to allocate when `end` are needed."""
        return max(16, 2 * end)

    def _enlarge(
        self, like: tuple[Tensor, Tensor], rows: int, capacity: int
    ) -> tuple[Tensor, Tensor]:
        """New buffers, with the current contents if the number of rows is the same."""
        keys, values = (y.new_zeros(rows, y.shape[1], capacity, y.shape[3]) for y in like)
        if self.buffers is not None and self.buffers[0].shape[0] == rows:
            filled = self._filled
            keys[:, :, :filled], values[:, :, :filled] = (y[:, :, :filled] for y in self.buffers)
        return keys, values

    def select(self, rows: Tensor) -> None:
        """Row i becomes row rows[i]; in place unless there are more than before."""
        if self.buffers is None:
            return
        filled, count, target = self._filled, len(rows), self.buffers
        if count > self.buffers[0].shape[0]:
            target = self._enlarge(self.buffers, count, self.buffers[0].shape[2])
        for source, out in zip(self.buffers, target, strict=True):
            out[:count, :, :filled] = source[:, :, :filled].index_select(0, rows)
        self.buffers = target[0][:count], target[1][:count]

    def gather(self, beam_index: Tensor) -> None:
        """Key s of row r becomes that of row beam_index[r, s]."""
        if self.buffers is None:
            return
        filled = self._filled
        heads, tokens = (
            torch.arange(n, device=beam_index.device) for n in (self.buffers[0].shape[1], filled)
        )
        for buffer in self.buffers:
            buffer[:, :, :filled] = buffer[beam_index[:, None, :filled], heads[:, None], tokens]

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
        self.window, self.rollback, self.reach = window, rollback, window - 1

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values (B, H, T, D); return views of those stored before and the new
        ones.
        """
        stored = super().update(keys, values)
        self._evict()
        return stored

    def advance(self) -> None:
        super().advance()
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
        filled, kept = self._filled, self.reach + self.rollback
        if self.buffers is None or filled <= self._most:
            return
        tails = (
            self.buffers[0][:, :, filled - kept : filled],
            self.buffers[1][:, :, filled - kept : filled],
        )
        self.buffers, self.evicted = None, self.length - kept
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


class StoredInputs(GrowingKeys):
    """The inputs (B, 1, T, E) of a stack that may compute earlier tokens again."""

    def is_prefix(self, mask: Mask, tokens: int, device: torch.device) -> bool:
        """Whether the state of the first of so many next tokens does not depend on the others."""
        raise NotImplementedError


class LayerCache:
    """The keys and values of one decoder layer: its own, and those (B, H, S, D) of the memory, once
    computed.
    """

    def __init__(self, own: GrowingKeys | None = None) -> None:
        self.own = own or GrowingKeys()
        self.memory: tuple[Tensor, Tensor] | None = None


class Cache:
    """The cache of a whole decoder. Its rows are beams; consecutive rows share a row of the memory.
    It belongs to one model, whose weights do not change while it is in use.

    beam_index: (R, capacity) the row in which key s of each row is stored, so that `reorder` need
        not move keys; None if each row stores its own. Only a decoding step that sets
        `uses_beam_index` reads it; before any other step, `gather_beams` moves the keys.
    """

    def __init__(
        self, layers: int | Iterable[GrowingKeys], inputs: StoredInputs | None = None
    ) -> None:
        """The given keys, one per layer, or a number of growing ones; inputs: of the stack, if it
        computes tokens again.
        """
        own = (GrowingKeys() for _ in range(layers)) if isinstance(layers, int) else layers
        self.layers, self.inputs = [LayerCache(keys) for keys in own], inputs
        self.uses_beam_index = False
        self.beam_index: Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens read, the same for every row."""
        return self.layers[0].own.length

    @property
    def _stored(self) -> list[GrowingKeys]:
        return [layer.own for layer in self.layers] + ([] if self.inputs is None else [self.inputs])

    def note_padding(self, attend: Tensor | None) -> None:
        """attend: (B, S), past and new keys. A window counts real keys only, so padding extends the
        reach.
        """
        sliding = [layer.own for layer in self.layers if isinstance(layer.own, SlidingKeys)]
        if not sliding or attend is None:
            return
        count = attend.long().cumsum(1)
        for window in {keys.window for keys in sliding}:
            # The last `window` real keys and the padding between them.
            near = (count > count[:, -1:] - window) & (count > 0)
            reach = int(near.sum(1).max())
            for keys in sliding:
                keys.reach = reach if keys.window == window else keys.reach

    def reorder(self, parents: Tensor) -> None:
        """Row i continues row parents[i], which belongs to the same source."""
        rows = torch.arange(len(parents), device=parents.device)
        if torch.equal(parents, rows):
            return
        if not self.uses_beam_index:
            for own in self._stored:
                own.select(parents)
            return
        index = self.current_beam_index()
        index = rows[:, None].repeat(1, self.length + 1) if index is None else index
        index[:, : self.length] = index[parents, : self.length]
        self.beam_index = index

    def current_beam_index(self) -> Tensor | None:
        """The beam index with space for one more key; a new key belongs to its own row."""
        if self.beam_index is not None and self.beam_index.shape[1] <= self.length:
            rows = torch.arange(len(self.beam_index), device=self.beam_index.device)
            self.beam_index = torch.cat([self.beam_index, rows[:, None].expand(-1, self.length)], 1)
        return self.beam_index

    def gather_beams(self) -> None:
        """Move all keys to the rows they belong to."""
        if self.beam_index is not None:
            for own in self._stored:
                own.gather(self.beam_index)
        self.beam_index, self.uses_beam_index = None, False

    def select(self, rows: Tensor, sources: Tensor) -> None:
        """Keep these rows, and these rows of the memory (finished ones leave the batch)."""
        self.gather_beams()
        for own in self._stored:
            own.select(rows)
        for layer in self.layers:
            if layer.memory is not None:
                layer.memory = layer.memory[0][sources], layer.memory[1][sources]

    def expand(self, beams: int) -> None:
        """Repeat every row `beams` times, one after the other; the memory keeps its rows."""
        self.gather_beams()
        for own in self._stored:
            own.expand(beams)

    def truncate(self, length: int) -> None:
        """Remove all but the first `length` tokens."""
        self.gather_beams()
        for own in self._stored:
            own.truncate(length)


# kind -> the keys of one layer, from its window (None: unlimited), capacity, and rollback
KEYS: dict[str, Callable[[int | None, int, int], GrowingKeys]] = {
    "growing": lambda window, capacity, rollback: GrowingKeys(),
    "static": lambda window, capacity, rollback: StaticKeys(capacity),
    "sliding": lambda window, capacity, rollback: (
        GrowingKeys() if window is None else SlidingKeys(window, rollback)
    ),
}
