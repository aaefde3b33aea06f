"""Bugs to plant, each of which breaks a promise. The harness must find every one of them."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from trifold import disk
from trifold.data import corpus, lines, pairs, token_build, token_cache
from trifold.fast import attention
from trifold.nn import losses
from trifold.nn.masks import Mask
from trifold.train import checkpoint, data, loop, ranks, run_folder, trainer
from trifold.train.checkpoint import Checkpoint, Found
from trifold.train.distributed import ProcessGroup
from trifold.train.ranks import Interrupted
from trifold.train.trainer import Trainer


class Plant(NamedTuple):
    """The bug, the promise that it breaks, and a context manager that plants it."""

    about: str
    breaks: str
    put_in: Callable[[], AbstractContextManager[Any]]


def _instead(owner: Any, name: str, other: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: mock.patch.object(owner, name, other)


def _nothing(*arguments: Any, **named: Any) -> None:
    """Do nothing."""


def _unflushed(file: Any) -> None:
    file.flush()


def _in_place(folder: Path, saved: Checkpoint, *more: Any) -> Path:
    """Write to the final name directly."""
    final = folder / f"step-{saved.progress['step']:08d}"
    disk.make_folder(final)
    digests = {
        checkpoint.WEIGHTS: disk.write(final / checkpoint.WEIGHTS, checkpoint._serialize(saved.weights)),
        checkpoint.OPTIMIZER: disk.write(
            final / checkpoint.OPTIMIZER, checkpoint._serialize(saved.optimizer)
        ),
        checkpoint.PROGRESS: disk.write(
            final / checkpoint.PROGRESS, [checkpoint._json(saved.progress).encode()]
        ),
    }
    disk.write(final / checkpoint.MANIFEST, [checkpoint._manifest_text(digests).encode()])
    return final


def _removed_in_place(path: Path) -> None:
    disk.remove(path)


def _straight(path: Path, content: bytes) -> None:
    """Write to the final name directly."""
    disk.write(path, [content])


def _believed(file: Path) -> str:
    """The digest in the manifest, whatever the file contains."""
    said: str = json.loads((file.parent / checkpoint.MANIFEST).read_bytes())["sha256"][file.name]
    return said


def _newest_or_nothing(folder: Path) -> Found | None:
    paths = checkpoint.list_checkpoints(folder)
    return Found(paths[-1], checkpoint.load(paths[-1]), []) if paths else None


def _silently(folder: Path) -> Found | None:
    """The newest sound one, and no word about the others."""
    found = _REAL_NEWEST(folder)
    return None if found is None else found._replace(rejected=[])


_REAL_NEWEST = checkpoint.load_newest
_REAL_ITERATE = data.iterate_batches


def _from_the_start(
    training_data: Any, workers: int, epoch: int = 0, number: int = 0, **named: Any
) -> Iterator[Any]:
    """Resumes at the beginning of the epoch."""
    return _REAL_ITERATE(training_data, workers, epoch, 0, **named)


def _weights_only(self: Trainer, weights: dict[str, Tensor], moments: dict[str, Tensor]) -> None:
    """Resumed without the optimiser's state."""
    for name, value in self.weights.named(self.weights.master).items():
        value.copy_(weights[name])
    self.weights.publish()


@contextmanager
def _generator_not_saved() -> Iterator[None]:
    """Dropout drawn from a generator that goes on, instead of from the step."""
    count = itertools.count()
    with mock.patch.object(trainer, "_dropout_seed", side_effect=count):
        yield


def _mean_of_means(
    self: Trainer, batch: Any, step: int, micro: int, totals: dict[str, float], *more: Any
) -> float:
    """Every micro-batch is divided by its own count, and their number."""
    own = {name: value * 3.0 for name, value in self.objective.counts(batch).items()}
    return _REAL_LEARN(self, batch, step, micro, own, *more)


_REAL_LEARN = Trainer._backward


def _own_times_world(self: ProcessGroup, values: Sequence[float]) -> list[float]:
    """What this rank has, taken for what each has."""
    return [float(value) * self.world for value in values]


def _left_at_once(self: ranks.StopRequest, seconds: float) -> float:
    """Whoever hears of a signal leaves, and what was learnt since the last checkpoint is lost."""
    seconds = _REAL_SYNCHRONIZE(self, seconds)
    if self:
        raise Interrupted(self.signal)
    return seconds


_REAL_SYNCHRONIZE = ranks.StopRequest.synchronize


def _heard_by_the_first(self: ranks.StopRequest, number: int, frame: Any = None) -> None:
    if self._ranks.is_first:
        _REAL_HANDLE(self, number, frame)


_REAL_HANDLE = ranks.StopRequest.handle


def _as_a_set_has_it(self: data.TrainingData, examples: Any, epoch: int) -> list[Any]:
    """The batches of an epoch in the order in which Python goes through a set of their names."""
    plan = _REAL_PLAN(self, examples, epoch)
    return [plan[int(name)] for name in {str(number) for number in range(len(plan))}]


_REAL_PLAN = data.TrainingData.plan


def _remembered(out: Any, piece: bytes, digest: Any) -> None:
    """All that was written is still held, and more."""
    _HELD.append(piece * 2)
    _REAL_PUT(out, piece, digest)


_HELD: list[bytes] = []
_REAL_PUT = token_build._write


def _read_again(path: Any, manifest: Any, sources: Any, found: corpus.Corpus) -> bool:
    """Known again by all that is in it."""
    files = zip(found.files, sources, strict=True)
    return all(token_cache.sha256_of_file(lines.expand_path(now.file)) == was[2] for now, was in files)


def _least_number(q: Tensor, k: Tensor, v: Tensor, mask: Mask, **named: Any) -> Tensor:
    """Masked by the least number there is instead of by what attends to nothing."""
    allowed = mask.dense(q.shape[2], k.shape[2], q.device)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if allowed is not None:
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    seen: Tensor = scores.softmax(-1) @ v
    return seen


def _ignored_count(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float = 0.0
) -> losses.LossSums:
    """Places that ask nothing are smoothed all the same."""
    logits = torch.nn.functional.linear(hidden, weight, bias)
    wanted = targets.clamp_min(0)
    picked = torch.nn.functional.cross_entropy(logits, wanted, reduction="none") * (targets >= 0)
    uniform = -logits.log_softmax(-1).mean(-1).sum()
    return losses.LossSums((1 - smoothing) * picked.sum() + smoothing * uniform, picked.sum().detach())


def _rounded_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float = 0.0
) -> losses.LossSums:
    """The softmax of bf16 logits, in bf16."""
    logits = torch.nn.functional.linear(hidden, weight, bias)
    loss = torch.nn.functional.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    return losses.LossSums(loss, loss.detach())


def _by_number(folder: Path, keep: int, *arguments: Any, **named: Any) -> None:
    """The highest numbers stay, whosever they are."""
    for path in sorted(folder.glob("step-*"))[:-keep]:
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


def _unheard(self: Any) -> None:
    """Ignore a failed background save."""
    self._pending = None


def _split_everywhere(path: str, *arguments: Any, **named: Any) -> Iterator[str]:
    """Split lines as `str.splitlines` does."""
    return iter("\n".join(_REAL_LINES(path, *arguments, **named)).splitlines())


_REAL_LINES = lines.iter_lines


def _none_too_long(lengths: Any, settings: Any) -> Any:
    """Skip overlong rows without counting them."""
    return np.zeros(len(lengths), np.bool_)


def _decoded_somehow(raw: bytes, name: str, number: int) -> str:
    return raw.decode("utf-8", errors="replace")


def _no_check(*arguments: Any, **named: Any) -> list[str]:
    return []


PLANTS: Mapping[str, Plant] = {
    "no-flush": Plant(
        "files are not flushed before they are renamed", "power", _instead(disk, "flush", _unflushed)
    ),
    "no-folder-flush": Plant("folders are not flushed", "power", _instead(disk, "flush_folder", _nothing)),
    "no-rename": Plant(
        "checkpoints are written to their final name", "power", _instead(checkpoint, "save", _in_place)
    ),
    "removed-in-place": Plant(
        "old checkpoints are removed under their final name",
        "power",
        _instead(checkpoint, "_mark_for_removal", _removed_in_place),
    ),
    "no-manifest": Plant("digests are not compared", "damage", _instead(checkpoint, "sha256_of", _believed)),
    "no-fall-back": Plant(
        "only the newest checkpoint is tried",
        "fall-back",
        _instead(checkpoint, "load_newest", _newest_or_nothing),
    ),
    "no-warning": Plant(
        "damage is not reported", "fall-back", _instead(checkpoint, "load_newest", _silently)
    ),
    "no-seeking": Plant(
        "a resumed run restarts its epoch", "chains", _instead(loop, "iterate_batches", _from_the_start)
    ),
    "no-moments": Plant(
        "a resumed run loses the moments of Adam", "chains", _instead(Trainer, "restore", _weights_only)
    ),
    "no-generator": Plant("a resumed run draws different dropout masks", "chains", _generator_not_saved),
    "no-schedule": Plant(
        "a resumed run restarts its schedule",
        "chains",
        _instead(trainer, "learning_rate", _step_of_the_session),
    ),
    "no-cut": Plant(
        "metrics after the checkpoint are kept",
        "kills",
        _instead(run_folder.RunFolder, "truncate_metrics", _all_lines),
    ),
    "deaf": Plant(
        "signals are ignored", "signals", _instead(ranks.StopRequest, "__bool__", lambda self: False)
    ),
    "deaf-to-saving": Plant(
        "SIGUSR1 is ignored",
        "save-signal",
        _instead(ranks.StopRequest, "take_save_request", lambda self: False),
    ),
    "last-rank-deaf": Plant(
        "only the first rank handles signals",
        "signals",
        _instead(ranks.StopRequest, "handle", _heard_by_the_first),
    ),
    "left-at-once": Plant(
        "stopped ranks do not save",
        "ranks",
        _instead(ranks.StopRequest, "synchronize", _left_at_once),
    ),
    "nonsense-learnt": Plant(
        "non-finite losses update the weights", "nonsense", _instead(trainer, "check_update", _nothing)
    ),
    "disk-unsaid": Plant(
        "errors of the operating system are tracebacks",
        "full-disk",
        _instead(loop, "explain_resource_errors", lambda folder: nullcontext()),
    ),
    "written-in-place": Plant(
        "small files are written under their final name",
        "full-disk",
        _instead(disk, "replace_bytes", _straight),
    ),
    "behind-unheard": Plant(
        "a failed background save is not reported", "behind", _instead(checkpoint.Saver, "wait", _unheard)
    ),
    "other-seed": Plant(
        "the seed is taken from the clock",
        "same-seed",
        _instead(trainer, "_dropout_seed", lambda *_: time.time_ns() % 2**62),
    ),
    "as-a-set-has-it": Plant(
        "the order of batches is that of a set of strings",
        "same-seed",
        _instead(data.TrainingData, "plan", _as_a_set_has_it),
    ),
    "schedule-unsaid": Plant(
        "the effect on the schedule is not reported",
        "more-steps",
        _instead(loop, "check_same_run", _no_check),
    ),
    "spikes-accepted": Plant(
        "loss spikes update the weights", "spikes", _instead(loop, "spike_threshold", lambda *_: float("inf"))
    ),
    "data-unchecked": Plant(
        "data files are not compared", "changed-data", _instead(loop, "check_same_data", _no_check)
    ),
    "out-of-step": Plant(
        "the longer of two files is truncated", "aligned", _instead(pairs, "zip_longest", zip)
    ),
    "split-everywhere": Plant(
        "U+2028 ends a line", "aligned", _instead(pairs, "iter_lines", _split_everywhere)
    ),
    "uncounted": Plant(
        "overlong rows are skipped without a report", "counts", _instead(data, "overlong", _none_too_long)
    ),
    "decoded-somehow": Plant(
        "invalid UTF-8 becomes U+FFFD", "encodings", _instead(lines, "_decode", _decoded_somehow)
    ),
    "no-lock": Plant(
        "two processes build one cache",
        "large",
        _instead(token_cache, "_exclusive_lock", lambda *_: nullcontext()),
    ),
    "remembered": Plant(
        "encoded text stays in memory", "large", _instead(token_build, "_write", _remembered)
    ),
    "read-again": Plant(
        "opening a cache reads its text", "large", _instead(token_cache, "_is_same_text", _read_again)
    ),
    "prune-by-number": Plant(
        "every folder named like a checkpoint is deleted",
        "foreign",
        _instead(checkpoint, "prune", _by_number),
    ),
    "mean-of-means": Plant(
        "micro-batches are averaged instead of summed",
        "accumulation",
        _instead(Trainer, "_backward", _mean_of_means),
    ),
    "mean-of-ranks": Plant(
        "every rank divides by its own count", "ranks", _instead(ProcessGroup, "sum", _own_times_world)
    ),
    "least-number": Plant(
        "masked scores are the smallest finite number",
        "blind-rows",
        _instead(attention, "attend", _least_number),
    ),
    "ignored-count": Plant(
        "ignored positions are smoothed", "losses", _instead(losses, "linear_cross_entropy", _ignored_count)
    ),
    "rounded-loss": Plant(
        "the loss is computed in bf16", "bf16-loss", _instead(losses, "linear_cross_entropy", _rounded_loss)
    ),
    "memory-unchecked": Plant(
        "memory is not checked before a run", "too-large", _instead(loop, "check_fits", _nothing)
    ),
}
