"""The loop: set the rate, update, log, validate, save. It fits on one screen; everything else is around it.

A position in training is three integers (step, epoch, batch), and every random number is a function of
(seed, step, micro-batch), so a resumed run needs no saved generator and is bit-equal to one that never stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from trifold.data.digests import digests
from trifold.errors import CheckpointError
from trifold.recipe import Recipe, load_recipe
from trifold.tasks.task import Batch
from trifold.train import checkpoint
from trifold.train.dealing import Dealt, ahead, deal
from trifold.train.device import (
    choose_precision,
    choose_workers,
    find_device,
    keep_freed_memory,
    undisturbed,
)
from trifold.train.learner import Learner, Update
from trifold.train.memory import check_fits, needed, there_is
from trifold.train.pace import Meter
from trifold.train.refusals import Refused, fate, highest_loss, remember, write_evidence
from trifold.train.resume import changed_environment, check_same_data, check_same_run
from trifold.train.run_folder import MetricsLog, RunFolder, environment
from trifold.train.saver import Saver
from trifold.train.setup import Prepared, prepare
from trifold.train.signals import Asked, Stopped, orderly_end
from trifold.train.validate import Best, Interrupted, Validator
from trifold.train.view import Silent, Snapshot, View

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
    lines: int = 0  # of metrics.jsonl
    refused: int = 0  # updates that were left out
    losses: list[float] = field(default_factory=list)  # with which the next is compared, where spikes matter


def train(
    recipe: str | Path | Recipe,
    *,
    out: str | Path | None = None,
    resume: Literal["auto"] | None = None,
    data_changed: bool = False,
    view: View | None = None,
    **overrides: Any,
) -> Outcome:
    """Train a recipe (a shipped name, a YAML file, or a Recipe) into the folder `out` (runs/NAME unless given).

    `resume="auto"` continues what lies there, or starts where nothing does; with `data_changed` also where the data
    files are not those that the run was begun with. Overrides are dotted recipe keys:
    `train("smoke", **{"train.steps": 50})`. Raises TrifoldError and its kin; an interrupted run is no error.
    """
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe, overrides)
    folder = RunFolder(Path(out) if out is not None else Path("runs") / chosen.name)
    view = view or Silent()
    device = find_device(chosen.train.device)
    dtype = choose_precision(chosen.train.precision, device)
    workers = choose_workers(chosen.train.workers, device, chosen.batch.tokens)
    keep_freed_memory()
    with orderly_end() as asked, _disk_trouble(folder):
        folder.open(resume=resume == "auto")
        here = environment(device, dtype, workers)
        for line in (*check_same_run(chosen, folder), *changed_environment(folder, here)):
            view.say(line)

        def prepared_data() -> tuple[Prepared, list[str]]:
            changed = check_same_data(folder, digests(chosen.data), changed=data_changed)
            return prepare(chosen, folder.tokenizer, view), changed

        try:
            with folder.begun():
                folder.describe(chosen, here)
                prepared, changed = asked.unless_asked(prepared_data)
                _check_memory(prepared, device, dtype, workers)
            threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
            threads += f", {workers} workers" if workers > 1 else ""
            view.say(
                f"device {device}{threads}, {str(dtype).removeprefix('torch.')} arithmetic, float32 master weights"
            )
            with (
                undisturbed(workers),
                closing(_Run(prepared, folder, device, dtype, workers, view)) as run,
            ):
                return run.until_done(asked, changed)
        except Stopped:
            steps = max(map(checkpoint.step_of, checkpoint.saved(folder.checkpoints)), default=0)
            view.say(f"stopped at step {steps:,}, while preparing; go on with: {folder.continue_line}")
            return Outcome(folder.path, steps, 0.0, {}, "signal", asked.exit_code)
        finally:
            view.end()


def _check_memory(prepared: Prepared, device: torch.device, dtype: torch.dtype, workers: int) -> None:
    if prepared.recipe.train.check_memory:
        length = max(1, int(prepared.train.lengths.mean()))
        need = needed(prepared.recipe, prepared.config, length, dtype, workers, on_cpu=device.type == "cpu")
        check_fits(need, prepared.recipe, there_is(device))


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
        self.saver = Saver(folder.checkpoints, self.settings)
        self.progress = Progress()
        self._restore()

    def until_done(self, asked: Asked, changed: Sequence[str] = ()) -> Outcome:
        """Train until steps, minutes, patience or a signal end it; saved and validated at the end.

        changed: what is to be said of data files that are others than before.
        """
        settings, progress = self.settings, self.progress
        self.view.say(f"{self.learner.model.count_parameters():,} parameters; writing to {self.folder.path}")
        with closing(MetricsLog(self.folder, progress.step, progress.lines)) as self.log:
            for line in changed:
                self.view.say(line)
                self.log.event(progress.step, "data changed", what=line)
            if not self.log.has_board:
                self.view.say(
                    "no TensorBoard here: pip install 'trifold[plots]' adds it; metrics.jsonl has every number"
                )
            self.view.begin(settings.steps, progress.step)
            self.meter = Meter(settings.steps, progress.seconds, progress.step)
            stopped_by = self._learn(asked)
            self.saver.wait()
            progress = self.progress
            if stopped_by == "signal":
                self.log.event(progress.step, "interrupted", signal=asked.name)
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
        settings = self.settings
        stopped_by = self._should_stop(asked)
        if self._validation_is_due(stopped_by):  # a signal had cut it off
            stopped_by = self._validate(asked) or stopped_by
            self._save()
        while stopped_by is None:
            self.saver.check()
            update = self._update([next(batches) for _ in range(settings.accumulate)])
            progress = self.progress
            if update is not None and progress.step % settings.log_every == 0:
                self._log(update)
            stopped_by = self._should_stop(asked)
            if self._validation_is_due(stopped_by):
                stopped_by = self._validate(asked) or stopped_by
            if progress.step % settings.save_every == 0 or stopped_by:
                self._save()
            elif asked.to_save():
                self._save()
                self.log.event(progress.step, "saved", signal="SIGUSR1")
        return stopped_by

    def _update(self, dealt: list[Dealt]) -> Update | None:
        """Learn from the batches, and move on; None where the update was left out."""
        progress, settings = self.progress, self.settings
        highest = highest_loss(settings, progress.losses)
        whole = [share for _, _, shares in dealt for share in shares]
        try:
            update = self.learner.update(whole, progress.step + 1, highest)
        except Refused as refused:
            self._refused(refused, dealt, whole)
            return None
        progress.step += 1
        progress.epoch, progress.batch = _behind(dealt)
        progress.tokens += update.tokens
        progress.losses = remember(settings, progress.losses, update.loss)
        self.meter.count(update.tokens)
        progress.seconds = self.meter.seconds()
        return update

    def _refused(self, refused: Refused, dealt: list[Dealt], batches: list[Batch]) -> None:
        """Keep the batches for whoever wants to look at them; then stop, leave the update out, or go back."""
        progress = self.progress
        places = [[epoch, number] for epoch, number, _ in dealt]
        kept = write_evidence(self.folder.refused, refused, batches, places)
        facts = {"what": refused.kind, "loss": str(refused.loss), "gradient_norm": str(refused.norm)}
        facts["batch"] = str(kept.relative_to(self.folder.path))
        try:
            what = fate(self.settings, refused, progress.refused)
        except Refused:
            self.log.event(refused.step, "stopped", **facts)
            raise
        self.view.say(f"{refused}; {what}; its batch is in {kept}")
        to = self._checkpoint_before() if what == "rewind" else None
        progress.refused += 1
        if to is None:
            progress.step += 1
            progress.epoch, progress.batch = _behind(dealt)
            self.log.event(progress.step, "skipped", **facts)
        else:
            self._go_back(to, _behind(dealt))
            self.log.event(self.progress.step, "rewound", spike_at=refused.step, **facts)

    def _checkpoint_before(self) -> Path | None:
        """The one to go back to: regular, so that a run which was stopped goes back as far as one that was not."""
        self.saver.wait()
        regular = checkpoint.regular(self.folder.checkpoints, self.settings.save_every)
        before = [path for path in regular if checkpoint.step_of(path) <= self.progress.step]
        return before[-1] if before else None

    def _go_back(self, to: Path, place: tuple[int, int]) -> None:
        """Weights, moments and step are those of a checkpoint; the data goes on from `place`."""
        now, state = self.progress, checkpoint.load(to)
        self.learner.restore(state.weights, state.moments)
        self.progress = _progress(state)
        self.progress.epoch, self.progress.batch = place
        self.progress.refused, self.progress.best, self.progress.losses = now.refused, now.best, []
        self.log.back_to(self.progress.step, self.progress.lines)

    def close(self) -> None:
        """Nothing goes on behind."""
        self.learner.close()
        self.saver.close()

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
        self.saver.wait()  # earlier checkpoints may be averaged
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
        self.log.keep()
        self.progress.lines = self.log.lines
        state = checkpoint.Checkpoint(*self.learner.state(), asdict(self.progress))
        self.saver.save(state, self.progress.best.step)
        self.meter.pause()

    def _restore(self) -> None:
        found = checkpoint.newest_sound(self.folder.checkpoints)
        if found is not None:
            self.learner.restore(found.state.weights, found.state.moments)
            self.progress = _progress(found.state)
            if found.refused:
                self.view.say(f"warning: {'; '.join(found.refused)}; an earlier checkpoint is taken instead")
            self.view.say(f"continuing from {found.path}")
        self.folder.note_sitting(self.progress.step, found.refused if found is not None else ())

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


def _progress(state: checkpoint.Checkpoint) -> Progress:
    return Progress(**{**state.progress, "best": Best(*state.progress["best"])})


def _behind(dealt: list[Dealt]) -> tuple[int, int]:
    """The place in the data after these batches: epoch, and number in it."""
    epoch, number, _ = dealt[-1]
    return epoch, number + 1
