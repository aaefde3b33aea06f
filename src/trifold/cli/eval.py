"""`trifold eval`: score a model on text that it has not learnt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trifold.cli.options import BatchSize, Beams, Device, Dtype, Json, Model, Out
from trifold.errors import UsageError

if TYPE_CHECKING:
    from trifold.recipe import Recipe

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
            help="Two files of lines, or one .tsv, .csv or .jsonl; of a model of raw text any number of files; the "
            "run's own test set unless given.",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="test|valid",
            help="Which part of the run's own data.",
            show_default="test, where the recipe names one",
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of the source: a name or a number.")
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="Column of the reference.")] = None,
    documents: Annotated[
        Literal["line", "blank", "file"] | None,
        typer.Option(
            help="Raw text: what a document is: a line, what stands between blank lines, or a file.",
            show_default="the recipe's, or file",
        ),
    ] = None,
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
    """Score a model: of translations BLEU, chrF and exact match, each with its signature; of a language model loss,
    perplexity, bits per byte and accuracy; of other tasks what their validation measures.
    """
    recipe = recipe_of(model)
    translates = recipe.task.kind == "translate" if recipe is not None else not _continues(model)
    if translates:
        _refuse("raw text", documents=documents)
        from trifold.cli.eval_pairs import evaluate as evaluate_pairs

        evaluate_pairs(
            model,
            recipe,
            data or [],
            split or "test",
            columns={"source": source, "target": target},
            tokenize=tokenize,
            lowercase=lowercase,
            num_beams=num_beams,
            batch_size=batch_size,
            device=device,
            dtype=dtype,
            json=json,
            out=out,
        )
        return
    _refuse(
        "translations",
        source=source,
        target=target,
        tokenize=tokenize,
        lowercase=lowercase,
        num_beams=num_beams,
        out=out,
    )
    from trifold.cli.eval_text import evaluate as evaluate_text

    evaluate_text(
        model,
        recipe,
        data or [],
        split,
        documents=documents,
        batch_size=batch_size,
        device=device,
        dtype=dtype,
        json=json,
    )


def recipe_of(model: str) -> Recipe | None:
    """The recipe of the run that the model belongs to, if it belongs to one."""
    from trifold.recipe import load_recipe

    folder = Path(model).expanduser()
    for file in (folder / "recipe.yaml", folder.parent / "recipe.yaml"):
        if folder.is_dir() and file.is_file():
            return load_recipe(file)
    return None


def _continues(model: str) -> bool:
    """Whether a model that belongs to no run goes on with a text, instead of answering one."""
    from trifold.hub import read_config, resolve

    return read_config(resolve(model)).shape == "decoder"


def _refuse(what: str, **options: object) -> None:
    """Raises UsageError for options that would be overlooked."""
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"--{name.replace('_', '-')} is for {what}, and this model does another task")
