"""The loop: set the rate, update, log, validate, save. It fits on one screen; everything else is around it.

A position in training is three integers (step, epoch, batch), and every random number is a function of
(seed, step, micro-batch), so a resumed run needs no saved generator and is bit-equal to one that never stopped.
Several ranks go through it side by side, step by step; where one of them decides for all, it says `ranks.first`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from trifold import fast
from trifold.recipe import Recipe, load_recipe
from trifold.train import checkpoint
from trifold.train.dealing import Dealt, ahead, deal, everyones
from trifold.train.device import Machine, agreed, find_machine, keep_freed_memory, undisturbed
from trifold.train.learner import Learner, Update
from trifold.train.memory import check_fits, needed, there_is
from trifold.train.pace import Meter
from trifold.train.progress import Outcome, Progress, StoppedBy, behind
from trifold.train.ranks import Ranks, Stopped, joined, together
from trifold.train.refusals import Refused, evidence, fate, highest_loss, remember
from trifold.train.resume import changed_environment, check_reading, check_same_run, identity
from trifold.train.run_folder import MetricsLog, NoLog, RunFolder, environment
from trifold.train.same_data import check_same_data
from trifold.train.saver import Saver
from trifold.train.setup import Prepared, prepare
from trifold.train.sharding import on_first
from trifold.train.signals import Asked, orderly_end
from trifold.train.trouble import trouble_told
from trifold.train.validate import Best, Interrupted, Validator
from trifold.train.view import Silent, Snapshot, View


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

    Under `torchrun` all processes train together, and all return the same; what only one of them has to complain of,
    the others raise as OtherRankError.
    """
    fast.enable()
    with joined() as ranks:
        chosen = (
            recipe if isinstance(recipe, Recipe) else ranks.in_turn(lambda: load_recipe(recipe, overrides))
        )
        place = Path(out) if out is not None else Path("runs") / chosen.name
        with closing(RunFolder(place, ranks.command)) as folder:
            return _train(chosen, folder, ranks, resume, data_changed, (ranks.speaks and view) or Silent())


def _train(
    chosen: Recipe, folder: RunFolder, ranks: Ranks, resume: str | None, data_changed: bool, view: View
) -> Outcome:
    machine = agreed(ranks.in_turn(lambda: find_machine(chosen.train, chosen.batch.tokens, ranks)))
    keep_freed_memory()
    with orderly_end(ranks) as asked, trouble_told(folder), together():
        here = environment(
            machine.device, machine.arithmetic, machine.workers, ranks, compiled=bool(machine.compiles)
        )

        def opened() -> None:
            lines = folder.open(resume=resume == "auto")
            for line in (*lines, *check_same_run(chosen, folder), *changed_environment(folder, here)):
                view.say(line)

        def prepared_data() -> tuple[Prepared, list[str]]:
            changed: list[str] = []
            if ranks.speaks:
                changed = check_same_data(folder, chosen, changed=data_changed)
            prepared = prepare(chosen, folder.tokenizer, view)
            _check_memory(prepared, machine)
            return prepared, changed

        ranks.first(opened)
        try:
            with folder.begun() if ranks.speaks else nullcontext():
                told = ranks.first(lambda: folder.describe(chosen, here))
                ranks.in_turn(lambda: folder.check_seen(told))
                prepared, changed = ranks.in_turn(lambda: asked.unless_asked(prepared_data))
                read = ranks.first(lambda: check_reading(folder, prepared.fingerprint, changed=data_changed))
                ranks.in_turn(lambda: prepared.check_alike(read))
            view.say(str(machine))
            with undisturbed(machine.workers), closing(_Run(prepared, folder, machine, view)) as run:
                return run.until_done(asked, changed)
        except Stopped as stopped:
            asked.stopped(stopped)
            steps = max(map(checkpoint.step_of, checkpoint.saved(folder.checkpoints)), default=0)
            view.say(f"stopped at step {steps:,}, while preparing; go on with: {folder.continue_line}")
            return Outcome(folder.path, steps, 0.0, {}, "signal", asked.exit_code)
        finally:
            view.end()


def _check_memory(prepared: Prepared, machine: Machine) -> None:
    if prepared.recipe.train.check_memory:
        length = max(1, int(prepared.train.lengths.mean()))
        device, dtype, workers, ranks, *_ = machine
        on_cpu = device.type == "cpu"
        need = needed(prepared.recipe, prepared.config, length, dtype, workers, on_cpu=on_cpu, ranks=ranks)
        check_fits(need, prepared.recipe, there_is(device, ranks))


class _Run:
    """One training, as one of its ranks sees it."""

    def __init__(self, prepared: Prepared, folder: RunFolder, machine: Machine, view: View) -> None:
        self.prepared, self.folder, self.view = prepared, folder, view
        self.workers, self.ranks, self.compiles = machine.workers, machine.ranks, bool(machine.compiles)
        self.settings = prepared.recipe.train
        self.learner = Learner(
            prepared.new_model(),
            prepared.task,
            self.settings,
            seed=prepared.recipe.train.seed,
            device=machine.device,
            dtype=machine.dtype,
            workers=self.workers,
            ranks=self.ranks,
            compiles=self.compiles,
            by_bytes=bool(machine.by_bytes),
        )
        self.validator = (
            Validator(prepared, folder, machine.device, self._averaged_without) if self.ranks.speaks else None
        )
        self.saver = Saver(folder.checkpoints, self.settings, self.ranks)
        self.identity = identity(prepared.recipe, folder, prepared.fingerprint) if self.ranks.speaks else {}
        self.progress = Progress()
        self._restore()

    def until_done(self, asked: Asked, changed: Sequence[str] = ()) -> Outcome:
        """Train until steps, minutes, patience or a signal end it; saved and validated at the end.

        changed: what is to be said of data files that are others than before.
        """
        settings, progress = self.settings, self.progress
        self.view.say(f"{self.learner}; writing to {self.folder.path}")
        log = MetricsLog(self.folder, progress.step, progress.lines) if self.ranks.speaks else NoLog()
        with closing(log) as self.log:
            for line in changed:
                self.view.say(line)
                self.log.event(progress.step, "data changed", what=line)
            if not self.log.has_board:
                self.view.say(
                    "no TensorBoard here: pip install 'trifold[plots]' adds it; metrics.jsonl has every number"
                )
            self.view.begin(settings.steps, progress.step)
            self.meter = Meter(settings.steps, progress.seconds, progress.step)
            if self.ranks.first(lambda: bool(changed)) and progress.step:
                self._save()  # the files are known as they are now, and no later sitting would say it again
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
        plan = deal(
            self.prepared,
            self.workers,
            self.progress.epoch,
            self.progress.batch,
            accumulate=self.settings.accumulate,
            rank=self.ranks.rank,
            world=self.ranks.world,
        )
        # Of several ranks none leaves before all have met.
        with closing(ahead(plan, lambda: self.ranks.world == 1 and bool(asked))) as batches:
            return self._learn_from(batches, asked)

    def _learn_from(self, batches: Iterator[Dealt], asked: Asked) -> StoppedBy:
        settings = self.settings
        self._meet(asked)
        stopped_by = self._should_stop(asked)
        if self._validation_is_due(stopped_by):  # a signal had cut it off
            stopped_by = self._validate(asked) or stopped_by
            self._save()
        while stopped_by is None:
            self.saver.check()
            dealt = list(islice(batches, settings.accumulate))
            try:
                update = self._update(dealt) if len(dealt) == settings.accumulate else None
            except RuntimeError:
                # A terminal's signal ends a compiler too, of which this process has made use.
                if not (asked and self.compiles and self.ranks.world == 1):
                    raise
                update = None
            progress = self.progress
            if update is not None and progress.step % settings.log_every == 0:
                self._log(update)
            self._meet(asked)
            stopped_by = self._should_stop(asked)
            if self._validation_is_due(stopped_by):
                stopped_by = self._validate(asked) or stopped_by
            best = settings.keep_best and progress.step == progress.best.step
            if progress.step % settings.save_every == 0 or stopped_by or best:
                self._save()
            elif asked.to_save():
                self.log.event(progress.step, "saved", signal="SIGUSR1")
                self._save()
        return stopped_by

    def _update(self, dealt: list[Dealt]) -> Update | None:
        """Learn from the batches, and move on; None where the update was left out."""
        progress, settings = self.progress, self.settings
        highest = highest_loss(settings, progress.losses)
        mine = [share for each in dealt for share in each.shares]
        idle = [batch for each in dealt for batch in each.idle]
        try:
            update = self.learner.update(mine, progress.step + 1, highest, idle)
        except Refused as refused:
            self._refused(refused, dealt)
            return None
        progress.step += 1
        progress.epoch, progress.batch = behind(dealt)
        progress.tokens += update.tokens
        progress.losses = remember(settings, progress.losses, update.loss)
        self.meter.count(update.tokens)
        progress.seconds = self.meter.seconds()
        return update

    def _refused(self, refused: Refused, dealt: list[Dealt]) -> None:
        """Keep the batches for whoever wants to look at them; then stop, leave the update out, or go back."""
        progress = self.progress
        facts = {"what": refused.kind, "loss": str(refused.loss), "gradient_norm": str(refused.norm)}

        def decided() -> str | None:
            """The name of the checkpoint to go back to, if any."""
            batches = everyones(
                self.prepared,
                self.workers,
                dealt,
                world=self.ranks.world,
                accumulate=self.settings.accumulate,
            )
            places = [[each.epoch, each.number] for each in dealt]
            kept = evidence(self.folder.refused, refused, batches, places)
            where = "could not be written" if kept is None else f"is in {kept}"
            facts["batch"] = where if kept is None else str(kept.relative_to(self.folder.path))
            try:
                what = fate(self.settings, refused, progress.refused)
            except Refused:
                with suppress(OSError):  # a full disk is not what is wrong
                    self.log.event(refused.step, "stopped", **facts)
                raise
            self.view.say(f"{refused}; {what}; its batch {where}")
            return self._checkpoint_before() if what == "rewind" else None

        to = self.ranks.first(decided)
        progress.refused += 1
        if to is None:
            progress.step += 1
            progress.epoch, progress.batch = behind(dealt)
            self.log.event(progress.step, "skipped", **facts)
        else:
            self._go_back(self.folder.checkpoints / to, behind(dealt))
            self.log.event(self.progress.step, "rewound", spike_at=refused.step, **facts)

    def _checkpoint_before(self) -> str | None:
        """The one to go back to: regular, so that a run which was stopped goes back as far as one that was not."""
        self.saver.wait()
        regular = checkpoint.regular(self.folder.checkpoints, self.settings.save_every)
        before = [path for path in regular if checkpoint.step_of(path) <= self.progress.step]
        return before[-1].name if before else None

    def _go_back(self, to: Path, place: tuple[int, int]) -> None:
        """Weights, moments and step are those of a checkpoint; the data goes on from `place`."""
        now, state = self.progress, checkpoint.load(to)
        self.learner.restore(state.weights, state.moments)
        self.progress = Progress.read(state.progress)
        self.progress.epoch, self.progress.batch = place
        self.progress.refused, self.progress.best, self.progress.losses = now.refused, now.best, []
        self.log.back_to(self.progress.step, self.progress.lines)

    def close(self) -> None:
        """Nothing goes on behind."""
        self.learner.close()
        self.saver.close()

    def _meet(self, asked: Asked) -> None:
        """All ranks have heard the same signals, and have one clock."""
        self.progress.seconds = asked.meet(self.progress.seconds)

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

    def _averaged_without(self, step: int, refused: list[str]) -> None:
        self.view.say(f"warning: {'; '.join(refused)}; the mean of the last weights is made without")
        self.log.event(step, "averaged without", refused=refused)

    def _validate(self, asked: Asked) -> StoppedBy | None:
        """Measure the (averaged) weights; says whether that ends the training."""
        progress = self.progress
        weights = on_first(self.learner.measured(), self.ranks)

        def looked() -> tuple[Best, dict[str, float]] | None:
            assert self.validator is not None
            self.saver.wait()  # earlier checkpoints may be averaged
            try:
                result, best = self.validator(progress.step, weights, progress.best, asked.noticed)
            except Interrupted:
                return None
            self.view.validated(result)
            found = {"valid/loss": result.loss, **{f"valid/{k}": v for k, v in result.scores.items()}}
            self.log(progress.step, found)
            return best, result.scores

        found = self.ranks.first(looked)
        if found is not None:
            progress.best, progress.scores = Best(*found[0]), found[1]
            progress.validated = progress.step
            progress.seconds = self.meter.seconds()
            self.meter.pause()
        self._meet(asked)
        return self._should_stop(asked)

    def _save(self) -> None:
        self.log.keep()
        self.progress.lines = self.log.lines
        state = checkpoint.Checkpoint(*self.learner.state(), self.progress.written() | self.identity)
        self.saver.save(state, self.progress.best.step)
        self.meter.pause()

    def _restore(self) -> None:
        states: list[checkpoint.Checkpoint] = []

        def found() -> str | None:
            found = checkpoint.newest_sound(self.folder.checkpoints)
            refused = [] if found is None else found.refused
            if refused:
                self.view.say(f"warning: {'; '.join(refused)}; an earlier checkpoint is taken instead")
            if found is not None:
                self.view.say(f"continuing from {found.path}")
                states.append(found.state)
            self.folder.note_sitting(0 if found is None else checkpoint.step_of(found.path), refused)
            return None if found is None else found.path.name

        name = self.ranks.first(found)
        if name is not None:
            state = states[0] if states else checkpoint.load(self.folder.checkpoints / name)
            self.learner.restore(state.weights, state.moments)
            self.progress = Progress.read(state.progress)
        self.learner.agree()

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
