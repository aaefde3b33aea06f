"""Full training states that can be trusted.

A checkpoint is written aside, flushed to the disk, listed in a manifest with a SHA-256 a file (written last), and
only then renamed to its place: `step-00002000` either holds everything or does not exist. No pickle anywhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from trifold.errors import CheckpointError

MANIFEST = "manifest.json"
FORMAT = "trifold-checkpoint-1"
FILES = {"weights.safetensors", "optimizer.safetensors", "progress.json"}


class Checkpoint(NamedTuple):
    """weights: fp32 master weights by name; moments: the optimiser's; progress: where in the data the run stands."""

    weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    progress: dict[str, Any]


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write `folder/step-N` for N = progress["step"]; nothing half-written is ever seen under that name.

    Raises CheckpointError where the disk refuses; what stood there before stays.
    """
    final = folder / f"step-{checkpoint.progress['step']:08d}"
    aside = folder / f".{final.name}.partial"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        save_file(_contiguous(checkpoint.weights), aside / "weights.safetensors")
        save_file(_contiguous(checkpoint.moments), aside / "optimizer.safetensors")
        write_text(aside / "progress.json", json.dumps(checkpoint.progress, indent=2) + "\n")
        digests = {file.name: _flushed_digest(file) for file in sorted(aside.iterdir())}
        write_text(aside / MANIFEST, json.dumps({"format": FORMAT, "sha256": digests}, indent=2) + "\n")
        old = folder / f".{final.name}.old"
        if final.exists():  # saved again: the old one goes only when the new one stands
            os.replace(final, old)
        os.replace(aside, final)
        _flush_folder(folder)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise CheckpointError(
            f"{final}: could not be written ({error}); free some disk space or choose another --out, then --resume auto"
        ) from error
    return final


def load(path: Path, *, optimizer: bool = True) -> Checkpoint:
    """Read and verify a checkpoint. Raises CheckpointError naming the file that is missing or damaged."""
    manifest = _manifest(path)
    for name, expected in manifest.items():
        file = path / name
        if not file.is_file():
            raise CheckpointError(f"{file}: missing, though the manifest lists it")
        if (optimizer or name != "optimizer.safetensors") and _digest(file) != expected:
            raise CheckpointError(f"{file}: damaged (its SHA-256 is not the one in {MANIFEST})")
    try:
        weights = load_file(path / "weights.safetensors")
        moments = load_file(path / "optimizer.safetensors") if optimizer else {}
        progress = json.loads((path / "progress.json").read_text("utf-8"))
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path}: not a checkpoint of trifold ({error})") from error
    return Checkpoint(weights, moments, progress)


def saved(folder: Path) -> list[Path]:
    """Finished checkpoints, the oldest first."""
    return sorted(path for path in folder.glob("step-" + "[0-9]" * 8) if (path / MANIFEST).is_file())


def regular(folder: Path, every: int) -> list[Path]:
    """Those of `saved` that a run which nobody interrupts has too: their step is a multiple of `every`."""
    return [path for path in saved(folder) if step_of(path) % every == 0]


def step_of(path: Path) -> int:
    """2000 for `step-00002000`."""
    return int(path.name.removeprefix("step-"))


def prune(folder: Path, keep: int, every: int = 1) -> None:
    """Remove all but the newest `keep` regular checkpoints and the newest of all, and what was left aside."""
    staying = {*regular(folder, every)[-keep:], *saved(folder)[-1:]}
    for path in set(saved(folder)) - staying:
        shutil.rmtree(path, ignore_errors=True)
    for path in (*folder.glob(".step-*.partial"), *folder.glob(".step-*.old")):
        shutil.rmtree(path, ignore_errors=True)


def mean_weights(paths: list[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints, summed in float64 (Vaswani et al. 2017, section 6.1)."""
    total: dict[str, Tensor] = {}
    for path in paths:
        for name, value in load(path, optimizer=False).weights.items():
            total[name] = total[name].add_(value.double()) if name in total else value.double()
    return {name: (value / len(paths)).float() for name, value in total.items()}


def write_text(path: Path, text: str) -> None:
    """Write, flush to the disk, rename: the file is the old one or the new one, never half of it."""
    aside = path.with_name(f".{path.name}.partial")
    with aside.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def _manifest(path: Path) -> Mapping[str, str]:
    try:
        manifest = json.loads((path / MANIFEST).read_text("utf-8"))
        if manifest["format"] != FORMAT or set(manifest["sha256"]) != FILES:
            raise KeyError("format")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path}: not a checkpoint of trifold ({MANIFEST} is missing or foreign)"
        ) from error
    digests: Mapping[str, str] = manifest["sha256"]
    return digests


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", torch.float32).clone() for name, tensor in tensors.items()}


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _flushed_digest(file: Path) -> str:
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _flush_folder(folder: Path) -> None:
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
