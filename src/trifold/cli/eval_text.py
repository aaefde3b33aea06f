"""What a validation measures, on other data: loss, perplexity and bits per byte of a language model, and the like."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

from trifold.batches import BatchSettings
from trifold.cli.answers import opened
from trifold.cli.streams import note, print_json
from trifold.data import DataSettings
from trifold.errors import UsageError
from trifold.generate import GenerationConfig
from trifold.hub import resolve
from trifold.tasks.causal import Causal, CausalSettings
from trifold.tasks.kinds import build
from trifold.tasks.task import Asked, Looking
from trifold.train.view import score_text

if TYPE_CHECKING:
    from trifold.pipeline import Pipeline
    from trifold.recipe import Recipe

SPLITS = ("test", "valid")


def evaluate(
    model: str,
    recipe: Recipe | None,
    data: list[str],
    split: str | None,
    *,
    documents: Literal["line", "blank", "file"] | None,
    batch_size: int | None,
    device: str | None,
    dtype: Literal["float32", "bfloat16", "float16"],
    json: bool,
) -> None:
    """Measure and print. `recipe` is that of the model's run; one that belongs to none is a language model."""
    settings = _data(model, recipe, data, split, documents)
    pipeline = opened(model, device, dtype)
    batches = recipe.batch if recipe is not None else BatchSettings()
    if batch_size is not None:
        batches = batches.model_copy(update={"rows": batch_size})
    start = time.perf_counter()
    looking = Looking(batches, GenerationConfig(), samples=0, seed=1, poll=lambda: None)
    loss, scores = _measured(model, recipe, settings, pipeline, looking)
    seconds = time.perf_counter() - start
    if json:
        print_json({"model": model, "seconds": round(seconds, 3), "loss": loss, "scores": scores})
        return
    print(f"loss {loss:.4f} nats a token")
    for name, value in scores.items():
        print(score_text(name, value))
    note(f"{seconds:.1f} s")


def _measured(
    model: str, recipe: Recipe | None, data: DataSettings, pipeline: Pipeline, looking: Looking
) -> tuple[float, dict[str, float]]:
    """The validation of the run's task, or, where there is no run, of a language model that reads text as it stands."""
    if recipe is not None:
        asked = Asked(
            data, recipe.tokenizer, pipeline.config, looking.batches, recipe.train.seed, resolve(model), note
        )
        material = build(recipe.task, asked)
        rows = material.valid
        found = material.task.evaluate(pipeline.model, rows, material.task.examples(rows), looking)
        return found.loss, found.scores
    from trifold.data import read_documents

    assert data.valid is not None
    text = read_documents(data.valid, data, split="valid")
    note(str(text.report))
    # A document begins as the tokenizer's own texts do.
    reader = pipeline.reader
    begins = reader.bos_id is not None and reader.rows(["a"])[0].ids[0] == reader.bos_id
    task = Causal(CausalSettings(begin=begins, end=False), reader, pipeline.config.max_positions)
    return task.measure(pipeline.model, task.read(text.texts), looking)


def _data(
    model: str, recipe: Recipe | None, data: list[str], split: str | None, documents: str | None
) -> DataSettings:
    """Settings whose validation text is what to measure on: the named files, else a split of the run's own."""
    changes: dict[str, Any] = {} if documents is None else {"documents": documents}
    if data:
        changes |= {"train": data, "valid": data, "holdout": 0}
        if recipe is None:
            return DataSettings.parse({"documents": "file", **changes})
        return recipe.data.model_copy(update=changes)
    if recipe is None:
        raise UsageError(
            f"{model}: has no recipe.yaml beside it, so name the data: trifold eval {model} text.txt"
        )
    if recipe.task.kind == "text-to-text":  # each of its parts names its own
        return recipe.data
    if split is None:
        split = "test" if recipe.data.test is not None else "valid"
    if split not in SPLITS:
        raise UsageError(f"--split {split}: there are {' and '.join(SPLITS)}")
    if split == "valid" and recipe.data.holdout:
        return recipe.data.model_copy(update=changes)
    where = getattr(recipe.data, split)
    if where is None:
        raise UsageError(f"{model}: its recipe names no {split} data; name it: trifold eval {model} text.txt")
    return recipe.data.model_copy(update=changes | {"train": where, "valid": where, "holdout": 0})
