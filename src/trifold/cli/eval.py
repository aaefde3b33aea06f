"""`trifold eval`: score a model on data that it was not trained on.

Depending on the task of its run, a model is measured on pairs of texts (BLEU, chrF, exact match),
on documents (loss, perplexity, bits per byte, …), or on the validation rows of each part of a
text-to-text task.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from trifold import disk
from trifold.cli import against
from trifold.cli.batch import generate_batches, load_pipeline, one_line
from trifold.cli.options import (
    BatchSize,
    Codec,
    Device,
    Dtype,
    Json,
    Model,
    Overwrite,
    Weights,
    given,
    option,
    with_options,
)
from trifold.cli.panels import FIRST, in_panels
from trifold.cli.progress import time_progress, waiting_progress
from trifold.cli.shots import choose_examples, fill_prompts, parse_prompt, prompt_options
from trifold.cli.terminal import check_output, open_output, print_json, print_note
from trifold.errors import CheckpointError, UsageError, check_utf8, plural
from trifold.folders import named

if TYPE_CHECKING:
    from trifold.batches import BatchSettings
    from trifold.data import DataSettings, Rows
    from trifold.nn import ModelConfig
    from trifold.objectives.evaluation import EvalContext
    from trifold.objectives.objective import DataKind, Objective, ObjectiveSettings
    from trifold.objectives.translate import TranslateSettings
    from trifold.pipeline import Pipeline
    from trifold.recipe import Recipe

# Options for some kinds of data only.
FOR_TABLES = {
    "source": option(
        str, "Column of the source or the text: a name or a number.", metavar="COLUMN"
    ),
    "target": option(str, "Column of the reference or the label.", metavar="COLUMN"),
}
FOR_PAIRS = {
    "tokenize": option(
        str,
        "sacreBLEU tokenizer: auto (by the script), 13a, none, intl, zh, …",
        metavar="NAME",
        show_default="the recipe's, or auto",
    ),
    "lowercase": option(bool, "Ignore case.", "--lowercase/--cased", show_default="the recipe's"),
    "num_beams": option(int, "Beam search with N beams."),
    "out": option(Path, "Write the outputs to this file, one per line."),
}
FOR_PROMPTS = {
    "prompt": option(
        str, "A decoder that learned no task: the text that a source is put into, in braces."
    ),
    "examples": option(
        Path, "Pairs that stand before each prompt, in a file like the data.", metavar="FILE"
    ),
    "shots": option(int, "Of these the first N.", min=1, show_default="all"),
}
FOR_DOCUMENTS = {
    "documents": option(
        Literal["line", "blank", "file"],
        "Raw text: a document is a line, the text between blank lines, or a file.",
        show_default="the recipe's, or file",
    )
}
# Options, the kinds of data that have them, and the tasks with such data.
GROUPS: tuple[tuple[Mapping[str, Any], tuple[DataKind, ...], str], ...] = (
    (FOR_TABLES, ("pairs", "table"), "translations and classification"),
    (FOR_PAIRS, ("pairs",), "translations"),
    (FOR_PROMPTS, ("pairs",), "prompts"),
    (FOR_DOCUMENTS, ("documents",), "raw text"),
)
# The tasks of labels, which --report is for.
REPORTED = ("classify", "tag", "answer", "choose", "images")
# Shape of a model without a run -> the data on which it is measured.
BY_SHAPE: dict[str, DataKind] = {"decoder": "documents", "encoder-decoder": "pairs"}

EXAMPLES = (
    "trifold eval runs/demo",
    "trifold eval runs/multi30k-en-de test.en test.de --num-beams 5 --out ours.de",
    'trifold eval gpt2 a.tsv --prompt "{source} =>" --examples b.tsv --shots 5',
    "trifold eval gpt2 novel.txt --weights int8 --against gpt2",
)


PANELS = {
    FIRST: ("split", "folder", "json", "overwrite"),
    "Translations": tuple(FOR_PAIRS),
    "Prompts": tuple(FOR_PROMPTS),
    "Columns and documents": (*FOR_TABLES, *FOR_DOCUMENTS),
    "Another model": tuple(against.OPTIONS),
    "Model and machine": ("tokenizer", "device", "dtype", "weights", "batch_size"),
}


@in_panels(PANELS)
@with_options(FOR_TABLES | FOR_PAIRS | FOR_PROMPTS | FOR_DOCUMENTS | against.OPTIONS)
def run(
    model: Model,
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DATA]...",
            help="Two files of lines, or one .tsv, .csv or .jsonl; for a language model any "
            "number of text files. Default: the run's test set, or its validation set.",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="test|valid",
            help="Part of the run's own data.",
            show_default="test if it exists",
        ),
    ] = None,
    *,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--report", metavar="FOLDER", help="Write mistakes, confusion and calibration here."
        ),
    ] = None,
    batch_size: BatchSize = None,
    device: Device = None,
    dtype: Dtype = "float32",
    weights: Weights = "file",
    tokenizer: Codec = None,
    json: Json = False,
    overwrite: Overwrite = False,
    **options: Any,
) -> None:
    """Score a model. Translations: BLEU, chrF and exact match with their signatures. Language
    models: loss, perplexity, bits per byte and accuracy. Other tasks: the scores of their
    validation.
    """
    machine: dict[str, Any] = {"device": device, "tokenizer": tokenizer}
    load = partial(load_pipeline, model, dtype=dtype, weights=weights, **machine)
    reference = against.take_reference(options, dtype, machine)
    chosen = given(**options)
    recipe = find_recipe(model)
    request = EvalRequest(
        model, recipe, data or [], split, batch_size, chosen, load, tokenizer, folder=folder
    )
    if reference is not None:
        against.check_options(chosen, writes_report=folder is not None)
        _print_report(request, compare_models(request, reference), as_json=json)
        return
    data_kind = check(request)
    files = chain.from_iterable(names.split(",") for names in request.data)
    check_output(chosen.get("out"), *files, overwrite=overwrite)
    if folder is not None:
        check_utf8(str(folder), "--report")
        disk.check_free(folder, overwrite=overwrite, is_folder=True)
    if data_kind == "pairs":
        report = _score_translations(request)
    else:
        report = validate(request)
    _print_report(request, report, as_json=json)


def _print_report(request: EvalRequest, report: EvalReport, *, as_json: bool) -> None:
    """Print the values as JSON, or the lines, with notes on standard error."""
    if as_json:
        seconds = round(report.seconds, 3)
        print_json({"model": request.model, "seconds": seconds, **report.values})
        return
    for line in report.lines:
        print(line)
    for note in report.notes:
        print_note(note)


class EvalRequest(NamedTuple):
    """What to measure: a model, the recipe of its run, if any, and the arguments.

    load: loads the model, which happens after everything that can be wrong with the data has been
    reported. report: prints a line about the data. folder: that of --report, for the mistakes.
    """

    model: str
    recipe: Recipe | None
    data: list[str]
    split: str | None
    batch_size: int | None
    options: dict[str, Any]
    load: Callable[[], Pipeline]
    tokenizer: str | None = None
    report: Callable[[str], None] = print_note
    folder: Path | None = None

    def no_data_error(self, what: str, example: str) -> UsageError:
        """The error for a request that names no data; `example` completes the command."""
        return UsageError(
            f"{self.model}: {what} name the data: trifold eval {self.model} {example}"
        )


class EvalReport(NamedTuple):
    """The result of a measurement: its duration, values for JSON, lines for standard output, and
    notes.
    """

    seconds: float
    values: dict[str, Any]
    lines: list[str]
    notes: list[str]


def check(request: EvalRequest) -> DataKind:
    """The kind of data. Raises UsageError for options of another kind, and names of files that are
    not UTF-8.
    """
    for file in request.data:
        check_utf8(file, "DATA")
    data_kind = data_kind_of(request)
    for name, needed in (("examples", "prompt"), ("shots", "examples")):
        if name in request.options and needed not in request.options:
            raise UsageError(f"--{name} has no effect without --{needed}; add it")
    if request.folder is not None and not _learns_labels(request.recipe):
        raise UsageError(
            "--report is for labelled data, and this model does another task: leave it out"
        )
    for name in request.options:
        kinds, description = next(
            (kinds, description) for options, kinds, description in GROUPS if name in options
        )
        if data_kind not in kinds:
            option = name.replace("_", "-")
            raise UsageError(
                f"--{option} is for {description}, and this model does another task: leave it out"
            )
    return data_kind


def _learns_labels(recipe: Recipe | None) -> bool:
    """Whether the model was trained on labels, whose mistakes --report can list."""
    return recipe is not None and recipe.task.evaluated.kind in REPORTED


def find_recipe(model: str) -> Recipe | None:
    """The recipe of the run that the model belongs to, or None."""
    from trifold.hub.names import find_run_recipe
    from trifold.recipe import load_recipe

    folder = named(Path(model).expanduser())
    if not folder.is_folder():
        return None
    recipe = find_run_recipe(folder) or find_run_recipe(folder.parent)
    return None if recipe is None else load_recipe(recipe)


def data_kind_of(request: EvalRequest) -> DataKind:
    """The data on which the task of the run is measured; for a model without a run, the default of
    its shape.
    """
    if "prompt" in request.options:
        return "pairs"
    if request.recipe is not None:
        return request.recipe.task.evaluated.data_kind
    from trifold.hub import read_config, resolve
    from trifold.hub.folder import stored_prompt

    folder = resolve(request.model)
    shape = read_config(folder).shape
    if shape == "decoder" and stored_prompt(folder) is not None:
        return "pairs"
    if shape not in BY_SHAPE:
        raise UsageError(
            f"{request.model}: an {shape} without a recipe.yaml, so its task is unknown; name "
            "the run that it comes from, or use `trifold predict`"
        )
    return BY_SHAPE[shape]


def split_files(request: EvalRequest, recipe: Recipe, example: str) -> tuple[str, Any]:
    """The split to measure, by default test if the recipe names one, and its files; None if it is
    held out.

    Raises UsageError for an unknown split, and one without data; `example` completes the command in
    the message.
    """
    split = request.split or _default_split(recipe)
    if split not in ("test", "valid"):
        raise UsageError(f"--split {split}: not a split; choose test or valid")
    if split == "valid" and recipe.data.folds is not None:
        raise request.no_data_error(
            "it was trained on all rows, and its score is that of folds;", example
        )
    if split == "valid" and recipe.data.holdout:
        return split, None
    files = getattr(recipe.data, split)
    if files is None:
        raise request.no_data_error(f"its recipe names no {split} data;", example)
    return split, files


def _default_split(recipe: Recipe) -> str:
    return "valid" if recipe.data.test is None else "test"


# --- pairs of texts -------------------------------------------------------------------------------


def _score_translations(request: EvalRequest) -> EvalReport:
    from trifold.baselines.comparison import compare_texts
    from trifold.scores.bootstrap import Resampled
    from trifold.train.advice import MeasuredScores, advise_scores

    settings = score_settings(request)
    pairs = read_test_pairs(request)
    outputs, seconds = translate(request, pairs)
    if "out" in request.options:
        with open_output(request.options["out"]) as file:
            file.writelines(f"{output}\n" for output in outputs)
    scores = settings.scores(outputs, pairs.targets)
    values = {
        "data": pairs.report.name,
        "sentences": len(outputs),
        "scores": {
            name: {"value": score.value, "signature": score.signature}
            for name, score in scores.items()
        },
    }
    note = f"{plural(len(outputs), 'sentence')} in {seconds:.1f} s"
    values_by_name = {name: score.value for name, score in scores.items()}
    measured = MeasuredScores(values_by_name, math.nan, len(outputs), "sentences")
    lines = [str(score) for score in scores.values()]
    resampled = Resampled(settings.scorer(outputs, pairs.targets), len(outputs), "sentences")
    if comparison := compare_texts(settings.best_by, values_by_name, resampled):
        values["comparison"] = comparison.as_json()
        lines += comparison.lines()
    return EvalReport(seconds, values, lines, [note, *advise_scores(measured)])


def score_settings(request: EvalRequest) -> TranslateSettings:
    """The settings of the run, with the options of the scores."""
    from trifold.objectives.translate import TranslateSettings
    from trifold.scores.bleu import TOKENIZERS, missing_libraries

    settings = TranslateSettings()
    if request.recipe is not None and isinstance(request.recipe.task, TranslateSettings):
        settings = request.recipe.task
    chosen = {
        name: value for name, value in request.options.items() if name in ("tokenize", "lowercase")
    }
    settings = settings.model_copy(update=chosen)
    if settings.tokenize not in TOKENIZERS:
        raise UsageError(
            f"--tokenize {settings.tokenize}: not a sacreBLEU tokenizer; choose one of "
            f"{', '.join(TOKENIZERS)}"
        )
    if problem := missing_libraries(settings.tokenize):
        raise UsageError(f"--tokenize: {problem}")
    return settings


def translate(request: EvalRequest, pairs: Rows) -> tuple[list[str], float]:
    """The outputs for the sources, and the seconds that they took."""
    pipeline = request.load()
    start = time.perf_counter()
    options = given(num_beams=request.options.get("num_beams"))
    sources = pairs.sources
    if "prompt" in request.options:
        sources = _fill_prompts(request, pipeline, sources)
        options |= prompt_options()
    remedy = "split the line"
    if "examples" in request.options:
        remedy = "give fewer examples (--shots)"
    outputs_by_source = generate_batches(pipeline, sources, options, request.batch_size, remedy)
    outputs = [
        one_line(hypotheses[0].text) if hypotheses else "" for _, hypotheses in outputs_by_source
    ]
    return outputs, time.perf_counter() - start


def _fill_prompts(request: EvalRequest, pipeline: Pipeline, sources: Sequence[str]) -> list[str]:
    """The prompt of each source, after the examples that the options name. Raises UsageError for a
    model that continues no text.
    """
    if pipeline.config.shape != "decoder":
        raise UsageError(
            f"--prompt: {request.model} is an {pipeline.config.shape}; only a decoder continues one"
        )
    examples = None
    if "examples" in request.options:
        file = str(request.options["examples"])
        rows = _read_named_pairs(request._replace(data=[file]), _columns(request))
        request.report(str(rows.report))
        examples = choose_examples(rows, request.options.get("shots"))
    return fill_prompts(parse_prompt(request.options["prompt"]), sources, examples)


def _columns(request: EvalRequest) -> dict[str, str | int]:
    """The columns of source and target among the options."""
    return {
        name: _column(request.options[name])
        for name in ("source", "target")
        if name in request.options
    }


def read_test_pairs(request: EvalRequest) -> Rows:
    """The pairs of the named files, or of a split of the run's data; prints their report."""
    columns = _columns(request)
    example = "test.en test.de"
    if request.data:
        with waiting_progress("reading the data"):
            pairs = _read_named_pairs(request, columns)
    elif request.recipe is None:
        raise request.no_data_error("no recipe.yaml next to it, so", example)
    else:
        with waiting_progress("reading the data"):
            pairs = _read_pairs_of_run(request, request.recipe, columns, example)
    request.report(str(pairs.report))
    return pairs


def _column(text: str) -> str | int:
    """A column of a table: its number, or its name."""
    return int(text) if text.isdecimal() else text


def _read_named_pairs(request: EvalRequest, columns: Mapping[str, str | int]) -> Rows:
    """The pairs of two files of lines, or of one with both sides. Raises UsageError for more."""
    from trifold.cli.tables import reading_settings
    from trifold.data import read_pairs

    files = request.data
    if len(files) > 2:
        raise UsageError(
            f"{len(files)} data files: pass two (source and reference), or one with both sides"
        )
    # Blank lines are kept, because leaving them out would change the score.
    settings = reading_settings(files, request.recipe, columns).model_copy(update={"blank": "keep"})
    source = files if len(files) == 2 else files[0]
    return read_pairs(source, settings, split=request.split or "test")


def _read_pairs_of_run(
    request: EvalRequest, recipe: Recipe, columns: Mapping[str, str | int], example: str
) -> Rows:
    """The pairs of a split of the run's data; see `split_files`."""
    from trifold.data import read_pairs, read_splits

    split, files = split_files(request, recipe, example)
    if files is None:
        pairs: Rows = read_splits(recipe.data, recipe.train.seed).valid
        return pairs
    return read_pairs(files, recipe.data.model_copy(update=columns), split)


# --- loss and the scores of a validation ----------------------------------------------------------


def validate(request: EvalRequest) -> EvalReport:
    """The loss and the scores of the task of a run."""
    from torch import tensor

    from trifold.cli.baselines import EvaluatedBaselines
    from trifold.cli.report import write_report
    from trifold.generate.decoding import refuse_non_finite
    from trifold.scores import score_text
    from trifold.train.advice import MeasuredScores, advise_scores, count_rows

    pipeline, task, rows, context = open_validation(request)
    start = time.perf_counter()
    examples = encode_rows(request, task, rows)
    evaluation = task.evaluate(pipeline.model, rows, examples, context)
    seconds = time.perf_counter() - start
    refuse_non_finite(tensor(evaluation.loss))
    if request.folder is not None:
        disk.make_folder(request.folder)
        with disk.exclusive(request.folder):
            write_report(request.folder, task, rows, evaluation)
    values = {
        "loss": evaluation.loss,
        "scores": evaluation.scores,
        "signatures": list(evaluation.signatures),
    }
    lines = [f"loss {evaluation.loss:.4f} {task.loss_unit}"]
    lines += [score_text(name, value) for name, value in evaluation.scores.items()]
    baselines = EvaluatedBaselines(request.model, request.recipe, task)
    comparison = baselines.compare(rows, examples, evaluation)
    constant = None
    if comparison is None or not comparison.rivals:
        constant = task.constant_answer(examples)
    measured = MeasuredScores(
        evaluation.scores,
        evaluation.loss,
        count_rows(rows),
        task.row_name,
        constant,
    )
    if comparison is not None:
        values["comparison"] = comparison.as_json()
        lines += comparison.lines()
    notes = [*evaluation.signatures, *task.score_notes()]
    notes += [f"{seconds:.1f} s", *baselines.notes, *advise_scores(measured)]
    return EvalReport(seconds, values, lines, notes)


def encode_rows(request: EvalRequest, task: Objective, rows: Any) -> Any:
    """The examples of the rows; reports once how many were truncated."""
    task.truncation.clear()  # some rows were encoded to build the task
    with waiting_progress("reading the rows as tokens"):
        examples = task.examples(rows)
    if task.truncation:
        request.report(f"{rows.report.name}: {task.truncation}")
    return examples


def open_validation(request: EvalRequest) -> tuple[Pipeline, Objective, Any, EvalContext]:
    """The model, its objective, the rows to measure, and the options."""
    context = _context(request)
    if request.recipe is None:
        return *_open_language_model(request), context
    return *_open_task(request, request.recipe, context.batches), context


def _context(request: EvalRequest) -> EvalContext:
    """The options of the evaluation: those of the recipe, if there is one."""
    from trifold.batches import BatchSettings
    from trifold.generate import GenerationConfig
    from trifold.objectives.evaluation import EvalContext

    recipe = request.recipe
    batches = BatchSettings()
    generation = GenerationConfig()
    if recipe is not None:
        batches = recipe.batch
        generation = recipe.generate
    if request.batch_size is not None:
        batches = batches.model_copy(update={"rows": request.batch_size})
    samples = sys.maxsize if request.folder else 0  # --report lists the mistakes among all rows
    return EvalContext(batches, generation, samples, seed=1, poll=time_progress("evaluating"))


def _check_fits(model: str, config: ModelConfig, task: ObjectiveSettings) -> None:
    """Raises UsageError for a model of another shape or with other heads than the task needs."""
    needed = task.with_heads(config).chosen_heads
    if config.shape not in task.shapes or not {*needed} <= {*config.chosen_heads}:
        raise UsageError(
            f"{model}: this {config.shape} (heads: {', '.join(config.chosen_heads) or 'none'}) is "
            f"no model for task.kind: {task.kind}; name a run of that task, or use "
            "`trifold predict`"
        )


def _open_task(
    request: EvalRequest, recipe: Recipe, batches: BatchSettings
) -> tuple[Pipeline, Objective, Any]:
    """The model, the objective of its run, and the rows."""
    from trifold.hub import resolve
    from trifold.objectives.objective import BuildContext
    from trifold.text.tokenizer import TOKENIZER_FILE

    settings, data = _select_data(request, recipe)
    folder = resolve(request.tokenizer or request.model)
    if settings.data_kind != "images" and not (folder / TOKENIZER_FILE).exists():
        raise CheckpointError(
            f"{folder / TOKENIZER_FILE}: the tokenizer of the model is missing; name the folder "
            "of one with --tokenizer"
        )
    pipeline = request.load()
    _check_fits(request.model, pipeline.config, settings)
    # The data to measure also stands in for the training data, and would be reported twice.
    report = cache(request.report)
    seed = recipe.train.seed
    context = BuildContext(
        data, recipe.tokenizer, pipeline.config, batches, seed, folder, report, is_trained=True
    )
    with waiting_progress("reading the data"):
        bundle = settings.build(context)
    bundle.objective.add_modules(pipeline.model, resolve(request.model), required=True)
    return pipeline, bundle.objective, bundle.valid


def _select_data(request: EvalRequest, recipe: Recipe) -> tuple[ObjectiveSettings, DataSettings]:
    """The named files or a split of the run's data; for a text-to-text task by default the
    validation rows of every part.
    """
    from trifold.cli.parts import parts_to_measure
    from trifold.cli.tables import reading_settings
    from trifold.objectives.text_to_text import TextToTextSettings

    task = recipe.task.evaluated
    if not isinstance(task, TextToTextSettings):
        changes = dict(request.options)
        if request.data:
            changes |= _only(request.data)
            changes["format"] = reading_settings(request.data, recipe, {}).format
        elif (files := split_files(request, recipe, "text.txt")[1]) is not None:
            changes |= _only(files)
        return task, recipe.data.model_copy(update=changes)
    if not request.data and request.split not in (None, "valid"):
        raise UsageError(
            f"--split {request.split}: each part of this model names its own validation rows; "
            "leave it out, or name other data"
        )
    parts = parts_to_measure(request.data, task.parts)
    return task.model_copy(update={"parts": parts}), recipe.data


def _open_language_model(request: EvalRequest) -> tuple[Pipeline, Objective, Any]:
    """A language model without a run, and text as it is."""
    from trifold.data import DataSettings, read_documents
    from trifold.objectives.causal import Causal, CausalSettings

    data = request.data
    if not data:
        raise request.no_data_error("no recipe.yaml next to it, so", "text.txt")
    settings = DataSettings.parse({"documents": "file", **request.options, **_only(data)})
    pipeline = request.load()
    _check_fits(request.model, pipeline.config, CausalSettings())
    with waiting_progress("reading the data"):
        text = read_documents(data, settings, split="valid")
    request.report(str(text.report))
    # A document starts as the texts of the tokenizer do.
    reader = pipeline.reader
    begins = reader.bos_id is not None and reader.rows(["a"])[0].ids[0] == reader.bos_id
    task = Causal(CausalSettings(begin=begins, end=False), reader, pipeline.config.max_positions)
    return pipeline, task, task.encode(text.texts)


def _only(source: str | list[str]) -> dict[str, Any]:
    """Data settings that read only `source`, which also stands in for the training data."""
    return {"train": source, "valid": source, "test": None, "holdout": 0, "cache": None}


# --- a model against another one ------------------------------------------------------------------


def compare_models(request: EvalRequest, reference: against.Reference) -> EvalReport:
    """How far the predictions of the model are from those of the reference."""
    for file in request.data:
        check_utf8(file, "DATA")
    start = time.perf_counter()
    ours = request.load()
    request = request._replace(load=lambda: ours)
    if against.compares_vectors(request.model, ours):
        texts = _read_lines(request)
        pair = against.ModelPair(request.model, ours, reference.name, reference.load())
        compared = against.compare_vectors(pair, texts)
    else:
        task, rows, context = _open_comparison(request, ours)
        against.check_task(task)
        examples = encode_rows(request, task, rows)
        pair = against.ModelPair(request.model, ours, reference.name, reference.load())
        compared = against.compare_tokens(pair, task, examples, context.batches)
    seconds = time.perf_counter() - start
    values = {"against": reference.name, **compared.values}
    return EvalReport(seconds, values, compared.lines, [f"{seconds:.1f} s"])


def _read_lines(request: EvalRequest) -> list[str]:
    """The lines of the named files, which encoders read."""
    from trifold.data import DataSettings, read_documents

    data = request.data
    if not data:
        raise request.no_data_error("vectors are those of the lines of a text;", "text.txt")
    settings = DataSettings.parse({"documents": "line", **request.options, **_only(data)})
    with waiting_progress("reading the data"):
        texts = read_documents(data, settings, split="valid")
    request.report(str(texts.report))
    return list(texts.texts)


def _open_comparison(
    request: EvalRequest, pipeline: Pipeline
) -> tuple[Objective, Any, EvalContext]:
    """The objective whose labels are predicted, the rows and the options; of a translator without a
    run, the pairs of the named files.
    """
    from trifold.objectives.translate import Translate, TranslateSettings

    if request.recipe is not None or pipeline.config.shape == "decoder":
        _, task, rows, context = open_validation(request)
        return task, rows, context
    pairs = read_test_pairs(request)
    codecs = (pipeline.reader, pipeline.writer)
    task = Translate(TranslateSettings(), *codecs, start_id=pipeline.config.start_id)
    return task, pairs, _context(request)
