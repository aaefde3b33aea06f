"""What happens before the first step of a session of a run: the folder is opened, the data read,
the model created, and the newest checkpoint loaded.

All ranks prepare together. `ranks.first(f, …)` calls f on rank 0 and returns its result on all
ranks; `ranks.in_turn(f, …)` calls f on rank 0 and then on the others. In a single process both are
plain calls.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

from trifold.data import FileDigest
from trifold.memory import available_memory
from trifold.recipe import Recipe
from trifold.train import checkpoint
from trifold.train.checkpoint import NewestCheckpoint, Saver, TrainingProgress
from trifold.train.data import TrainingData, load_data
from trifold.train.data_files import compare_data, record_data
from trifold.train.device import Machine, environment, for_batches
from trifold.train.initial_weights import new_model
from trifold.train.memory import check_fits, estimate_memory
from trifold.train.monitor import View
from trifold.train.ranks import Ranks
from trifold.train.resume import (
    check_same_labels,
    check_same_rows,
    check_same_run,
    run_identity,
)
from trifold.train.run_folder import IDENTITY, RunFolder
from trifold.train.signals import StopRequest
from trifold.train.sizing import ESTIMATED
from trifold.train.time_limit import describe_fit, describe_shortage, fit_steps, with_steps
from trifold.train.trainer import Trainer


@dataclass(frozen=True)
class TrainingSession:
    """What the steps of a run work with, on one rank.

    progress: the position at which the session begins. identity: recorded in each checkpoint.
    changed_files: a message for each data file that has changed since the previous session.
    rejected: a message for each damaged checkpoint, on rank 0.
    """

    recipe: Recipe
    folder: RunFolder
    ranks: Ranks
    view: View
    stop: StopRequest
    machine: Machine
    data: TrainingData
    trainer: Trainer
    saver: Saver
    progress: TrainingProgress
    identity: dict[str, Any]
    changed_files: list[str]
    rejected: list[str]

    def record_start(self) -> None:
        """Rank 0: write recipe.yaml, environment.json and a new session in it. Before, nothing of
        a run that continues has changed.
        """
        self.folder.write_recipe(self.recipe, environment(self.machine))
        self.folder.record_session(self.progress.step, self.rejected, self.recipe.overrides)


@dataclass(frozen=True)
class Preparation:
    """The arguments of a session. The methods are in the order in which `prepare` calls them.

    resume: whether an existing run is continued. data_changed: whether its data files may have
    changed. digests: of the data files, on rank 0 once they are compared. rejected: a message for
    each damaged checkpoint, on rank 0.
    """

    recipe: Recipe
    folder: RunFolder
    ranks: Ranks
    view: View
    machine: Machine
    stop: StopRequest
    resume: bool
    data_changed: bool
    digests: dict[str, Mapping[str, FileDigest]] = field(default_factory=dict)
    rejected: list[str] = field(default_factory=list)

    def prepare(self, resources: ExitStack) -> TrainingSession:
        """Everything up to the first step; `resources` closes what the session holds.

        Raises TrifoldError, and Interrupted after a signal. A new run that fails leaves no files.
        """
        continues = self.ranks.first(self._open_folder)
        with self._removed_on_failure():
            digest = self.ranks.first(self._write_recipe, continues)
            self.ranks.in_turn(self.folder.check_shared, digest)
            changed_files = self.ranks.first(self.stop.call, self._compare_data_files)
            data = self.ranks.in_turn(self.stop.call, self._load_data)
            machine = for_batches(self.machine, data.recipe.train, data.recipe.batch.tokens)
            if self.recipe.sized or not continues:
                fitted = self.ranks.first(self.stop.call, self._fit_steps, data, machine)
                data.recipe = with_steps(data.recipe, fitted)
                if self.recipe.sized:
                    self.ranks.first(self._write_counted, data, machine)
            identity = self.ranks.first(self._identify, data, continues)
            self.ranks.in_turn(data.check_fingerprint, identity[IDENTITY]["rows"])
            self.view.say(str(machine))
            trainer = Trainer(new_model(data), data.objective, data.recipe.train, machine)
            resources.callback(trainer.close)
            saver = Saver(self.folder.checkpoints, data.recipe.train, self.ranks)
            resources.callback(saver.close)
            progress = self._restore(data, trainer)
            # Only now is it certain that the run continues with this data.
            self.ranks.first(record_data, self.folder, self.digests)
            trainer.broadcast_weights()
        return TrainingSession(
            recipe=data.recipe,
            folder=self.folder,
            ranks=self.ranks,
            view=self.view,
            stop=self.stop,
            machine=machine,
            data=data,
            trainer=trainer,
            saver=saver,
            progress=progress,
            identity=identity,
            changed_files=changed_files,
            rejected=self.rejected,
        )

    def _open_folder(self) -> bool:
        """Rank 0: create the run folder, or check that of an existing run and its recipe. Returns
        whether there is a run to continue.
        """
        for line in self.folder.open(resume=self.resume):
            self.view.say(line)
        if not self.folder.recipe.exists():
            return False
        changes = check_same_run(
            self.recipe,
            self.folder,
            environment(self.machine),
            data_changed=self.data_changed,
        )
        for line in changes:
            self.view.say(line)
        return True

    def _removed_on_failure(self) -> AbstractContextManager[None]:
        """A context in which a new run that fails leaves no files; rank 0 removes them."""
        if self.ranks.is_first:
            return self.folder.removed_on_failure()
        return nullcontext()

    def _write_recipe(self, continues: bool) -> str:
        """Rank 0: write recipe.yaml and environment.json of a new run, with the sizes that are not
        counted yet. Returns the digest of the recipe.
        """
        if continues:  # until `record_start`, so that an interruption changes nothing
            return self.folder.recipe_digest()
        estimated = {ESTIMATED: self.recipe.sized} if self.recipe.sized else {}
        return self.folder.write_recipe(self.recipe, environment(self.machine) | estimated)

    def _write_counted(self, data: TrainingData, machine: Machine) -> None:
        """Rank 0: write the recipe with the counted sizes and the fitted steps."""
        self.folder.write_recipe(data.recipe, environment(machine))

    def _compare_data_files(self) -> list[str]:
        """Rank 0: a message for each data file that has changed. Raises DataError if none may."""
        compared = compare_data(self.folder, self.recipe, changed=self.data_changed)
        self.digests.update(compared.files)
        return compared.messages

    def _load_data(self) -> TrainingData:
        """Read the data, and train or load the tokenizer. Raises SettingsError if the run does not
        fit into memory.
        """
        data = load_data(self.recipe, self.folder.below(self.folder.tokenizer), self.view)
        if self.recipe.train.check_memory:
            recipe = data.recipe
            mean_length = max(1, int(data.train.lengths.mean()))
            need, parameters = estimate_memory(
                recipe.train, recipe.batch.tokens, data.config, mean_length, self.machine
            )
            limit = available_memory(self.machine.device, self.ranks.local_world)
            check_fits(need, parameters, recipe, limit)
        return data

    def _fit_steps(self, data: TrainingData, machine: Machine) -> dict[str, int]:
        """Rank 0: the settings of a new run that fit into its minutes."""
        fitted = fit_steps(data, machine)
        if fitted:
            self.view.say(describe_fit(data.recipe, fitted))
            if shortage := describe_shortage(data.recipe, fitted["steps"]):
                self.view.say(shortage)
        return fitted

    def _identify(self, data: TrainingData, continues: bool) -> dict[str, Any]:
        """Rank 0: the identity of the run. Raises DataError if a run that continues has other
        rows.
        """
        if continues:
            check_same_rows(self.folder, data.fingerprint, self.digests, changed=self.data_changed)
        return run_identity(data.recipe, self.folder, data.fingerprint, data.config, self.digests)

    def _restore(self, data: TrainingData, trainer: Trainer) -> TrainingProgress:
        """Load the newest intact checkpoint on all ranks. Returns the position of the run, which is
        its beginning if there is none.
        """
        newest: NewestCheckpoint | None = None

        def load_newest() -> str | None:
            """Rank 0 keeps the state that it has verified; the other ranks receive the name."""
            nonlocal newest
            newest = self._load_newest(data)
            return None if newest is None else newest.path.name

        name = self.ranks.first(load_newest)
        if name is None:
            return TrainingProgress()
        if newest is not None:
            state = newest.state
        else:
            state = checkpoint.load(self.folder.below(self.folder.checkpoints) / name)
        trainer.restore(state.weights, state.optimizer)
        data.objective.restore(state.progress)
        return TrainingProgress.from_dict(state.progress)

    def _load_newest(self, data: TrainingData) -> NewestCheckpoint | None:
        """Rank 0: the newest intact checkpoint. Raises DataError if the labels have changed."""
        newest = checkpoint.load_newest(self.folder.below(self.folder.checkpoints))
        if newest is None:
            return None
        self.rejected.extend(newest.rejected)
        if newest.rejected:
            self.view.say(
                f"warning: {'; '.join(newest.rejected)}; an earlier checkpoint is used instead"
            )
        check_same_labels(self.folder, data.config)
        self.view.say(f"continuing from {newest.path}")
        return newest
