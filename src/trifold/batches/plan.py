"""Lengths to batches, and batches to ranks and workers: which rows each process learns from, and in
which order.

The plan of an epoch is a pure function of the lengths, the settings, the seed and the epoch. A
position in training is therefore (epoch, batch number), and resuming is seeking. The plan does not
depend on the number of ranks: an update consumes the same rows, however many ranks and workers
share them.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trifold.errors import DataError
from trifold.settings import Settings

Lengths: TypeAlias = NDArray[np.integer]  # (N, 2): source and target; or (N, 1)
Plan: TypeAlias = Sequence[NDArray[np.int64]]  # the row indices of each batch


class BatchSettings(Settings):
    """Size of a batch, and treatment of rows that are too long."""

    tokens: int = Field(
        4096, ge=2, description="limit on tokens of a side, packed; one position is free"
    )
    rows: int | None = Field(None, ge=1, description="limit on rows")
    max_length: int | None = Field(
        None, ge=1, description="limit on the tokens of a row, on its longer side"
    )
    on_overflow: Literal["error", "drop", "truncate"] = Field(
        "drop", description="treatment of rows longer than max_length"
    )


def plan_epoch(
    lengths: Lengths, settings: BatchSettings, *, seed: int, epoch: int, shuffle: bool = True
) -> Plan:
    """The batches of one epoch; every usable row is in exactly one of them.

    Rows are sorted by target length, then source length, with ties in random order. A batch ends
    before a side reaches `tokens`. The batches are shuffled. With `shuffle=False`, rows and batches
    stay sorted by length. A row longer than `tokens` forms its own batch. Rows that `overlong`
    reports are left out, or counted as `max_length` tokens for the caller to truncate.

    Raises DataError if `on_overflow` is "error" and a row is too long, or if no row remains.
    """
    lengths = check_lengths(lengths)
    if settings.on_overflow == "error":
        _reject_overlong(lengths, settings)
    if settings.max_length is not None and settings.on_overflow == "truncate":
        lengths = check_lengths(np.minimum(lengths, settings.max_length))
    usable = np.flatnonzero(~overlong(lengths, settings))
    if not len(usable):
        if len(lengths):
            raise DataError(
                f"no rows remain: all {len(lengths):,} are longer than {settings.max_length} "
                "tokens; raise batch.max_length or model.max_positions"
            )
        return []
    rng = random_bits(seed, epoch)
    ties = rng.random_raw(len(lengths)) if shuffle else np.arange(len(lengths))
    source = lengths[usable, 0]
    target = lengths[usable, -1]
    # Source lengths alternate between ascending and descending, so a batch that spans two target
    # lengths needs little padding.
    order = usable[np.lexsort((ties[usable], np.where(target % 2, -source, source), target))]
    plan = [order[start:end] for start, end in _boundaries(lengths[order], settings)]
    if shuffle:
        plan = [plan[i] for i in np.argsort(rng.random_raw(len(plan)), kind="stable")]
    return plan


def plan_all(lengths: Lengths, settings: BatchSettings) -> Plan:
    """A plan of all rows in order of length, without a limit of length."""
    unlimited = settings.model_copy(update={"max_length": None, "on_overflow": "drop"})
    return plan_epoch(lengths, unlimited, seed=0, epoch=0, shuffle=False)


def overlong(lengths: Lengths, settings: BatchSettings) -> NDArray[np.bool_]:
    """(N,) True for rows with a side longer than `max_length`: the rows that are dropped or
    truncated.
    """
    if settings.max_length is None:
        return np.zeros(len(lengths), dtype=np.bool_)
    return np.asarray(lengths.max(axis=1) > settings.max_length, dtype=np.bool_)


def padding_share(lengths: Lengths, plan: Plan) -> float:
    """The fraction of padding if each side of a batch is padded to its longest row. With
    `lengths[:, 1:]` it is that of the targets alone.
    """
    lengths = check_lengths(lengths)
    tokens = sum(int(lengths[batch].sum()) for batch in plan)
    padded = sum(len(batch) * int(lengths[batch].max(axis=0).sum()) for batch in plan if len(batch))
    return 1 - tokens / padded if padded else 0.0


def check_lengths(lengths: Lengths) -> NDArray[np.int64]:
    """Lengths as 64-bit integers. Raises ValueError for a wrong shape."""
    if lengths.ndim != 2 or lengths.shape[1] not in (1, 2):
        raise ValueError(f"lengths of shape {lengths.shape}, expected (N, 1) or (N, 2)")
    return lengths.astype(np.int64)


def random_bits(seed: int, epoch: int) -> np.random.PCG64:
    """The source of all randomness in a plan: raw bits, which numpy keeps across versions, unlike
    its shuffles.
    """
    return np.random.PCG64(np.random.SeedSequence([seed, epoch]))


def _reject_overlong(lengths: NDArray[np.int64], settings: BatchSettings) -> None:
    longest = lengths.max(axis=1)
    for key, limit in (("max_length", settings.max_length), ("tokens", settings.tokens)):
        if limit is not None and (longest > limit).any():
            worst = int(longest.argmax())
            raise DataError(
                f"row {worst}: {longest[worst]:,} tokens, more than batch.{key}={limit:,} "
                f"({int((longest > limit).sum()):,} such rows); raise it, or set "
                "batch.on_overflow=drop"
            )


def _boundaries(lengths: NDArray[np.int64], settings: BatchSettings) -> list[tuple[int, int]]:
    """Start and end of every batch, filling each batch in order up to the limits."""
    max_rows = settings.rows or len(lengths)
    starts = [0]
    sources = 0
    targets = 0
    sides = zip(lengths[:, 0].tolist(), lengths[:, -1].tolist(), strict=True)
    for row, (source, target) in enumerate(sides):
        sources = sources + source
        targets = targets + target
        rows = row - starts[-1] + 1
        if rows > 1 and (max(sources, targets) >= settings.tokens or rows > max_rows):
            starts.append(row)
            sources = source
            targets = target
    return list(zip(starts, [*starts[1:], len(lengths)], strict=True))


# --- dealing --------------------------------------------------------------------------------------


class Share(NamedTuple):
    """The rows of one batch that one rank processes.

    parts: the micro-batches that it learns from. idle: a micro-batch that it only computes to stay
    in step with the other ranks, where the batch has fewer rows than there are ranks.
    """

    parts: Plan
    idle: Plan


def deal_batch(
    lengths: Lengths,
    batch: NDArray[np.int64],
    index: int,
    *,
    accumulate: int = 1,
    rank: int = 0,
    world: int = 1,
    workers: int = 1,
) -> Share:
    """The share of `rank` in batch number `index` of an update of `accumulate` batches.

    If `accumulate` is a multiple of `world`, each rank learns from whole batches. Otherwise each
    rank learns from a part of every batch. The share of a rank is split again, into one micro-batch
    per worker.
    """
    if accumulate % world == 0:
        if index % world != rank:
            return Share([], [])
        return Share(split_batch(lengths, batch, workers), [])
    parts = split_batch(lengths, batch, workers * world)[rank::world]
    idle = [] if parts else [batch[:1]]
    return Share(parts, idle)


def split_batch(lengths: Lengths, rows: NDArray[np.int64], parts: int) -> Plan:
    """Split a batch into at most `parts` non-empty parts with similar numbers of tokens.

    Rows are assigned from the longest to the shortest in alternating direction: a, b, b, a, a, b, …
    """
    if parts == 1:
        return [rows]
    longest_first = rows[np.argsort(-check_lengths(lengths[rows]).sum(axis=1), kind="stable")]
    turn = np.arange(len(rows)) % (2 * parts)
    owner = np.where(turn < parts, turn, 2 * parts - 1 - turn)
    return [longest_first[owner == part] for part in range(min(parts, len(rows)))]
