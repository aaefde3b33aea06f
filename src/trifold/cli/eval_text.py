"""What a validation measures, on other data: loss, perplexity and bits per byte of a language model, and the like."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from trifold.batches import BatchSettings
from trifold.cli.answers import opened
from trifold.cli.streams import note, print_json
from trifold.data import DataSettings, read_documents
from trifold.errors import CheckpointError, UsageError
from trifold.generate import GenerationConfig
from trifold.hub import resolve
from trifold.objectives.causal import Causal, CausalSettings
from trifold.objectives.objective import (
    TOKENIZER_FILE,
    BuildContext,
    EvalContext,
    Evaluation,
    ObjectiveSettings,
)
from trifold.objectives.text_to_text import TextToTextSettings
from trifold.train.monitor import score_text

if TYPE_CHECKING:
    from trifold.pipeline import Pipeline
    from trifold.recipe import Recipe

SPLITS = ("test", "valid")
Measure = Callable[["Pipeline", EvalContext], Evaluation]


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
    asked: dict[str, Any] = {} if documents is None else {"documents": documents}
    # What cannot be measured is refused before the model is loaded.
    measure = _language(model, data, asked) if recipe is None else _task(model, recipe, data, split, asked)
    pipeline = opened(model, device, dtype)
    batches, generation = (
        (recipe.batch, recipe.generate) if recipe is not None else (BatchSettings(), GenerationConfig())
    )
    if batch_size is not None:
        batches = batches.model_copy(update={"rows": batch_size})
    start = time.perf_counter()
    found = measure(pipeline, EvalContext(batches, generation, samples=0, seed=1, poll=lambda: None))
    seconds = time.perf_counter() - start
    if json:
        told = {"loss": found.loss, "scores": found.scores, "signatures": list(found.signatures)}
        print_json({"model": model, "seconds": round(seconds, 3), **told})
        return
    print(f"loss {found.loss:.4f} nats a token")
    for name, value in found.scores.items():
        print(score_text(name, value))
    for signature in found.signatures:
        note(signature)
    note(f"{seconds:.1f} s")


def _task(model: str, recipe: Recipe, data: list[str], split: str | None, asked: dict[str, Any]) -> Measure:
    """The validation of a run's task."""
    task, settings = _ON[recipe.task.evaluated.data_kind](model, recipe, data, split, asked)
    folder = resolve(model)
    if not (folder / TOKENIZER_FILE).is_file():
        raise CheckpointError(
            f"{folder / TOKENIZER_FILE}: the tokenizer of the model is missing; nothing can be read"
        )

    def measure(pipeline: Pipeline, looking: EvalContext) -> Evaluation:
        seed, config = recipe.train.seed, pipeline.config
        material = task.build(
            BuildContext(settings, recipe.tokenizer, config, looking.batches, seed, folder, _once(note))
        )
        rows = material.valid
        return material.objective.evaluate(pipeline.model, rows, material.objective.examples(rows), looking)

    return measure


def _language(model: str, data: list[str], asked: dict[str, Any]) -> Measure:
    """That of a language model that belongs to no run and reads text as it stands."""
    if not data:
        raise UsageError(
            f"{model}: has no recipe.yaml beside it, so name the data: trifold eval {model} text.txt"
        )
    settings = DataSettings.parse({"documents": "file", **asked, **_only(data)})

    def measure(pipeline: Pipeline, looking: EvalContext) -> Evaluation:
        text = read_documents(data, settings, split="valid")
        note(str(text.report))
        # A document begins as the tokenizer's own texts do.
        reader = pipeline.reader
        begins = reader.bos_id is not None and reader.rows(["a"])[0].ids[0] == reader.bos_id
        task = Causal(CausalSettings(begin=begins, end=False), reader, pipeline.config.max_positions)
        corpus = task.encode(text.texts)
        return task.evaluate(pipeline.model, corpus, task.examples(corpus), looking)

    return measure


def _once(say: Callable[[str], None]) -> Callable[[str], None]:
    """Each line once: what is measured on is all that there is, and stands in the place of what was learnt from too."""
    said: set[str] = set()

    def say_new(line: str) -> None:
        if line not in said:
            said.add(line)
            say(line)

    return say_new


# --- what is measured on -------------------------------------------------------------------------------------


def _documents(
    model: str, recipe: Recipe, data: list[str], split: str | None, asked: dict[str, Any]
) -> tuple[ObjectiveSettings, DataSettings]:
    """The named files, else a split of the run's own."""
    task = recipe.task.evaluated
    if data:
        return task, recipe.data.model_copy(update=asked | _only(data))
    if split is None:
        split = "test" if recipe.data.test is not None else "valid"
    if split not in SPLITS:
        raise UsageError(f"--split {split}: there are {' and '.join(SPLITS)}")
    if split == "valid" and recipe.data.holdout:
        return task, recipe.data.model_copy(update=asked)
    where = getattr(recipe.data, split)
    if where is None:
        raise UsageError(f"{model}: its recipe names no {split} data; name it: trifold eval {model} text.txt")
    return task, recipe.data.model_copy(update=asked | _only(where))


def _parts(
    model: str, recipe: Recipe, data: list[str], split: str | None, asked: dict[str, Any]
) -> tuple[ObjectiveSettings, DataSettings]:
    """The validation rows of every part."""
    task = recipe.task.evaluated
    assert isinstance(task, TextToTextSettings)
    if data or split not in (None, "valid"):
        said = f"DATA {data[0]}" if data else f"--split {split}"
        raise UsageError(
            f"{said}: each part of this model names its own validation rows, and nothing else is measured; leave it "
            "out, or train with other task.parts.NAME.valid"
        )
    parts = {name: part.model_copy(update={"train": part.valid}) for name, part in task.parts.items()}
    return task.model_copy(update={"parts": parts}), recipe.data


_ON: dict[str, Callable[..., tuple[ObjectiveSettings, DataSettings]]] = {
    "documents": _documents,
    "parts": _parts,
}


def _only(source: str | list[str]) -> dict[str, Any]:
    """Nothing is learnt: what is measured on is named twice."""
    return {"train": source, "valid": source, "holdout": 0, "cache": None}
