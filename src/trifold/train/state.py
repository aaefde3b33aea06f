"""The position of a run, how a run ended, and saving both with the weights."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

from trifold.recipe import TrainSettings
from trifold.train import checkpoint
from trifold.train.checkpoint import Checkpoint, Gather, as_is
from trifold.train.distributed import SINGLE, Ranks
from trifold.train.weights import Gatherer

StoppedBy = Literal["steps", "minutes", "patience", "signal"]


class Outcome(NamedTuple):
    """How a training ended. `scores` are those of the last validation; `exit_code` is 130 or 143 after a signal."""

    folder: Path
    steps: int
    seconds: float
    scores: dict[str, float]
    stopped_by: StoppedBy
    exit_code: int

    @property
    def finished(self) -> bool:
        """Whether training ended without a signal."""
        return self.stopped_by != "signal"


class Best(NamedTuple):
    """The best validation so far; `since` is the number of validations after it."""

    score: float | None = None
    step: int = 0
    since: int = 0


@dataclass
class Progress:
    """The position of a run, as saved in checkpoints. It is equal on all ranks, except for `lines`.

    validated: the step of the last validation. lines: of metrics.jsonl. rejected: the number of updates that were
    skipped. losses: the recent losses that detect a spike.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    seconds: float = 0.0
    tokens: int = 0
    validated: int = 0
    best: Best = field(default_factory=Best)
    scores: dict[str, float] = field(default_factory=dict)
    lines: int = 0
    rejected: int = 0
    losses: list[float] = field(default_factory=list)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Progress:
        """The inverse of `to_dict`. Other keys are ignored; runs of 0.1 call `rejected` "refused"."""
        known = {each.name for each in fields(cls)}
        values = {key: value for key, value in saved.items() if key in known}
        return cls(**{"rejected": saved.get("refused", 0), **values, "best": Best(*saved["best"])})

    def to_dict(self) -> dict[str, Any]:
        """The values as JSON types."""
        return asdict(self)


class Saver:
    """Writes checkpoints to `folder`, one at a time, in this thread or in the background, and removes old ones.

    A failed background save is raised by the next `check` or `wait`. Only rank 0 writes. Sharded tensors are gathered
    for it one at a time, so a checkpoint does not depend on the number of ranks.
    """

    def __init__(self, folder: Path, settings: TrainSettings, ranks: Ranks = SINGLE) -> None:
        self._folder, self._settings, self._ranks = folder, settings, ranks
        self._pool = ThreadPoolExecutor(1, "saver") if settings.async_save and ranks.is_first else None
        self._pending: Future[None] | None = None

    def save(self, state: Checkpoint, best: int) -> None:
        """Write a checkpoint; `best` is the step of the best validation. Raises CheckpointError.

        All ranks call this, each with its shards of the state.
        """
        gatherer = Gatherer(state.weights, state.optimizer)
        if not self._ranks.is_first:
            gatherer.finish()
        self._ranks.first(self._save, state, best, gatherer)

    def _save(self, state: Checkpoint, best: int, gatherer: Gatherer) -> None:
        try:
            self.wait()
            if self._pool is None:
                self._write(state, best, gatherer.gather)
            else:
                self._pending = self._pool.submit(self._write, state.snapshot(gatherer.gather), best)
        finally:
            gatherer.finish()

    def check(self) -> None:
        """Raises CheckpointError if a background save has failed."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Return when all saves are durable. Raises CheckpointError if one failed."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait, and ignore errors: another error is being raised, or `wait` was called."""
        if self._pool is not None:
            self._pool.shutdown()

    def _write(self, state: Checkpoint, best: int, gather: Gather = as_is) -> None:
        settings = self._settings
        checkpoint.save(self._folder, state, gather)
        checkpoint.prune(
            self._folder,
            settings.keep_last,
            settings.save_every,
            upto=state.progress["step"],
            keep_every=settings.keep_every,
            best=best if settings.keep_best else None,
        )
