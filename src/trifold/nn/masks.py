"""Attention masks; the only file that builds them.

Everywhere True means "may attend". A `Mask` is built once per forward pass and keeps its structure
(causal, padding, window, order), so that `attend` can choose the fastest kernel; its dense form
broadcasts to (B, H, T, S). A query that may attend to nothing gives 0, with finite gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trifold.nn.packing import Packing

if TYPE_CHECKING:
    from trifold.nn.spans import Spans


@dataclass(frozen=True)
class Mask:
    """Which keys a query may attend to: all that every field allows.

    keys: (B, S) boolean, True at real keys; None if all are.
    causal: query t attends to the keys up to t + offset; offset is the number of keys already in a
        cache. If there are fewer keys than were read, they are the last ones.
    window: a query attends to keys at a distance of less than `window` real keys.
    segment: (size, reach): the real keys are divided into segments; a query attends to the keys of
        its own segment and to `reach` keys before it.
    blocks: a query attends to a few blocks of keys.
    spans: the keys are tokens and spans of them; a token attends to some of both.
    globals: (B, S) boolean, tokens that attend to all keys and that all queries attend to, whatever
        the window is.
    summaries: the last keys are summaries of blocks of tokens; `globals` has them.
    table: (B or 1, H or 1, T, S) boolean, any other rule.
    order: (B, S) the rank of each key in a factorization order; a query attends to the keys up to
        its own rank.
    query_index: (B, T) the keys whose content the query stream predicts: query t attends to the
        keys of a lower rank than key query_index[t], and not to that key.
    packing, key_packing: how the rows of the queries, and those of a memory's keys, are packed.
    orders: by length, in which order a layer with LSH attention sorts the tokens; a second run
    repeats the first.
    """

    keys: Tensor | None = None
    causal: bool = False
    offset: int = 0
    window: int | None = None
    segment: tuple[int, int] | None = None
    blocks: Blocks | None = None
    spans: Spans | None = None
    globals: Tensor | None = None
    summaries: Summaries | None = None
    table: Tensor | None = None
    order: Tensor | None = None
    query_index: Tensor | None = None
    packing: Packing | None = None
    key_packing: Packing | None = None
    orders: dict[int, Tensor] | None = None

    def __post_init__(self) -> None:
        if self.keys is not None and self.keys.dtype is not torch.bool:
            raise TypeError(f"a mask is boolean (True = may attend), not {self.keys.dtype}")

    @property
    def has_fully_masked_rows(self) -> bool:
        """True if some query may attend to nothing: its row has no real key, or it is the first in
        the order.

        Also True while a graph is traced, which must not depend on the values of a mask.
        """
        return torch.compiler.is_compiling() or self._has_fully_masked_rows

    @cached_property
    def _has_fully_masked_rows(self) -> bool:
        if self.order is not None:
            index = self.order if self.query_index is None else self.query_index
            allowed = self.dense(index.shape[1], self.order.shape[1], self.order.device)
            return allowed is not None and not bool(allowed.any(-1).all())
        if self.table is not None:
            return not bool(self.table.any(-1).all())
        if self.keys is None:
            return False
        # The first query has the fewest keys.
        keys = self.keys[:, : self.offset + 1] if self.causal else self.keys
        return not bool(keys.any(-1).all())

    def positions(self, queries: int, device: torch.device) -> Tensor:
        """(B or 1, S) the position of each key among the real keys of its row; the first query is
        key `offset`.
        """
        real = self.packing.attend if self.keys is None and self.packing is not None else self.keys
        if real is not None:
            return real_positions(real)
        keys = self.offset + queries if self.order is None else self.order.shape[1]
        return torch.arange(keys, device=device)[None]

    def distances(self, queries: int, device: torch.device) -> Tensor:
        """(B or 1, T, S) position of the key minus position of the query."""
        own, others = self.pairs(self.positions(queries, device), queries)
        return (others - own)[:, 0]

    def pairs(self, x: Tensor, queries: int) -> tuple[Tensor, Tensor]:
        """x (B or 1, S) at the queries and at all keys: (B or 1, 1, T, 1) and (B or 1, 1, 1, S)."""
        q = (
            slice(self.offset, self.offset + queries)
            if self.query_index is None
            else self.query_index
        )
        return at_pairs(x, q, slice(None))

    def dense(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """Boolean (B or 1, H or 1, T or 1, S), or None if nothing is forbidden."""
        evicted = self._evicted(queries, keys)
        rules = [] if self.table is None else [self.table]
        if self.order is not None:
            own, others = self.pairs(self.order, queries)
            rules.append(others <= own if self.query_index is None else others < own)
        q, k = slice(self.offset, self.offset + queries), slice(evicted, evicted + keys)
        allowed = self.allowed(
            q, k, self.positions(queries, device) if self.is_local else None, device
        )
        rules += [] if allowed is None else [allowed]
        return reduce(torch.logical_and, rules) if rules else None

    @property
    def is_local(self) -> bool:
        """Whether a query attends to some of the real keys before it only."""
        return self.window is not None or self.segment is not None or self.blocks is not None

    def allowed(
        self, q: slice, k: slice | Tensor, positions: Tensor | None, device: torch.device
    ) -> Tensor | None:
        """The dense form for some queries and some keys: q and k are their numbers, k also (B or 1,
        H or 1, S); without `order` and `table`. positions: (B or 1, N) of all keys, if the mask is
        local.
        """
        queries, keys = pair_numbers(q, k, device)
        rules, near = [] if self.keys is None else [_at(self.keys, keys)], []
        if self.causal and (isinstance(k, Tensor) or k.stop > q.start + 1):
            rules.append(keys <= queries)
        if positions is not None:
            own, others = at_pairs(
                positions, q if self.query_index is None else self.query_index, k
            )
            if self.window is not None and not self._fits_window(q, k):
                near.append((others - own).abs() < self.window)
            if self.segment is not None:
                size, reach = self.segment
                near.append(others >= own // size * size - reach)
        if self.blocks is not None:
            near.append(self.blocks.allowed(queries, keys))
        if self.spans is not None:
            near.append(self.spans.places(queries, keys) >= 0)
        if near and self.globals is not None:
            either = _at(self.globals, keys) | self.globals[:, None, q, None]
            near = [reduce(torch.logical_and, near) | either]
        rules += near
        return reduce(torch.logical_and, rules) if rules else None

    def with_summaries(self, size: int, queries: int, device: torch.device) -> Mask:
        """The mask of self-attention with a summary of each block of `size` real tokens as further
        keys.
        """
        positions = self.positions(queries, device)
        real = self.keys if self.packing is None else self.packing.attend
        real = torch.ones_like(positions, dtype=torch.bool) if real is None else real
        counts = real.sum(1, keepdim=True) // size
        numbers = torch.arange(int(counts.max()), device=device)[None]
        exist = numbers < counts
        blocks = (positions // size).minimum(counts - 1).where(real, -1)
        summaries = Summaries(torch.cat([blocks, numbers.expand(len(blocks), -1)], 1), queries)
        others = torch.zeros_like(real) if self.globals is None else self.globals
        rows = max(len(real), len(others))
        keys, all_globals = (
            torch.cat([x.expand(rows, -1), exist.expand(rows, -1)], 1) for x in (real, others)
        )
        return replace(self, keys=keys, globals=all_globals, summaries=summaries)

    def _fits_window(self, q: slice, k: slice | Tensor) -> bool:
        """Whether no distance exceeds the window."""
        return isinstance(k, slice) and max(q.stop, k.stop) - k.start <= (self.window or 0)

    def _evicted(self, queries: int, keys: int) -> int:
        """How many of the first keys a cache no longer holds."""
        return max(0, self.offset + queries - keys) if self.causal else 0

    def additive(
        self, queries: int, keys: int, like: Tensor, bias: Tensor | None = None
    ) -> Tensor | None:
        """The dense form to be added to scores: 0 or the bias where allowed, -inf elsewhere; cached
        for the last bias.

        bias: (B or 1, H, T or 1, S), for all keys that were read.
        """
        if torch.compiler.is_compiling():  # a graph would depend on the sizes in the cache
            return self._new_additive(queries, keys, like, bias)
        key = (queries, keys, like.dtype, like.device, bias is None)
        if key not in self._additive or self._additive[key][1] is not bias:
            self._additive[key] = self._new_additive(queries, keys, like, bias), bias
        return self._additive[key][0]

    def _new_additive(
        self, queries: int, keys: int, like: Tensor, bias: Tensor | None
    ) -> Tensor | None:
        allowed = self.dense(queries, keys, like.device)
        counts = (
            None if self.blocks is None else self.blocks.offsets(slice(0, queries), slice(0, keys))
        )
        bias = counts if bias is None else bias if counts is None else bias + counts
        if bias is not None:
            offsets = bias[..., self._evicted(queries, keys) :].to(like.dtype)
            return offsets if allowed is None else offsets.masked_fill(~allowed, float("-inf"))
        if allowed is None:
            return None
        zeros = torch.zeros(allowed.shape, dtype=like.dtype, device=allowed.device)
        return zeros.masked_fill_(~allowed, float("-inf"))

    @cached_property
    def _additive(self) -> dict[object, tuple[Tensor | None, Tensor | None]]:
        return {}


@dataclass(frozen=True)
class Summaries:
    """Blocks of real tokens, each with a summary. The tokens after the last whole block belong to
    it.

    blocks: (B or 1, T + G) the block of each of the T `tokens`, -1 for none; then the numbers of
    the G blocks.
    """

    blocks: Tensor
    tokens: int

    def sums(self, x: Tensor) -> Tensor:
        """The sum of the tokens of each block: x (B, T, E) -> (B, G, E)."""
        count = self.blocks.shape[1] - self.tokens
        index = self.blocks[:, : self.tokens, None].expand(*x.shape)
        sums = x.new_zeros(
            len(x), count + 1, x.shape[2]
        )  # the last one is of tokens without a block
        return sums.scatter_add(1, index % (count + 1), x)[:, :count]


@dataclass(frozen=True)
class Blocks:
    """Blocks of `size` consecutive tokens (Zaheer et al. 2020, "BigBird", section 2): a query
    attends to its own block, the two beside it, the first, the last, and random ones; the queries
    of the first and the last block attend to all.

    last: (B or 1,) the last block of each row. random: (B or 1, H, N, R) the random blocks of each
        block of queries.
    full: (B or 1,) rows that are so short that every query attends to all.
    first_counts: how often the first block counts for the queries that do not attend to all.
    """

    size: int
    last: Tensor
    random: Tensor
    full: Tensor
    first_counts: int = 1

    @classmethod
    def of(
        cls,
        keys: Tensor | None,
        tokens: int,
        size: int,
        heads: int,
        random: int,
        *,
        seed: int,
        repeat: bool,
    ) -> Blocks:
        """Blocks of rows of `tokens` tokens, of which `keys` (B, S) are real, with `random` random
        blocks, which depend on the seed and the number of blocks of a row. repeat: the first block
        that often instead.

        Rows of at most 5 + 2·random blocks are full.
        """
        ends = torch.tensor([tokens])
        if keys is not None:
            ends = (
                (keys * torch.arange(1, keys.shape[1] + 1, device=keys.device)).amax(1).clamp_min(1)
            )
        counts, device = -(-ends // size), ends.device
        full = ends <= (5 + 2 * random) * size
        chosen = torch.zeros(
            len(ends), heads, int(counts.max()), 0 if repeat else random, dtype=torch.int64
        )
        for row, (count, every) in enumerate(zip(counts.tolist(), full.tolist(), strict=True)):
            if not every and not repeat:
                chosen[row, :, :count] = random_blocks(count, heads, random, seed)
        return cls(size, counts - 1, chosen.to(device), full, 1 + random if repeat else 1)

    def allowed(self, queries: Tensor, keys: Tensor) -> Tensor:
        """queries (T, 1), keys (B or 1, H or 1, 1, S), numbers of tokens -> (B or 1, H or 1, T,
        S).
        """
        own, others = queries // self.size, keys // self.size
        chosen = self.random[
            :, :, own[:, 0].clamp_max(self.random.shape[2] - 1)
        ]  # (B or 1, H, T, R)
        rules = [chosen[..., number, None] == others for number in range(chosen.shape[-1])]
        rules += [(own - others).abs() <= 1, others == 0, others == self.last[:, None, None, None]]
        return reduce(torch.logical_or, rules) | self.reads_all(queries[:, 0])[:, None, :, None]

    def reads_all(self, queries: Tensor) -> Tensor:
        """queries (T,) -> (B or 1, T) whether they attend to all keys."""
        own = queries // self.size
        return (own == 0) | (own == self.last[:, None]) | self.full[:, None]

    def offsets(self, q: slice, k: slice | Tensor) -> Tensor | None:
        """What is added to scores if the first block counts several times; for the arguments see
        `Mask.allowed`.
        """
        if self.first_counts == 1:
            return None
        queries, keys = pair_numbers(q, k, self.last.device)
        repeated = ~self.reads_all(queries[:, 0])[:, None, :, None] & (keys // self.size == 0)
        return repeated * math.log(self.first_counts)


@lru_cache(maxsize=256)
def random_blocks(count: int, heads: int, chosen: int, seed: int) -> Tensor:
    """(H, count, chosen) blocks for each of `count` blocks: not itself, its neighbours, the first
    or the last.
    """
    scores = torch.rand(heads, count, count, generator=torch.Generator().manual_seed(seed))
    numbers = torch.arange(count)
    near = (numbers[:, None] - numbers).abs() <= 1
    return (
        scores.masked_fill(near | (numbers == 0) | (numbers == count - 1), -1).topk(chosen).indices
    )


def pair_numbers(q: slice, k: slice | Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Numbers of queries (T, 1), and of keys (B or 1, H or 1, 1, S)."""
    queries = torch.arange(q.start, q.stop, device=device)[:, None]
    keys = k if isinstance(k, Tensor) else torch.arange(k.start, k.stop, device=device)[None, None]
    return queries, keys[:, :, None]


@dataclass(frozen=True)
class PairBias:
    """A bias of scores that is computed for some queries and keys only, because no query reads all
    keys.

    compute: (numbers of queries, numbers of keys, *weights) -> (B or 1, H, T, S); see `at_pairs`.
    """

    weights: tuple[Tensor, ...]
    compute: Callable[..., Tensor]

    def dense(self, queries: int, keys: int) -> Tensor:
        """(B or 1, H, T, S)."""
        return self.compute(slice(0, queries), slice(0, keys), *self.weights)


def at_pairs(x: Tensor, q: slice | Tensor, k: slice | Tensor) -> tuple[Tensor, Tensor]:
    """x (B or 1, N) at the queries q, a slice or (B, T), and at the keys k, a slice or (B or 1, H
    or 1, S): (B or 1, 1, T, 1) and (B or 1, H or 1, 1, S).
    """
    own = x[:, q] if isinstance(q, slice) else x.expand(len(q), -1).gather(1, q)
    others = x[:, None, None, k] if isinstance(k, slice) else _at(x, k[:, :, None])
    return own[:, None, :, None], others


def _at(x: Tensor, keys: Tensor) -> Tensor:
    """x (B or 1, N) at keys (B or 1, H or 1, 1, S): (B or 1, H or 1, 1, S)."""
    if len(keys) == 1 and keys.shape[1] == 1:
        return x[:, keys[0, 0]][:, None]
    rows = max(len(x), len(keys))
    return (
        x[:, None, None]
        .expand(rows, *keys.shape[1:3], -1)
        .gather(-1, keys.expand(rows, -1, -1, -1))
    )


def real_positions(attend: Tensor) -> Tensor:
    """(B, S) the position of each token among the real ones of its row; padding has that of the
    last one.
    """
    return (attend.long().cumsum(1) - 1).clamp_min(0)


def padding_mask(lengths: Tensor, width: int) -> Tensor | None:
    """(B,) lengths in tokens -> (B, S) True at real positions, or None if no row is shorter than
    `width`.
    """
    real = torch.arange(width, device=lengths.device) < lengths[:, None]
    return None if bool(real.all()) else real
