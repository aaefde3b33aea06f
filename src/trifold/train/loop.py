"""The loop: set the rate, update, log, validate, save. It fits on one screen; everything else is around it.

A position in training is three integers (step, epoch, batch), and every random number is a function of
(seed, step, micro-batch), so a resumed run needs no saved generator and is bit-equal to one that never stopped.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import torch

from trifold.batches import shares
from trifold.errors import CheckpointError
from trifold.recipe import Recipe, load_recipe
from trifold.tasks.task import Batch
from trifold.train import checkpoint
from trifold.train.device import choose_precision, choose_workers, find_device, keep_freed_memory
from trifold.train.learner import Learner, Nonsense, Update
from trifold.train.resume import check_same_run
from trifold.train.run_folder import MetricsLog, RunFolder
from trifold.train.setup import Prepared, prepare
from trifold.train.signals import Asked, orderly_end
from trifold.train.validate import Best, Interrupted, Validator
from trifold.train.view import Silent, Snapshot, View

Dealt: TypeAlias = tuple[int, int, list[Batch]]  # epoch, number in the epoch, the batch in shares
StoppedBy = Literal["steps", "minutes", "patience", "signal"]


class Outcome(NamedTuple):
    """How a training ended. `scores` are the last validation's; `exit_code` is 130 or 143 after a signal."""

    folder: Path
    steps: int
    seconds: float
    scores: dict[str, float]
    stopped_by: StoppedBy
    exit_code: int

    @property
    def finished(self) -> bool:
        return self.stopped_by != "signal"


@dataclass
class Progress:
    """Where a run stands: all that a checkpoint holds beside weights and moments."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    seconds: float = 0.0
    tokens: int = 0
    validated: int = 0
    best: Best = field(default_factory=Best)
    scores: dict[str, float] = field(default_factory=dict)


def train(
    recipe: str | Path | Recipe,
    *,
    out: str | Path | None = None,
    resume: Literal["auto"] | None = None,
    view: View | None = None,
    **overrides: Any,
) -> Outcome:
    """Train a recipe (a shipped name, a YAML file, or a Recipe) into the folder `out` (runs/NAME unless given).

    `resume="auto"` continues what lies there, or starts where nothing does. Overrides are dotted recipe keys:
    `train("smoke", **{"train.steps": 50})`. Raises TrifoldError and its kin; an interrupted run is no error.
    """
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe, overrides)
    folder = RunFolder(Path(out) if out is not None else Path("runs") / chosen.name)
    view = view or Silent()
    device = find_device(chosen.train.device)
    dtype = choose_precision(chosen.train.precision, device)
    workers = choose_workers(chosen.train.workers, device, chosen.batch.tokens)
    keep_freed_memory()
    folder.open(resume=resume == "auto")
    for line in check_same_run(chosen, folder):
        view.say(line)
    with orderly_end() as asked, _disk_trouble(folder):
        try:
            with folder.begun():
                folder.describe(chosen, device, dtype, workers)
                prepared = prepare(chosen, folder.tokenizer, view)
            threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
            threads += f", {workers} workers" if workers > 1 else ""
            view.say(
                f"device {device}{threads}, {str(dtype).removeprefix('torch.')} arithmetic, float32 master weights"
            )
            with closing(_Run(prepared, folder, device, dtype, workers, view)) as run:
                return run.until_done(asked)
        finally:
            view.end()


@contextmanager
def _disk_trouble(folder: RunFolder) -> Iterator[None]:
    """What the system refuses while a run writes is the user's to mend, and the run can go on afterwards."""
    try:
        yield
    except OSError as error:
        place, reason = error.filename or folder.path, error.strerror or error
        raise CheckpointError(
            f"{place}: could not be written ({reason}); free some disk space and repeat the command with --resume auto"
        ) from error


class _Run:
    """One training in one process."""

    def __init__(
        self,
        prepared: Prepared,
        folder: RunFolder,
        device: torch.device,
        dtype: torch.dtype,
        workers: int,
        view: View,
    ) -> None:
        self.prepared, self.folder, self.workers, self.view = prepared, folder, workers, view
        self.settings = prepared.recipe.train
        self.learner = Learner(
            prepared.new_model(),
            prepared.task,
            self.settings,
            seed=prepared.recipe.train.seed,
            device=device,
            dtype=dtype,
            workers=workers,
        )
        self.validator = Validator(prepared, folder, device)
        self.progress = Progress()
        self._restore()

    def until_done(self, asked: Asked) -> Outcome:
        """Train until steps, minutes, patience or a signal end it; saved and validated at the end."""
        settings, progress = self.settings, self.progress
        self.view.say(f"{self.learner.model.count_parameters():,} parameters; writing to {self.folder.path}")
        with closing(MetricsLog(self.folder, progress.step)) as self.log:
            if not self.log.has_board:
                self.view.say(
                    "no TensorBoard here: pip install 'trifold[plots]' adds it; metrics.jsonl has every number"
                )
            self.view.begin(settings.steps, progress.step)
            self.meter = Meter(settings.steps, progress.seconds, progress.step)
            stopped_by = self._learn(asked)
        if stopped_by == "signal":
            self.view.say(f"stopped at step {progress.step:,}; go on with: {self.folder.continue_line}")
        return Outcome(
            self.folder.path, progress.step, progress.seconds, progress.scores, stopped_by, asked.exit_code
        )

    def _learn(self, asked: Asked) -> StoppedBy:
        with closing(
            ahead(deal(self.prepared, self.workers, self.progress.epoch, self.progress.batch))
        ) as batches:
            return self._learn_from(batches, asked)

    def _learn_from(self, batches: Iterator[Dealt], asked: Asked) -> StoppedBy:
        settings, progress = self.settings, self.progress
        stopped_by = self._should_stop(asked)
        if self._validation_is_due(stopped_by):  # a signal had cut it off
            stopped_by = self._validate(asked) or stopped_by
            self._save()
        while stopped_by is None:
            update = self._update([next(batches) for _ in range(settings.accumulate)])
            if progress.step % settings.log_every == 0:
                self._log(update)
            stopped_by = self._should_stop(asked)
            if self._validation_is_due(stopped_by):
                stopped_by = self._validate(asked) or stopped_by
            if progress.step % settings.save_every == 0 or stopped_by:
                self._save()
        return stopped_by

    def _update(self, dealt: list[Dealt]) -> Update:
        """Learn from the batches, and move on."""
        progress = self.progress
        try:
            update = self.learner.update(
                [share for _, _, whole in dealt for share in whole], progress.step + 1
            )
        except Nonsense as error:
            # Going on with this run would repeat it bit by bit.
            remedy = (
                "begin another run with a lower train.learning_rate, a longer train.warmup or train.clip=1.0"
            )
            raise Nonsense(f"{error}; {remedy}") from None
        progress.step += 1
        progress.epoch, progress.batch = dealt[-1][0], dealt[-1][1] + 1
        progress.tokens += update.tokens
        self.meter.count(update.tokens)
        progress.seconds = self.meter.seconds()
        return update

    def close(self) -> None:
        """Nothing goes on behind."""
        self.learner.close()

    def _should_stop(self, asked: Asked) -> StoppedBy | None:
        settings, progress = self.settings, self.progress
        if asked:
            return "signal"
        if settings.patience is not None and progress.best.since >= settings.patience:
            return "patience"
        if settings.minutes is not None and progress.seconds >= settings.minutes * 60:
            return "minutes"
        return "steps" if progress.step >= settings.steps else None

    def _validation_is_due(self, stopped_by: StoppedBy | None) -> bool:
        progress = self.progress
        last = stopped_by not in (None, "signal")
        return progress.step > progress.validated and (
            last or progress.step % self.settings.validate_every == 0
        )

    def _validate(self, asked: Asked) -> StoppedBy | None:
        """Measure the (averaged) weights; says whether that ends the training."""
        progress = self.progress
        weights = self.learner.measured()
        try:
            result, progress.best = self.validator(progress.step, weights, progress.best, lambda: bool(asked))
        except Interrupted:
            return "signal"
        progress.validated, progress.scores = progress.step, result.scores
        progress.seconds = self.meter.seconds()
        self.meter.pause()
        self.view.validated(result)
        self.log(
            progress.step, {"valid/loss": result.loss, **{f"valid/{k}": v for k, v in result.scores.items()}}
        )
        return self._should_stop(asked)

    def _save(self) -> None:
        weights, moments = self.learner.state()
        checkpoint.save(
            self.folder.checkpoints, checkpoint.Checkpoint(weights, moments, asdict(self.progress))
        )
        checkpoint.prune(self.folder.checkpoints, self.settings.keep_last, self.settings.save_every)
        self.meter.pause()

    def _restore(self) -> None:
        paths = checkpoint.saved(self.folder.checkpoints)
        if not paths:
            return
        state = checkpoint.load(paths[-1])
        self.learner.restore(state.weights, state.moments)
        self.progress = Progress(**{**state.progress, "best": Best(*state.progress["best"])})
        self.view.say(f"continuing from {paths[-1]}")

    def _log(self, update: Update) -> None:
        progress = self.progress
        speed, left = self.meter.read(progress.step, self.settings.minutes)
        shot = Snapshot(
            step=progress.step,
            total=self.settings.steps,
            epoch=progress.epoch,
            loss=update.loss,
            learning_rate=update.rate,
            tokens_per_second=speed,
            seconds_left=left,
            token_name=self.prepared.task.token_name,
        )
        self.view.step(shot)
        values = {
            "train/loss": update.loss,
            "train/lr": update.rate,
            "train/gradient_norm": update.norm,
            "train/tokens_per_second": speed,
            "seconds": progress.seconds,
        }
        self.log(progress.step, values)


def deal(prepared: Prepared, workers: int, epoch: int = 0, number: int = 0) -> Iterator[Dealt]:
    """Every batch from a position on, without end, each cut into a share for every worker."""
    while True:
        examples, draw = prepared.examples(epoch), prepared.draw(epoch)
        lengths, plan = examples.lengths, prepared.plan(examples, epoch)
        for there in range(number, len(plan)):
            parts = shares(lengths, plan[there], workers)
            yield (
                epoch,
                there,
                [prepared.task.batch(examples, part, prepared.width, draw=draw) for part in parts],
            )
        epoch, number = epoch + 1, 0


T = TypeVar("T")


def ahead(batches: Iterator[T]) -> Generator[T, None, None]:
    """The same batches, without end; the next one is made while this one is learnt."""
    with ThreadPoolExecutor(1, "batches") as maker:
        coming = maker.submit(next, batches)
        while True:
            here = coming.result()
            coming = maker.submit(next, batches)
            yield here


class Meter:
    """Wall time of the whole run, and tokens a second of training alone."""

    def __init__(self, steps: int, seconds: float, step: int) -> None:
        self._steps, self._first_step = steps, step
        self._before, self._start = seconds, time.perf_counter()
        self._mark, self._tokens = self._start, 0
        self._paused = 0.0
        self._last = self._start

    def seconds(self) -> float:
        """Since the beginning of the run, over all its sittings."""
        return self._before + time.perf_counter() - self._start

    def count(self, tokens: int) -> None:
        """An update with so many tokens is done."""
        self._tokens += tokens
        self._last = time.perf_counter()

    def pause(self) -> None:
        """The time since the last update went elsewhere (validation, saving)."""
        now = time.perf_counter()
        self._paused += now - self._last
        self._last = now

    def read(self, step: int, minutes: float | None) -> tuple[float, float]:
        """Tokens a second since the last reading, and seconds left at the mean pace so far."""
        now = time.perf_counter()
        speed = self._tokens / max(now - self._mark - self._paused, 1e-9)
        self._mark, self._tokens, self._paused, self._last = now, 0, 0.0, now
        pace = (now - self._start) / max(step - self._first_step, 1)
        left = pace * (self._steps - step)
        return speed, left if minutes is None else min(left, minutes * 60 - self.seconds())
