"""The training loop: set the rate, update, log, validate, save.

A position in training is three integers (step, epoch, batch), and every random number is a function
of (seed, step, micro-batch), so a resumed run needs no saved generator and is bit-identical to an
uninterrupted one.

All ranks execute the loop, step by step. `ranks.first(f, …)` calls f on rank 0 and returns its
result on all ranks; `ranks.in_turn(f, …)` calls f on rank 0 and then on the others. In a single
process both are plain calls.
"""

from collections.abc import Iterator
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import asdict
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from trifold import fast
from trifold.data.frames import data_overrides
from trifold.errors import UsageError
from trifold.memory import available_memory
from trifold.nn.config import REGRESSION
from trifold.recipe import Recipe, is_run, load_recipe
from trifold.train import checkpoint
from trifold.train.checkpoint import Best, Progress, Saver
from trifold.train.data import (
    RankBatch,
    TrainingData,
    batches_of_all_ranks,
    iterate_batches,
    load_data,
)
from trifold.train.device import agree_on_options, environment, find_machine, keep_freed_memory
from trifold.train.launch import join_ranks
from trifold.train.memory import check_fits, estimate_memory
from trifold.train.monitor import Meter, MetricsLog, Outcome, Snapshot, StoppedBy, View, choose_view
from trifold.train.ranks import Interrupted, Ranks, handle_signals, prefetch
from trifold.train.rejected import RejectedUpdate, choose_action, save_batches, spike_threshold
from trifold.train.resume import (
    check_same_data,
    check_same_labels,
    check_same_rows,
    check_same_run,
    run_identity,
)
from trifold.train.run_folder import RunFolder, explain_resource_errors, recipe_of_run
from trifold.train.sharding import gather_on_first
from trifold.train.stages import pretrain
from trifold.train.trainer import Trainer, Update
from trifold.train.validate import Validator


def train(
    recipe: str | Path | Recipe,
    *,
    out: str | Path | None = None,
    resume: Literal["auto"] | None = None,
    data: Any = None,
    data_changed: bool = False,
    view: View | None = None,
    **overrides: Any,
) -> Outcome:
    """Train a recipe (a shipped name, a YAML file, a run, or a Recipe) in `out` (default:
    runs/NAME, or that run).

    data: the training data instead of that of the recipe: a data frame (pandas, Polars), a list of
    dicts, a dict of columns, a dataset, or a file; or a dict of these with the keys train, valid
    and test.
    `resume="auto"` continues an existing run, or starts a new one, and `data_changed` accepts other
    data files for it. Overrides are dotted recipe keys: `train("smoke", **{"train.steps": 50})`.
    view: shows progress, by default on stderr; `View()` shows none. Raises TrifoldError, but not
    for an interruption. Under `torchrun`, all processes return the same outcome. If one fails, the
    others raise OtherRankError.
    """
    if not isinstance(recipe, str | Path | Recipe):
        raise TypeError(f"recipe is a name, a path or a Recipe, not {recipe!r:.60}")
    if resume not in (None, "auto"):
        raise UsageError(f"resume {resume!r} is not known; give 'auto', or leave it out")
    overrides = data_overrides(data) | overrides
    if isinstance(recipe, Recipe) and overrides:
        raise UsageError(
            f"{', '.join(overrides)}: a Recipe has its values already; give them to load_recipe"
        )
    fast.enable()
    with join_ranks() as ranks:
        if not isinstance(recipe, Recipe):
            out = recipe if out is None and is_run(recipe) else out
            recipe = ranks.in_turn(load_recipe, recipe, overrides)
        path = Path(out) if out is not None else Path("runs") / recipe.name
        view = (view or choose_view()) if ranks.is_first else View()
        if recipe.pretrain is not None:
            same = partial(train, resume=resume, data_changed=data_changed, view=view)
            outcome, recipe = pretrain(recipe, path, view, same)
            if not outcome.finished:
                return outcome
        with closing(RunFolder(path, ranks.command)) as folder:
            return Run(
                recipe, folder, ranks, view, resume=resume, data_changed=data_changed
            ).train()


def resume(run: str | Path, **arguments: Any) -> Outcome:
    """Continue a run (else UsageError) as if it had not stopped. The arguments are those of
    `train`; data in memory is given again.
    """
    return train(recipe := recipe_of_run(run), out=recipe.parent, resume="auto", **arguments)


class Run:
    """One session of a run on one rank. The methods are in the order in which they execute."""

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        ranks: Ranks,
        view: View,
        *,
        resume: Any,
        data_changed: bool,
    ) -> None:
        self.recipe = recipe
        self.settings = recipe.train
        self.folder = folder
        self.ranks = ranks
        self.view = view
        self.resume = resume == "auto"
        self.data_changed = data_changed
        self.progress = Progress()
        self.identity, self.changed_files = dict[str, Any](), list[str]()  # on rank 0

    def train(self) -> Outcome:
        """Prepare, train until a limit or a signal, and report how the run ended."""
        machine = self.ranks.in_turn(
            find_machine, self.settings, self.recipe.batch.tokens, self.ranks
        )
        self.machine = agree_on_options(machine)
        keep_freed_memory()
        with handle_signals(self.ranks) as self.stop, explain_resource_errors(self.folder):
            try:
                self.ranks.first(self._open_folder)
                with ExitStack() as resources:
                    with self.folder.removed_on_failure() if self.ranks.is_first else nullcontext():
                        self._read_data()
                        self.view.say(str(self.machine))
                        self._create_model(resources)
                        self._restore()
                    return self._train()
            except Interrupted as interrupted:
                self.stop.adopt(interrupted)
                saved = checkpoint.list_checkpoints(self.folder.checkpoints)
                steps = checkpoint.step_of(saved[-1]) if saved else 0
                command = self.folder.continue_command
                self.view.say(
                    f"stopped at step {steps:,}, while preparing; continue with {command}"
                )
                return Outcome(self.folder.path, steps, 0.0, {}, "signal", self.stop.exit_code)
            finally:
                self.view.end()

    # --- data, tokenizer, model -------------------------------------------------------------------

    def _open_folder(self) -> None:
        """Rank 0: create or check the run folder and the recipe of an existing run."""
        for line in self.folder.open(resume=self.resume):
            self.view.say(line)
        self.continues = self.folder.recipe.is_file()
        if self.continues:
            for line in check_same_run(self.recipe, self.folder, environment(self.machine)):
                self.view.say(line)

    def _read_data(self) -> None:
        """Write the recipe, read the data, train or load the tokenizer, and compare them with those
        of the run.
        """
        digest = self.ranks.first(
            lambda: self.folder.write_recipe(self.recipe, environment(self.machine))
        )
        self.ranks.in_turn(self.folder.check_shared, digest)
        self.data = self.ranks.in_turn(self.stop.call, self._load_data)
        self.ranks.in_turn(self.data.check_fingerprint, self.ranks.first(self._identify))

    def _load_data(self) -> TrainingData:
        if self.ranks.is_first:
            self.changed_files = check_same_data(
                self.folder, self.recipe, changed=self.data_changed
            )
        data = load_data(self.recipe, self.folder.tokenizer, self.view)
        if self.settings.check_memory:
            tokens = self.recipe.batch.tokens
            length = max(1, int(data.train.lengths.mean()))
            need = estimate_memory(self.settings, tokens, data.config, length, self.machine)
            check_fits(
                *need, self.recipe, available_memory(self.machine.device, self.ranks.local_world)
            )
        return data

    def _identify(self) -> str:
        """Rank 0: record the identity of the run, and return the fingerprint of its training
        rows.
        """
        rows = self.data.fingerprint
        if self.continues:
            check_same_rows(self.folder, rows, changed=self.data_changed)
        self.identity = run_identity(self.recipe, self.folder, rows)
        return rows

    def _create_model(self, resources: ExitStack) -> None:
        self.trainer = Trainer(
            self.data.new_model(), self.data.objective, self.settings, self.machine
        )
        resources.callback(self.trainer.close)
        self.saver = Saver(self.folder.checkpoints, self.settings, self.ranks)
        resources.callback(self.saver.close)

    def _restore(self) -> None:
        """Load the newest intact checkpoint, if there is one."""
        self.loaded: checkpoint.Checkpoint | None = None
        name = self.ranks.first(self._load_newest)
        if name is not None:
            state = self.loaded or checkpoint.load(self.folder.checkpoints / name)
            self.loaded = None
            self.trainer.restore(state.weights, state.optimizer)
            self.data.objective.restore(state.progress)
            self.progress = Progress.from_dict(state.progress)
        self.trainer.broadcast_weights()

    def _load_newest(self) -> str | None:
        """Rank 0: load the newest intact checkpoint; its name."""
        found = checkpoint.load_newest(self.folder.checkpoints)
        if found is None:
            self.folder.record_session(0, [], self.recipe.overrides)
            return None
        if found.rejected:
            self.view.say(
                f"warning: {'; '.join(found.rejected)}; an earlier checkpoint is used instead"
            )
        config = self.data.config
        if config.label_names is not None and config.problem_type != REGRESSION:
            check_same_labels(self.folder, config.labels)
        self.view.say(f"continuing from {found.path}")
        self.folder.record_session(
            checkpoint.step_of(found.path), found.rejected, self.recipe.overrides
        )
        self.loaded = found.state
        return found.path.name

    # --- step by step -----------------------------------------------------------------------------

    def _train(self) -> Outcome:
        """Train until steps, minutes, patience or a signal end it; the end is saved and
        validated.
        """
        settings = self.settings
        progress = self.progress
        self.view.say(f"{self.trainer}; writing to {self.folder.path}")
        log = MetricsLog(self.folder, progress.step, progress.lines, writes=self.ranks.is_first)
        with closing(log) as self.log:
            for line in self.changed_files:
                self.view.say(line)
                self.log.event(progress.step, "data changed", what=line)
            if self.ranks.is_first and self.log.board is None:
                self.view.say(
                    "no TensorBoard (pip install 'trifold[plots]'); metrics are in metrics.jsonl"
                )
            self.view.begin(settings.steps, progress.step)
            self.meter = Meter(settings.steps, progress.seconds, progress.step)
            if self.ranks.first(bool, self.changed_files) and progress.step:
                # With the digests of the new files, so that they are accepted from now on.
                self._save()
            stopped_by = self._train_steps()
            self.saver.wait()
            progress = self.progress
            if stopped_by == "signal":
                self.log.event(progress.step, "interrupted", signal=self.stop.name)
        self.ranks.first(self.folder.record_end, progress.step, progress.seconds, stopped_by)
        if stopped_by == "signal":
            self.view.say(
                f"stopped at step {progress.step:,}; continue with {self.folder.continue_command}"
            )
        ended = stopped_by, self.stop.exit_code, progress.best.step
        return Outcome(self.folder.path, progress.step, progress.seconds, progress.scores, *ended)

    def _train_steps(self) -> StoppedBy:
        settings = self.settings
        ranks = self.ranks
        position = self.progress.epoch, self.progress.batch
        plan = iterate_batches(
            self.data, self.machine.workers, *position, rank=ranks.rank, world=ranks.world
        )
        # Several ranks leave together, after synchronizing.
        with closing(prefetch(plan, stop=lambda: ranks.world == 1 and bool(self.stop))) as batches:
            stopped_by = self._should_stop()
            if self._validation_is_due(
                stopped_by
            ):  # a signal interrupted it in the previous session
                stopped_by = self._validate() or stopped_by
                self._save()
            while stopped_by is None:
                self.saver.check()
                update = self._update(batches)
                if update is not None and self.progress.step % settings.log_every == 0:
                    self._log(update)
                stopped_by = self._should_stop()
                if self._validation_is_due(stopped_by):
                    stopped_by = self._validate() or stopped_by
                is_best = settings.keep_best and self.progress.step == self.progress.best.step
                if self.progress.step % settings.save_every == 0 or stopped_by or is_best:
                    self._save()
                elif self.stop.take_save_request():
                    self.log.event(self.progress.step, "saved", signal="SIGUSR1")
                    self._save()
        return stopped_by

    def _update(self, batches: Iterator[RankBatch]) -> Update | None:
        """One update and the new position; None if it was interrupted or rejected."""
        progress = self.progress
        settings = self.settings
        taken = list(islice(batches, settings.accumulate))
        if len(taken) < settings.accumulate:  # a signal ended the batches
            return None
        micro_batches = [each for batch in taken for each in batch.micro_batches]
        idle = [each for batch in taken for each in batch.idle]
        max_loss = spike_threshold(settings, progress.losses)
        try:
            update = self.trainer.update(micro_batches, progress.step + 1, max_loss, idle)
        except RejectedUpdate as rejected:
            self._handle_rejected(rejected, taken)
            return None
        except RuntimeError:
            # A signal from the terminal also ends the compiler process, and with it the update.
            if not (self.stop and self.machine.compiles and self.ranks.world == 1):
                raise
            return None
        progress.step += 1
        progress.epoch, progress.batch = taken[-1].end
        progress.tokens += update.tokens
        progress.loss_sum = progress.loss_sum + update.loss
        progress.loss_count = progress.loss_count + 1
        progress.losses = [*progress.losses, update.loss][-settings.spike_window :]
        self.meter.count(update.tokens)
        progress.seconds = self.meter.seconds()
        return update

    def _handle_rejected(self, rejected: RejectedUpdate, taken: list[RankBatch]) -> None:
        """Save the batches, then stop, skip the update, or return to a checkpoint."""
        progress = self.progress
        details, rewind_to = self.ranks.first(self._choose_action, rejected, taken)
        progress.rejected += 1
        if rewind_to is None:
            progress.step += 1
            progress.epoch, progress.batch = taken[-1].end
            self.log.event(progress.step, "skipped", **details)
        else:
            self._rewind(self.folder.checkpoints / rewind_to, taken[-1].end)
            self.log.event(self.progress.step, "rewound", spike_at=rejected.step, **details)

    def _choose_action(
        self, rejected: RejectedUpdate, taken: list[RankBatch]
    ) -> tuple[dict[str, str], str | None]:
        """Rank 0: the details for the log, and the checkpoint to return to, if any."""
        batches = batches_of_all_ranks(self.data, self.machine.workers, taken, self.ranks.world)
        positions = [[batch.epoch, batch.number] for batch in taken]
        file = save_batches(self.folder.rejected, rejected, batches, positions)
        where = "could not be written" if file is None else f"is in {file}"
        details = rejected.details | {
            "batch": str(file.relative_to(self.folder.path)) if file else where
        }
        try:
            action = choose_action(self.settings, rejected, self.progress.rejected)
        except RejectedUpdate:
            with suppress(OSError):  # report the rejected update rather than a full disk
                self.log.event(rejected.step, "stopped", **details)
            raise
        self.view.say(f"{rejected}; {action}; its batch {where}")
        if action == "skip":
            return details, None
        # A regular checkpoint, so that an interrupted run returns as far as an uninterrupted one.
        self.saver.wait()
        regular = checkpoint.regular_checkpoints(self.folder.checkpoints, self.settings.save_every)
        names = [path.name for path in regular if checkpoint.step_of(path) <= self.progress.step]
        return details, names[-1] if names else None

    def _rewind(self, to: Path, position: tuple[int, int]) -> None:
        """Restore weights, optimizer and step from a checkpoint; the data continues from
        `position`.
        """
        current = self.progress
        state = checkpoint.load(to)
        self.trainer.restore(state.weights, state.optimizer)
        self.progress = Progress.from_dict(state.progress)
        self.progress.epoch, self.progress.batch = position
        self.progress.rejected = current.rejected
        self.progress.losses = []
        self.progress.best = current.best
        self.progress.scores = current.scores
        self.log.rewind(self.progress.step, self.progress.lines)

    def _log(self, update: Update) -> None:
        """Report the mean loss since the last logged step, and the other values of the last
        update.
        """
        progress = self.progress
        loss = progress.loss_sum / progress.loss_count
        progress.loss_sum = 0.0
        progress.loss_count = 0
        speed, left = self.meter.read(progress.step, self.settings.minutes)
        measured = loss, update.rate, speed, left, self.data.objective.token_name
        snapshot = Snapshot(progress.step, self.settings.steps, progress.epoch, *measured)
        self.view.step(snapshot)
        self.log.update(snapshot, update.norm, progress.seconds)

    def _should_stop(self) -> StoppedBy | None:
        """Synchronize signals and the clock between the ranks; the reason to stop, if any."""
        settings = self.settings
        progress = self.progress
        progress.seconds = self.stop.synchronize(progress.seconds)
        if self.stop:
            return "signal"
        if settings.patience is not None and progress.best.since >= settings.patience:
            return "patience"
        if settings.minutes is not None and progress.seconds >= settings.minutes * 60:
            return "minutes"
        return "steps" if progress.step >= settings.steps else None

    def _validation_is_due(self, stopped_by: StoppedBy | None) -> bool:
        step = self.progress.step
        has_model = self.progress.best.score is not None
        is_last = stopped_by is not None and not (stopped_by == "signal" and has_model)
        return step > self.progress.validated and (
            is_last or step % self.settings.validate_every == 0
        )

    def _validate(self) -> StoppedBy | None:
        """Validate the (averaged) weights; the reason to stop, if any."""
        progress = self.progress
        weights = gather_on_first(self.trainer.evaluation_weights(), self.ranks)
        result = self.ranks.first(self._evaluate, weights)
        if result is not None:
            progress.best = Best(*result[0])
            progress.scores = result[1]
            progress.validated = progress.step
            progress.seconds = self.meter.seconds()
            self.meter.pause()
        return self._should_stop()

    @cached_property
    def validator(self) -> Validator:
        """Rank 0: measures and keeps the best weights; created at the first validation."""
        return Validator(self.data, self.folder, self.machine.device, self.trainer.weights.names)

    def _evaluate(self, weights: dict[str, Any]) -> tuple[Best, dict[str, float]] | None:
        """Rank 0: the best validation so far and its scores; None if a signal interrupted the
        validation.
        """
        self.saver.wait()  # earlier checkpoints may be averaged
        try:
            result, best = self.validator(
                self.progress.step, weights, self.progress.best, self._poll
            )
        except Interrupted:
            return None
        if result.damaged:
            self.view.say(
                f"warning: {'; '.join(result.damaged)}; the average of last weights excludes it"
            )
            self.log.event(self.progress.step, "averaged without", rejected=result.damaged)
        self.view.validated(result)
        scores = {f"valid/{name}": value for name, value in result.scores.items()}
        self.log(self.progress.step, {"valid/loss": result.loss, **scores})
        return best, result.scores if result.best else self.progress.scores

    def _poll(self) -> None:
        """Rank 0: called often during a validation."""
        self.stop.raise_if_requested()
        self.view.validating(self.progress.step)

    def _save(self) -> None:
        """Write a checkpoint."""
        self.log.flush()
        self.progress.lines = self.log.lines
        progress = asdict(self.progress) | self.identity | self.data.objective.state()
        state = checkpoint.Checkpoint(*self.trainer.state(), progress)
        self.saver.save(state, self.progress.best.step)
        self.meter.pause()
