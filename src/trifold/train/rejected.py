"""Rejected updates, and what follows: their batches are saved, and the run stops, skips the update,
or returns to a checkpoint.
"""

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
from trifold.errors import TrifoldError
from trifold.recipe import TrainSettings


class RejectedUpdate(TrifoldError):
    """An update was rejected because of a non-finite loss or gradient, or a loss spike. The weights
    are unchanged.

    The decision depends only on the run itself: a resumed run rejects the same updates as an
    uninterrupted one.
    """

    def __init__(
        self, kind: Literal["non-finite", "spike"], step: int, loss: float, norm: float
    ) -> None:
        cause = f"loss {loss}, gradient norm {norm}{', a spike' * (kind == 'spike')}"
        super().__init__(f"step {step}: {cause}; the weights were not changed")
        self.kind = kind
        self.step = step
        self.loss = loss
        self.norm = norm

    @property
    def details(self) -> dict[str, str]:
        """The values to record, as text, because JSON has no NaN and infinity."""
        return {"what": self.kind, "loss": str(self.loss), "gradient_norm": str(self.norm)}


def spike_threshold(settings: TrainSettings, losses: Sequence[float]) -> float:
    """The largest loss that is no spike: a multiple of the median of the last ones; infinity while
    they are too few.
    """
    if settings.on_spike == "accept" or len(losses) < settings.spike_window:
        return math.inf
    return settings.spike_factor * median(losses)


def check_update(step: int, loss: float, norm: float, max_loss: float = math.inf) -> None:
    """Raises RejectedUpdate if the loss or the gradient norm is not finite, or the loss exceeds
    `max_loss`.
    """
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise RejectedUpdate("non-finite", step, loss, norm)
    if loss > max_loss:
        raise RejectedUpdate("spike", step, loss, norm)


def choose_action(
    settings: TrainSettings, rejected: RejectedUpdate, count: int
) -> Literal["skip", "rewind"]:
    """What follows, after `count` other rejected updates. Raises `rejected` with the remedy if the
    run must stop.
    """
    action: str = settings.on_nonfinite if rejected.kind == "non-finite" else settings.on_spike
    if action == "stop":  # resuming would repeat it, bit by bit
        remedy = (
            "start another run with a lower train.learning_rate, a longer train.warmup or "
            "train.clip=1.0"
        )
        remedy += ", or continue with --resume auto and train.on_nonfinite=skip"
    elif count >= settings.skip_limit:
        remedy = (
            f"train.skip_limit={settings.skip_limit} allows no more than {count:,} rejected "
            "updates; start another "
            "run with a lower train.learning_rate, or raise the limit and continue with "
            "--resume auto"
        )
    else:
        return "rewind" if action == "rewind" else "skip"
    rejected.args = (f"{rejected}; {remedy}",)
    raise rejected


def save_batches(
    folder: Path, rejected: RejectedUpdate, batches: Sequence[Any], positions: list[list[int]]
) -> Path | None:
    """Save the batches of a rejected update for inspection, as `step-N.safetensors` and
    `step-N.json`.

    positions: [epoch, number in the epoch] of each batch. Tensors are named after their path:
    `0.inputs.tokens`. Returns None if writing fails, since the rejected update is the more
    important error.
    """
    from safetensors.torch import save

    name = f"step-{rejected.step:08d}"
    found = (
        item for number, batch in enumerate(batches) for item in find_tensors(batch, str(number))
    )
    tensors = {path: tensor.detach().cpu().clone().contiguous() for path, tensor in found}
    description = {"step": rejected.step, **rejected.details, "batches": positions}
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
