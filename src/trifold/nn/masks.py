"""Attention masks; the only file that builds them.

Everywhere True means "may attend". A `Mask` is built once per forward pass for each kind of layer.
It states which keys are real, causality and packing; everything else is a tuple of rules, of which
each describes itself (`Rule`). The dense form broadcasts to (B, H, T, S). A query that may attend
to nothing gives 0, with finite gradients.

A kernel declares the types of rules that it supports and leaves masks with other rules to the plain
definition. Shapes: B batch, T queries, S keys, H heads, N all keys of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from trifold.nn.packing import UNPACKED, Packing, Unpacked

AnyRule = TypeVar("AnyRule", bound="Rule")


@dataclass(frozen=True)
class Mask:
    """Which keys a query may attend to: all that the fields and every rule allow.

    keys: (B, S) boolean, True at real keys; None if all are.
    causal: query t attends to the keys up to t + offset; offset is the number of keys before
        the first query, as those in a cache, which may have evicted the first ones (`evicted`).
    queries: (B, T) which keys the queries are, the targets of a query stream; by default they are
        the slice of keys that starts at `offset`.
    packing, key_packing: how the rows of the queries, and those of a memory's keys, are packed.
    rules: further restrictions (`Rule`).
    """

    keys: Tensor | None = None
    causal: bool = False
    offset: int = 0
    queries: Tensor | None = None
    packing: Packing | Unpacked = UNPACKED
    key_packing: Packing | Unpacked = UNPACKED
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        if self.keys is not None and self.keys.dtype is not torch.bool:
            raise TypeError(f"a mask is boolean (True = may attend), not {self.keys.dtype}")

    def rule(self, kind: type[AnyRule]) -> AnyRule | None:
        """The rule of that type, if there is one."""
        for rule in self.rules:
            if isinstance(rule, kind):
                return rule
        return None

    def has_only(self, *kinds: type[Rule]) -> bool:
        """Whether all rules are of these types, at most one of each, and the queries are a slice of
        the keys.
        """
        types = [type(rule) for rule in self.rules]
        are_distinct = len(set(types)) == len(types)
        return self.queries is None and are_distinct and set(types) <= set(kinds)

    # --- rows -------------------------------------------------------------------------------------

    def count(self, x: Tensor) -> int:
        """T, the number of queries of a row: x (B, T, E), or packed (1, N, E)."""
        return self.packing.width(x.shape[1])

    def grid(self, x: Tensor) -> Tensor:
        """The states of the queries, x (B, T, E) or packed (1, N, E) -> (B, T, E)."""
        return self.packing.grid(x)

    def flat(self, x: Tensor) -> Tensor:
        """x (B, T, E) -> (B, T, E), or packed (1, N, E) as the states of the queries are."""
        return self.packing.flat(x)

    def key_grid(self, memory: Tensor) -> Tensor:
        """The states of a memory's keys (B, S, E), or packed (1, N, E), -> (B, S, E)."""
        return self.key_packing.grid(memory)

    @property
    def real(self) -> Tensor | None:
        """(B, S) True at real keys, also of packed rows; None if all are."""
        return self.packing.attend if self.keys is None else self.keys

    def real_keys(self, keys: int, device: torch.device) -> Tensor:
        """(B or 1, S) True at real keys, out of so many."""
        if self.real is None:
            return torch.ones(1, keys, dtype=torch.bool, device=device)
        return self.real

    def with_rule(self, rule: Rule) -> Mask:
        """This mask with one rule more, the last one."""
        return replace(self, rules=(*self.rules, rule))

    # --- positions --------------------------------------------------------------------------------

    def positions(self, queries: int, device: torch.device) -> Tensor:
        """(B or 1, S) the position of each key among the real keys of its row; the first query is
        key `offset`.
        """
        if self.real is not None:
            return real_positions(self.real)
        assert self.queries is None, "a query stream names the real keys"
        return torch.arange(self.offset + queries, device=device)[None]

    def distances(self, queries: int, device: torch.device) -> Tensor:
        """(B or 1, T, S) position of the key minus position of the query."""
        own, others = self.pairs(self.positions(queries, device), queries)
        return (others - own)[:, 0]

    def pairs(self, x: Tensor, queries: int) -> tuple[Tensor, Tensor]:
        """x (B or 1, S) at the queries and at all keys: (B or 1, 1, T, 1) and (B or 1, 1, 1, S)."""
        return at_pairs(x, self._own(queries), slice(None))

    def _own(self, queries: int) -> slice | Tensor:
        """Which keys the queries are."""
        if self.queries is not None:
            return self.queries
        return slice(self.offset, self.offset + queries)

    # --- dense form -------------------------------------------------------------------------------

    def whole(self, queries: int, keys: int, device: torch.device) -> MaskPart:
        """All queries, and the keys that are stored."""
        evicted = self.evicted(queries, keys)
        return MaskPart(self, self._own(queries), slice(evicted, evicted + keys), device)

    def dense(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """Boolean (B or 1, H or 1, T or 1, S), or None if nothing is forbidden."""
        return self.allowed(self.whole(queries, keys, device))

    def allowed(self, part: MaskPart) -> Tensor | None:
        """The dense form for some queries and some keys."""
        allowed = [rule.allowed(part) for rule in self.rules if not rule.can_be_lifted]
        if self.keys is not None:
            allowed.append(part.at_keys(self.keys))
        if self.causal and part.has_later_keys:
            allowed.append(part.key_numbers <= part.query_numbers)
        # Of the rules that can be lifted, all must allow a pair, or some rule lifts them for it.
        liftable = _all_of(rule.allowed(part) for rule in self.rules if rule.can_be_lifted)
        lifts = _combined(torch.logical_or, (rule.lifts(part) for rule in self.rules))
        if liftable is not None and lifts is not None:
            liftable = liftable | lifts
        return _all_of([*allowed, liftable])

    def added(self, part: MaskPart) -> Tensor | None:
        """What the rules add to scores."""
        return _combined(torch.add, (rule.added(part) for rule in self.rules))

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
        part = self.whole(queries, keys, like.device)
        allowed = self.allowed(part)
        added = self.added(part)
        if bias is not None:
            added = _combined(torch.add, (bias[..., self.evicted(queries, keys) :], added))
        if allowed is None:
            return None if added is None else added.to(like.dtype)
        if added is None:
            zeros = torch.zeros(allowed.shape, dtype=like.dtype, device=allowed.device)
            return zeros.masked_fill_(~allowed, float("-inf"))
        return added.to(like.dtype).masked_fill(~allowed, float("-inf"))

    def evicted(self, queries: int, keys: int) -> int:
        """How many of the first keys a cache no longer holds."""
        if not self.causal:
            return 0
        return max(0, self.offset + queries - keys)

    def has_fully_masked_rows(self, queries: int, keys: int, device: torch.device) -> bool:
        """True if some query may attend to nothing: its row has no real key, or a rule forbids all.

        Also True while a graph is traced, which must not depend on the values of a mask.
        """
        if torch.compiler.is_compiling():
            return True
        if (queries, keys) not in self._fully_masked:
            found = self._find_fully_masked_rows(queries, keys, device)
            self._fully_masked[queries, keys] = found
        return self._fully_masked[queries, keys]

    def _find_fully_masked_rows(self, queries: int, keys: int, device: torch.device) -> bool:
        if any(rule.may_forbid_all for rule in self.rules):
            allowed = self.dense(queries, keys, device)
            return allowed is not None and not bool(allowed.any(-1).all())
        if self.keys is None:
            return False
        read = self.keys
        if self.causal:  # the first query has the fewest keys
            read = read[:, : self.offset + 1]
        return not bool(read.any(-1).all())

    @cached_property
    def _additive(self) -> dict[object, tuple[Tensor | None, Tensor | None]]:
        return {}

    @cached_property
    def _fully_masked(self) -> dict[tuple[int, int], bool]:
        return {}


def declares(value: object, name: str) -> Any:
    """What the class of a value states itself. A subclass may compute something else, so a kernel
    does not trust what it inherits.
    """
    return vars(type(value)).get(name)


def _all_of(conditions: Iterable[Tensor | None]) -> Tensor | None:
    """True where all that are stated hold; None if none is stated."""
    return _combined(torch.logical_and, conditions)


def _combined(
    operation: Callable[[Tensor, Tensor], Tensor], values: Iterable[Tensor | None]
) -> Tensor | None:
    """Those that are not None, combined; None if all are."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    return reduce(operation, present)


# --- rules ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MaskPart:
    """Some queries and some keys of a mask.

    queries: which keys they are, a slice or (B, T). keys: a slice, or their numbers
    (B or 1, H or 1, S). known_positions: (B or 1, N) of all keys, if they were computed before.
    """

    mask: Mask
    queries: slice | Tensor
    keys: slice | Tensor
    device: torch.device
    known_positions: Tensor | None = None

    @property
    def has_later_keys(self) -> bool:
        """Whether a key may come after a query."""
        if isinstance(self.queries, slice) and isinstance(self.keys, slice):
            return bool(self.keys.stop > self.queries.start + 1)
        return True

    @property
    def query_numbers(self) -> Tensor:
        """(T, 1) or (B, 1, T, 1) which keys the queries are."""
        if isinstance(self.queries, slice):
            return _numbers(self.queries, self.device)[:, None]
        return self.queries[:, None, :, None]

    @property
    def key_numbers(self) -> Tensor:
        """(B or 1, H or 1, 1, S)."""
        if isinstance(self.keys, slice):
            return _numbers(self.keys, self.device)[None, None, None]
        return self.keys[:, :, None]

    @property
    def positions(self) -> Tensor:
        """(B or 1, N) the positions of all keys of the mask."""
        if self.known_positions is not None:
            return self.known_positions
        count = 0 if isinstance(self.queries, Tensor) else self.queries.stop - self.mask.offset
        return self.mask.positions(count, self.device)

    def at_keys(self, x: Tensor) -> Tensor:
        """x (B or 1, N) -> (B or 1, H or 1, 1, S)."""
        return _at_keys(x, self.keys)

    def at_pairs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (B or 1, N) at the queries and at the keys: (B or 1, 1, T, 1) and
        (B or 1, H or 1, 1, S).
        """
        return at_pairs(x, self.queries, self.keys)


class Rule:
    """Which keys a query may attend to, apart from what the mask states itself.

    A rule overrides `allowed`, and of the others what differs from these defaults, which suit
    kernels that know nothing about it.
    """

    blockwise: ClassVar[str | None] = None
    """The name of a group of rules that can be combined, if the methods `near`, `others` and
    `reads_all` state all that a block of queries reads, so that a kernel may compute block by
    block."""
    window: int | None = None
    """The size of the window (`CoreConfig.window`), if this is all that the rule says."""
    can_be_lifted = False
    """Whether the pairs that other rules lift are allowed in spite of it (global tokens)."""
    may_forbid_all = True
    """Whether it may leave a query without any real key."""
    counts_real = True
    """Whether its distances count real tokens; otherwise they count columns of the batch."""

    @property
    def sentence(self) -> str:
        """What the rule does, for people: a phrase."""
        raise NotImplementedError

    @property
    def block(self) -> int | None:
        """How many neighbouring queries read the same keys, if the rule says."""
        return None

    def allowed(self, part: MaskPart) -> Tensor | None:
        """The dense form (B or 1, H or 1, T or 1, S), True where allowed; None if all pairs are."""
        raise NotImplementedError

    def lifts(self, part: MaskPart) -> Tensor | None:
        """(B or 1, H or 1, T, S) pairs that are allowed whatever rules with `can_be_lifted` say."""
        return None

    def added(self, part: MaskPart) -> Tensor | None:
        """What is added to scores: (B or 1, H or 1, T, S)."""
        return None

    def own_distances(self, q: slice | Tensor, k: slice | Tensor) -> tuple[Tensor, Tensor] | None:
        """Which keys k have distances of their own from the queries q, and these distances, both
        (B or 1, 1 or H, T or 1, S); None if all distances are those of positions.
        """
        return None

    def extended(self, keys: int) -> Rule:
        """The rule of a mask with so many keys more at its end."""
        return self

    def reach(self, causal: bool) -> tuple[int, int] | None:
        """How many keys before and after a query it may read, apart from `others`; None if any."""
        return None

    def near(self, queries: slice, keys: int, causal: bool) -> slice:
        """The columns, out of so many, that a block of queries reads, apart from `others`; for
        rules that have a reach and count columns.
        """
        before, after = self.reach(causal) or (keys, keys)
        return slice(max(0, queries.start - before), min(keys, queries.stop + after))

    def others(self, queries: slice, keys: int) -> tuple[Tensor, Tensor] | None:
        """Other keys, out of so many, that some query of a block may read: their numbers
        (B or 1, H or 1, N), and a boolean of that shape, which of them exist.
        """
        return None

    def reads_all(self, queries: slice, device: torch.device) -> Tensor | None:
        """(B or 1, T) the queries that attend to all keys."""
        return None


def _numbers(chosen: slice, device: torch.device) -> Tensor:
    return torch.arange(chosen.start, chosen.stop, device=device)


@dataclass(frozen=True)
class PairTable(Rule):
    """pairs: (B or 1, H or 1, T or 1, S) boolean, the pairs that are allowed."""

    pairs: Tensor

    @property
    def sentence(self) -> str:
        return "a table of pairs"

    def allowed(self, part: MaskPart) -> Tensor:
        assert isinstance(part.queries, slice), "a query stream has no table"
        pairs = self.pairs
        if pairs.shape[2] > 1:
            pairs = pairs[:, :, part.queries]
        if isinstance(part.keys, slice):
            return pairs[..., part.keys]
        rows, heads = (max(pairs.shape[axis], part.keys.shape[axis]) for axis in (0, 1))
        shape = (rows, heads, pairs.shape[2], -1)
        return pairs.expand(shape).gather(3, part.keys[:, :, None].expand(shape))


# --- values of pairs ------------------------------------------------------------------------------


class LayerBias:
    """A bias of scores that every attention computes with parameters of its own
    (`Attention.relative`).
    """


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
    """x (B or 1, N) at the queries q, a slice or (B, T), and at the keys k, a slice or
    (B or 1, H or 1, S): (B or 1, 1, T, 1) and (B or 1, H or 1, 1, S).
    """
    return _at_queries(x, q)[:, None, :, None], _at_keys(x, k)


def _at_queries(x: Tensor, queries: slice | Tensor) -> Tensor:
    """x (B or 1, N) at the queries, a slice or (B, T): (B or 1, T)."""
    if isinstance(queries, slice):
        return x[:, queries]
    return x.expand(len(queries), -1).gather(1, queries)


def _at_keys(x: Tensor, keys: slice | Tensor) -> Tensor:
    """x (B or 1, N) at the keys, a slice or (B or 1, H or 1, S): (B or 1, H or 1, 1, S)."""
    if isinstance(keys, slice):
        return x[:, None, None, keys]
    keys = keys[:, :, None]
    if len(keys) == 1 and keys.shape[1] == 1:
        return x[:, keys[0, 0]][:, None]
    rows = max(len(x), len(keys))
    x = x[:, None, None].expand(rows, *keys.shape[1:3], -1)
    return x.gather(-1, keys.expand(rows, -1, -1, -1))


def real_positions(attend: Tensor) -> Tensor:
    """(B, S) the position of each token among the real ones of its row; padding has that of the
    last one.
    """
    return (attend.long().cumsum(1) - 1).clamp_min(0)


class RealFirst:
    """Moves the real tokens of every row to its start; attend: (B, T), True at real tokens."""

    def __init__(self, attend: Tensor) -> None:
        self.index = attend.long().argsort(dim=1, descending=True, stable=True)

    @classmethod
    def of(cls, attend: Tensor | None) -> RealFirst | InPlace:
        """Without `attend` all tokens are real, and none moves."""
        return InPlace() if attend is None else cls(attend)

    def move(self, x: Tensor) -> Tensor:
        """x (B, T) or (B, T, E), the real tokens first."""
        return x.gather(1, self._like(self.index, x))

    def undo(self, x: Tensor) -> Tensor:
        """Where the tokens of `move` were."""
        return x.gather(1, self._like(self.index.argsort(1), x))

    @staticmethod
    def _like(index: Tensor, x: Tensor) -> Tensor:
        return (index if x.dim() == 2 else index[..., None]).expand_as(x)


class InPlace:
    """A `RealFirst` of rows whose tokens are all real."""

    def move(self, x: Tensor) -> Tensor:
        """x itself."""
        return x

    def undo(self, x: Tensor) -> Tensor:
        """x itself."""
        return x


def padding_mask(lengths: Tensor, width: int) -> Tensor | None:
    """(B,) lengths in tokens -> (B, S) True at real positions, or None if no row is shorter than
    `width`.
    """
    real = torch.arange(width, device=lengths.device) < lengths[:, None]
    return None if bool(real.all()) else real


def columns(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Boolean (B, S) -> the columns (B, N) that are True in each row, and a boolean (B, N), False
    where a row has fewer than N.
    """
    counts = chosen.sum(1, keepdim=True)
    index = chosen.int().argsort(dim=1, descending=True, stable=True)[:, : int(counts.max())]
    return index, torch.arange(index.shape[1], device=chosen.device) < counts
