"""What a run measures: its wall time and speed. metrics.jsonl and TensorBoard hold them, the losses
and the scores.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from io import BufferedWriter
from typing import Any

from trifold import disk
from trifold.jsonfiles import json_line
from trifold.train.monitor import Snapshot
from trifold.train.run_folder import RunFolder

MAX_SILENCE = 10.0  # seconds without a report of slow steps


class Meter:
    """The wall time of the run, and the training speed without pauses."""

    def __init__(self, steps: int, seconds: float, step: int) -> None:
        self._steps = steps
        self._first_step = step
        self._before = seconds
        self._start = self._last = self._read_at = time.perf_counter()
        self._tokens = 0  # since the last `read`
        self._busy = 0.0  # seconds, since the last `read`

    def seconds(self) -> float:
        """Seconds since the beginning of the run, over all its sessions."""
        return self._before + time.perf_counter() - self._start

    def count(self, tokens: int) -> None:
        """Record an update with this many tokens."""
        self._tokens += tokens
        self._busy += time.perf_counter() - self._last
        self.pause()

    def pause(self) -> None:
        """Exclude the time since the last update from the speed, after a validation or a save."""
        self._last = time.perf_counter()

    @property
    def is_due(self) -> bool:
        """Whether the last call of `read` was long ago."""
        return time.perf_counter() - self._read_at > MAX_SILENCE

    def restart(self) -> None:
        """Measure the speed from now on."""
        self._tokens = 0
        self._busy = 0.0

    def read(self, step: int, minutes: float | None) -> tuple[float, float]:
        """Tokens per second since the last `restart`, and the estimated seconds left."""
        self._read_at = time.perf_counter()
        speed = self._tokens / max(self._busy, 1e-9)
        seconds_per_step = (time.perf_counter() - self._start) / max(step - self._first_step, 1)
        seconds_left = seconds_per_step * (self._steps - step)
        if minutes is not None:
            seconds_left = min(seconds_left, minutes * 60 - self.seconds())
        return speed, seconds_left


class MetricsLog:
    """metrics.jsonl, and TensorBoard (`board`) if it is installed. `writes` is False on ranks other
    than 0, whose log writes nothing.
    """

    def __init__(
        self, folder: RunFolder, step: int, max_lines: int | None = None, *, writes: bool = True
    ) -> None:
        self._folder = folder
        self._file: BufferedWriter | None = None
        self.lines = 0
        self.board: Any = None
        if writes:
            self._open(step, max_lines)

    def _open(self, step: int, max_lines: int | None) -> None:
        self.lines = self._folder.truncate_metrics(step, max_lines)
        self._file = self._folder.metrics.open("ab")
        with suppress(ImportError):
            from torch.utils.tensorboard import SummaryWriter

            board = self._folder.path / "tensorboard"
            if board.is_symlink():
                self._folder.below(board).target()  # which may not lead out of the run
            self.board = SummaryWriter(str(board), purge_step=step + 1)

    def event(self, step: int, name: str, **details: Any) -> None:
        """Append an event: `{"step": 7, "event": "skipped", …}`."""
        self._append({"step": step, "event": name, **details})

    def _append(self, values: Mapping[str, Any]) -> None:
        if self._file is not None:
            disk.put(self._file, (json_line(values, ensure_ascii=True) + "\n").encode())
            self._file.flush()
            self.lines += 1

    def __call__(self, step: int, values: dict[str, float]) -> None:
        """Append a line of metrics, visible to readers at once."""
        self._append({"step": step, **values})
        if self.board is not None:
            for name, value in values.items():
                self.board.add_scalar(name, value, step)

    def update(self, snapshot: Snapshot, norm: float, seconds: float) -> None:
        """Append the values of a logged step. norm: of the gradient; seconds: since the beginning
        of the run.
        """
        values = {
            "train/loss": snapshot.loss,
            "train/lr": snapshot.learning_rate,
            "train/gradient_norm": norm,
            "train/tokens_per_second": snapshot.tokens_per_second,
            "seconds": seconds,
        }
        self(snapshot.step, values)

    def flush(self) -> None:
        """Return when all lines are on disk, which a checkpoint relies on."""
        if self._file is not None:
            disk.flush(self._file)

    def rewind(self, step: int, lines: int) -> None:
        """Remove everything after line number `lines`: the run has returned to `step`."""
        if self._file is not None:
            self.close()
            self._open(step, lines)

    def close(self) -> None:
        """Flush to disk and close."""
        if self._file is not None:
            with self._file:
                self.flush()
        if self.board is not None:
            self.board.close()
