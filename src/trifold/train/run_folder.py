"""Where a run keeps everything.

recipe.yaml, environment.json, model/ (a Hugging Face folder with the best weights), checkpoints/, metrics.jsonl,
tensorboard/, samples/, data.json (digests of the data files), refused/ (batches that were not learnt from). An existing
run is continued or refused, never overwritten, and one process at a time is at it (.lock).
"""

from __future__ import annotations

import errno
import json
import math
import os
import platform
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

import trifold
from trifold import disk, fast
from trifold.errors import UsageError
from trifold.recipe import Recipe
from trifold.train import checkpoint
from trifold.train.ranks import ALONE, Ranks, Stopped

LOCK = ".lock"
IDENTITY = "run"  # under this, a checkpoint's progress says what the run is
# What the system says of a disk whose files cannot be locked.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


class RunFolder:
    """The paths of one run, and the command that goes on with it."""

    def __init__(self, path: Path, command: str = "trifold") -> None:
        self.path, self._command = path, command
        self.recipe = path / "recipe.yaml"
        self.environment = path / "environment.json"
        self.tokenizer = path / "tokenizer"
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        self.samples = path / "samples"
        self.metrics = path / "metrics.jsonl"
        self.data = path / "data.json"
        self.refused = path / "refused"
        self._lock, self._probe = FileLock(path / LOCK), path / ".writable"
        self._made: list[Path] = []  # what was not there before this process came

    def open(self, *, resume: bool) -> list[str]:
        """Make the folder, and keep other processes out of it until `close`; a line where that cannot be done.

        Raises UsageError where a run lies there already and `resume` is not asked for, where files lie there that are
        of no run, where another process is at this run, and where nothing can be written.
        """
        try:
            self._refuse_files(resume)
            self._made = _missing(self.path, Path(self._lock.lock_file))
            disk.make_folder(self.path)
            told = self._keep_others_out()
            self._refuse_files(resume)  # again: another process may have come and gone meanwhile
            files = self.recipe, self.environment, self.data
            self._made += _missing(*files, self.tokenizer, self.checkpoints, self.samples)
            for folder in (self.checkpoints, self.samples):
                disk.make_folder(folder)
            self._probe.touch()
            self._probe.unlink()
            self._sweep()
        except OSError as error:
            raise UsageError(
                f"{self.path}: cannot be written ({error.strerror}); choose another --out"
            ) from error
        return told

    def close(self) -> None:
        """Other processes may go on with this run."""
        self._lock.release()

    def refuse_others(self) -> None:
        """Raises UsageError where another process is at this run."""
        self._keep_others_out()
        self.close()

    def _refuse_files(self, resume: bool) -> None:
        """Where there is a run, or files that are of none."""
        if not self.path.exists():
            return
        there = {place.name for place in self.path.iterdir()} - {Path(self._lock.lock_file).name}
        if there and not resume:
            raise UsageError(
                f"{self.path}: holds files already; continue that run with --resume auto, or choose another --out"
            )
        if self.recipe.exists():
            return
        if checkpoint.saved(self.checkpoints):
            raise UsageError(f"{self.path}: has checkpoints but no recipe.yaml; choose another --out")
        # A run that was killed before it had a recipe leaves empty folders. What else lies beside is not touched.
        used = (
            self.environment,
            self.tokenizer,
            self.checkpoints,
            self.model,
            self.samples,
            self.metrics,
            self.data,
        )
        ours = {place.name for place in (*used, self.refused)}
        ours -= {f.name for f in (self.checkpoints, self.samples) if f.is_dir() and not any(f.iterdir())}
        if foreign := sorted(there & ours):
            more = ", …" if len(foreign) > 3 else ""
            raise UsageError(
                f"{self.path}: holds files already ({', '.join(foreign[:3])}{more}) and no recipe.yaml, so there is "
                "no run to continue; choose another --out"
            )

    def _keep_others_out(self) -> list[str]:
        """The system lets the lock go with a process that dies."""
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise UsageError(
                f"{self.path}: another process is at this run and holds its lock, {self._lock.lock_file}; wait for its "
                "end or end it, or choose another --out"
            ) from None
        except (NotImplementedError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in NO_LOCKS:
                raise
            return [
                f"{self.path}: files cannot be locked there; see to it that no other process is at this run"
            ]
        return []

    def _sweep(self) -> None:
        """Remove what a process that was killed has left half-written."""
        checkpoint.sweep(self.checkpoints)
        for folder in (self.path, self.model, self.samples, self.tokenizer, self.refused):
            for path in disk.leftovers(folder):
                disk.remove(path)

    @contextmanager
    def begun(self) -> Iterator[None]:
        """A run that fails before its first step leaves nothing behind, so that the corrected command can follow."""
        try:
            yield
        except Stopped:  # is gone on with
            raise
        except BaseException:
            if self.recipe in self._made:
                self._undo()
            raise

    def _undo(self) -> None:
        """What was there before stays, and so does a folder in which something is."""
        for place in reversed(self._made):
            if place.is_dir() and place != self.tokenizer:
                with suppress(OSError):
                    place.rmdir()
            else:
                disk.remove(place)

    def identity(self) -> dict[str, Any]:
        """What the run is, as the newest checkpoint says whose progress is whole; empty where it says nothing of it."""
        for path in reversed(checkpoint.saved(self.checkpoints)):
            file, digests = path / checkpoint.PROGRESS, read_object(path / checkpoint.MANIFEST).get("sha256")
            with suppress(OSError):
                if isinstance(digests, dict) and digests.get(file.name) == checkpoint.digest_of(file):
                    return dict(read_object(file).get(IDENTITY, {}))
        return {}

    @property
    def continue_line(self) -> str:
        """The command that goes on with this run."""
        words = ["train", str(self.recipe), "--out", str(self.path), "--resume", "auto"]
        return f"{self._command} {shlex.join(words)}"

    def describe(self, recipe: Recipe, here: Mapping[str, Any]) -> str:
        """Write recipe.yaml, and environment.json with the sittings so far; the digest of the first."""
        disk.replace_text(self.recipe, recipe.resolved())
        told = {**here, "sittings": read_object(self.environment).get("sittings", [])}
        disk.replace_text(self.environment, json.dumps(told, indent=2) + "\n")
        return checkpoint.digest_of(self.recipe)

    def check_seen(self, digest: str) -> None:
        """Raises UsageError where the recipe here is not the one just written by another process, maybe on another
        machine.
        """
        if not self.recipe.is_file() or checkpoint.digest_of(self.recipe) != digest:
            raise UsageError(
                f"{self.path}: {platform.node()} does not see there what rank 0 has written; choose an --out on a disk "
                "that all machines share"
            )

    def note_sitting(self, step: int, refused: Sequence[str]) -> None:
        """Add to environment.json when a sitting began, from which step, and which checkpoints it could not use."""
        told = read_object(self.environment)
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        told["sittings"] = [
            *told.get("sittings", []),
            {"began": now, "from_step": step, "refused": list(refused)},
        ]
        disk.replace_text(self.environment, json.dumps(told, indent=2) + "\n")

    def cut_metrics(self, step: int, most: int | None = None) -> int:
        """Forget lines past `step`, past the first `most`, and damaged ones: a resumed run writes them again.

        How many are left.
        """
        kept = []
        if self.metrics.is_file():
            lines = self.metrics.read_bytes().splitlines(keepends=True)
            kept = [line for line in lines[:most] if _step_of(line) <= step]
            if kept != lines:
                disk.replace_text(self.metrics, b"".join(kept).decode("utf-8"))
        return len(kept)


def _missing(*places: Path) -> list[Path]:
    return [place for place in places if not place.exists()]


def _step_of(line: bytes) -> float:
    """Of a line of metrics.jsonl; without end where it is half a line, or damaged."""
    try:
        return int(json.loads(line)["step"]) if line.endswith(b"\n") else math.inf
    except (ValueError, KeyError, TypeError):
        return math.inf


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file of ours; empty where there is none."""
    try:
        told = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def environment(
    device: torch.device, precision: str, workers: int, ranks: Ranks = ALONE, *, compiled: bool = False
) -> dict[str, Any]:
    """What a run depends on beside its recipe."""
    return {
        "trifold": trifold.__version__,
        "torch": torch.__version__,
        "numba": _version("numba"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": str(device) if ranks.world == 1 else device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor(),
        "precision": precision,
        "threads": torch.get_num_threads(),
        "workers": workers,
        "ranks": ranks.world,
        "compiled": compiled,
        "fast": fast.enabled(),
        "git": _git_revision(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_revision() -> str | None:
    """Of trifold's own code, where it runs from a checkout."""
    try:
        told = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"},  # a lock would outlive a kill
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip()


class MetricsLog:
    """metrics.jsonl, and TensorBoard beside it where it is installed."""

    def __init__(self, folder: RunFolder, step: int, most: int | None = None) -> None:
        self._folder = folder
        self._begin(step, most)

    @property
    def has_board(self) -> bool:
        return self._board is not None

    def _begin(self, step: int, most: int | None) -> None:
        self.lines = self._folder.cut_metrics(step, most)
        self._file = self._folder.metrics.open("ab")
        self._board = _tensorboard(self._folder.path / "tensorboard", step)

    def event(self, step: int, name: str, **facts: Any) -> None:
        """A line for something that happened: `{"step": 7, "event": "skipped", …}`."""
        self._line({"step": step, "event": name, **facts})

    def _line(self, values: Mapping[str, Any]) -> None:
        disk.put(self._file, (json.dumps(values) + "\n").encode())
        self._file.flush()
        self.lines += 1

    def __call__(self, step: int, values: dict[str, float]) -> None:
        """Append one line, seen by others at once."""
        self._line({"step": step, **values})
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)

    def keep(self) -> None:
        """Return when all lines are on the disk: a checkpoint counts on them."""
        disk.flush(self._file)

    def back_to(self, step: int, most: int) -> None:
        """Forget what was written after the line `most`: the run has gone back to `step`."""
        self.close()
        self._begin(step, most)

    def close(self) -> None:
        """Flush to the disk."""
        try:
            self.keep()
        finally:
            self._file.close()
        if self._board is not None:
            self._board.close()


class NoLog:
    """What a rank that does not speak writes its metrics into."""

    lines, has_board = 0, True

    def event(self, step: int, name: str, **facts: Any) -> None:
        """Unwritten."""

    def __call__(self, step: int, values: dict[str, float]) -> None:
        """Unwritten."""

    def keep(self) -> None:
        """Nothing is there."""

    def back_to(self, step: int, most: int) -> None:
        """Nothing is there."""

    def close(self) -> None:
        """Nothing is there."""


def _tensorboard(path: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(path), purge_step=step + 1)
