"""Checkpoints: the full training state, with checksums.

A checkpoint is written to a temporary folder, flushed to disk, listed in a manifest with a SHA-256
for each file (written last), and then renamed: `step-00002000` is complete and durable, or does not
exist. The latest checkpoint is the one with the highest number. Damaged checkpoints are rejected by
name, and the newest intact one is used. There is no pickle.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from torch import Tensor

from trifold import disk
from trifold.disk import sha256_of_file
from trifold.errors import CheckpointError
from trifold.folders import AnyPath, UntrustedPath, named, open_file
from trifold.hub.tensors import TensorFile, encode_header, tensor_bytes
from trifold.jsonfiles import MAX_JSON
from trifold.objectives.evaluation import Balance
from trifold.recipe import TrainSettings
from trifold.train.ranks import SINGLE, Ranks
from trifold.train.sharding import exhaust, gathered

MANIFEST = "manifest.json"
FORMAT = "trifold-checkpoint-2"
WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.safetensors"
PROGRESS = "progress.json"
FILES = {WEIGHTS, OPTIMIZER, PROGRESS}
NAME = "step-" + "[0-9]" * 8
P = TypeVar("P", Path, UntrustedPath)


class BestValidation(NamedTuple):
    """The best validation so far; `since` is the number of validations after it. score, loss: None
    before the first one.

    constant: its score with the same weight for all classes, if its model gives all rows the same
    answer. balanced: the highest such score so far of a model that does not. fitted: what the loss
    must be below, by default the loss before the first step, where a part is fitted before it.
    """

    score: float | None = None
    step: int = 0
    since: int = 0
    loss: float | None = None
    constant: float | None = None
    balanced: float = 0.0
    fitted: float | None = None

    def is_refused(self, balance: Balance | None) -> bool:
        """Whether a model gives all rows the same answer, and an earlier one is better if all
        classes have the same weight. It is not kept, however high its score is.
        """
        return balance is not None and balance.answer is not None and balance.score < self.balanced

    def is_beaten(self, score: float, loss: float, balance: Balance | None = None) -> bool:
        """Whether a validation is better: by its score, by its loss if the scores are equal, or
        because the score of this one is no number. Of a classifier, see `is_refused`, which also
        holds the other way round.

        Beside a part that was fitted before the first step, training must also lower the loss: the
        score of few rows is often higher by chance.
        """
        if self.is_refused(balance):
            return False
        if self.constant is not None and balance is not None and balance.answer is None:
            is_better = balance.score > self.constant
            if is_better:
                return True
        if self.fitted is not None and loss >= self.fitted:
            return False
        if self.score is None or (math.isnan(self.score) and not math.isnan(score)):
            return True
        if score == self.score and self.loss is not None:
            return loss < self.loss
        return score > self.score

    def after(
        self, step: int, score: float, loss: float, balance: Balance | None, *, is_best: bool
    ) -> BestValidation:
        """The best one after another validation."""
        best = self._replace(since=self.since + 1)
        if is_best:
            constant = None
            if balance is not None and balance.answer is not None:
                constant = balance.score
            best = BestValidation(score, step, 0, loss, constant, self.balanced, self.fitted)
        if step == 0:  # which is validated where a part is fitted
            best = best._replace(fitted=loss)
        if balance is not None and balance.answer is None:
            best = best._replace(balanced=max(best.balanced, balance.score))
        return best


@dataclass
class TrainingProgress:
    """The position of a run, as saved in checkpoints. It is equal on all ranks, except for `lines`.

    validated: the step of the last validation. lines: of metrics.jsonl. rejected: the number of
    rejected updates. losses: the recent losses that detect a spike. scores: those of the
    best validation. loss_sum, loss_count: the losses of the updates since the last logged step.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    seconds: float = 0.0
    tokens: int = 0
    validated: int = 0
    best: BestValidation = field(default_factory=BestValidation)
    scores: dict[str, float] = field(default_factory=dict)
    lines: int = 0
    rejected: int = 0
    losses: list[float] = field(default_factory=list)
    loss_sum: float = 0.0
    loss_count: int = 0

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> TrainingProgress:
        """The progress in a checkpoint. Other keys are ignored."""
        known = {field.name for field in fields(cls)}
        values = {key: value for key, value in saved.items() if key in known}
        return cls(**{**values, "best": BestValidation(*saved["best"])})


class Checkpoint(NamedTuple):
    """weights: fp32 master weights by name; optimizer: the optimizer state; progress: the position
    in the run.
    """

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    progress: dict[str, Any]

    def gathered(self) -> Iterator[Tensor]:
        """The full tensors in the order in which they are saved: the weights, then the optimizer
        state.
        """
        return gathered(self.weights, self.optimizer)

    def snapshot(self, tensors: Iterator[Tensor]) -> Checkpoint:
        """A copy in memory, from the tensors of `gathered`."""
        weights, optimizer = (
            {name: next(tensors).detach().to("cpu", copy=True) for name in sorted(group)}
            for group in (self.weights, self.optimizer)
        )
        return Checkpoint(weights, optimizer, json.loads(json.dumps(self.progress)))


# --- writing --------------------------------------------------------------------------------------


def save(folder: Path, checkpoint: Checkpoint, tensors: Iterator[Tensor] | None = None) -> Path:
    """Write `folder/step-N` for N = progress["step"], atomically; `tensors` are those of
    `checkpoint.gathered()`.

    Raises CheckpointError if writing fails; an existing checkpoint of that name stays.
    """
    if tensors is None:
        tensors = checkpoint.gathered()
    final = folder / f"step-{checkpoint.progress['step']:08d}"
    partial = _hidden(final, "partial")
    old = _hidden(final, "old")
    try:
        disk.remove(partial)
        disk.make_folder(partial)
        digests = {
            WEIGHTS: disk.write(partial / WEIGHTS, _serialize(checkpoint.weights, tensors)),
            OPTIMIZER: disk.write(partial / OPTIMIZER, _serialize(checkpoint.optimizer, tensors)),
            PROGRESS: disk.write(partial / PROGRESS, [_json(checkpoint.progress).encode()]),
        }
        disk.write(partial / MANIFEST, [_manifest_text(digests).encode()])
        disk.flush_folder(partial)
        if final.exists():
            # Saved again: the old checkpoint is removed only after the new one is in place.
            if not _is_ours(final):
                old = _unused(final.with_name(f"{final.name}.foreign"))  # it is not removed
            disk.rename(final, old)
        disk.rename(partial, final)
        disk.flush_folder(folder)
        disk.remove(_hidden(final, "old"))
    except OSError as error:
        disk.remove(partial)
        _restore_replaced(folder)
        raise CheckpointError(
            f"{final}: could not be written ({error}); {disk.remedy(error)} or choose another "
            "--out, then continue "
            "with --resume auto"
        ) from error
    return final


def prune(folder: Path, settings: TrainSettings, step: int, best: int) -> None:
    """Remove checkpoints up to `step` that the settings do not keep, and temporary folders; `best`
    is the best step.

    The newest checkpoint stays, and so do folders with other files than those of a checkpoint.
    """
    ours = {step_of(path): path for path in list_checkpoints(folder) if _is_ours(path)}
    saved = [saved_step for saved_step in ours if saved_step <= step]
    regular = [saved_step for saved_step in saved if saved_step % settings.save_every == 0]
    kept = {*regular[-settings.keep_last :], *saved[-1:]}
    if settings.keep_every:
        kept |= {saved_step for saved_step in saved if saved_step % settings.keep_every == 0}
    if settings.keep_best:
        kept.add(best)
    for saved_step in saved:
        if saved_step not in kept:
            _mark_for_removal(ours[saved_step])
    sweep(folder)


def sweep(folder: Path) -> None:
    """Restore a checkpoint that was being replaced when the process was killed, and remove
    temporary folders.
    """
    _restore_replaced(folder)
    temporary = [*folder.glob(f".{NAME}.partial"), *folder.glob(f".{NAME}.old")]
    if temporary:  # otherwise a power failure could restore them, half removed, as checkpoints
        disk.flush_folder(folder)
    for path in temporary:
        disk.remove(path)


def _mark_for_removal(path: Path) -> None:
    """Rename a checkpoint for `sweep`, so that an interrupted removal leaves no partial
    checkpoint.
    """
    with suppress(OSError):
        disk.rename(path, _hidden(path, "partial"))


def _restore_replaced(folder: Path) -> None:
    for old in folder.glob(f".{NAME}.old"):
        final = folder / old.name.removeprefix(".").removesuffix(".old")
        if not final.exists():
            disk.rename(old, final)


def _hidden(final: Path, ending: Literal["partial", "old"]) -> Path:
    """The name of a checkpoint that is incomplete, or that is being replaced or removed."""
    return final.with_name(f".{final.name}.{ending}")


def _unused(path: Path) -> Path:
    """This path, or the first with a number appended that does not exist."""
    names = chain([path], (path.with_name(f"{path.name}-{number}") for number in count(2)))
    return next(name for name in names if not (name.exists() or name.is_symlink()))


def _is_ours(path: Path) -> bool:
    """Whether a folder has a valid manifest and no foreign files; the listed files may be
    damaged.
    """
    try:
        _read_manifest(named(path))
        return {file.name for file in path.iterdir()} <= {*FILES, MANIFEST}
    except (CheckpointError, OSError):
        return False


def _serialize(named: Mapping[str, Tensor], tensors: Iterator[Tensor]) -> Iterator[disk.Bytes]:
    """A safetensors file of the next tensors; the writer of the library needs a copy of all tensors
    at once.
    """
    yield encode_header({name: named[name] for name in sorted(named)})[0]
    for tensor in islice(tensors, len(named)):
        if tensor.numel():
            yield tensor_bytes(tensor)


class Saver:
    """Writes checkpoints to `folder`, one at a time, in this thread or in the background, and
    removes old ones.

    A failed background save is raised by the next `check` or `wait`. Only rank 0 writes. Sharded
    tensors are gathered for it one at a time, so a checkpoint does not depend on the number of
    ranks.
    """

    def __init__(self, folder: Path, settings: TrainSettings, ranks: Ranks = SINGLE) -> None:
        self._folder = folder
        self._settings = settings
        self._ranks = ranks
        self._pool: ThreadPoolExecutor | None = None
        if settings.async_save and ranks.is_first:
            self._pool = ThreadPoolExecutor(1, "saver")
        self._pending: Future[None] | None = None

    def save(self, state: Checkpoint, best: int) -> None:
        """Write the shards of all ranks, which all call this; best: the best step so far. Raises
        CheckpointError.
        """
        tensors = state.gathered()
        if not self._ranks.is_first:
            exhaust(tensors)
        self._ranks.first(self._save, state, best, tensors)

    def _save(self, state: Checkpoint, best: int, tensors: Iterator[Tensor]) -> None:
        try:
            self.wait()
            if self._pool is None:
                self._write(state, best, tensors)
            else:
                self._pending = self._pool.submit(self._write, state.snapshot(tensors), best)
        finally:
            exhaust(tensors)

    def check(self) -> None:
        """Raises CheckpointError if a background save has failed."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Return when all saves are durable. Raises CheckpointError if one failed."""
        pending = self._pending
        self._pending = None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait, and ignore errors: another error is being raised, or `wait` was called."""
        if self._pool is not None:
            self._pool.shutdown()

    def _write(self, state: Checkpoint, best: int, tensors: Iterator[Tensor] | None = None) -> None:
        save(self._folder, state, tensors)
        prune(self._folder, self._settings, state.progress["step"], best)


# --- reading --------------------------------------------------------------------------------------


def load(path: AnyPath, *, optimizer: bool = True) -> Checkpoint:
    """Read and verify a checkpoint. Raises CheckpointError naming the file that is missing, damaged
    or unreadable.
    """
    path = named(path)
    try:
        for name, expected in _read_manifest(path).items():
            file = path / name
            if not file.exists():
                raise CheckpointError(f"{file}: missing, though the manifest lists it")
            if (optimizer or name != OPTIMIZER) and sha256_of_file(file) != expected:
                raise CheckpointError(f"{file}: damaged (its SHA-256 differs from {MANIFEST})")
        file = path
        weights = _read_tensors(path / WEIGHTS)
        state: dict[str, Tensor] = {}
        if optimizer:
            state = _read_tensors(path / OPTIMIZER)
        with open_file(path / PROGRESS) as content:
            progress = json.loads(content.read().decode("utf-8"))
    except OSError as error:
        raise _unreadable(file, error) from error
    except ValueError as error:
        raise CheckpointError(f"{path}: not a checkpoint of trifold ({error})") from error
    return Checkpoint(weights, state, progress)


def _read_tensors(path: UntrustedPath) -> dict[str, Tensor]:
    """The tensors of a file, which training may change."""
    return {name: tensor.clone() for name, tensor in TensorFile(path).items()}


def _unreadable(path: UntrustedPath, error: OSError) -> CheckpointError:
    """Unreadable checkpoints are skipped like damaged ones."""
    return CheckpointError(f"{path}: cannot be read ({error.strerror or error})")


class NewestCheckpoint(NamedTuple):
    """The newest intact checkpoint, and one error message for each newer one that was rejected."""

    path: Path
    state: Checkpoint
    rejected: list[str]


def load_newest(folder: AnyPath) -> NewestCheckpoint | None:
    """None if there is no checkpoint. Raises CheckpointError if there are some and all are
    damaged.
    """
    rejected: list[str] = []
    for path in reversed(list_checkpoints(named(folder))):
        try:
            return NewestCheckpoint(path.path, load(path), rejected)
        except CheckpointError as error:
            rejected.append(str(error))
    if not rejected:
        return None
    remedy = "no intact checkpoint remains; start another run with --out"
    raise CheckpointError("\n".join([*rejected, f"{folder}: {remedy}"]))


def list_checkpoints(folder: P) -> list[P]:
    """Finished checkpoints, oldest first. Raises CheckpointError if they cannot be listed, so no
    run starts over, and if the folder is a link that leads out of that of the run.
    """
    source = named(folder)
    if not source.is_inside():
        return []
    try:
        entries = list(source.path.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unreadable(source, error) from error
    names = (path.name for path in sorted(entries) if fnmatchcase(path.name, NAME))
    return [folder / name for name in names if _is_non_empty(source.path / name)]


def _is_non_empty(path: Path) -> bool:
    """Whether it is a non-empty folder, or one that cannot be listed."""
    try:
        return path.is_dir() and any(path.iterdir())
    except OSError:
        return True


def regular_checkpoints(folder: P, every: int) -> list[P]:
    """The checkpoints that an uninterrupted run has too: those whose step is a multiple of
    `every`.
    """
    return [path for path in list_checkpoints(folder) if step_of(path) % every == 0]


def step_of(path: Path | UntrustedPath) -> int:
    """2000 for `step-00002000`."""
    return int(path.name.removeprefix("step-"))


# --- the manifest ---------------------------------------------------------------------------------


def _json(value: object, indent: int | None = None) -> str:
    """The value in one line, which Python encodes ten times as fast as indented lines."""
    return json.dumps(value, indent=indent) + "\n"


def _manifest_text(digests: Mapping[str, str]) -> str:
    """The manifest includes its own digest, to tell damage to it from damage to the listed
    files.
    """
    content = {"format": FORMAT, "sha256": dict(digests)}
    digest = hashlib.sha256(_json(content, indent=2).encode()).hexdigest()
    return _json({**content, "manifest": digest}, indent=2)


def _read_manifest(path: UntrustedPath) -> Mapping[str, str]:
    file = path / MANIFEST
    try:
        with open_file(file) as content:
            text = content.read(MAX_JSON).decode("utf-8")
        digests: dict[str, str] = json.loads(text)["sha256"]
        known = json.loads(text)["format"] == FORMAT and set(digests) == FILES
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(f"{file}: missing, so this is not a checkpoint of trifold") from error
    except OSError as error:
        raise _unreadable(file, error) from error
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise CheckpointError(
            f"{file}: not a checkpoint of trifold (damaged, or of another format)"
        )
    if text != _manifest_text(digests):
        raise CheckpointError(f"{file}: damaged (its SHA-256 differs from the one it contains)")
    return digests
