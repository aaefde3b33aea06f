"""Checkpoints while training waits, or behind its back from a snapshot; the promise is the same.

Nothing is ever seen under a checkpoint's name before it is durable, and a save that failed is raised: at once, or, from
behind, by the next step. Rank 0 alone writes; what lies in parts on the ranks is gathered for it, a tensor at a time.
So a checkpoint does not tell how many ranks there were.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from trifold.recipe import TrainSettings
from trifold.train import checkpoint
from trifold.train.checkpoint import Checkpoint, Whole, as_it_is
from trifold.train.ranks import ALONE, Ranks
from trifold.train.sharding import Gathering


class Saver:
    """Writes checkpoints into `folder`, at most one at a time, and removes old ones."""

    def __init__(self, folder: Path, settings: TrainSettings, ranks: Ranks = ALONE) -> None:
        self._folder, self._settings, self._ranks = folder, settings, ranks
        self._pool = ThreadPoolExecutor(1, "saver") if settings.async_save and ranks.speaks else None
        self._coming: Future[None] | None = None

    def save(self, state: Checkpoint, best: int) -> None:
        """Write a checkpoint; `best` is the step of the best validation. Raises CheckpointError.

        All ranks come here, each with its parts of the state.
        """
        gathering = Gathering(state.weights, state.moments)
        if not self._ranks.speaks:
            gathering.finish()
        self._ranks.first(lambda: self._save(state, best, gathering))

    def _save(self, state: Checkpoint, best: int, gathering: Gathering) -> None:
        try:
            self.wait()
            if self._pool is None:
                self._write(state, best, gathering.whole)
            else:
                self._coming = self._pool.submit(self._write, state.snapshot(gathering.whole), best)
        finally:
            gathering.finish()

    def check(self) -> None:
        """Raises CheckpointError where a save from behind has failed by now."""
        if self._coming is not None and self._coming.done():
            self.wait()

    def wait(self) -> None:
        """Return when everything is durable. Raises CheckpointError where it could not be made so."""
        coming, self._coming = self._coming, None
        if coming is not None:
            coming.result()

    def close(self) -> None:
        """Wait without complaint: something else has failed already, or nothing is left."""
        if self._pool is not None:
            self._pool.shutdown()

    def _write(self, state: Checkpoint, best: int, whole: Whole = as_it_is) -> None:
        settings = self._settings
        checkpoint.save(self._folder, state, whole)
        checkpoint.prune(
            self._folder,
            settings.keep_last,
            settings.save_every,
            upto=state.progress["step"],
            forever=settings.keep_every,
            best=best if settings.keep_best else None,
        )
