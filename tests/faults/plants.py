"""Bugs to plant, each of which breaks a promise. The harness must find every one of them."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from tests.faults import stops
from torch import Tensor

from trifold import disk
from trifold.data import corpus, lines, pairs, token_cache
from trifold.fast import attention
from trifold.nn import losses
from trifold.nn.masks import Mask
from trifold.train import checkpoint, data, loop, preparation, run_folder, signals, trainer
from trifold.train.checkpoint import Checkpoint, NewestCheckpoint
from trifold.train.data_files import DataComparison
from trifold.train.distributed import ProcessGroup
from trifold.train.ranks import Interrupted
from trifold.train.trainer import Trainer


class Plant(NamedTuple):
    """The bug, the promise that it breaks, and the attribute that is replaced while it is planted.

    first: the number of the first trial that can find it. alters_all_runs: whether it also changes a
    run that nothing interrupts, so that its trials compare with runs that have the bug too.
    """

    about: str
    breaks: str
    owner: Any
    name: str
    replacement: Any
    first: int = 0
    alters_all_runs: bool = False

    def put_in(self) -> AbstractContextManager[Any]:
        """Context manager that plants the bug."""
        return mock.patch.object(self.owner, self.name, self.replacement)


def _nothing(*arguments: Any, **named: Any) -> None:
    """Do nothing."""


def _unflushed(file: Any) -> None:
    file.flush()


def _in_place(folder: Path, saved: Checkpoint, *more: Any) -> Path:
    """Write to the final name directly."""
    final = folder / f"step-{saved.progress['step']:08d}"
    disk.make_folder(final)
    tensors = saved.gathered()
    digests = {
        checkpoint.WEIGHTS: disk.write(
            final / checkpoint.WEIGHTS, checkpoint._serialize(saved.weights, tensors)
        ),
        checkpoint.OPTIMIZER: disk.write(
            final / checkpoint.OPTIMIZER, checkpoint._serialize(saved.optimizer, tensors)
        ),
        checkpoint.PROGRESS: disk.write(
            final / checkpoint.PROGRESS, [checkpoint._json(saved.progress).encode()]
        ),
    }
    disk.write(final / checkpoint.MANIFEST, [checkpoint._manifest_text(digests).encode()])
    return final


def _remove_in_place(path: Path) -> None:
    disk.remove(path)  # looked up now: the trial records calls


def _straight(path: Path, content: bytes) -> None:
    """Write to the final name directly."""
    disk.write(path, [content])


def _digest_in_manifest(file: Path) -> str:
    """The digest in the manifest, whatever the file contains."""
    manifest = Path(str(file)).with_name(checkpoint.MANIFEST)
    digest: str = json.loads(manifest.read_bytes())["sha256"][file.name]
    return digest


def _newest_or_nothing(folder: Path) -> NewestCheckpoint | None:
    paths = checkpoint.list_checkpoints(folder)
    return NewestCheckpoint(paths[-1], checkpoint.load(paths[-1]), []) if paths else None


def _silently(folder: Path) -> NewestCheckpoint | None:
    """The newest intact checkpoint, without a report of the others."""
    found = _REAL_NEWEST(folder)
    return None if found is None else found._replace(rejected=[])


_REAL_NEWEST = checkpoint.load_newest
_REAL_ITERATE = data.iterate_batches


def _from_the_start(
    training_data: Any, workers: int, epoch: int = 0, number: int = 0, **named: Any
) -> Iterator[Any]:
    """Resume at the beginning of the epoch."""
    return _REAL_ITERATE(training_data, workers, epoch, 0, **named)


def _weights_only(self: Trainer, weights: dict[str, Tensor], moments: dict[str, Tensor]) -> None:
    """Resume without the optimizer's state."""
    for name, value in self.weights.named(self.weights.master).items():
        value.copy_(weights[name])
    self.weights.publish()


def _mean_of_means(
    self: Trainer, batch: Any, step: int, micro: int, totals: dict[str, float], *more: Any
) -> float:
    """Divide every micro-batch by its own count and the number of micro-batches."""
    own = {name: value * 3.0 for name, value in self.objective.counts(batch).items()}
    return _REAL_BACKWARD(self, batch, step, micro, own, *more)


_REAL_BACKWARD = Trainer._backward


def _own_times_world(self: ProcessGroup, values: Sequence[float]) -> list[float]:
    """The value of this rank times the number of ranks."""
    return [float(value) * self.world for value in values]


def _stop_without_save(self: signals.StopRequest, seconds: float) -> float:
    """A signal ends the run without a checkpoint."""
    seconds = _REAL_SYNCHRONIZE(self, seconds)
    if self:
        raise Interrupted(self.signal)
    return seconds


_REAL_SYNCHRONIZE = signals.StopRequest.synchronize


def _first_rank_only(self: signals.StopRequest, number: int, frame: Any = None) -> None:
    if self._ranks.is_first:
        _REAL_HANDLE(self, number, frame)


_REAL_HANDLE = signals.StopRequest.handle


def _set_order(self: data.TrainingData, examples: Any, epoch: int) -> list[Any]:
    """The batches of an epoch in the iteration order of a set of strings."""
    plan = _REAL_PLAN(self, examples, epoch)
    return [plan[int(name)] for name in {str(number) for number in range(len(plan))}]


_REAL_PLAN = data.TrainingData.plan


def _keep_in_memory(out: Any, piece: bytes) -> None:
    """Keep everything that was written in memory."""
    _HELD.append(piece * 2)
    _REAL_PUT(out, piece)


_HELD: list[bytes] = []
_REAL_PUT = disk.put


def _read_again(path: Any, manifest: Any, sources: Any, found: corpus.Corpus) -> bool:
    """Compare the content instead of size and time."""
    files = zip(found.files, sources, strict=True)
    return all(
        token_cache.sha256_of_file(lines.expand_path(now.file)) == was[2] for now, was in files
    )


def _least_number(q: Tensor, k: Tensor, v: Tensor, mask: Mask, **named: Any) -> Tensor:
    """Mask with the smallest finite number."""
    allowed = mask.dense(q.shape[2], k.shape[2], q.device)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if allowed is not None:
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    output: Tensor = scores.softmax(-1) @ v
    return output


def _ignored_count(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float = 0.0
) -> losses.LossSums:
    """Apply label smoothing to ignored positions too."""
    logits = torch.nn.functional.linear(hidden, weight, bias)
    labels = targets.clamp_min(0)
    picked = torch.nn.functional.cross_entropy(logits, labels, reduction="none") * (targets >= 0)
    uniform = -logits.log_softmax(-1).mean(-1).sum()
    return losses.LossSums(
        (1 - smoothing) * picked.sum() + smoothing * uniform, picked.sum().detach()
    )


def _rounded_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float = 0.0
) -> losses.LossSums:
    """The softmax of bf16 logits, in bf16."""
    logits = torch.nn.functional.linear(hidden, weight, bias)
    loss = torch.nn.functional.cross_entropy(
        logits, targets, reduction="sum", label_smoothing=smoothing
    )
    return losses.LossSums(loss, loss.detach())


def _by_number(folder: Path, settings: Any, *arguments: Any) -> None:
    """Keep the highest numbers, whoever created the folders."""
    for path in sorted(folder.glob("step-*"))[: -settings.keep_last]:
        disk.remove(path)


def _step_of_the_session(settings: Any, step: int, peak: float) -> float:
    """The schedule counts the steps of this session."""
    first = _FIRST_STEPS.setdefault(os.getpid(), step)
    return _REAL_RATE(settings, step - first + 1, peak)


_FIRST_STEPS: dict[int, int] = {}  # process -> its first step
_REAL_RATE = trainer.learning_rate


def _all_lines(self: run_folder.RunFolder, step: int, most: int | None = None) -> int:
    """Keep the lines after the checkpoint."""
    return len(self.metrics.read_bytes().splitlines()) if self.metrics.is_file() else 0


def _ignore_error(self: Any) -> None:
    """Ignore a failed background save."""
    self._pending = None


def _split_everywhere(path: str, *arguments: Any, **named: Any) -> Iterator[str]:
    """Split lines as `str.splitlines` does."""
    return iter("\n".join(_REAL_LINES(path, *arguments, **named)).splitlines())


_REAL_LINES = lines.iter_lines


def _none_too_long(lengths: Any, settings: Any) -> Any:
    """Skip overlong rows without counting them."""
    return np.zeros(len(lengths), np.bool_)


def _replacing_decode(raw: bytes, name: str, number: int, offset: int = 0) -> str:
    return raw.decode("utf-8", errors="replace")


def _no_comparison(*arguments: Any, **named: Any) -> DataComparison:
    return DataComparison([], {})


def _no_check(*arguments: Any, **named: Any) -> list[str]:
    return []


_DRAWS = (
    itertools.count()
)  # a generator of dropout that continues, instead of one that depends on the step
_NO_LIMIT = float("inf")

# Name -> what is wrong, the promise, what is replaced by what.
PLANTS: Mapping[str, Plant] = {name: Plant(*plant) for name, plant in {
    "no-flush": ("files are not flushed before they are renamed", "power", disk, "flush", _unflushed),
    "no-folder-flush": ("folders are not flushed", "power", disk, "flush_folder", _nothing),
    "no-rename": ("checkpoints are written to their final name", "power", checkpoint, "save", _in_place),
    "removed-in-place": (
        "old checkpoints are removed under their final name", "power",
        checkpoint, "_mark_for_removal", _remove_in_place, 1),
    "no-manifest": ("digests are not compared", "damage", checkpoint, "sha256_of_file", _digest_in_manifest),
    "no-fall-back": ("only the newest checkpoint is tried", "fall-back", checkpoint, "load_newest", _newest_or_nothing),
    "no-warning": ("damage is not reported", "fall-back", checkpoint, "load_newest", _silently),
    "no-seeking": ("a resumed run restarts its epoch", "chains", loop, "iterate_batches", _from_the_start),
    "no-moments": ("a resumed run loses the moments of Adam", "chains", Trainer, "restore", _weights_only),
    "no-generator": (
        "a resumed run draws different dropout masks", "chains",
        trainer, "_dropout_seed", lambda *_: next(_DRAWS), 0, True),
    "no-schedule": (
        "a resumed run restarts its schedule", "chains", trainer, "learning_rate", _step_of_the_session),
    "no-cut": (
        "metrics after the checkpoint are kept", "kills", run_folder.RunFolder, "truncate_metrics", _all_lines),
    "no-signals": (
        "signals are ignored", "signals", signals.StopRequest, "__bool__", lambda self: False, 1),
    "no-save-signal": (
        "SIGUSR1 is ignored", "save-signal", signals.StopRequest, "take_save_request", lambda self: False),
    "first-rank-only": (
        "only the first rank handles signals", "signals", signals.StopRequest, "handle", _first_rank_only,
        len(stops.PHASES)),
    "no-save-at-stop": (
        "stopped ranks do not save", "ranks", signals.StopRequest, "synchronize", _stop_without_save, 1),
    "no-finite-check": ("non-finite losses update the weights", "non-finite", trainer, "check_update", _nothing),
    "no-explanation": (
        "errors of the operating system are tracebacks", "full-disk",
        loop, "explain_resource_errors", lambda folder: nullcontext(), 1),
    "written-in-place": (
        "small files are written under their final name", "full-disk", disk, "replace_bytes", _straight, 1),
    "no-save-error": (
        "a failed background save is not reported", "async-save", checkpoint.Saver, "wait", _ignore_error),
    "other-seed": (
        "the seed is taken from the clock", "same-seed",
        trainer, "_dropout_seed", lambda *_: time.time_ns() % 2**62, 0, True),
    "set-order": (
        "the order of batches is that of a set of strings", "same-seed",
        data.TrainingData, "plan", _set_order, 0, True),
    "no-schedule-report": (
        "the effect on the schedule is not reported", "more-steps", preparation, "check_same_run", _no_check),
    "no-spike-check": ("loss spikes update the weights", "spikes", loop, "spike_threshold", lambda *_: _NO_LIMIT),
    "no-data-check": ("data files are not compared", "changed-data", preparation, "compare_data", _no_comparison),
    "out-of-step": ("the longer of two files is truncated", "aligned", pairs, "zip_longest", zip),
    "split-everywhere": ("U+2028 ends a line", "aligned", pairs, "iter_lines", _split_everywhere),
    "uncounted": ("overlong rows are skipped without a report", "counts", data, "overlong", _none_too_long),
    "replaced-bytes": ("invalid UTF-8 becomes U+FFFD", "encodings", lines, "_decode", _replacing_decode),
    "no-lock": (
        "two processes build one cache", "large", token_cache, "_exclusive_lock", lambda *_: nullcontext()),
    "kept-in-memory": ("encoded text stays in memory", "large", disk, "put", _keep_in_memory),
    "read-again": ("opening a cache reads its text", "large", token_cache, "_is_same_text", _read_again),
    "prune-by-number": (
        "every folder named like a checkpoint is deleted", "foreign-folders", checkpoint, "prune", _by_number),
    "mean-of-means": (
        "micro-batches are averaged instead of summed", "accumulation", Trainer, "_backward", _mean_of_means),
    "mean-of-ranks": (
        "every rank divides by its own count", "ranks", ProcessGroup, "sum", _own_times_world, 1),
    "least-number": (
        "masked scores are the smallest finite number", "masked-rows", attention, "attend", _least_number),
    "ignored-count": (
        "ignored positions are smoothed", "losses", losses, "linear_cross_entropy", _ignored_count),
    "rounded-loss": ("the loss is computed in bf16", "bf16-loss", losses, "linear_cross_entropy", _rounded_loss),
    "no-memory-check": ("memory is not checked before a run", "too-large", preparation, "check_fits", _nothing),
}.items()}  # fmt: skip
