"""Advice about weak results: what a curve or a score means, and what to try.

Each rule is a row of a table: a condition, a sentence, and the remedy in keys of the recipe. A rule
holds only if its sentence is true of the numbers; a healthy run gets no advice.
"""

import math
import shlex
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from trifold.data import Rows
from trifold.data.documents import Documents
from trifold.errors import join_or, plural, wrapped
from trifold.folders import UntrustedPath
from trifold.jsonfiles import finite, iter_metrics
from trifold.objectives.evaluation import ConstantAnswer
from trifold.objectives.rates import RATE_WITH_PATH, fine_tuning_rate, new_rate
from trifold.recipe import FINITE_SCHEDULES, Recipe
from trifold.scores import score_text
from trifold.train.checkpoint import TrainingProgress
from trifold.train.data import TrainingData
from trifold.train.run_folder import RunFolder

MAX_LINES = 3  # of advice after a command, at 80 columns
PARTS = 10  # of a training, whose mean losses are compared
SMALL = 10_000  # rows of data that few epochs exhaust
MANY_EPOCHS = 20
FEW_UPDATES = 50  # after which new weights are nearly random
ENOUGH_UPDATES = 100  # the fewest of a recipe that sizes itself
FEW_EPOCHS = 3  # in which new weights may not have begun to learn
LONG_PATIENCE = 8  # validations
MUCH_TOO_HIGH = 5  # times the usual learning rate
# Shares of a loss: a rise that is no noise, a fall that is none, and one that goes on.
RISE = 0.1
FLAT = 0.03
FALLING = 0.1
WIDE = 8.0  # percent: half of an interval that hides most improvements
# Scores below both of which a translation has hardly a word of the reference. BLEU alone is 0 for
# right outputs of fewer than four words.
LOW_BLEU = 2.0
LOW_CHRF = 15.0
WEAK_BLEU = 10.0  # below which a translation can hardly be understood
LOW_F1 = 10.0  # of entities, nearly all of which are wrong
FEW_ROWS = 100  # for a score of the whole set
MANY_KNOWN = 0.2  # share of the validation rows
REJECTED = 3  # updates
NORMAL = 1.96  # deviations of a 95 % interval
# Scores that are the percentage of rows with a correct answer.
PERCENTAGES = ("accuracy", "exact_match", "pairs_accuracy")


class MeasuredScores(NamedTuple):
    """The scores of a set of `size` rows, which are called `noun`.

    constant: what the same answer for every row reaches. size: None if the set has no rows.
    """

    scores: dict[str, float]
    loss: float
    size: int | None
    noun: str
    constant: ConstantAnswer | None = None

    @property
    def percentage(self) -> str | None:
        """The name of the score that is the percentage of correct rows, if there is one."""
        return next((name for name in PERCENTAGES if name in self.scores), None)


class LossCurve(NamedTuple):
    """The losses of a run: (step, loss) of each logged step and of each validation."""

    train: Sequence[tuple[int, float]] = ()
    valid: Sequence[tuple[int, float]] = ()

    @property
    def parts(self) -> list[float]:
        """The mean training losses of equal parts of the run, at most ten; noise is averaged."""
        losses = [loss for _, loss in self.train]
        size = max(1, math.ceil(len(losses) / PARTS))
        groups = [losses[start : start + size] for start in range(0, len(losses), size)]
        return [sum(group) / len(group) for group in groups]

    @property
    def lowest(self) -> tuple[int, float]:
        """Step and loss of the lowest validation loss."""
        return min(self.valid, key=lambda point: point[1])

    def train_at(self, step: int) -> float:
        """The training loss at a step: of the first logged step from there on, or the last one."""
        return next((loss for at, loss in self.train if at >= step), self.train[-1][1])


class FinishedRun(NamedTuple):
    """What the rules know of a run that has ended.

    rows: of the training data. known: validation rows that are also in it. folder: to continue it.
    is_fitted: whether a part of the model was fitted before training.
    """

    recipe: Recipe
    folder: str
    curve: LossCurve
    best: MeasuredScores
    best_step: int
    steps: int
    epochs: int
    rows: int | None
    known: int = 0
    rejected: int = 0
    stopped_by: str = "steps"
    is_fitted: bool = False


# --- curves ---------------------------------------------------------------------------------------


def _diverged(run: FinishedRun) -> bool:
    """Whether the training loss has risen, by more than noise."""
    parts = run.curve.parts
    if run.rejected >= REJECTED:
        return True
    if len(parts) < 3:
        return False
    if _has_exploded(parts):
        return True
    rise = parts[-1] - min(parts)
    return rise > 0.3 * (parts[0] - min(parts)) and rise > 0.1 * min(parts) and rise > 0.05


def _has_exploded(parts: Sequence[float]) -> bool:
    """Whether the loss was far above the first one, even if it has fallen since."""
    return max(parts) > 2 * parts[0] and max(parts) > parts[0] + 1


def _say_diverged(run: FinishedRun) -> str:
    if run.rejected >= REJECTED:
        return f"{run.rejected:,} updates were rejected, whose losses were too high or no numbers"
    parts = run.curve.parts
    if _has_exploded(parts):
        return f"the training loss rose from {parts[0]:.3g} to {max(parts):.3g}"
    return f"the training loss fell to {min(parts):.3g} and rose to {parts[-1]:.3g} again"


def _slower(run: FinishedRun) -> str:
    """The keys that make steps smaller."""
    rate = _rate(run) / 3
    usual = _usual_rate(run)
    if run.recipe.start_from is None and rate > MUCH_TOO_HIGH * usual:
        rate = usual
    keys = [f"train.learning_rate={rate:.1g}"]
    if run.recipe.train.clip is None:
        keys.append("train.clip=1.0")
    return " and ".join(keys)


def _rate(run: FinishedRun) -> float:
    """The peak of the learning rate."""
    train = run.recipe.train
    if train.learning_rate is not None:
        return train.learning_rate
    return 1 / math.sqrt(run.recipe.model.d_model * max(train.warmup, 1))


def _usual_rate(run: FinishedRun) -> float:
    """A peak of the learning rate that suits the weights, which are new or those of start_from."""
    width = run.recipe.model.d_model
    if run.is_fitted:
        return RATE_WITH_PATH
    if run.recipe.start_from is None:
        return new_rate(width)
    return fine_tuning_rate(width, adapters=run.recipe.train.lora is not None)


def _is_flat(run: FinishedRun) -> bool:
    """Whether new weights have learned nothing: the training loss has stayed where it began."""
    parts = run.curve.parts
    is_new = run.recipe.start_from is None and not run.is_fitted
    if len(parts) < 3 or not is_new or _diverged(run):
        return False
    return parts[0] - min(parts) < FLAT * parts[0]


def _say_flat(run: FinishedRun) -> str:
    parts = run.curve.parts
    return f"the training loss barely fell, from {parts[0]:.3g} to {parts[-1]:.3g}"


def _other_rates(run: FinishedRun) -> str:
    rate = _rate(run)
    usual = _usual_rate(run)
    if rate < usual / 2:
        return f"train.learning_rate={usual:.1g}"
    return f"train.learning_rate={rate / 10:.1g}, and check that texts and labels belong together"


def _is_short(run: FinishedRun) -> bool:
    """Whether new weights are nearly random, because of few updates."""
    is_fitted = run.steps == 0  # what is fitted before training was the best
    return run.recipe.start_from is None and run.steps < FEW_UPDATES and not is_fitted


def _say_short(run: FinishedRun) -> str:
    return f"hardly trained: after {plural(run.steps, 'update')} the weights are nearly random"


def _many_more_steps(run: FinishedRun) -> str:
    """The limit that ended the run, longer."""
    if run.stopped_by == "minutes":
        return _more_steps(run)
    return f"another run with train.steps={ENOUGH_UPDATES} or more"


def _overfits(run: FinishedRun) -> bool:
    """Whether the validation loss rises to the end while the training loss falls."""
    curve = run.curve
    if not curve.train or len(curve.valid) < 3:
        return False
    step, lowest = curve.lowest
    after = [loss for at, loss in curve.valid if at > step]
    learned = curve.train[-1][1] < (1 - RISE) * curve.train_at(step)
    return len(after) > 1 and min(after[-2:]) > (1 + RISE) * lowest and learned


def _say_overfits(run: FinishedRun) -> str:
    step, lowest = run.curve.lowest
    last = run.curve.valid[-1][1]
    return (
        f"overfitting: validation loss rose from {lowest:.3g} (step {step:,}) to {last:.3g}, "
        "training loss fell"
    )


def _less_memory(run: FinishedRun) -> str:
    """What makes a model learn less by heart. Fewer steps do not: the best weights are kept."""
    recipe = run.recipe
    keys = ["more data"]
    if recipe.start_from is None:
        keys.append("start_from=PRETRAINED")
    else:
        keys.append(f"train.learning_rate={_rate(run) / 3:.1g}")
    if recipe.model.dropout < 0.3:
        keys.append(f"model.dropout={recipe.model.dropout + 0.2:.1f}")
    elif recipe.model.n_layers > 1:
        keys.append(f"model.n_layers={recipe.model.n_layers // 2}")
    return join_or(keys)


def _repeats(run: FinishedRun) -> bool:
    """Whether small data was seen often, and the last half of it did not help."""
    is_small = run.rows is not None and run.rows < SMALL
    is_over = run.best_step <= run.steps / 2 and bool(run.curve.valid)
    return is_small and run.epochs > MANY_EPOCHS and is_over and not _overfits(run)


def _say_repeats(run: FinishedRun) -> str:
    return (
        f"each of the {run.rows:,} training {run.best.noun} was seen {run.epochs:,} times, and "
        f"nothing after step {run.best_step:,} was better"
    )


def _is_plateau(run: FinishedRun) -> bool:
    """Whether patience has ended a run that has learned and whose loss does not rise."""
    is_told_otherwise = _overfits(run) or _repeats(run) or _is_constant(run.best)
    return run.stopped_by == "patience" and not is_told_otherwise


def _say_plateau(run: FinishedRun) -> str:
    return f"the score has not improved since step {run.best_step:,}"


def _past_plateau(run: FinishedRun) -> str:
    """More data, or more patience, which was often too short: a score is flat at first, too."""
    return f"more data or {_more_patience(run)}"


def _more_patience(run: FinishedRun) -> str:
    return f"train.patience={max(LONG_PATIENCE, 2 * (run.recipe.train.patience or 1))}"


def _is_unfinished(run: FinishedRun) -> bool:
    """Whether the validation loss was still falling when the steps or the minutes ended."""
    curve = run.curve
    if run.stopped_by not in ("steps", "minutes") or len(curve.valid) < 3 or _diverged(run):
        return False
    late = [loss for step, loss in curve.valid if step >= 0.7 * run.steps]
    return len(late) > 1 and curve.valid[-1][1] < (1 - FALLING) * late[0]


def _still_weak(run: FinishedRun) -> bool:
    """Whether the last validation of a weak translator was the best one."""
    is_last = run.best_step == run.steps and run.stopped_by in ("steps", "minutes")
    score = run.best.scores.get("bleu", math.inf)
    is_weak = score < WEAK_BLEU and run.best.scores.get("chrf", 0.0) < 2 * LOW_CHRF
    return is_last and is_weak and not (_is_untrained(run.best) or _is_unfinished(run))


def _say_still_weak(run: FinishedRun) -> str:
    found = score_text("bleu", run.best.scores["bleu"])
    return f"the last validation was the best, at {found}, so the model was still learning"


def _say_unfinished(run: FinishedRun) -> str:
    late = next(loss for step, loss in run.curve.valid if step >= 0.7 * run.steps)
    last = run.curve.valid[-1][1]
    return f"the validation loss was still falling at the end, from {late:.3g} to {last:.3g}"


def _more_steps(run: FinishedRun) -> str:
    steps = f"train.steps={2 * max(run.steps, run.recipe.train.steps)}"
    minutes = run.recipe.train.minutes
    if minutes is not None:  # to which the steps were fitted, unless the run was stopped
        steps = f"train.minutes={2 * minutes:g}"
    if run.recipe.train.schedule in FINITE_SCHEDULES:
        return f"another run with {steps}"
    return f"`trifold resume {run.folder} {steps}`"


def _is_known(run: FinishedRun) -> bool:
    return run.known > MANY_KNOWN * (run.best.size or math.inf)


def _say_known(run: FinishedRun) -> str:
    return (
        f"{run.known:,} of {run.best.size:,} validation {run.best.noun} are also in the training "
        "data, so the score is too good"
    )


def _unseen_rows(run: FinishedRun) -> str:
    if run.recipe.data.valid is None:
        return "data in which more texts differ"
    return "data.valid=null data.holdout=0.1, which keeps equal texts on one side"


# --- scores ---------------------------------------------------------------------------------------


def _half_interval(score: float, count: int) -> float:
    """Half the width of the 95 % interval (Wilson 1927) of a percentage of `count` rows."""
    share = score / 100
    square = NORMAL**2
    inner = share * (1 - share) / count + square / (4 * count**2)
    return 100 * NORMAL * math.sqrt(inner) / (1 + square / count)


def _is_constant(measured: MeasuredScores) -> bool:
    """Whether the model may be no better than one answer for all rows."""
    constant = measured.constant
    if constant is None or not measured.size:
        return False
    if constant.score == "loss":
        return measured.loss > (1 - FLAT) * constant.value
    score = measured.scores.get(constant.score, math.inf)
    if constant.score not in PERCENTAGES:
        return score <= constant.value + LOW_F1
    # A useful model of rare labels has the accuracy of the most frequent one, but a correlation.
    is_related = measured.scores.get("matthews", 0.0) > 2 / math.sqrt(measured.size)
    is_better = score > constant.value + _half_interval(constant.value, measured.size)
    return not (is_related or is_better)


def _say_constant(measured: MeasuredScores) -> str:
    constant = measured.constant
    assert constant is not None  # of the condition
    value = measured.scores.get(constant.score, measured.loss)
    found = score_text(constant.score, value)
    return f"{found} is not clearly better than {constant.words} ({constant.value:.2f})"


def _is_untrained(measured: MeasuredScores) -> bool:
    """Whether next to no words of translations are right."""
    scores = measured.scores
    return scores.get("bleu", math.inf) < LOW_BLEU and scores.get("chrf", math.inf) < LOW_CHRF


def _say_untrained(measured: MeasuredScores) -> str:
    found = score_text("bleu", measured.scores["bleu"])
    return f"{found}: hardly any word is right, so the model has learned little yet"


_LONGER = "more steps, more data or start_from=PRETRAINED"


def _is_tiny(measured: MeasuredScores) -> bool:
    """Whether the set is too small to compare models with it."""
    name = measured.percentage
    if not measured.size or not measured.scores:
        return False
    if name is None:
        return measured.size < FEW_ROWS
    return _half_interval(measured.scores[name], measured.size) > WIDE


def _say_tiny(measured: MeasuredScores) -> str:
    name = measured.percentage
    count = measured.size
    assert count  # of the condition
    if name is None:
        return f"only {count:,} {measured.noun}: another set may give quite another score"
    score = measured.scores[name]
    center = (score / 100 + NORMAL**2 / (2 * count)) / (1 + NORMAL**2 / count) * 100
    half = _half_interval(score, count)
    return (
        f"only {count:,} {measured.noun}: {name.replace('_', ' ')} is uncertain, "
        f"{center - half:.0f} to {center + half:.0f} (95 %)"
    )


def _begin_to_learn(run: FinishedRun) -> str:
    """What helps a model that ignores its input."""
    usual = _usual_rate(run)
    is_new = run.recipe.start_from is None
    if is_new and not usual / 20 < _rate(run) < MUCH_TOO_HIGH * usual:
        return f"train.learning_rate={usual:.1g}"
    if is_new and run.stopped_by == "patience":
        return f"{_more_patience(run)}, more data or start_from=PRETRAINED"
    if is_new and run.epochs < FEW_EPOCHS:
        return f"{_more_steps(run)}, or start_from=PRETRAINED"
    if is_new:
        return "more data or start_from=PRETRAINED, and check that labels belong to texts"
    return f"{_another_rate(run)}, more data or another pretrained model"


def _another_rate(run: FinishedRun) -> str:
    """The learning rate for fine-tuning that suits the width, or a higher one than that."""
    rate = _rate(run)
    usual = _usual_rate(run)
    if not usual / 2 < rate < 2 * usual:
        return f"train.learning_rate={usual:.2g} (it was {rate:.2g})"
    return f"train.learning_rate={3 * rate:.1g} (it was {rate:.2g})"


def _learn_longer(run: FinishedRun) -> str:
    """What helps a translator that has learned hardly a word."""
    if run.best_step < run.steps:
        return "more data or start_from=PRETRAINED"
    return f"{_more_steps(run)}, more data or start_from=PRETRAINED"


def _all_measured(run: FinishedRun) -> str:
    """What measures more rows."""
    data = run.recipe.data
    are_all_measured = data.folds is not None and data.folds == data.fold_parts
    return "more rows" if are_all_measured else "--folds 5"


# --- tables ---------------------------------------------------------------------------------------


class AdviceRule(NamedTuple):
    """Whether a rule applies, what it says, and what to try; all are functions of a run or of
    scores.
    """

    applies: Callable[[Any], bool]
    sentence: Callable[[Any], str]
    remedy: Callable[[Any], str]


OF_SCORES = {
    "untrained": AdviceRule(_is_untrained, _say_untrained, lambda _: _LONGER),
    "constant": AdviceRule(
        _is_constant, _say_constant, lambda _: "more data, and check texts and labels"
    ),
    "tiny": AdviceRule(_is_tiny, _say_tiny, lambda _: "a larger set"),
}


def _of_best(rule: AdviceRule, remedy: Callable[[FinishedRun], str]) -> AdviceRule:
    """A rule of scores as one of a run, for its best validation."""
    return AdviceRule(
        lambda run: rule.applies(run.best), lambda run: rule.sentence(run.best), remedy
    )


# The most serious first; later ones are printed if there is room.
OF_RUNS = {
    "known": AdviceRule(_is_known, _say_known, _unseen_rows),
    "diverged": AdviceRule(_diverged, _say_diverged, _slower),
    "flat": AdviceRule(_is_flat, _say_flat, _other_rates),
    "untrained": _of_best(OF_SCORES["untrained"], _learn_longer),
    "short": AdviceRule(_is_short, _say_short, _many_more_steps),
    "constant": _of_best(OF_SCORES["constant"], _begin_to_learn),
    "overfitting": AdviceRule(_overfits, _say_overfits, _less_memory),
    "repeated": AdviceRule(_repeats, _say_repeats, lambda _: "more data"),
    "plateau": AdviceRule(_is_plateau, _say_plateau, _past_plateau),
    "unfinished": AdviceRule(_is_unfinished, _say_unfinished, _more_steps),
    "weak": AdviceRule(_still_weak, _say_still_weak, _more_steps),
    "tiny": _of_best(OF_SCORES["tiny"], _all_measured),
}


def _texts(rules: dict[str, AdviceRule], facts: Any) -> list[str]:
    return [
        f"advice: {rule.sentence(facts)}; try {rule.remedy(facts)}"
        for rule in rules.values()
        if rule.applies(facts)
    ]


def advise_run(run: FinishedRun) -> list[str]:
    """Lines of advice about a run, at most `MAX_LINES` when printed."""
    return _fitting(_texts(OF_RUNS, run))


def advise_scores(measured: MeasuredScores) -> list[str]:
    """Lines of advice about the scores of a test set, at most `MAX_LINES` when printed."""
    return _fitting(_texts(OF_SCORES, measured))


def _fitting(texts: Sequence[str]) -> list[str]:
    """The texts that together have at most `MAX_LINES` lines."""
    chosen = list[str]()
    used = 0
    for text in texts:
        size = len(wrapped(text, 80).splitlines())
        if used + size <= MAX_LINES:
            chosen.append(text)
            used += size
    return chosen


# --- facts ----------------------------------------------------------------------------------------


def read_curve(metrics: UntrustedPath) -> LossCurve:
    """The finite losses in a metrics.jsonl."""
    losses = dict[str, list[tuple[int, float]]]()
    for values in iter_metrics(metrics):
        for key in ("train/loss", "valid/loss"):
            loss = finite(values.get(key))
            if loss is not None:
                losses.setdefault(key, []).append((values["step"], loss))
    return LossCurve(losses.get("train/loss", []), losses.get("valid/loss", []))


def count_rows(data: Any) -> int | None:
    """The number of rows of a table or of pairs; None for raw text, which has none."""
    if isinstance(data, Rows) and not isinstance(data, Documents):
        return len(data)
    return None


def finished_run(
    data: TrainingData,
    folder: RunFolder,
    progress: TrainingProgress,
    stopped_by: str,
    *,
    is_compared: bool = False,
) -> FinishedRun:
    """The facts of a run of which this process has the data. is_compared: whether there is advice
    about baselines, one of which is the constant answer.
    """
    curve = read_curve(folder.below(folder.metrics))
    valid = data.bundle.valid
    count = count_rows(valid)
    known = 0
    if count is not None:
        known = valid.report.known
    loss = math.nan
    if progress.best.loss is not None:
        loss = progress.best.loss
    objective = data.objective
    constant = None
    examples = data.valid
    folds = data.recipe.data.folds
    if folds is not None:  # which have held out each of their rows once
        rows = count_rows(data.bundle.train) or 0
        count = rows * folds // (data.recipe.data.fold_parts or 1)
        examples = data.train
    if not is_compared:
        constant = objective.constant_answer(examples)
    return FinishedRun(
        recipe=data.recipe,
        folder=shlex.quote(str(folder.path)),
        curve=curve,
        best=MeasuredScores(progress.scores, loss, count, objective.row_name, constant),
        best_step=progress.best.step,
        steps=progress.step,
        epochs=progress.epoch,
        rows=count_rows(data.bundle.train),
        known=known,
        rejected=progress.rejected,
        stopped_by=stopped_by,
        is_fitted=objective.starts_fitted,
    )
