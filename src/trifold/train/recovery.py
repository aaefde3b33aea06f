"""What follows a rejected update: its batches are saved, and the run stops, skips the update, or
returns to a checkpoint.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from trifold import disk
from trifold.recipe import TrainSettings
from trifold.train import checkpoint
from trifold.train.checkpoint import TrainingProgress
from trifold.train.data import RankShare, batches_of_all_ranks
from trifold.train.metrics import MetricsLog
from trifold.train.preparation import TrainingSession
from trifold.train.rejected import RejectedUpdate


def recover(
    rejected: RejectedUpdate,
    share: RankShare,
    progress: TrainingProgress,
    session: TrainingSession,
    log: MetricsLog,
) -> TrainingProgress:
    """The position after a rejected update of the batches in `share`. All ranks call this. Raises
    `rejected` if the run must stop.
    """
    details, rewind_to = session.ranks.first(_decide, rejected, share, progress, session, log)
    progress.rejected += 1
    if rewind_to is None:
        progress.step += 1
        progress.epoch, progress.batch = share.end
        log.event(progress.step, "skipped", **details)
        return progress
    earlier = _rewind(session, session.folder.checkpoints / rewind_to, progress, share.end)
    log.rewind(earlier.step, earlier.lines)
    log.event(earlier.step, "rewound", spike_at=rejected.step, **details)
    return earlier


def _decide(
    rejected: RejectedUpdate,
    share: RankShare,
    progress: TrainingProgress,
    session: TrainingSession,
    log: MetricsLog,
) -> tuple[dict[str, str], str | None]:
    """Rank 0: the details for the log, and the name of the checkpoint to return to, if any."""
    folder = session.folder
    batches = batches_of_all_ranks(
        session.data, session.machine.workers, share.batches, session.ranks.world
    )
    file = save_batches(folder.rejected, rejected, batches, share.positions)
    if file is None:
        where = "could not be written"
        details = rejected.details | {"batch": where}
    else:
        where = f"is in {file}"
        details = rejected.details | {"batch": str(file.relative_to(folder.path))}
    settings = session.recipe.train
    try:
        action = choose_action(settings, rejected, progress.rejected)
    except RejectedUpdate:
        with suppress(OSError):  # report the rejected update rather than a full disk
            log.event(rejected.step, "stopped", **details)
        raise
    session.view.say(f"{rejected}; {action}; its batch {where}")
    if action == "skip":
        return details, None
    # A regular checkpoint, so that an interrupted run returns as far as an uninterrupted one.
    session.saver.wait()
    regular = checkpoint.regular_checkpoints(folder.below(folder.checkpoints), settings.save_every)
    names = [path.name for path in regular if checkpoint.step_of(path) <= progress.step]
    if not names:
        return details, None
    return details, names[-1]


def _rewind(
    session: TrainingSession, saved: Path, current: TrainingProgress, position: tuple[int, int]
) -> TrainingProgress:
    """Restore weights, optimizer and step from a checkpoint; the data continues from `position`."""
    state = checkpoint.load(saved)
    session.trainer.restore(state.weights, state.optimizer)
    earlier = TrainingProgress.from_dict(state.progress)
    earlier.epoch, earlier.batch = position
    earlier.rejected = current.rejected
    earlier.losses = []
    earlier.best = current.best
    earlier.scores = current.scores
    return earlier


def choose_action(
    settings: TrainSettings, rejected: RejectedUpdate, count: int
) -> Literal["skip", "rewind"]:
    """What follows, after `count` other rejected updates. Raises `rejected` with the remedy if the
    run must stop.
    """
    if rejected.kind == "non-finite":
        action: str = settings.on_nonfinite
    else:
        action = settings.on_spike
    if action == "stop":  # resuming would repeat it, bit by bit
        remedy = (
            "start another run with a lower train.learning_rate, a longer train.warmup or "
            "train.clip=1.0, or continue with --resume auto and train.on_nonfinite=skip"
        )
    elif count >= settings.skip_limit:
        remedy = (
            f"train.skip_limit={settings.skip_limit} allows no more than {count:,} rejected "
            "updates; start another run with a lower train.learning_rate, or raise the limit and "
            "continue with --resume auto"
        )
    elif action == "rewind":
        return "rewind"
    else:
        return "skip"
    rejected.args = (f"{rejected}; {remedy}",)
    raise rejected


# --- the batches of a rejected update -------------------------------------------------------------


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
    tensors = {
        path: tensor.detach().cpu().clone().contiguous()
        for number, batch in enumerate(batches)
        for path, tensor in find_tensors(batch, str(number))
    }
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
    if isinstance(value, torch.Tensor):
        yield path, value
    for name, inner in _items_of(value):
        yield from find_tensors(inner, f"{path}.{name}")


def _items_of(value: Any) -> Iterable[tuple[Any, Any]]:
    """The names and values of the items of a container; none of other values."""
    if isinstance(value, torch.Tensor):
        return ()
    if dataclasses.is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, (tuple, list)):
        return zip(getattr(value, "_fields", range(len(value))), value, strict=True)
    return ()
