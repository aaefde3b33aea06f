"""Pickled weights of old folders, for those who trust them: opened in a process of its own, handed over as safetensors.

Even `weights_only`, which builds tensors and nothing else, was broken twice (CVE-2025-32434, CVE-2026-24747). So it
runs in `pickle_process`, with little memory, little time, none of our state, and no way back but files without code.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from trifold.errors import CheckpointError
from trifold.hub.files import check_inside
from trifold.hub.lazy import Aliased
from trifold.hub.weights import PICKLE, PICKLE_INDEX, Weights, check_shards, names_in, read_index

SHARD_NAME = re.compile(r"[\w-][\w.-]*\.bin", re.ASCII)
_START = 120.0  # seconds for Python and PyTorch to start on a busy machine
_SPEED = 10 * 10**6  # bytes a second that the slowest disk reads and writes
_KEPT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "SYSTEMROOT", "LANG", "LC_ALL", "VIRTUAL_ENV")
_SET = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def unpickled(folder: Path, scratch: Path, *, patience: float | None = None) -> Mapping[str, Tensor]:
    """The tensors of `pytorch_model.bin`, or of the shards of its index, by way of files in `scratch`.

    They are read from there when they are asked for; tied ones are one. Raises CheckpointError where there are none,
    where a file holds anything but tensors by name, and where reading takes more than `patience` seconds (or so many
    as its size explains) or more memory than its size explains.
    """
    listed: dict[str, str] | None = None
    if (folder / PICKLE).is_file():
        names = [PICKLE]
    elif (folder / PICKLE_INDEX).is_file():
        listed = read_index(folder / PICKLE_INDEX, SHARD_NAME)
        names = sorted(set(listed.values()))
    else:
        raise CheckpointError(f"{folder}: no {PICKLE} and no {PICKLE_INDEX}; is this the folder of a model?")
    files = [folder / name for name in names]
    if missing := [file.name for file in files if not file.is_file()]:
        raise CheckpointError(f"{folder}: {', '.join(missing)}: no such file, though the index names it")
    for file in files:
        check_inside(file)
    made = dict(zip(files, _handed_over(files, scratch, patience), strict=True))
    held = {file: _held(*made[file], file) for file in files}
    if listed is not None:
        check_shards(folder / PICKLE_INDEX, listed, held.__getitem__)
    kept = {name: path for path, _ in made.values() for name in names_in(path)}
    aliases = {name: original for file in files for name, original in held[file].items()}
    return Aliased(Weights(kept), aliases)


def _held(path: Path, tied: Mapping[str, str], file: Path) -> dict[str, str]:
    """Every name that a pickle gives -> the name under which its tensor was handed over."""
    kept = names_in(path)
    if not set(tied.values()) <= set(kept):
        raise CheckpointError(f"{file}: was not handed over as it should be; do not trust this file")
    return dict(zip(kept, kept, strict=True)) | dict(tied)


def _handed_over(
    files: list[Path], scratch: Path, patience: float | None
) -> list[tuple[Path, dict[str, str]]]:
    """For each pickle the safetensors file made of it, and its other names of tensors there."""
    process = Path(__file__).with_name("pickle_process.py")
    command = [sys.executable, "-P", "-X", "utf8", str(process), str(scratch.resolve())]
    command += [str(file.resolve()) for file in files]
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    patience = patience or _START + sum(file.stat().st_size for file in files) / _SPEED
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=kept | _SET,
            timeout=patience,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CheckpointError(
            f"{files[0]}: was stopped: reading it took more than {patience:g} s; do not trust this file"
        ) from None
    ready, *answers = [*map(_answer, done.stdout.decode("utf-8", "replace").splitlines())] or [{}]
    if "ready" not in ready:
        said = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"])[-1]
        raise CheckpointError(f"{files[0]}: the process that opens pickles could not be started ({said})")
    for file, answer in zip(files, [*answers, *[{}] * len(files)], strict=False):
        if "error" in answer:
            raise CheckpointError(f"{file}: {answer['error']}")
        if "tied" not in answer:
            raise CheckpointError(
                f"{file}: was stopped: reading it used more memory than its size explains, or broke PyTorch; "
                "do not trust this file"
            )
    return [(scratch / f"{number:05d}.safetensors", answers[number]["tied"]) for number in range(len(files))]


def _answer(line: str) -> dict[str, Any]:
    """What the process says of a file: {"tied": {…}} or {"error": …}; anything else is nothing."""
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    if not isinstance(said, dict) or not isinstance(said.get("tied", {}), dict):
        return {}
    return said if all(isinstance(name, str) for name in said.get("tied", {}).values()) else {}
