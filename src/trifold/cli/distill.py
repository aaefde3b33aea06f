"""`trifold distill`: train a smaller copy of a model, and compare it with the original."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from trifold.cli.batch import load_pipeline
from trifold.cli.eval import EvalRequest, encode_rows, find_recipe, open_validation
from trifold.cli.options import Json, Model, value
from trifold.cli.terminal import print_json, print_note, print_table
from trifold.cli.train import RunOut
from trifold.errors import UsageError, join_or, wrapped

if TYPE_CHECKING:
    from trifold.nn import ModelConfig
    from trifold.recipe import Recipe

EXAMPLES = (
    "trifold distill runs/masked",
    "trifold distill runs/masked layers=2 data.train=novel.txt",
    "trifold distill runs/masked --recipe minilm layers=2 width=64",
    "trifold distill bert-base-uncased data.train=novel.txt layers=6",
)
# Objectives whose models are distilled.
TASKS = ("causal", "masked", "classify", "translate")
TIMED = 20  # texts


def run(
    model: Model,
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="layers=N, width=N, and settings of the recipe, such as data.train=FILE.",
        ),
    ] = None,
    recipe: Annotated[
        str, value("NAME", "distilbert, minilm, or a YAML file with task.kind distill.")
    ] = "distilbert",
    out: RunOut = None,
    resume: Annotated[
        Literal["auto"] | None,
        typer.Option(help="Continue the run in the run folder, if there is one."),
    ] = None,
    json: Json = False,
) -> None:
    """Train a smaller copy of a model (its student), and compare both on the same held-out data.

    The student has half of the layers (layers=N), each copied from the model, its tokenizer and all
    its other sizes; with another width=N its weights are new. It learns the data of the model's
    run, or data.train, and the objective of the model.
    """
    from trifold.recipe import load_recipe
    from trifold.train import train

    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UsageError("distill trains in one process; start it without torchrun")
    check_recipe(recipe)
    student = plan_student(model, changes or ())
    folder = out or Path("runs") / student.name
    settings = load_recipe(recipe, {"name": student.name, **student.overrides})
    for line in student.notes:
        print_note(line)
    outcome = train(settings, out=folder, resume=resume)
    if not outcome.finished:
        raise typer.Exit(outcome.exit_code)
    rows = [
        measure("teacher", model, settings),
        measure("student", str(folder), settings),
    ]
    if json:
        print_json({"folder": str(folder), "models": [row._asdict() for row in rows]})
        return
    print_comparison(rows)
    print(wrapped(f"student:      {folder}"))
    print(wrapped(f"use it:       {settings.task.usage(folder)}"))


def check_recipe(name: str) -> None:
    """Raises UsageError for an included recipe of another task than distillation."""
    from trifold.recipe import included_recipes

    values = included_recipes().get(name)
    if values is not None and values.get("task", {}).get("kind") != "distill":
        raise UsageError(
            f"--recipe {name}: trains no student; choose distilbert, minilm or a file with "
            "task.kind distill"
        )


# --- the student ----------------------------------------------------------------------------------


class Student(NamedTuple):
    """What is trained: a name, overrides of the recipe, and notes about them."""

    name: str
    overrides: dict[str, Any]
    notes: list[str]


def plan_student(model: str, changes: Sequence[str]) -> Student:
    """The student of a model, from the arguments of the command. Raises UsageError for models that
    cannot be distilled, and for impossible sizes.
    """
    from trifold.hub import read_config, resolve
    from trifold.recipe import split_override

    given = dict(split_override(text) for text in changes)
    layers, width = (given.pop(key, None) for key in ("layers", "width"))
    config = read_config(resolve(model))
    run = find_recipe(model)
    overrides: dict[str, Any] = {"task.teacher": model, "task.of": _objective(model, run, config)}
    if run is not None:
        overrides |= _of_run(run, has_data="data.train" in given)
    elif "data.train" not in given:
        raise UsageError(
            f"{model}: no run, so its training data is unknown; name it: trifold distill {model} "
            "data.train=FILE"
        )
    count = _count_layers(layers, config)
    overrides["model"] = {**config.model_dump(), "n_layers": count}
    if config.n_decoder_layers is not None:
        overrides["model"]["n_decoder_layers"] = count
    notes = [f"student: {count} of {config.n_layers} layers"]
    if width is not None:
        overrides |= _of_width(width, config)
        notes = [f"student: {count} layers of width {width}, with new weights"]
    stem = Path(model).expanduser().resolve().name
    return Student(f"{stem}-{count}-layers", {**overrides, **given}, notes)


def _objective(model: str, run: Recipe | None, config: ModelConfig) -> dict[str, Any]:
    """The settings of the model's objective. Raises UsageError for one that has no students."""
    from trifold.objectives.defaults import TASK_OF_SHAPE

    if run is None:
        if "lm" in config.chosen_heads:
            return {"kind": TASK_OF_SHAPE[config.shape]}
        if "sequence" in config.chosen_heads:
            return {"kind": "classify"}
        raise UsageError(f"{model}: a model without a head for tokens or classes has no students")
    task = run.task.evaluated
    if task.kind not in TASKS:
        raise UsageError(
            f"{model}: models of task.kind {task.kind} are not distilled; choose a model of "
            f"{join_or(TASKS)}"
        )
    return task.model_dump()


def _of_run(run: Recipe, *, has_data: bool) -> dict[str, Any]:
    """The overrides that a run gives to its students: its data with the held-out part, unless other
    data is given; its batches, and the seed that the part depends on.
    """
    overrides: dict[str, Any] = {"batch": run.batch.model_dump()}
    if not has_data:
        overrides["data"] = run.data.model_dump()
        overrides["train.seed"] = run.train.seed
    return overrides


def _count_layers(layers: Any, config: ModelConfig) -> int:
    """The number of layers of the student: by default half of the teacher's."""
    if layers is None:
        return max(1, config.n_layers // 2)
    if not isinstance(layers, int) or not 0 < layers <= config.n_layers:
        raise UsageError(
            f"layers={layers}: the model has {config.n_layers} layers; choose 1 to "
            f"{config.n_layers}"
        )
    return layers


def _of_width(width: Any, config: ModelConfig) -> dict[str, Any]:
    """The overrides of a student of another width, with as many heads: its weights are new, and
    its states have no cosine with the teacher's.
    """
    if not isinstance(width, int) or width <= 0 or width % config.n_heads:
        raise UsageError(
            f"width={width}: not a multiple of the {config.n_heads} heads of the model; choose "
            f"{config.n_heads * max(1, round(config.d_model / 2 / config.n_heads))}, for example"
        )
    scaled = round(width * config.d_ff / config.d_model)
    return {
        "model.d_model": width,
        "model.d_ff": scaled,
        "task.start": "new",
        "task.cosine": 0.0,
    }


# --- comparison -----------------------------------------------------------------------------------


class Measured(NamedTuple):
    """A model on held-out data. milliseconds: the median of a forward pass of one text."""

    name: str
    model: str
    layers: int
    parameters: int
    milliseconds: float
    scores: dict[str, float]


def measure(name: str, model: str, recipe: Recipe) -> Measured:
    """The scores of a model on the held-out data of a recipe, and its time for one text."""
    load = partial(load_pipeline, model)
    request = EvalRequest(model, recipe, [], "valid", None, {}, load, report=lambda line: None)
    pipeline, task, rows, context = open_validation(request)
    examples = encode_rows(request, task, rows)
    evaluation = task.evaluate(pipeline.model, rows, examples, context)
    seconds = median(_seconds_per_text(pipeline.model, task, examples))
    return Measured(
        name,
        model,
        pipeline.config.n_layers,
        pipeline.model.count_parameters(),
        round(1000 * seconds, 2),
        {"loss": evaluation.loss, **evaluation.scores},
    )


def _seconds_per_text(model: Any, task: Any, examples: Any) -> Iterator[float]:
    """The time of the forward pass of each of the first texts alone, after one that is not
    counted.
    """
    import numpy as np
    import torch

    count = min(TIMED, len(examples.lengths))
    for number in [0, *range(count)]:
        batch = task.batch(examples, np.array([number]))
        start = time.perf_counter()
        with torch.no_grad():
            task.loss(model, batch)
        yield time.perf_counter() - start


def print_comparison(rows: Sequence[Measured]) -> None:
    """Print a table of the models, a column each, with their sizes and scores."""
    teacher, student = rows
    lines = [
        ("parameters", f"{teacher.parameters:,}", f"{student.parameters:,}"),
        ("layers", f"{teacher.layers}", f"{student.layers}"),
        ("ms per text", f"{teacher.milliseconds:.1f}", f"{student.milliseconds:.1f}"),
        *_score_lines(teacher.scores, student.scores),
    ]
    print_table([("held-out data", "teacher", "student"), *lines], right=" rr")


def _score_lines(
    teacher: Mapping[str, float], student: Mapping[str, float]
) -> Iterator[tuple[str, str, str]]:
    from trifold.scores import DIGITS, score_name

    digits = {"loss": 4, **DIGITS}
    for name, number in teacher.items():
        places = digits.get(name, 2)
        yield score_name(name), f"{number:.{places}f}", f"{student[name]:.{places}f}"
