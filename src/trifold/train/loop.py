"""The training loop: update, log, validate, save.

A position in training is three integers (step, epoch, batch), and every random number is a function
of (seed, step, micro-batch), so a resumed run needs no saved generator and is bit-identical to an
uninterrupted one.

All ranks execute the loop, step by step. `ranks.first(f, …)` calls f on rank 0 and returns its
result on all ranks; `ranks.in_turn(f, …)` calls f on rank 0 and then on the others. In a single
process both are plain calls.

Three calls lie between the loop and the backward pass: `Run.train_steps` calls `Trainer.update`,
which calls `Trainer._backward` for each micro-batch, which calls `backward` of the loss.
"""

from contextlib import ExitStack, closing
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from trifold import fast
from trifold.baselines.stored import read_comparison
from trifold.data.frames import data_overrides
from trifold.errors import UsageError, plural
from trifold.folders import AnyPath, UntrustedPath, named
from trifold.installation import install_command
from trifold.recipe import Recipe, TrainSettings, is_run, load_recipe
from trifold.train import checkpoint
from trifold.train.advice import advise_run, finished_run
from trifold.train.baseline_advice import advise_baselines
from trifold.train.checkpoint import BestValidation
from trifold.train.data import RankShare, TrainingData, iterate_batches, take_share
from trifold.train.device import agree_on_options, find_machine, keep_freed_memory
from trifold.train.duration import describe_duration
from trifold.train.fold_scores import FoldedEvaluation
from trifold.train.folds import train_folds
from trifold.train.launch import join_ranks
from trifold.train.metrics import Meter, MetricsLog
from trifold.train.monitor import (
    FoldScores,
    Outcome,
    OutcomeView,
    Snapshot,
    StoppedBy,
    View,
    choose_view,
)
from trifold.train.prefetch import prefetch
from trifold.train.preparation import Preparation, TrainingSession
from trifold.train.ranks import Interrupted, Ranks
from trifold.train.recovery import recover
from trifold.train.rejected import RejectedUpdate, spike_threshold
from trifold.train.run_folder import PRETRAINED, RunFolder, explain_resource_errors, recipe_of_run
from trifold.train.sharding import gather_on_first
from trifold.train.signals import StopRequest, handle_signals
from trifold.train.sizing import with_recorded_sizes
from trifold.train.stages import check_made_files, pretrain
from trifold.train.trainer import Update
from trifold.train.validate import Validator


def train(
    recipe: AnyPath | Recipe,
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
    if not isinstance(recipe, str | Path | UntrustedPath | Recipe):
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
            if out is None and is_run(recipe):
                out = named(recipe).path
            recipe = ranks.in_turn(load_recipe, recipe, overrides)
        if out is None:
            out = Path("runs") / recipe.name
        path = Path(out)
        if not ranks.is_first:
            view = View()
        elif view is None:
            view = choose_view()
        if recipe.pretrain is not None:
            check_made_files(recipe.pretrain)
            train_stage = partial(train, resume=resume, data_changed=data_changed, view=view)
            outcome, recipe = pretrain(recipe, path, view, train_stage)
            if not outcome.finished:
                return outcome
        options = {"resume": resume == "auto", "data_changed": data_changed}
        with closing(RunFolder(path, ranks.command)) as folder:
            if recipe.data.folds is not None:
                return train_folds(folder, recipe, ranks, view, _train_in, **options)
            return _train_in(folder, recipe, ranks, view, **options)


def resume(run: str | Path, **arguments: Any) -> Outcome:
    """Continue a run (else UsageError) as if it had not stopped. The arguments are those of
    `train`; data in memory is given again.
    """
    recipe = recipe_of_run(run)
    return train(recipe, out=recipe.path.parent, resume="auto", **arguments)


def _train_in(
    folder: RunFolder,
    recipe: Recipe,
    ranks: Ranks,
    view: View,
    *,
    resume: bool,
    data_changed: bool,
) -> Outcome:
    """Prepare, train until a limit or a signal, and report how the run ended."""
    if resume:
        recipe = ranks.in_turn(with_recorded_sizes, recipe, folder)
        if has_all_steps(folder, recipe.train.end):
            view = OutcomeView(view)
    machine = ranks.in_turn(find_machine, recipe.train, recipe.batch.tokens, ranks)
    machine = agree_on_options(machine)
    keep_freed_memory()
    with handle_signals(ranks) as stop, explain_resource_errors(folder):
        preparation = Preparation(
            recipe, folder, ranks, view, machine, stop, resume=resume, data_changed=data_changed
        )
        try:
            with ExitStack() as resources:
                session = preparation.prepare(resources)
                return _train_session(session)
        except Interrupted as interrupted:
            stop.adopt(interrupted)
            return _interrupted_outcome(folder, view, stop)
        finally:
            view.end()


def has_all_steps(folder: RunFolder, steps: int) -> bool:
    """Whether the last checkpoint of an existing run is that of its last step."""
    if not folder.recipe.exists():
        return False
    saved = checkpoint.list_checkpoints(folder.below(folder.checkpoints))
    return bool(saved) and checkpoint.step_of(saved[-1]) >= steps


def _interrupted_outcome(folder: RunFolder, view: View, stop: StopRequest) -> Outcome:
    """The outcome of a session that a signal has ended before its first step."""
    step = 0
    if saved := checkpoint.list_checkpoints(folder.below(folder.checkpoints)):
        step = checkpoint.step_of(saved[-1])
    view.end()  # the command is the last line
    view.say(f"stopped at step {step:,}, while preparing; continue with {folder.continue_command}")
    return Outcome(folder.path, step, 0.0, {}, "signal", stop.exit_code)


def _train_session(session: TrainingSession) -> Outcome:
    """Train until steps, minutes, patience or a signal end it; the end is saved and validated."""
    folder = session.folder
    ranks = session.ranks
    view = session.view
    start = session.progress
    first_step = start.step
    is_new = start.step == 0 and start.best.score is None
    duration = ""
    if session.machine.device.type == "cpu" and ranks.world == 1:
        steps = session.recipe.train.end - first_step
        duration = describe_duration(session.data, steps, session.machine.dtype, folder.part)
    parts = [str(session.trainer), describe_epochs(session.data), duration]
    parts.append(f"writing to {folder.path}")
    view.say("; ".join(filter(None, parts)))
    log = MetricsLog(folder, start.step, start.lines, writes=ranks.is_first)
    with closing(log):
        run = Run(session, log)
        run.report_start()
        ranks.first(session.record_start)
        stopped_by = run.train_steps()
        session.saver.wait()
        end = run.progress
        if stopped_by == "signal":
            log.event(end.step, "interrupted", signal=session.stop.name)
    ranks.first(folder.record_end, end.step, end.seconds, stopped_by)
    advice = list[str]()
    comparison = None
    if ranks.is_first:
        comparison = read_comparison(folder.below(folder.scores))
    if stopped_by == "signal":
        view.end()  # the command is the last line
        view.say(f"stopped at step {end.step:,}; continue with {folder.continue_command}")
    elif folder.part is not None:
        pass  # the run that it is part of has the advice
    elif end.step == first_step and not is_new and folder.path.name != PRETRAINED:
        view.say(describe_finished(session.recipe.train, end.step, stopped_by, folder))
    elif ranks.is_first:
        objective = session.data.objective
        advice = advise_baselines(comparison, session.recipe, folder, objective)
        advice += advise_run(
            finished_run(session.data, folder, end, stopped_by, is_compared=bool(advice))
        )
    return Outcome(
        folder=folder.path,
        steps=end.step,
        seconds=end.seconds,
        scores=end.scores,
        stopped_by=stopped_by,
        exit_code=session.stop.exit_code,
        best_step=end.best.step,
        advice=advice,
        comparison=comparison,
        folds=end_folds(session, end.best.step),
    )


def end_folds(session: TrainingSession, step: int) -> FoldScores | None:
    """The scores of the folds of a run on all rows, whose weights of a step are saved."""
    if session.data.recipe.data.folds is None:
        return None
    return FoldedEvaluation(session.data, session.folder).at(step).facts


def describe_epochs(data: TrainingData) -> str:
    """The epochs that the steps of a run are."""
    settings = data.recipe.train
    epochs = settings.end * settings.accumulate / len(data.plan(data.train, 0))
    number = f"{epochs:.0f}" if epochs >= 10 else f"{epochs:.2g}"
    return f"{plural(settings.end, 'step')}, {number} epoch{'s' * (number != '1')}"


def describe_finished(
    settings: TrainSettings, step: int, stopped_by: str, folder: RunFolder
) -> str:
    """A line about a run that was continued and ended before another step, with the command that
    continues it for longer.
    """
    if stopped_by == "steps" and settings.end < settings.steps:
        stopped_by = "last_step"
    limit = getattr(settings, stopped_by)
    longer = 2 * max(step, 1)
    if stopped_by not in ("steps", "last_step"):
        longer = 2 * limit
    command = folder.continue_command.removesuffix("`")
    return (
        f"nothing to do: the run has ended at step {step:,}, by train.{stopped_by}={limit:g}; "
        f"{command} train.{stopped_by}={longer:g}` continues it"
    )


class Run:
    """The steps of one session of a run on one rank."""

    def __init__(self, session: TrainingSession, log: MetricsLog) -> None:
        self.session = session
        self.settings = session.recipe.train
        self.folder = session.folder
        self.ranks = session.ranks
        self.view = session.view
        self.stop = session.stop
        self.data = session.data
        self.trainer = session.trainer
        self.saver = session.saver
        self.progress = session.progress
        self.log = log
        self.meter = Meter(self.settings.end, self.progress.seconds, self.progress.step)

    def report_start(self) -> None:
        """Report the data files that have changed, and the first step; accept these files."""
        for line in self.session.changed_files:
            self.view.say(line)
            self.log.event(self.progress.step, "data changed", what=line)
        if self.ranks.is_first and self.log.board is None:
            self.view.say(
                "metrics are in metrics.jsonl only; for TensorBoard, install it with "
                f"`{install_command('plots')}`"
            )
        self.view.begin(self.settings.end, self.progress.step)
        if self.session.changed_files and self.progress.step:
            # With the digests of the new files, so that they are accepted from now on.
            self._save()

    def train_steps(self) -> StoppedBy:
        """Train step by step; the reason why it ended."""
        settings = self.settings
        rank_batches = iterate_batches(
            self.data,
            self.session.machine.workers,
            self.progress.epoch,
            self.progress.batch,
            rank=self.ranks.rank,
            world=self.ranks.world,
        )
        with closing(prefetch(rank_batches, stop=self._stops_at_once)) as batches:
            stopped_by = self._should_stop()
            # A validation is due here if a signal interrupted it in the previous session.
            if self._validation_is_due(stopped_by):
                stopped_by = self._validate() or stopped_by
                self._save()
            elif self._begins_fitted():
                stopped_by = self._validate() or stopped_by
            while stopped_by is None:
                self.saver.check()
                share = take_share(batches, settings.accumulate)
                if share is not None:
                    max_loss = spike_threshold(settings, self.progress.losses)
                    try:
                        update = self.trainer.update(
                            share.micro_batches, self.progress.step + 1, max_loss, share.idle
                        )
                    except RejectedUpdate as rejected:
                        self.progress = recover(
                            rejected, share, self.progress, self.session, self.log
                        )
                    except RuntimeError:
                        if not self._signal_ended_compiler():
                            raise
                    else:
                        self._advance(update, share)
                stopped_by = self._should_stop()
                if self._validation_is_due(stopped_by):
                    stopped_by = self._validate() or stopped_by
                self._save_if_due(stopped_by)
        return stopped_by

    def _stops_at_once(self) -> bool:
        """Whether a signal ends a single process. Several ranks leave together, after they have
        synchronized.
        """
        return self.ranks.world == 1 and bool(self.stop)

    def _signal_ended_compiler(self) -> bool:
        """Whether an error of an update may be that of the compiler process, which a signal from
        the terminal also ends.
        """
        return bool(self.stop and self.session.machine.compiles and self.ranks.world == 1)

    def _advance(self, update: Update, share: RankShare) -> None:
        """Move to the position after an update, and log every `train.log_every` steps."""
        progress = self.progress
        progress.step += 1
        progress.epoch, progress.batch = share.end
        progress.tokens += update.tokens
        progress.loss_sum += update.loss
        progress.loss_count += 1
        progress.losses = [*progress.losses, update.loss][-self.settings.spike_window :]
        self.meter.count(update.tokens)
        progress.seconds = self.meter.seconds()
        if progress.step % self.settings.log_every == 0:
            self._log(update)
        elif self.meter.is_due:
            self.view.step(self._snapshot(update))

    def _log(self, update: Update) -> None:
        """Report an update to the view and to the metrics, and begin a new mean of losses."""
        snapshot = self._snapshot(update)
        self.progress.loss_sum = 0.0
        self.progress.loss_count = 0
        self.meter.restart()
        self.view.step(snapshot)
        self.log.update(snapshot, update.norm, self.progress.seconds)

    def _snapshot(self, update: Update) -> Snapshot:
        """The mean loss since the last logged step, and the other values of the last update."""
        progress = self.progress
        speed, seconds_left = self.meter.read(progress.step, self.settings.minutes)
        return Snapshot(
            step=progress.step,
            total=self.settings.end,
            epoch=progress.epoch,
            loss=progress.loss_sum / progress.loss_count,
            learning_rate=update.rate,
            tokens_per_second=speed,
            seconds_left=seconds_left,
            token_name=self.data.objective.token_name,
        )

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
        if progress.step >= settings.end:
            return "steps"
        return None

    # --- validation -------------------------------------------------------------------------------

    def _validation_is_due(self, stopped_by: StoppedBy | None) -> bool:
        """Every `train.validate_every` steps and at the end; after a signal only if there is no
        model yet.
        """
        step = self.progress.step
        has_model = self.progress.best.score is not None
        is_last = stopped_by is not None and not (stopped_by == "signal" and has_model)
        is_regular = step % self.settings.validate_every == 0
        if self.data.recipe.data.folds is not None:  # of which only the last weights are reported
            return is_last and (step > self.progress.validated or not has_model)
        return step > self.progress.validated and (is_last or is_regular)

    def _begins_fitted(self) -> bool:
        """Whether the weights of a new run are validated, because a part of them is fitted. Folds
        have validated them before a run on all rows.
        """
        is_new = self.progress.step == 0 and self.progress.best.score is None
        is_fitted = self.data.objective.starts_fitted
        return is_new and is_fitted and self.data.recipe.data.folds is None

    def _validate(self) -> StoppedBy | None:
        """Validate the (averaged) weights; the reason to stop, if any."""
        progress = self.progress
        weights = gather_on_first(self.trainer.evaluation_weights(), self.ranks)
        result = self.ranks.first(self._evaluate, weights)
        if result is not None:
            best, scores = result
            progress.best = BestValidation(*best)  # a list on the other ranks
            progress.scores = scores
            progress.validated = progress.step
            progress.seconds = self.meter.seconds()
            self.meter.pause()
        return self._should_stop()

    @cached_property
    def validator(self) -> Validator:
        """Rank 0: measures and keeps the best weights; created at the first validation."""
        device = self.session.machine.device
        return Validator(self.data, self.folder, device, self.trainer.weights.names)

    def _evaluate(
        self, weights: dict[str, Tensor]
    ) -> tuple[BestValidation, dict[str, float]] | None:
        """Rank 0: the best validation so far and its scores; None if a signal interrupted the
        validation.
        """
        progress = self.progress
        self.saver.wait()  # earlier checkpoints may be averaged
        try:
            result, best = self.validator(progress.step, weights, progress.best, self._poll)
        except Interrupted:
            return None
        if result.damaged:
            self.view.say(
                f"warning: {'; '.join(result.damaged)}; the average of last weights excludes it"
            )
            self.log.event(progress.step, "averaged without", rejected=result.damaged)
        self.view.validated(result)
        named_scores = {f"valid/{name}": value for name, value in result.scores.items()}
        named_scores |= {f"baseline/{name}": value for name, value in result.baselines.items()}
        if result.folds is not None:
            deviations = result.folds.deviations
            named_scores |= {f"deviation/{name}": value for name, value in deviations.items()}
        self.log(progress.step, {"valid/loss": result.loss, **named_scores})
        if result.best:
            return best, result.scores
        return best, progress.scores

    def _poll(self) -> None:
        """Rank 0: called often during a validation."""
        self.stop.raise_if_requested()
        self.view.validating(self.progress.step)

    # --- checkpoints ------------------------------------------------------------------------------

    def _save_if_due(self, stopped_by: StoppedBy | None) -> None:
        """Write a checkpoint every `train.save_every` steps, at the end, of the best weights if
        they are kept, and if a signal requests one.
        """
        step = self.progress.step
        is_regular = step % self.settings.save_every == 0
        is_best = self.settings.keep_best and step == self.progress.best.step
        if is_regular or stopped_by is not None or is_best:
            self._save()
        elif self.stop.take_save_request():
            self.log.event(step, "saved", signal="SIGUSR1")
            self._save()

    def _save(self) -> None:
        """Write a checkpoint."""
        self.log.flush()
        self.progress.lines = self.log.lines
        saved = asdict(self.progress) | self.session.identity | self.data.objective.state()
        state = checkpoint.Checkpoint(*self.trainer.state(), saved)
        self.saver.save(state, self.progress.best.step)
        self.meter.pause()
