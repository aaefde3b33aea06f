"""Where a run keeps everything.

recipe.yaml, environment.json, model/ (a Hugging Face folder with the best weights), checkpoints/, metrics.jsonl,
tensorboard/, samples/. An existing run is continued or refused, never overwritten.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

import trifold
from trifold.errors import UsageError
from trifold.recipe import Recipe
from trifold.train import checkpoint


class RunFolder:
    """The paths of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.yaml"
        self.environment = path / "environment.json"
        self.tokenizer = path / "tokenizer"
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        self.samples = path / "samples"
        self.metrics = path / "metrics.jsonl"

    def open(self, *, resume: bool) -> None:
        """Make the folder. Raises UsageError where a run lies there already and `resume` is not asked for."""
        try:
            if not resume and self.path.exists() and any(self.path.iterdir()):
                raise UsageError(
                    f"{self.path}: holds files already; continue that run with --resume auto, or choose another --out"
                )
            for folder in (self.path, self.checkpoints, self.samples):
                folder.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise UsageError(
                f"{self.path}: cannot be written ({error.strerror}); choose another --out"
            ) from error

    @contextmanager
    def begun(self) -> Iterator[None]:
        """A run that fails before its first step leaves nothing behind, so that the corrected command can follow."""
        fresh = not self.recipe.exists()
        try:
            yield
        except BaseException:
            if fresh:
                for folder in (self.tokenizer, self.checkpoints, self.samples):
                    shutil.rmtree(folder, ignore_errors=True)
                for file in (self.recipe, self.environment):
                    file.unlink(missing_ok=True)
                with suppress(OSError):  # somebody else's files stay, and so does the folder then
                    self.path.rmdir()
            raise

    @property
    def continue_line(self) -> str:
        """The command that goes on with this run."""
        return shlex.join(["trifold", "train", str(self.recipe), "--out", str(self.path), "--resume", "auto"])

    def describe(self, recipe: Recipe, device: torch.device, dtype: torch.dtype, workers: int) -> None:
        """Write recipe.yaml and environment.json."""
        told = environment(device, dtype, workers)
        checkpoint.write_text(self.recipe, recipe.resolved())
        checkpoint.write_text(self.environment, json.dumps(told, indent=2) + "\n")

    def cut_metrics(self, step: int) -> None:
        """Forget lines past `step`: a resumed run writes them again."""
        if self.metrics.is_file():
            lines = self.metrics.read_text("utf-8").splitlines(keepends=True)
            kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
            checkpoint.write_text(self.metrics, "".join(kept))


def environment(device: torch.device, dtype: torch.dtype, workers: int) -> dict[str, Any]:
    """What a run depends on beside its recipe."""
    return {
        "trifold": trifold.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor(),
        "precision": str(dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "workers": workers,
        "git": _git_revision(),
    }


def _git_revision() -> str | None:
    """Of trifold's own code, where it runs from a checkout."""
    try:
        told = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
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

    def __init__(self, folder: RunFolder, step: int) -> None:
        folder.cut_metrics(step)
        self._file = folder.metrics.open("a", encoding="utf-8", newline="\n")
        self._board = _tensorboard(folder.path / "tensorboard", step)

    @property
    def has_board(self) -> bool:
        return self._board is not None

    def __call__(self, step: int, values: dict[str, float]) -> None:
        """Append one line, seen by others at once."""
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush to the disk."""
        os.fsync(self._file.fileno())
        self._file.close()
        if self._board is not None:
            self._board.close()


def _tensorboard(path: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(path), purge_step=step + 1)
