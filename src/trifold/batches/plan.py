"""Lengths to batches: which rows go together, in which order, on which rank.

The plan of an epoch is a pure function of the lengths, the settings, the seed and the epoch. So a position in
training is (epoch, number of the batch), and resuming is seeking.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trifold.errors import DataError
from trifold.settings import Settings

Lengths: TypeAlias = NDArray[np.integer]  # (N, 2): source and target; or (N, 1)
Plan: TypeAlias = Sequence[NDArray[np.int64]]  # a batch is the indices of its rows


class BatchSettings(Settings):
    """How large a batch is, and what becomes of rows that are too long."""

    tokens: int = Field(
        default=4096, ge=2, description="limit on the tokens of either side, packed; one place stays free"
    )
    rows: int | None = Field(default=None, ge=1, description="limit on rows")
    max_length: int | None = Field(
        default=None, ge=1, description="tokens of the longer side that a row may have"
    )
    on_overflow: Literal["error", "drop", "truncate"] = Field(
        default="drop", description="what becomes of rows beyond max_length"
    )


def plan_epoch(
    lengths: Lengths, settings: BatchSettings, *, seed: int, epoch: int, shuffle: bool = True
) -> Plan:
    """The batches of one epoch, every usable row in exactly one of them.

    Rows of like length go together: they are sorted by target length and then source length (the order of
    equals is random), cut wherever a side would reach `tokens`, and the batches are shuffled.
    Without `shuffle` the order of rows and batches is that of the lengths. A single row longer than `tokens`
    gets a batch of its own. Rows found by `overlong` are left out, or counted as `max_length` long for the
    caller to cut.

    Raises DataError when `on_overflow` is "error" and a row is too long, or when no row is left.
    """
    lengths = _checked(lengths)
    long = overlong(lengths, settings)
    _refuse(lengths, long, settings)
    if settings.max_length is not None and settings.on_overflow == "truncate":
        lengths = _checked(np.minimum(lengths, settings.max_length))
        long = np.zeros_like(long)
    usable = np.flatnonzero(~long)
    if not len(usable):
        if len(lengths):
            raise DataError(
                f"no row is left: all {len(lengths):,} are longer than {settings.max_length} tokens"
            )
        return []
    rng = random_bits(seed, epoch)
    ties = rng.random_raw(len(lengths)) if shuffle else np.arange(len(lengths))
    order = usable[_by_length(lengths[usable], ties[usable])]
    plan = [order[start:end] for start, end in _cuts(lengths[order], settings)]
    if shuffle:
        plan = [plan[i] for i in np.argsort(rng.random_raw(len(plan)), kind="stable")]
    return plan


def overlong(lengths: Lengths, settings: BatchSettings) -> NDArray[np.bool_]:
    """(N,) True where a side is longer than `max_length`: the rows that are dropped or cut, for counting."""
    if settings.max_length is None:
        return np.zeros(len(lengths), dtype=np.bool_)
    return np.asarray(lengths.max(axis=1) > settings.max_length, dtype=np.bool_)


def shares(lengths: Lengths, rows: NDArray[np.int64], parts: int) -> Plan:
    """The rows of one batch in at most `parts` shares of about as many tokens each, none of them empty.

    From the longest to the shortest, forth and back: a, b, b, a, a, b, …
    """
    if parts == 1:
        return [rows]
    heavy_first = rows[np.argsort(-_checked(lengths[rows]).sum(axis=1), kind="stable")]
    turn = np.arange(len(rows)) % (2 * parts)
    owner = np.where(turn < parts, turn, 2 * parts - 1 - turn)
    return [heavy_first[owner == part] for part in range(min(parts, len(rows)))]


def deal(plan: Plan, rank: int, world: int) -> Plan:
    """The batches of one rank: step s of rank r is batch s x world + r, so all ranks together keep the order.

    Every rank has the same number of steps; where the plan runs out, a rank gets a batch without rows.
    """
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} of {world} ranks")
    return _Dealt(plan, rank, world)


class _Dealt(Sequence[NDArray[np.int64]]):
    """A view: a plan may be computed as it is read, and longer than anybody would like to keep it."""

    def __init__(self, plan: Plan, rank: int, world: int) -> None:
        self._plan, self._rank, self._world = plan, rank, world

    def __len__(self) -> int:
        return (len(self._plan) + self._world - 1) // self._world

    @overload
    def __getitem__(self, step: int) -> NDArray[np.int64]: ...

    @overload
    def __getitem__(self, step: slice) -> Plan: ...

    def __getitem__(self, step: int | slice) -> NDArray[np.int64] | Plan:
        if isinstance(step, slice):
            return [self[one] for one in range(*step.indices(len(self)))]
        if not -len(self) <= step < len(self):
            raise IndexError(f"step {step} of {len(self)}")
        number = step % len(self) * self._world + self._rank
        return self._plan[number] if number < len(self._plan) else np.empty(0, dtype=np.int64)


def padding_share(lengths: Lengths, plan: Sequence[NDArray[np.int64]]) -> float:
    """The share of padding if each side of each batch were padded to its longest row: what packing saves.

    Give `lengths[:, 1:]` for the share of the target side alone.
    """
    lengths = _checked(lengths)
    real = sum(int(lengths[batch].sum()) for batch in plan)
    padded = sum(len(batch) * int(lengths[batch].max(axis=0).sum()) for batch in plan if len(batch))
    return 1 - real / padded if padded else 0.0


def _checked(lengths: Lengths) -> NDArray[np.int64]:
    if lengths.ndim != 2 or lengths.shape[1] not in (1, 2):
        raise ValueError(f"lengths of shape {lengths.shape}, expected (N, 1) or (N, 2)")
    return lengths.astype(np.int64)


def _refuse(lengths: NDArray[np.int64], long: NDArray[np.bool_], settings: BatchSettings) -> None:
    if settings.on_overflow != "error" or not len(lengths):
        return
    longest = lengths.max(axis=1)
    for key, limit in (("max_length", settings.max_length), ("tokens", settings.tokens)):
        if limit is not None and (longest > limit).any():
            worst = int(longest.argmax())
            raise DataError(
                f"row {worst}: {longest[worst]:,} tokens, more than batch.{key}={limit:,} "
                f"({int((longest > limit).sum()):,} such rows); raise it, or set batch.on_overflow=drop"
            )


def random_bits(seed: int, epoch: int) -> np.random.PCG64:
    """What everything random in a plan is drawn from."""
    # Raw bits, because numpy promises these, and not its shuffles, to stay the same from version to version.
    return np.random.PCG64(np.random.SeedSequence([seed, epoch]))


def _by_length(lengths: NDArray[np.int64], ties: NDArray[np.integer]) -> NDArray[np.int64]:
    source, target = lengths[:, 0], lengths[:, -1]
    # Source lengths rise and fall in turn: so a batch that spans two target lengths needs little padding.
    return np.lexsort((ties, np.where(target % 2, -source, source), target))


def _cuts(lengths: NDArray[np.int64], settings: BatchSettings) -> list[tuple[int, int]]:
    """Start and end of every batch, taking rows in order as long as each side keeps to the limits."""
    most_rows = settings.rows or len(lengths)
    starts, sources, targets = [0], 0, 0
    for row, (source, target) in enumerate(zip(lengths[:, 0].tolist(), lengths[:, -1].tolist(), strict=True)):
        sources, targets = sources + source, targets + target
        rows = row - starts[-1] + 1
        if rows > 1 and (max(sources, targets) >= settings.tokens or rows > most_rows):
            starts.append(row)
            sources, targets = source, target
    return list(zip(starts, [*starts[1:], len(lengths)], strict=True))
