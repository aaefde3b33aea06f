"""Updates that are not made: a loss or a gradient that is no number, or a loss that leaps.

A spike is a loss above `spike_factor` times the median of the last `spike_window` losses. What is told of a refused
update decides nothing by chance: a run that is stopped and resumed refuses the same updates as one that never stopped.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor

from trifold import disk
from trifold.errors import TrifoldError
from trifold.recipe import TrainSettings

Fate = Literal["stop", "skip", "rewind"]


class Refused(TrifoldError):
    """An update was refused; the weights were not touched."""

    def __init__(self, kind: Literal["nonsense", "spike"], step: int, loss: float, norm: float) -> None:
        what = "" if kind == "nonsense" else ", a spike"
        super().__init__(
            f"step {step}: loss {loss} with gradient norm {norm}{what}; the weights were not touched"
        )
        self.kind, self.step, self.loss, self.norm = kind, step, loss, norm


def judge(step: int, loss: float, norm: float, highest: float = math.inf) -> None:
    """Raises Refused where loss or gradient are no numbers, or the loss is above `highest`."""
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise Refused("nonsense", step, loss, norm)
    if loss > highest:
        raise Refused("spike", step, loss, norm)


def highest_loss(settings: TrainSettings, recent: Sequence[float]) -> float:
    """The loss above which an update is refused; none while there are too few to compare with."""
    if settings.on_spike == "accept" or len(recent) < settings.spike_window:
        return math.inf
    return settings.spike_factor * median(recent)


def remember(settings: TrainSettings, recent: list[float], loss: float) -> list[float]:
    """The losses that the next one is compared with."""
    return [] if settings.on_spike == "accept" else [*recent, loss][-settings.spike_window :]


def fate(settings: TrainSettings, refused: Refused, so_far: int) -> Fate:
    """What becomes of a refused update, `so_far` of which were let pass in this run.

    Raises Refused with the remedy where the run is to stop.
    """
    wanted: str = settings.on_nonfinite if refused.kind == "nonsense" else settings.on_spike
    if wanted == "stop":
        # Going on with this run would repeat it bit by bit.
        remedy = "begin another run with a lower train.learning_rate, a longer train.warmup or train.clip=1.0"
        if refused.kind == "nonsense":
            remedy += ", or go on with --resume auto and train.on_nonfinite=skip"
    elif so_far >= settings.skip_limit:
        remedy = (
            f"{so_far:,} updates were left out before, and train.skip_limit allows no more; begin another run with a "
            "lower train.learning_rate, or raise the limit and go on with --resume auto"
        )
    else:
        return "rewind" if wanted == "rewind" else "skip"
    error = Refused(refused.kind, refused.step, refused.loss, refused.norm)
    error.args = (f"{refused}; {remedy}",)
    raise error


def evidence(folder: Path, refused: Refused, batches: Sequence[Any], places: list[list[int]]) -> Path | None:
    """As `write_evidence`; None where the disk refuses, since what is wrong with the numbers is the news."""
    with suppress(OSError):
        return write_evidence(folder, refused, batches, places)
    return None


def write_evidence(folder: Path, refused: Refused, batches: Sequence[Any], places: list[list[int]]) -> Path:
    """The batches of a refused update, as `step-N.safetensors` and `step-N.json`, to look at what was in them.

    places: [epoch, number in the epoch] of each batch. Tensors are named after where they stand: `0.source.tokens`.
    Raises OSError where the disk refuses; then none of the two files is there by halves.
    """
    from safetensors.torch import save

    disk.make_folder(folder)
    name = f"step-{refused.step:08d}"
    tensors = dict(found for number, batch in enumerate(batches) for found in _tensors(batch, str(number)))
    about = {
        "step": refused.step,
        "what": refused.kind,
        "loss": str(refused.loss),
        "gradient_norm": str(refused.norm),
        "batches": places,
    }
    copies = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    disk.replace_bytes(folder / f"{name}.safetensors", save(copies))
    disk.replace_text(folder / f"{name}.json", json.dumps(about, indent=2) + "\n")
    return folder / f"{name}.safetensors"


def _tensors(value: Any, at: str) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in a value of data classes, tuples, lists and dictionaries, by the way that leads to it."""
    if isinstance(value, torch.Tensor):
        yield at, value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name), f"{at}.{field.name}")
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _tensors(inner, f"{at}.{key}")
    elif isinstance(value, (tuple, list)):
        names = getattr(value, "_fields", range(len(value)))
        for name, inner in zip(names, value, strict=True):
            yield from _tensors(inner, f"{at}.{name}")
