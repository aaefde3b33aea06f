"""`trifold compare`: test whether the scores of two models differ, by paired bootstrap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from trifold.cli import eval as evaluation
from trifold.cli.batch import load_pipeline
from trifold.cli.eval import FOR_PROMPTS, GROUPS, EvalRequest, find_recipe
from trifold.cli.options import (
    Device,
    Dtype,
    Json,
    Weights,
    argument,
    given,
    value,
    with_options,
)
from trifold.cli.panels import FIRST, in_panels
from trifold.cli.runs import describe_run
from trifold.cli.terminal import print_json, print_note, print_table
from trifold.errors import UsageError, wrapped

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trifold.recipe import Recipe
    from trifold.scores.bootstrap import Difference, Scorer

EXAMPLES = (
    "trifold compare runs/small runs/large",
    "trifold compare runs/small runs/large test.en test.de --samples 10000",
    "trifold compare runs/small runs/large --weights int8",
)
UNFINISHED = ("stopped", "running")
KIND = "task.kind"  # the setting that two models must share
FEW_EXAMPLES = 30  # of which the intervals of a bootstrap are too narrow
UNDECIDED = "not decided by this data, because the interval contains 0"


# Those of `trifold eval`, except that outputs are not written.
OPTIONS = {
    name: option
    for options, *_ in GROUPS
    for name, option in options.items()
    if name != "out" and name not in FOR_PROMPTS
}

PANELS = {
    FIRST: ("samples", "seed", "json"),
    "Model and machine": ("device", "dtype", "weights"),
}


@in_panels(PANELS)
@with_options(OPTIONS)
def run(
    a: Annotated[str, argument("A", "A run, a model folder, or a hub id.")],
    b: Annotated[str, argument("B", "The model to compare with A.")],
    data: Annotated[
        list[str] | None, argument("[DATA]...", "Default: the data of `trifold eval A`.")
    ] = None,
    *,
    samples: Annotated[
        int | None,
        value(
            "N",
            "Number of resamples.",
            min=100,
            max=10**7,
            show_default="10,000; 1,000 for labels, or more than 10,000 examples",
        ),
    ] = None,
    seed: Annotated[int, value("N", "Seed of the resamples.", min=0)] = 12345,
    device: Device = None,
    dtype: Dtype = "float32",
    weights: Weights = "file",
    json: Json = False,
    **options: Any,
) -> None:
    """Score two models on the same data, with the settings of A, and test the differences B - A.

    If the 95 % interval contains 0, the data does not decide which model is better. The interval is
    that of a paired bootstrap over the examples, and p is one-sided, as in sacreBLEU: below about
    0.025 where the interval excludes 0.
    """
    from trifold.scores.bootstrap import default_samples, paired_bootstrap

    _check_labels(a, b)
    machine = {"device": device, "dtype": dtype, "weights": weights}
    first, second = _requests(a, b, data or [], machine, given(**options))
    evaluation.check(first)
    second = _like(first, second)
    for model in dict.fromkeys((a, b)):
        _note_unfinished(model)
    ours = _measure(first)
    theirs = _measure(second)
    if ours.labels != theirs.labels:
        remedy = "compare models with the same tokenizer and the same max_positions"
        raise UsageError(f"{b}: reads the data as {theirs}, but {a} as {ours}; {remedy}")
    examples = len(ours.labels)
    if examples < 2:
        raise UsageError(
            "the data has a single example, which cannot be resampled; name other data"
        )
    if samples is None:
        samples = default_samples(examples, is_cheap=ours.is_cheap)
    differences = paired_bootstrap(ours.scorer, theirs.scorer, examples, samples, seed)
    if json:
        scores = {name: difference._asdict() for name, difference in differences.items()}
        print_json(a=a, b=b, examples=examples, samples=samples, seed=seed, scores=scores)
        return
    print_note(f"A: {a}, B: {b}")
    _print_differences(differences)
    print_note(f"{examples:,} {ours.noun}, {samples:,} resamples")
    for line in ours.notes:
        print_note(line)
    if examples < FEW_EXAMPLES:
        print_note(
            f"warning: fewer than {FEW_EXAMPLES} {ours.noun}, so that the intervals are too narrow"
        )
    print(wrapped(verdict(differences), get_terminal_size().columns))


def _print_differences(differences: Mapping[str, Difference]) -> None:
    """Print a line for each score."""
    from trifold.scores import DIGITS, score_name

    rows = [("score", "A", "B", "B - A", "95 % interval", "p (one-sided)")]
    for name, (*values, p_value) in differences.items():
        x, y, change, low, high = (f"{value:+.{DIGITS.get(name, 2)}f}" for value in values)
        rows.append(
            (
                score_name(name),
                x.lstrip("+"),
                y.lstrip("+"),
                change,
                f"{low} to {high}",
                f"{p_value:.4f}",
            )
        )
    print_table(rows, " rrrrr")


def verdict(differences: Mapping[str, Difference]) -> str:
    """Which model is better by which scores, and which scores the data does not decide."""
    from trifold.scores import LOWER_IS_BETTER, score_name

    groups: dict[str, list[str]] = {"B is better": [], "A is better": [], UNDECIDED: []}
    for name, found in differences.items():
        finding = "B is better"
        if not found.is_decided:
            finding = UNDECIDED
        elif (found.difference < 0) != (name in LOWER_IS_BETTER):
            finding = "A is better"
        groups[finding].append(score_name(name))
    return "; ".join(f"{', '.join(names)}: {finding}" for finding, names in groups.items() if names)


def _check_labels(a: str, b: str) -> None:
    """Raises UsageError for models that predict different labels."""
    from trifold.hub import read_config, resolve

    ours = read_config(resolve(a)).label_names
    theirs = read_config(resolve(b)).label_names
    if ours and theirs and {*ours} != {*theirs}:
        raise UsageError(
            f"{b}: its labels are {', '.join(theirs):.60}, and those of {a} are "
            f"{', '.join(ours):.60}; compare models with the same labels"
        )


def _requests(
    a: str, b: str, data: list[str], machine: Mapping[str, Any], options: dict[str, Any]
) -> tuple[EvalRequest, EvalRequest]:
    """What to measure of both models; one without a run is measured as the run of the other. A line
    about the data that both read is printed once.
    """
    print_once = cache(print_note)

    def request(model: str, recipe: Recipe | None) -> EvalRequest:
        load = partial(load_pipeline, model, **machine)
        return EvalRequest(model, recipe, data, None, None, options, load, report=print_once)

    recipe_a = find_recipe(a)
    recipe_b = find_recipe(b)
    return request(a, recipe_a or recipe_b), request(b, recipe_b or recipe_a)


def _note_unfinished(model: str) -> None:
    """Print that a run has not ended: its model is the best one so far."""
    from trifold.recipe import is_run

    if is_run(model) and (facts := describe_run(Path(model), model)).state in UNFINISHED:
        print_note(
            f"warning: {model} is {facts.state} at step {facts.step:,}; its best weights so far "
            "are compared"
        )


def _like(first: EvalRequest, second: EvalRequest) -> EvalRequest:
    """The second request with the task and the data of the first. Raises UsageError naming the
    settings that differ.
    """
    ours = _measured_settings(first)
    theirs = _measured_settings(second)
    differ = [key for key in ours if ours[key] != theirs.get(key)]
    if KIND in differ:
        raise UsageError(
            f"{second.model}: its task is {theirs.get(KIND)}, and that of {first.model} is "
            f"{ours[KIND]}; compare models of one task"
        )
    if differ:
        values = "; ".join(
            f"{key} is {theirs.get(key)!r:.60}, not {ours[key]!r:.60}" for key in differ
        )
        remedy = "name the data for both: trifold compare A B DATA"
        raise UsageError(f"{second.model}: is not measured like {first.model}: {values}; {remedy}")
    if first.recipe is None or second.recipe is None:
        return second
    shared = {"task": first.recipe.task, "data": first.recipe.data}
    return second._replace(recipe=second.recipe.model_copy(update=shared))


def _measured_settings(request: EvalRequest) -> dict[str, Any]:
    """The settings, by dotted key, that determine the task of a model, and its data unless data is
    named.
    """
    recipe = request.recipe
    if recipe is None:
        return {"the kind of data": evaluation.data_kind_of(request)}
    task = recipe.task.evaluated
    data = recipe.data
    values: dict[str, Any] = {KIND: task.kind}
    if not request.data:
        excluded = {"cache"} if data.holdout else {"cache", "train"}
        values["task.parts"] = getattr(task, "parts", None)
        values |= {f"data.{key}": value for key, value in data.model_dump(exclude=excluded).items()}
        if data.holdout:
            values["train.seed"] = recipe.train.seed
    return values


class Measurement(NamedTuple):
    """What is measured of a model: the scorer of resampled examples, the number of labels of each
    example (N,), and what the examples are called. is_cheap: whether a resample is scored by sums
    alone; predicted labels and correlations need all examples. notes: see
    `Objective.score_notes`.
    """

    scorer: Scorer
    labels: list[int]
    noun: str
    is_cheap: bool = True
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        return f"{len(self.labels):,} {self.noun} with {sum(self.labels):,} labels"


def _measure(request: EvalRequest) -> Measurement:
    """The statistics of a model; each example is a batch of its own, so that they are known of
    each. Raises UsageError for a model of another shape or with other heads than the task needs.
    """
    import numpy as np
    import torch

    from trifold.scores.bootstrap import sums_scorer

    if evaluation.data_kind_of(request) == "pairs":
        settings = evaluation.score_settings(request)
        pairs = evaluation.read_test_pairs(request)
        outputs, _ = evaluation.translate(request, pairs)
        return Measurement(settings.scorer(outputs, pairs.targets), [1] * len(pairs), "pairs")
    pipeline, task, rows, context = evaluation.open_validation(request)
    examples = evaluation.encode_rows(request, task, rows)
    model = pipeline.model
    indices = (np.array([row]) for row in range(len(examples.lengths)))
    with torch.no_grad():
        statistics = [
            task.measure(model, task.batch(examples, index).to(pipeline.device))
            for index in indices
        ]

    def scores(sums: Any) -> dict[str, float]:
        scores = {**task.scores_of_sums(sums)}
        if not task.gathers:  # a loss among the rows of a batch says nothing about a single one
            scores["loss"] = float(sums["nll"] / max(sums["tokens"], 1))
        return scores

    labels = [values["tokens"] for values in statistics]
    is_cheap = not any(isinstance(value, list) for value in statistics[0].values())
    scorer = sums_scorer(statistics, scores)
    best_by = task.settings.best_by
    if best_by not in {"loss", *scorer(np.arange(len(labels)))}:
        found = task.evaluate(model, rows, examples, context).resampled
        if found is not None and found.examples != len(labels):  # questions of several windows
            return Measurement(found.scorer, [1] * found.examples, found.noun, False)
        if found is not None:
            scorer = _joined(best_by, found.scorer, scorer)
            is_cheap = False
    return Measurement(scorer, labels, task.row_name, is_cheap, task.score_notes())


def _joined(first: str, *scorers: Scorer) -> Scorer:
    """The scorer for the scores of all scorers, the one named `first` before the others."""

    def scores(rows: NDArray[np.int64]) -> dict[str, float]:
        values = {name: value for scorer in scorers for name, value in scorer(rows).items()}
        return {first: values.pop(first), **values}

    return scores
