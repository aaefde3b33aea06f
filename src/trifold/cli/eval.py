"""`trifold eval`: score a model on text that it has not learnt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trifold.cli.options import BatchSize, Beams, Device, Dtype, Json, Model
from trifold.errors import UsageError

if TYPE_CHECKING:
    from trifold.recipe import Recipe

Reads = Literal["pairs", "documents", "parts"]

# Options that only ask something of a model that is measured on pairs of texts, or on documents; how that is called.
OWN: dict[str, tuple[Reads, str]] = {
    **dict.fromkeys(
        ("source", "target", "tokenize", "lowercase", "num_beams", "out"), ("pairs", "translations")
    ),
    "documents": ("documents", "raw text"),
}
# What a model that belongs to no run is measured on, by its shape.
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
            help="Two files of lines, or one .tsv, .csv or .jsonl; of a model of raw text any number of files; the "
            "run's own test set (or validation set, where it has none) unless given.",
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
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Write what the model made of the inputs there, a line each."
        ),
    ] = None,
) -> None:
    """Score a model: of translations BLEU, chrF and exact match, each with its signature; of a language model loss,
    perplexity, bits per byte and accuracy; of other tasks what their validation measures.
    """
    recipe = recipe_of(model)
    reads = _reads(model, recipe)
    columns = {"source": source, "target": target}
    scoring = {"tokenize": tokenize, "lowercase": lowercase}
    _refuse_others(reads, columns | scoring | {"num_beams": num_beams, "out": out, "documents": documents})
    if reads == "pairs":
        from trifold.cli.eval_pairs import evaluate as evaluate_pairs

        evaluate_pairs(
            model,
            recipe,
            data or [],
            split,
            columns=columns,
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


def _reads(model: str, recipe: Recipe | None) -> Reads:
    """What the task of the run is measured on; of a model that belongs to none, what models of its shape are.

    Raises UsageError where nothing says what a model has learnt.
    """
    if recipe is not None:
        return recipe.task.evaluated.data_kind
    from trifold.hub import read_config, resolve

    shape = read_config(resolve(model)).shape
    if shape not in BY_SHAPE:
        raise UsageError(
            f"{model}: an {shape} with no recipe.yaml beside it: nothing says what it has learnt; name the run that "
            "it comes from, or ask it with `trifold predict`"
        )
    return BY_SHAPE[shape]


def _refuse_others(reads: Reads, options: dict[str, object]) -> None:
    """Raises UsageError for options that would be overlooked."""
    for name, value in options.items():
        owner, called = OWN[name]
        if value is not None and owner != reads:
            raise UsageError(
                f"--{name.replace('_', '-')} is for {called}, and this model does another task: leave it out"
            )
