"""The fitted baselines of a run in its folder, so that a model is compared with them on other rows,
when the training rows may be gone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from trifold import disk
from trifold.baselines.baseline import Baseline, State
from trifold.baselines.comparison import Comparison
from trifold.baselines.table import KINDS
from trifold.errors import CheckpointError
from trifold.folders import AnyPath, UntrustedPath, named
from trifold.hub.tensors import TensorFile
from trifold.jsonfiles import read_json_or_none

FILE = "baselines.safetensors"
TABLE = "baselines"  # the tensor with the kinds and the values of all, as JSON
LARGEST = 2**24  # bytes that are kept of one baseline


def save_baselines(folder: Path, baselines: Sequence[Baseline]) -> None:
    """Write the baselines into the folder of a run, without those that are too large. Raises
    OSError.
    """
    table: list[dict[str, Any]] = []
    tensors: dict[str, Tensor] = {}
    for baseline in baselines:
        values, own = baseline.state()
        if sum(tensor.nbytes for tensor in own.values()) > LARGEST:
            continue
        facts = {"rows": baseline.rows, "seconds": baseline.seconds}
        number = len(table)
        table.append({"kind": type(baseline).__name__, **facts, "values": dict(values)})
        tensors |= {f"{number}.{name}": tensor.contiguous() for name, tensor in own.items()}
    content = np.frombuffer(json.dumps(table).encode(), np.uint8).copy()
    disk.replace_bytes(folder / FILE, save({TABLE: torch.from_numpy(content), **tensors}))


def load_baselines(folder: AnyPath) -> list[Baseline]:
    """The baselines in the folder of a run; none if it has no file. Raises CheckpointError for a
    damaged one.
    """
    path = named(folder) / FILE
    if not path.exists():
        return []
    file = TensorFile(path)
    try:
        table = json.loads(file[TABLE].numpy().tobytes())
        return [_restore(number, entry, file) for number, entry in enumerate(table)]
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: is no file of baselines ({error}); remove it, or train again"
        ) from None


def write_comparison(path: Path, comparison: Comparison | None) -> None:
    """Write a comparison as JSON; without one, remove that of earlier weights. Raises OSError."""
    if comparison is None:
        disk.remove(path)
    else:
        disk.replace_text(path, json.dumps(comparison.as_json(), indent=2) + "\n")


def read_comparison(path: UntrustedPath) -> Comparison | None:
    """The comparison in a file; None if it is missing or damaged."""
    content = read_json_or_none(path)
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        return Comparison.from_json(content)
    return None


def _restore(number: int, entry: dict[str, Any], file: TensorFile) -> Baseline:
    start = f"{number}."
    tensors = {name.removeprefix(start): file[name] for name in file if name.startswith(start)}
    baseline = KINDS[entry["kind"]].restore(State(entry["values"], tensors))
    baseline.rows = int(entry["rows"])
    baseline.seconds = float(entry["seconds"])
    return baseline
