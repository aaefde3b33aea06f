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
    """Keys and values of one self-attention; `update` appends in place, doubling its room.

    held: keys and values (B, H, room, D), of which the first `length - gone` tokens are written; None before the first.
    length: tokens read. gone: how many of the first of them were let go.
    """

    def __init__(self) -> None:
        self.length = self.gone = 0
        self.held: tuple[Tensor, Tensor] | None = None
        self._spare: tuple[Tensor, Tensor] | None = None

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append (B, H, T, D) twice; gives all keys and values so far, as views."""
        start = self.length - self.gone
        end = start + keys.shape[2]
        if self.held is None or self.held[0].shape[2] < end:
            self.held = self._larger((keys, values), keys.shape[0], self._room(end))
        for held, new in zip(self.held, (keys, values), strict=True):
            held[:, :, start:end] = new
        self.length += keys.shape[2]
        return self.held[0][:, :, :end], self.held[1][:, :, :end]

    def place(self) -> int:
        """Where in `held`, which is there, the next token goes; for who writes it himself and then says `wrote`."""
        assert self.held is not None, "the first tokens come by update"
        start = self.length - self.gone
        if self.held[0].shape[2] <= start:
            self.held = self._larger(self.held, self.held[0].shape[0], self._room(start + 1))
        return start

    def wrote(self) -> None:
        """One more token stands in its place."""
        self.length += 1

    def _room(self, end: int) -> int:
        """How many tokens to make room for when there are to be `end`."""
        return max(16, 2 * end)

    def _larger(self, like: tuple[Tensor, Tensor], rows: int, room: int) -> tuple[Tensor, Tensor]:
        """New room, with what is held at its beginning where the rows are the same."""
        heads, width = like[0].shape[1], like[0].shape[3]
        keys, values = (y.new_zeros(rows, heads, room, width) for y in like)
        if self.held is not None and self.held[0].shape[0] == rows:
            filled = self.length - self.gone
            keys[:, :, :filled], values[:, :, :filled] = (y[:, :, :filled] for y in self.held)
        return keys, values

    def select(self, rows: Tensor) -> None:
        """Keep or repeat rows of the batch; where they become fewer, in the room that there is."""
        if self.held is None:
            return
        filled, count, target = self.length - self.gone, len(rows), self.held
        if count > self.held[0].shape[0]:
            target = self._larger(self.held, count, self.held[0].shape[2])
        for held, there in zip(self.held, target, strict=True):
            there[:count, :, :filled] = held[:, :, :filled].index_select(0, rows)
        self.held, self._spare = (target[0][:count], target[1][:count]), None

    def reorder(self, rows: Tensor) -> None:
        """Row i goes on from row rows[i], as many as there are. Two rooms take turns: beams do this at every step."""
        if self.held is None:
            return
        if self._spare is None or self._spare[0].shape != self.held[0].shape:
            self._spare = torch.zeros_like(self.held[0]), torch.zeros_like(self.held[1])
        filled = self.length - self.gone
        for held, there in zip(self.held, self._spare, strict=True):
            torch.index_select(held[:, :, :filled], 0, rows, out=there[:, :, :filled])
        self.held, self._spare = self._spare, self.held

    def gather(self, lineage: Tensor) -> None:
        """Key s of row r comes from row lineage[r, s]."""
        if self.held is None:
            return
        filled, heads = self.length - self.gone, torch.arange(self.held[0].shape[1], device=lineage.device)
        rows, tokens = lineage[:, None, :filled], torch.arange(filled, device=lineage.device)
        for held in self.held:
            held[:, :, :filled] = held[rows, heads[:, None], tokens]

    def expand(self, times: int) -> None:
        """Every row becomes `times` rows, one after the other."""
        if self.held is not None:
            rows = torch.arange(self.held[0].shape[0], device=self.held[0].device)
            self.select(rows.repeat_interleave(times))

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        self.length = min(self.length, length)


class StaticKeys(GrowingKeys):
    """The same in room for `room` tokens, taken once: what is read lies where it lay, and its shapes are known."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def _room(self, end: int) -> int:
        """Raises ValueError where the room is too small."""
        if end > self.room:
            raise ValueError(f"{end} tokens do not fit a static cache of {self.room}: make it larger")
        return self.room


class SlidingKeys(GrowingKeys):
    """Keys and values that a window can still reach, after `rollback` tokens were taken back, and an eighth more.

    reach: how many of the tokens before it a new one may look at, those among them counted that are padding.
    """

    def __init__(self, window: int, rollback: int = 0) -> None:
        super().__init__()
        self.window, self.rollback, self.reach = window, rollback, window - 1

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append (B, H, T, D) twice; gives those still held and the new ones, as views."""
        seen = super().update(keys, values)
        self._let_go()
        return seen

    def wrote(self) -> None:
        """One more token stands in its place, and the farthest one may go."""
        super().wrote()
        self._let_go()

    @property
    def _most(self) -> int:
        """So many tokens may be held: with some to spare, a step seldom has to move all of them."""
        kept = self.reach + self.rollback
        return kept + kept // 8

    def _room(self, end: int) -> int:
        return max(end, self._most + 1)

    def _let_go(self) -> None:
        """Into new room, so that what is let go is free at once."""
        filled, kept = self.length - self.gone, self.reach + self.rollback
        if self.held is None or filled <= self._most:
            return
        tails = self.held[0][:, :, filled - kept : filled], self.held[1][:, :, filled - kept : filled]
        self.held, self.gone = None, self.length - kept
        self.held = self._larger(tails, tails[0].shape[0], self._most + 1)
        for held, tail in zip(self.held, tails, strict=True):
            held[:, :, :kept] = tail

    def truncate(self, length: int) -> None:
        """Forget the tokens after the first `length`. Raises ValueError where those before them are gone already."""
        if length - self.gone < min(length, self.reach):
            raise ValueError(
                f"{self.length - length} tokens cannot be taken back: this cache was made for {self.rollback}"
            )
        super().truncate(length)


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

    lineage: (R, room) in which row key s of each row stands, so that beams need not move what they have read at every
    step; None where each has its own. Only who says `follows` reads by it; for everybody else keys are moved.
    """

    def __init__(self, layers: int | Iterable[GrowingKeys]) -> None:
        """So many growing ones, or those given, one a layer."""
        own = (GrowingKeys() for _ in range(layers)) if isinstance(layers, int) else layers
        self.layers = [LayerCache(keys) for keys in own]
        self.follows = False  # who reads next follows a lineage
        self.lineage: Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens already read, the same for every row."""
        return self.layers[0].own.length

    def mind_padding(self, attend: Tensor | None) -> None:
        """Told of (B, S) all keys, those to come among them: a window counts the real ones, and padding takes room."""
        sliding = [layer.own for layer in self.layers if isinstance(layer.own, SlidingKeys)]
        if not sliding or attend is None:
            return
        count = attend.long().cumsum(1)
        for window in {own.window for own in sliding}:
            near = (count > count[:, -1:] - window) & (count > 0)  # the last real ones, and padding between
            reach = int(near.sum(1).max())
            for own in sliding:
                own.reach = reach if own.window == window else own.reach

    def reorder(self, parents: Tensor) -> None:
        """Row i goes on from what was row parents[i]; a parent belongs to the same sentence."""
        rows = torch.arange(len(parents), device=parents.device)
        if torch.equal(parents, rows):
            return
        if not self.follows:
            for layer in self.layers:
                layer.own.reorder(parents)
            return
        lineage = self.followed()
        lineage = rows[:, None].repeat(1, self.length + 1) if lineage is None else lineage
        lineage[:, : self.length] = lineage[parents, : self.length]
        self.lineage = lineage

    def followed(self) -> Tensor | None:
        """The lineage, wide enough for one more key: what is not written yet is going to be each row's own."""
        if self.lineage is not None and self.lineage.shape[1] <= self.length:
            rows = torch.arange(len(self.lineage), device=self.lineage.device)
            self.lineage = torch.cat([self.lineage, rows[:, None].expand(-1, self.length)], 1)
        return self.lineage

    def settle(self) -> None:
        """Keys move to the rows that they belong to."""
        if self.lineage is not None:
            for layer in self.layers:
                layer.own.gather(self.lineage)
        self.lineage, self.follows = None, False

    def select(self, rows: Tensor, sentences: Tensor) -> None:
        """Keep these rows and these sentences (finished ones leave the batch)."""
        self.settle()
        for layer in self.layers:
            layer.own.select(rows)
            layer.memory.select(sentences)

    def expand(self, beams: int) -> None:
        """Every row becomes `beams` rows, one after the other; the memory stays one row a sentence."""
        self.settle()
        for layer in self.layers:
            layer.own.expand(beams)

    def truncate(self, length: int) -> None:
        """Forget the tokens after the first `length`."""
        self.settle()
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
