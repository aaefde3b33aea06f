"""`trifold eval`: score a model on data that it was not trained on.

Depending on the task of its run, a model is measured on pairs of texts (BLEU, chrF, exact match), on documents (loss,
perplexity, bits per byte, …), or on the validation rows of each part of a text-to-text task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trifold.cli.options import BatchSize, Beams, Device, Dtype, Json, Model, given
from trifold.cli.terminal import open_output, print_json, print_note
from trifold.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from trifold.data import DataSettings, Pairs
    from trifold.objectives.objective import EvalContext, Evaluation, ObjectiveSettings
    from trifold.pipeline import Pipeline
    from trifold.recipe import Recipe

Reads = Literal["pairs", "documents", "parts"]

SPLITS = ("test", "valid")
# Options for one kind of data only -> that kind, and its name in messages.
SPECIFIC: dict[str, tuple[Reads, str]] = {
    **dict.fromkeys(
        ("source", "target", "tokenize", "lowercase", "num_beams", "out"), ("pairs", "translations")
    ),
    "documents": ("documents", "raw text"),
}
# Shape of a model without a run -> what it is measured on.
BY_SHAPE: dict[str, Reads] = {"decoder": "documents", "encoder-decoder": "pairs"}

EXAMPLES = (
    "trifold eval runs/demo",
    "trifold eval runs/multi30k-en-de --num-beams 5 --tokenize none",
    "trifold eval runs/multi30k-en-de test.en test.de --out ours.de",
    "trifold eval gpt2 novel.txt",
)


def run(
    model: Model,
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DATA]...",
            help="Two files of lines, or one .tsv, .csv or .jsonl; for a language model any number of text files. "
            "Default: the run's test set, or its validation set.",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="test|valid", help="Part of the run's own data.", show_default="test if it exists"
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of the source: a name or a number.")
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="Column of the reference.")] = None,
    documents: Annotated[
        Literal["line", "blank", "file"] | None,
        typer.Option(
            help="Raw text: a document is a line, the text between blank lines, or a file.",
            show_default="the recipe's, or file",
        ),
    ] = None,
    tokenize: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="sacreBLEU tokenizer: 13a, none, intl, zh, …",
            show_default="the recipe's, or 13a",
        ),
    ] = None,
    lowercase: Annotated[
        bool | None,
        typer.Option("--lowercase/--cased", help="Ignore case.", show_default="the recipe's"),
    ] = None,
    num_beams: Beams = None,
    batch_size: BatchSize = None,
    device: Device = None,
    dtype: Dtype = "float32",
    json: Json = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the outputs to this file, one per line."),
    ] = None,
) -> None:
    """Score a model. Translations: BLEU, chrF and exact match with their signatures. Language models: loss,
    perplexity, bits per byte and accuracy. Other tasks: the scores of their validation.
    """
    from trifold.cli.batch import load_pipeline

    recipe, data = find_recipe(model), data or []
    reads = _reads(model, recipe)
    specific: dict[str, Any] = {"source": source, "target": target, "documents": documents, "out": out}
    specific |= {"tokenize": tokenize, "lowercase": lowercase, "num_beams": num_beams}
    for name, value in specific.items():
        kind, description = SPECIFIC[name]
        if value is not None and kind != reads:
            raise UsageError(
                f"--{name.replace('_', '-')} is for {description}, and this model does another task: leave it out"
            )

    if reads == "pairs":
        pairs = _read_pairs(recipe, data, split, {"source": source, "target": target}, model)
        scoring = _scoring_options(recipe, tokenize, lowercase)
        print_note(str(pairs.report))
        pipeline = load_pipeline(model, device, dtype)
        _score_pairs(model, pipeline, pairs, scoring, num_beams, batch_size, out, json)
        return
    settings: dict[str, Any] = given(documents=documents)
    # Everything that can be wrong with the data is reported before the model is loaded.
    if recipe is None:
        measure = _language_model_loss(model, data, settings)
    else:
        measure = _validation_loss(model, recipe, data, split, settings)
    _measure(model, load_pipeline(model, device, dtype), recipe, measure, batch_size, json)


def find_recipe(model: str) -> Recipe | None:
    """The recipe of the run that the model belongs to, or None."""
    from trifold.recipe import load_recipe

    folder = Path(model).expanduser()
    for file in (folder / "recipe.yaml", folder.parent / "recipe.yaml"):
        if folder.is_dir() and file.is_file():
            return load_recipe(file)
    return None


def _reads(model: str, recipe: Recipe | None) -> Reads:
    """What the task of the run is measured on; for a model without a run, the default of its shape."""
    if recipe is not None:
        return recipe.task.evaluated.data_kind
    from trifold.hub import read_config, resolve

    shape = read_config(resolve(model)).shape
    if shape not in BY_SHAPE:
        raise UsageError(
            f"{model}: an {shape} without a recipe.yaml, so its task is unknown; name the run that it comes from, "
            "or use `trifold predict`"
        )
    return BY_SHAPE[shape]


def _choose_split(recipe: Recipe, split: str | None) -> str:
    """The split to measure: test if the recipe names one, else valid. Raises UsageError for an unknown one."""
    if split is None:
        return "test" if recipe.data.test is not None else "valid"
    if split not in SPLITS:
        raise UsageError(f"--split {split}: not a split; choose test or valid")
    return split


# --- pairs of texts --------------------------------------------------------------------------------------


def _read_pairs(
    recipe: Recipe | None, data: list[str], split: str | None, named: Mapping[str, str | None], model: str
) -> Pairs:
    """The pairs of the named files, or of a split of the run's data."""
    from trifold.data import DataSettings, read_pairs, read_splits

    columns = {
        name: int(value) if value.isdecimal() else value for name, value in named.items() if value is not None
    }
    if len(data) > 2:
        raise UsageError(f"{len(data)} data files: pass two (source and reference), or one with both sides")
    if data:
        # Blank lines are kept, because leaving them out would change the score.
        settings = DataSettings.parse({"blank": "keep", **columns})
        return read_pairs(data if len(data) == 2 else data[0], settings, split=split or "test")
    if recipe is None:
        raise UsageError(
            f"{model}: no recipe.yaml next to it, so name the data: trifold eval {model} test.en test.de"
        )
    split = _choose_split(recipe, split)
    if split == "valid" and recipe.data.holdout:
        held_out = read_splits(recipe.data, recipe.train.seed).valid
        assert held_out is not None
        return held_out
    files = getattr(recipe.data, split)
    if files is None:
        raise UsageError(
            f"{model}: its recipe names no {split} data; name it: trifold eval {model} test.en test.de"
        )
    return read_pairs(files, recipe.data.model_copy(update=columns), split=split)


def _scoring_options(recipe: Recipe | None, tokenize: str | None, lowercase: bool | None) -> tuple[str, bool]:
    """Tokenizer of BLEU and whether case is ignored: the options, or the recipe's values."""
    from sacrebleu.metrics.bleu import BLEU

    from trifold.objectives.translate import TranslateSettings

    if tokenize is not None and tokenize not in BLEU.TOKENIZERS:
        raise UsageError(
            f"--tokenize {tokenize}: not a sacreBLEU tokenizer; choose one of {', '.join(sorted(BLEU.TOKENIZERS))}"
        )
    task = recipe.task if recipe is not None else None
    defaults = task if isinstance(task, TranslateSettings) else TranslateSettings()
    return tokenize or defaults.tokenize, defaults.lowercase if lowercase is None else lowercase


def _score_pairs(
    model: str,
    pipeline: Pipeline,
    pairs: Pairs,
    scoring: tuple[str, bool],
    num_beams: int | None,
    batch_size: int | None,
    out: Path | None,
    json: bool,
) -> None:
    """Translate the sources, and print the scores."""
    from trifold.cli.batch import generate_batches, one_line
    from trifold.scores import SCORES

    start = time.perf_counter()
    found = generate_batches(pipeline, pairs.sources, given(num_beams=num_beams), batch_size)
    outputs = [one_line(each[0].text) if each else "" for _, each in found]
    seconds = time.perf_counter() - start
    if out is not None:
        with open_output(out) as file:
            file.writelines(f"{output}\n" for output in outputs)
    tokenize, lowercase = scoring
    options = {"bleu": {"tokenize": tokenize}}
    scores = {
        name: score(outputs, pairs.targets, lowercase=lowercase, **options.get(name, {}))
        for name, score in SCORES.items()
    }
    if json:
        values = {name: {"value": each.value, "signature": each.signature} for name, each in scores.items()}
        print_json(
            {
                "model": model,
                "data": pairs.report.name,
                "sentences": len(outputs),
                "seconds": round(seconds, 3),
                "scores": values,
            }
        )
        return
    for each in scores.values():
        print(each)
    print_note(f"{len(outputs):,} sentences in {seconds:.1f} s")


# --- loss and the scores of a validation -----------------------------------------------------------------

Measure = Callable[["Pipeline", "EvalContext"], "Evaluation"]


def _measure(
    model: str,
    pipeline: Pipeline,
    recipe: Recipe | None,
    measure: Measure,
    batch_size: int | None,
    json: bool,
) -> None:
    """Evaluate, and print the loss and the scores."""
    from trifold.batches import BatchSettings
    from trifold.generate import GenerationConfig
    from trifold.objectives.objective import EvalContext
    from trifold.train.monitor import score_text

    batches = recipe.batch if recipe is not None else BatchSettings()
    generation = recipe.generate if recipe is not None else GenerationConfig()
    if batch_size is not None:
        batches = batches.model_copy(update={"rows": batch_size})
    start = time.perf_counter()
    found = measure(pipeline, EvalContext(batches, generation, samples=0, seed=1, poll=lambda: None))
    seconds = time.perf_counter() - start
    if json:
        values = {"loss": found.loss, "scores": found.scores, "signatures": list(found.signatures)}
        print_json({"model": model, "seconds": round(seconds, 3), **values})
        return
    print(f"loss {found.loss:.4f} nats per token")
    for name, value in found.scores.items():
        print(score_text(name, value))
    for signature in found.signatures:
        print_note(signature)
    print_note(f"{seconds:.1f} s")


def _validation_loss(
    model: str, recipe: Recipe, data: list[str], split: str | None, settings: dict[str, Any]
) -> Measure:
    """The validation of the run's task."""
    from trifold.hub import resolve
    from trifold.objectives.objective import TOKENIZER_FILE, BuildContext

    select = _select_parts if recipe.task.evaluated.data_kind == "parts" else _select_documents
    task, data_settings = select(model, recipe, data, split, settings)
    folder = resolve(model)
    if not (folder / TOKENIZER_FILE).is_file():
        raise CheckpointError(
            f"{folder / TOKENIZER_FILE}: the tokenizer of the model is missing, so no text can be read"
        )
    printed: set[str] = set()

    def print_once(line: str) -> None:
        # The data to measure also stands in for the training data, and would be reported twice.
        if line not in printed:
            printed.add(line)
            print_note(line)

    def measure(pipeline: Pipeline, context: EvalContext) -> Evaluation:
        seed, config = recipe.train.seed, pipeline.config
        bundle = task.build(
            BuildContext(data_settings, recipe.tokenizer, config, context.batches, seed, folder, print_once)
        )
        rows = bundle.valid
        return bundle.objective.evaluate(pipeline.model, rows, bundle.objective.examples(rows), context)

    return measure


def _language_model_loss(model: str, data: list[str], settings: dict[str, Any]) -> Measure:
    """The loss of a language model without a run on text as it is."""
    from trifold.data import DataSettings, read_documents
    from trifold.objectives.causal import Causal, CausalSettings

    if not data:
        raise UsageError(
            f"{model}: no recipe.yaml next to it, so name the data: trifold eval {model} text.txt"
        )
    data_settings = DataSettings.parse({"documents": "file", **settings, **_only(data)})

    def measure(pipeline: Pipeline, context: EvalContext) -> Evaluation:
        text = read_documents(data, data_settings, split="valid")
        print_note(str(text.report))
        # A document starts as the texts of the tokenizer do.
        reader = pipeline.reader
        begins = reader.bos_id is not None and reader.rows(["a"])[0].ids[0] == reader.bos_id
        task = Causal(CausalSettings(begin=begins, end=False), reader, pipeline.config.max_positions)
        corpus = task.encode(text.texts)
        return task.evaluate(pipeline.model, corpus, task.examples(corpus), context)

    return measure


def _select_documents(
    model: str, recipe: Recipe, data: list[str], split: str | None, settings: dict[str, Any]
) -> tuple[ObjectiveSettings, DataSettings]:
    """The named files, or a split of the run's data."""
    task = recipe.task.evaluated
    if data:
        return task, recipe.data.model_copy(update=settings | _only(data))
    split = _choose_split(recipe, split)
    if split == "valid" and recipe.data.holdout:
        return task, recipe.data.model_copy(update=settings)
    files = getattr(recipe.data, split)
    if files is None:
        raise UsageError(f"{model}: its recipe names no {split} data; name it: trifold eval {model} text.txt")
    return task, recipe.data.model_copy(update=settings | _only(files))


def _select_parts(
    model: str, recipe: Recipe, data: list[str], split: str | None, settings: dict[str, Any]
) -> tuple[ObjectiveSettings, DataSettings]:
    """The validation rows of every part."""
    from trifold.objectives.text_to_text import TextToTextSettings

    task = recipe.task.evaluated
    assert isinstance(task, TextToTextSettings)
    if data or split not in (None, "valid"):
        wrong = f"DATA {data[0]}" if data else f"--split {split}"
        raise UsageError(
            f"{wrong}: each part of this model names its own validation rows, and only these can be measured; "
            "leave it out, or train with another task.parts.NAME.valid"
        )
    parts = {name: part.model_copy(update={"train": part.valid}) for name, part in task.parts.items()}
    return task.model_copy(update={"parts": parts}), recipe.data


def _only(source: str | list[str]) -> dict[str, Any]:
    """Data settings that read only `source`, which also stands in for the training data."""
    return {"train": source, "valid": source, "holdout": 0, "cache": None}
