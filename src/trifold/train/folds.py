"""A run whose steps are chosen by folds: each fold of the rows, or only the first ones, is held out
of a run of its own, and the saved model is trained on all rows.

The first fold counts its tokens and plans the steps, and the others have the same. Their
validations, at the same share of the steps, are compared as those of a single run are. Each fold
ends a few validations after the best one of the earlier folds, because later steps are rarely
chosen. The last run has as many more steps as it has more rows, ends at the chosen share of them,
and reports the scores of the folds.
"""

from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

from trifold import disk
from trifold.errors import CheckpointError, SettingsError
from trifold.objectives.sizes import FOLDED
from trifold.recipe import Recipe, load_recipe, with_values
from trifold.scores import score_text
from trifold.train import checkpoint
from trifold.train.checkpoint import BestValidation
from trifold.train.data_files import check_same_data
from trifold.train.fold_scores import CHOICE, Choice, JoinedFolds, fold_path
from trifold.train.monitor import Outcome, Snapshot, Validated, View
from trifold.train.ranks import Ranks
from trifold.train.resume import check_same_run
from trifold.train.run_folder import FOLDS, RunFolder, RunPart
from trifold.train.sizing import ESTIMATED, with_recorded_sizes
from trifold.train.stages import changed

PLANNED = ("steps", "warmup", "validate_every", "save_every")  # settings that a fold has fewer of
# How many validations a fold has after the step that is the best one of the earlier folds.
MORE_VALIDATIONS = 2
# What is removed of a fold once the steps are chosen.
REMOVED = ("checkpoints", "model", "adapter", "samples", "tokenizer", "tensorboard", "rejected")
TrainIn = Callable[..., Outcome]


# --- the runs -------------------------------------------------------------------------------------


def train_folds(
    folder: RunFolder,
    recipe: Recipe,
    ranks: Ranks,
    view: View,
    train_in: TrainIn,
    *,
    resume: bool,
    data_changed: bool,
) -> Outcome:
    """Train the folds that are not finished, choose the steps, and train on all rows. A signal ends
    all. train_in: trains a recipe in a folder.
    """
    ranks.in_turn(_check, recipe)
    if resume:
        recipe = ranks.in_turn(with_recorded_sizes, recipe, folder)
    ranks.first(_open, folder, recipe, view, resume=resume, data_changed=data_changed)
    count = recipe.data.folds or 0
    if not ranks.first((folder.path / FOLDS / CHOICE).exists):
        outcome = _train_each(folder, recipe, count, ranks, view, train_in, data_changed)
        if outcome is not None and not outcome.finished:
            return outcome._replace(folder=folder.path)
        ranks.first(_choose, folder, recipe, view)
    chosen = ranks.in_turn(_recipe_of_all, folder, recipe)
    ranks.first(_record, folder, chosen, view)
    return train_in(folder, chosen, ranks, view, resume=True, data_changed=data_changed)


def _check(recipe: Recipe) -> None:
    """Raises SettingsError for a task whose steps no folds choose, and for a limit of time."""
    if recipe.task.kind not in FOLDED:
        raise SettingsError(
            f"data.holdout: {recipe.data.holdout} is for classification, not for task.kind "
            f"{recipe.task.kind}; set data.holdout=0.1, or train each fold with --folds"
        )
    if recipe.train.minutes is not None:
        raise SettingsError(
            "train.minutes: folds are compared after the same steps, which a limit of time does "
            "not give; remove it, or set data.holdout=0.1"
        )


def _open(
    folder: RunFolder, recipe: Recipe, view: View, *, resume: bool, data_changed: bool
) -> None:
    """Rank 0: create and lock the folder of a new run, or check the recipe and the data of an
    existing one.
    """
    for line in folder.open(resume=resume):
        view.say(line)
    if not folder.recipe.exists():
        folder.write_recipe(recipe, {ESTIMATED: recipe.sized})
        reason = "for the size of the data: " * ("data.holdout" in recipe.sized)
        view.say(
            f"{reason}data.holdout={recipe.data.holdout}: {_describe_folds(recipe)} the steps, "
            "then all rows are trained on"
        )
    elif not (folder.path / FOLDS / CHOICE).exists():
        for line in check_same_run(recipe, folder, {}, data_changed=data_changed):
            view.say(line)
        for line in check_same_data(folder, recipe, changed=data_changed):
            view.say(line)


def _describe_folds(recipe: Recipe) -> str:
    """`3 folds choose`, or `1 of 10 folds chooses`."""
    count, parts = recipe.data.folds, recipe.data.fold_parts
    if count == parts:
        return f"{count} folds choose"
    return f"{count} of {parts} folds {'chooses' if count == 1 else 'choose'}"


def _train_each(
    folder: RunFolder,
    recipe: Recipe,
    count: int,
    ranks: Ranks,
    view: View,
    train_in: TrainIn,
    data_changed: bool,
) -> Outcome | None:
    """Train the folds that are not finished; the outcome of the last one."""
    outcome: Outcome | None = None
    parts = recipe.data.fold_parts or 0
    rows = parts / (parts - 1)  # of the last run, in those of a fold
    fold_view = FoldView(view)
    for number in range(1, count + 1):
        part = RunPart(folder.path, count - number + 1 + rows)
        with closing(RunFolder(fold_path(folder, number), ranks.command, part)) as fold:
            if ranks.first(_is_complete, fold):
                continue
            try:
                planned = ranks.in_turn(_recipe_of_fold, folder, recipe, number, parts)
                view.say(f"fold {number} of {parts}:")
                outcome = train_in(
                    fold, planned, ranks, fold_view, resume=True, data_changed=data_changed
                )
            except BaseException:
                if ranks.is_first:
                    _remove_unused(folder)
                raise
        fold_view.is_quiet = True
        if not outcome.finished:
            return outcome
        scores = ", ".join(score_text(name, value) for name, value in outcome.scores.items())
        view.say(f"fold {number} of {parts}: {scores} at step {outcome.best_step:,}, its best")
        # The data as the first fold has read it.
        ranks.first(check_same_data, folder, recipe, changed=data_changed)
    return outcome


def _remove_unused(folder: RunFolder) -> None:
    """After an error, remove the files of a run whose first fold has left none."""
    first = fold_path(folder, 1)
    if (first / folder.recipe.name).exists():
        return
    for path in (first, first.parent, folder.checkpoints, folder.samples):
        with suppress(OSError):  # not empty
            path.rmdir()
    if not first.parent.exists():
        folder.remove_created()


def _is_complete(fold: RunFolder) -> bool:
    """Rank 0: whether the last step of a fold is saved and validated."""
    saved = checkpoint.list_checkpoints(fold.below(fold.checkpoints))
    if not saved or not fold.recipe.exists():
        return False
    ended = fold.read_environment().get("sessions", [{}])[-1].get("stopped_by")
    step = checkpoint.step_of(saved[-1])
    return ended in ("steps", "patience") and fold.held_out(step).exists()


def _recipe_of_fold(folder: RunFolder, recipe: Recipe, number: int, parts: int) -> Recipe:
    """The recipe of one of so many folds. The first one counts what is left to the data, and the
    others have what it has counted.
    """
    changes = {"data.holdout": f"fold:{number}/{parts}", "train.last_step": None}
    if number == 1:
        given = [key for key in PLANNED if f"train.{key}" not in recipe.sized]
        fewer = _scaled(recipe, given, (parts - 1) / parts)
        return with_values(changed(recipe, changes), fewer)
    values = _counted(folder, recipe) | {"train.last_step": _last_step(folder, number - 1)}
    return _without_notes(with_values(changed(recipe, changes), values))


def _last_step(folder: RunFolder, count: int) -> int:
    """The step at which the fold after the first `count` ones ends."""
    validated = _common_steps(folder, count)
    place = validated.index(_best_step(folder, count, validated))
    return validated[min(place + MORE_VALIDATIONS, len(validated) - 1)]


def _counted(folder: RunFolder, recipe: Recipe) -> dict[str, Any]:
    """The settings of the first fold that are left to the data, and its steps."""
    first = RunFolder(fold_path(folder, 1))
    recorded = load_recipe(first.below(first.recipe))
    keys = {*recipe.sized, *(f"train.{key}" for key in PLANNED)} - {"data.holdout"}
    return {key: recorded.value(key) for key in sorted(keys)}


def _recipe_of_all(folder: RunFolder, recipe: Recipe) -> Recipe:
    """The recipe of the run on all rows. Steps that a user has set are those of this run."""
    counted = _counted(folder, recipe)
    parts = recipe.data.fold_parts or 0
    planned = [key for key in PLANNED if f"train.{key}" in recipe.sized]
    sized = with_values(recipe, {key: counted[key] for key in recipe.sized if key in counted})
    more = _scaled(sized, planned, parts / (parts - 1))
    whole = _without_notes(with_values(sized, more))
    if recipe.train.last_step is not None:  # a user may continue the run for longer
        return whole
    choice = Choice.read(folder)
    step = round(choice.step * whole.train.steps / choice.steps)
    return with_values(whole, {"train.last_step": step})


def _without_notes(recipe: Recipe) -> Recipe:
    """The recipe, with nothing left to the data and nothing to report."""
    for facts in (recipe.sized, recipe.notes, recipe.size_notes):
        facts.clear()
    return recipe


def _scaled(recipe: Recipe, keys: list[str], factor: float) -> dict[str, Any]:
    """Those of the settings of the steps for more or fewer rows."""
    settings = recipe.train
    steps = max(min(2, settings.steps), round(settings.steps * factor))
    save_every = max(1, round(settings.save_every * factor))
    validate_every = max(1, round(settings.validate_every * factor))
    if settings.average > 1:  # every validation has a checkpoint to average
        validate_every = save_every * (settings.validate_every // settings.save_every)
    scaled = {
        "steps": steps,
        "warmup": min(round(settings.warmup * factor), max(steps - 1, 0)),
        "validate_every": validate_every,
        "save_every": save_every,
    }
    return {f"train.{key}": scaled[key] for key in keys}


def _record(folder: RunFolder, recipe: Recipe, view: View) -> None:
    """Rank 0: write the recipe with the chosen steps, unless the run on all rows has begun."""
    if checkpoint.list_checkpoints(folder.below(folder.checkpoints)):
        return
    folder.write_recipe(recipe, {})
    settings = recipe.train
    view.say(f"all rows: train.steps={settings.steps} train.last_step={settings.last_step}")


class FoldView(View):
    """Shows the folds: progress, warnings and how they ended; of the first one all lines, but no
    validations. What one has reported is not repeated.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._reported = set[str]()
        self.is_quiet = False

    def say(self, line: str) -> None:
        is_shown = line.startswith(("warning:", "stopped at", "continuing from"))
        if line not in self._reported and (is_shown or not self.is_quiet):
            self._reported.add(line)
            self._view.say(line)

    def begin(self, total: int, done: int = 0) -> None:
        self._view.begin(total, done)

    def step(self, snapshot: Snapshot) -> None:
        self._view.step(snapshot)

    def validating(self, step: int) -> None:
        self._view.validating(step)

    def validated(self, result: Validated) -> None:
        """The best one is reported at the end of the fold."""

    def end(self) -> None:
        self._view.end()


# --- the choice -----------------------------------------------------------------------------------


def _choose(folder: RunFolder, recipe: Recipe, view: View) -> None:
    """Rank 0: choose the step, and remove what is not needed of the folds."""
    first = RunFolder(fold_path(folder, 1))
    steps = load_recipe(first.below(first.recipe)).train.steps
    count = recipe.data.folds or 0
    validated = _common_steps(folder, count)
    best = _best_step(folder, count, validated)
    Choice(steps, best, tuple(validated)).write(folder)
    joined = JoinedFolds.read(folder, count, best, recipe.data.fold_parts)
    view.say(f"{joined.facts.describe()}, after {best:,} of {steps:,} steps, the best")
    for fold in range(1, 1 + count):
        for name in REMOVED:
            disk.remove(fold_path(folder, fold) / name)


def _best_step(folder: RunFolder, count: int, validated: list[int]) -> int:
    """The step with the best validations of the first `count` folds, by the rules of a run."""
    best = BestValidation()
    for step in validated:
        joined = JoinedFolds.read(folder, count, step)
        found = joined.value, joined.loss, joined.balance
        best = best.after(step, *found, is_best=best.is_beaten(*found))
        if step == 0:  # which is validated where a part is fitted
            best = best._replace(fitted=joined.loss_to_reach)
    return best.step


def _common_steps(folder: RunFolder, count: int) -> list[int]:
    """The validated steps of the first `count` folds. Raises CheckpointError if there are none."""
    steps: set[int] | None = None
    for number in range(1, count + 1):
        fold = RunFolder(fold_path(folder, number))
        own = {int(path.stem.removeprefix("step-")) for path in fold.held_out_files()}
        steps = own if steps is None else steps & own
    if not steps:
        raise CheckpointError(
            f"{folder.path / FOLDS}: the folds have no validation in common; remove the folder "
            "and repeat the command"
        )
    return sorted(steps)
