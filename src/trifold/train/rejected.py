"""Updates that are rejected: a non-finite loss or gradient, or a loss spike.

A spike is a loss above `spike_factor` times the median of the last `spike_window` losses. The decisions depend only on
the run itself: a resumed run rejects the same updates as an uninterrupted one.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor

from trifold import disk
from trifold.recipe import TrainSettings
from trifold.train.trainer import RejectedUpdate


def spike_threshold(settings: TrainSettings, losses: Sequence[float]) -> float:
    """The loss above which an update is rejected; infinity while there are fewer than `spike_window` losses."""
    if settings.on_spike == "accept" or len(losses) < settings.spike_window:
        return math.inf
    return settings.spike_factor * median(losses)


def append_loss(settings: TrainSettings, losses: list[float], loss: float) -> list[float]:
    """The losses that determine the next threshold."""
    return [] if settings.on_spike == "accept" else [*losses, loss][-settings.spike_window :]


def choose_action(
    settings: TrainSettings, rejected: RejectedUpdate, earlier: int
) -> Literal["skip", "rewind"]:
    """What follows a rejected update, after `earlier` others in this run.

    Raises RejectedUpdate with the remedy if the run must stop.
    """
    non_finite = rejected.kind == "non-finite"
    action: str = settings.on_nonfinite if non_finite else settings.on_spike
    if action == "stop":  # resuming would repeat it, bit by bit
        remedy = "start another run with a lower train.learning_rate, a longer train.warmup or train.clip=1.0"
        if non_finite:
            remedy += ", or continue with --resume auto and train.on_nonfinite=skip"
    elif earlier >= settings.skip_limit:
        remedy = (
            f"train.skip_limit={settings.skip_limit} allows no more than {earlier:,} rejected updates; start another "
            "run with a lower train.learning_rate, or raise the limit and continue with --resume auto"
        )
    else:
        return "rewind" if action == "rewind" else "skip"
    error = RejectedUpdate(rejected.kind, rejected.step, rejected.loss, rejected.norm)
    error.args = (f"{rejected}; {remedy}",)
    raise error


def save_batches(
    folder: Path, rejected: RejectedUpdate, batches: Sequence[Any], positions: list[list[int]]
) -> Path | None:
    """Save the batches of a rejected update for inspection, as `step-N.safetensors` and `step-N.json`.

    positions: [epoch, number in the epoch] of each batch. Tensors are named after their path: `0.source.tokens`.
    Returns None if the disk refuses, since the rejected update is the more important error.
    """
    from safetensors.torch import save

    name = f"step-{rejected.step:08d}"
    found = (item for number, batch in enumerate(batches) for item in find_tensors(batch, str(number)))
    tensors = {path: tensor.detach().cpu().clone().contiguous() for path, tensor in found}
    description = {
        "step": rejected.step,
        "what": rejected.kind,
        "loss": str(rejected.loss),
        "gradient_norm": str(rejected.norm),
        "batches": positions,
    }
    try:
        disk.make_folder(folder)
        disk.replace_bytes(folder / f"{name}.safetensors", save(tensors))
        disk.replace_text(folder / f"{name}.json", json.dumps(description, indent=2) + "\n")
    except OSError:
        return None
    return folder / f"{name}.safetensors"


def find_tensors(value: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in nested data classes, tuples, lists and dictionaries, with its dotted path."""
    items: Any = ()
    if isinstance(value, torch.Tensor):
        yield path, value
    elif dataclasses.is_dataclass(value):
        items = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
    elif isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (tuple, list)):
        items = zip(getattr(value, "_fields", range(len(value))), value, strict=True)
    for name, inner in items:
        yield from find_tensors(inner, f"{path}.{name}")
