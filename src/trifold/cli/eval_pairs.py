"""Scores of translations against their references."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trifold.cli.generate import given, one_line
from trifold.cli.streams import note, print_json, writing
from trifold.errors import UsageError
from trifold.objectives.translate import TranslateSettings

if TYPE_CHECKING:
    from trifold.data import Pairs
    from trifold.recipe import Recipe

SPLITS = ("test", "valid")


def evaluate(
    model: str,
    recipe: Recipe | None,
    data: list[str],
    split: str | None,
    *,
    columns: Mapping[str, str | None],
    tokenize: str | None,
    lowercase: bool | None,
    num_beams: int | None,
    batch_size: int | None,
    device: str | None,
    dtype: Literal["float32", "bfloat16", "float16"],
    json: bool,
    out: Path | None,
) -> None:
    """Translate, score, print. `recipe` is that of the model's run, if it has one."""
    from trifold.cli.answers import answers, opened

    pairs = _pairs(recipe, data, split, columns, model)
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
    task = recipe.task if recipe is not None else None
    usual = task if isinstance(task, TranslateSettings) else TranslateSettings()
    return tokenize or usual.tokenize, usual.lowercase if lowercase is None else lowercase


def _pairs(
    recipe: Recipe | None, data: list[str], split: str | None, named: Mapping[str, str | None], model: str
) -> Pairs:
    """What to score on: the named data, else a split of the run's own."""
    from trifold.data import DataSettings, read_pairs, read_splits

    columns = {name: _column(value) for name, value in named.items() if value is not None}
    if len(data) > 2:
        raise UsageError(f"{len(data)} files of data: give two (source and reference) or one with both sides")
    if data:
        # Every line counts: a blank one that is left out would change the score.
        settings = DataSettings.parse({"blank": "keep", **columns})
        return read_pairs(data if len(data) == 2 else data[0], settings, split=split or "test")
    if recipe is None:
        raise UsageError(
            f"{model}: has no recipe.yaml beside it, so name the data: trifold eval {model} test.en test.de"
        )
    if split is None:
        split = "test" if recipe.data.test is not None else "valid"
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
