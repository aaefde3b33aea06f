"""`trifold eval`: score a model on text that has references."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trifold.cli.generate import given, one_line
from trifold.cli.options import BatchSize, Beams, Device, Dtype, Json, Model, Out
from trifold.cli.streams import note, print_json, writing
from trifold.errors import UsageError

if TYPE_CHECKING:
    from trifold.data import Pairs
    from trifold.recipe import Recipe

EXAMPLES = (
    "trifold eval runs/demo",
    "trifold eval runs/multi30k-en-de --num-beams 5 --tokenize none",
    "trifold eval runs/multi30k-en-de test.en test.de --out ours.de",
    "trifold eval runs/demo pairs.tsv --source english --target french --json",
)
SPLITS = ("test", "valid")


def run(
    model: Model,
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DATA]...",
            help="Two files of lines, or one .tsv, .csv or .jsonl; the run's own test set unless given.",
        ),
    ] = None,
    split: Annotated[
        str, typer.Option(metavar="test|valid", help="Which part of the run's own data.")
    ] = "test",
    source: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of the source: a name or a number.")
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="Column of the reference.")] = None,
    tokenize: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="sacreBLEU's tokenizer: 13a, none, intl, zh, …",
            show_default="the recipe's, or 13a",
        ),
    ] = None,
    lowercase: Annotated[
        bool | None,
        typer.Option("--lowercase/--cased", help="Ignore case.", show_default="as the recipe does"),
    ] = None,
    num_beams: Beams = None,
    batch_size: BatchSize = None,
    device: Device = None,
    dtype: Dtype = "float32",
    json: Json = False,
    out: Out = None,
) -> None:
    """Translate a test set and score it: BLEU, chrF and exact match, each with its signature."""
    from trifold.cli.answers import answers, opened

    recipe = recipe_of(model)
    pairs = _pairs(recipe, data or [], split, source, target, model)
    note(str(pairs.report))
    pipeline = opened(model, device, dtype)
    start = time.perf_counter()
    found = answers(pipeline, pairs.sources, given(num_beams=num_beams), batch_size)
    outputs = [one_line(each[0].text) if each else "" for _, each in found]
    seconds = time.perf_counter() - start
    if out is not None:
        with writing(out) as file:
            file.writelines(f"{output}\n" for output in outputs)
    scores = scored(outputs, pairs.targets, *_scoring(recipe, tokenize, lowercase))
    if json:
        print_json(
            {
                "model": model,
                "data": pairs.report.name,
                "sentences": len(outputs),
                "seconds": round(seconds, 3),
                "scores": {
                    name: {"value": value, "signature": text} for name, (_, value, text) in scores.items()
                },
            }
        )
    else:
        for score in scores.values():
            print(score)
        note(f"{len(outputs):,} sentences in {seconds:.1f} s")


def recipe_of(model: str) -> Recipe | None:
    """The recipe of the run that the model belongs to, if it belongs to one."""
    from trifold.recipe import load_recipe

    folder = Path(model).expanduser()
    for file in (folder / "recipe.yaml", folder.parent / "recipe.yaml"):
        if folder.is_dir() and file.is_file():
            return load_recipe(file)
    return None


def scored(outputs: list[str], references: list[str], tokenize: str, lowercase: bool) -> dict[str, Any]:
    """Every score by name; `tokenize` is BLEU's alone."""
    from trifold.scores import SCORES

    options = {"bleu": {"tokenize": tokenize}}
    return {
        name: score(outputs, references, lowercase=lowercase, **options.get(name, {}))
        for name, score in SCORES.items()
    }


def _scoring(recipe: Recipe | None, tokenize: str | None, lowercase: bool | None) -> tuple[str, bool]:
    from sacrebleu.metrics.bleu import BLEU

    if tokenize is not None and tokenize not in BLEU.TOKENIZERS:
        raise UsageError(
            f"--tokenize {tokenize}: not a tokenizer of sacreBLEU; there are {', '.join(sorted(BLEU.TOKENIZERS))}"
        )
    if tokenize is None:
        tokenize = recipe.task.tokenize if recipe else "13a"
    if lowercase is None:
        lowercase = recipe.task.lowercase if recipe else False
    return tokenize, lowercase


def _pairs(
    recipe: Recipe | None, data: list[str], split: str, source: str | None, target: str | None, model: str
) -> Pairs:
    """What to score on: the named data, else a split of the run's own."""
    from trifold.data import DataSettings, read_pairs, read_splits

    columns = {
        name: _column(value) for name, value in (("source", source), ("target", target)) if value is not None
    }
    if len(data) > 2:
        raise UsageError(f"{len(data)} files of data: give two (source and reference) or one with both sides")
    if data:
        # Every line counts: a blank one that is left out would change the score.
        settings = DataSettings.parse({"blank": "keep", **columns})
        return read_pairs(data if len(data) == 2 else data[0], settings, split=split)
    if recipe is None:
        raise UsageError(
            f"{model}: has no recipe.yaml beside it, so name the data: trifold eval MODEL test.en test.de"
        )
    if split not in SPLITS:
        raise UsageError(f"--split {split}: there are {' and '.join(SPLITS)}")
    if split == "valid" and recipe.data.holdout:
        held_out = read_splits(recipe.data, recipe.train.seed).valid
        assert held_out is not None
        return held_out
    where = getattr(recipe.data, split)
    if where is None:
        raise UsageError(
            f"{model}: its recipe names no {split} data; name it: trifold eval {model} test.en test.de"
        )
    return read_pairs(where, recipe.data.model_copy(update=columns), split=split)


def _column(value: str) -> str | int:
    return int(value) if value.isdecimal() else value
