"""The model card of a run: what the model learned from, and how well."""

import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import tokenizers
import torch

import trifold
from trifold.baselines.comparison import Comparison
from trifold.data import expand_path
from trifold.errors import UsageError
from trifold.hub import resolve
from trifold.hub.card import (
    Base,
    CardFile,
    CardScore,
    ModelCard,
    code,
    describe_base,
    describe_model,
)
from trifold.hub.names import CONFIG
from trifold.jsonfiles import read_json
from trifold.objectives.evaluation import Evaluation
from trifold.objectives.prompted import PromptSettings
from trifold.recipe import Recipe
from trifold.scores import score_text
from trifold.scores.bootstrap import score_intervals
from trifold.train.data_files import read_data_json
from trifold.train.monitor import FoldScores
from trifold.train.run_folder import RunFolder
from trifold.yaml_dialect import dump

RESAMPLES = 1_000  # as a card is written after each best validation
FEWEST_EXAMPLES = 2  # that can be resampled


def run_card(
    recipe: Recipe,
    folder: RunFolder,
    parameters: int,
    result: Evaluation | None,
    comparison: Comparison | None = None,
    folds: FoldScores | None = None,
) -> ModelCard:
    """The card of the model in the folder of a run, whose config is written.

    result: of the validation that chose the weights; None if there was none. comparison: of the
    scores of that validation with those of baselines. folds: that have validated a model of all
    rows.
    """
    task: Any = recipe.task.evaluated
    use = {"pipeline_tag": task.pipeline_tag}
    if recipe.model.shape == "decoder" and isinstance(task, PromptSettings):
        prompt = task.chosen_prompt
        text = prompt.fill({name: f"your {name}" for name in prompt.names})
        use = {"pipeline_tag": "text-generation", "input": text}
    scores: list[CardScore] = []
    measured = ""
    if result is not None:
        rows = "the validation rows"
        if folds is not None:
            rows = "all rows" if folds.has_all_rows else "the held-out rows"
        scores, measured = _scores(result, comparison, rows)
    if folds is not None:
        row = "Each row" if folds.has_all_rows else "Each of these rows"
        scored = (
            f"{row} was held out of the training of one of {folds.folds} models, which scored it"
        )
        if folds.folds == 1:
            scored = "These rows were held out of the training of a model, which scored them"
        measured += (
            f" {scored}; the published one was trained on all rows. "
            f"{folds.describe().capitalize()}."
        )
    return ModelCard(
        **describe_model(folder.model, read_json(folder.below(folder.model) / CONFIG)),
        parameters=parameters,
        **use,
        command=task.command_for("MODEL", folder.model),
        base=_base(recipe),
        data=tuple(_files(folder)),
        scores=scores,
        signatures=() if result is None else result.signatures,
        measured=measured,
        recipe=dump(without_folders(recipe.model_dump())),
        versions=_versions(),
        is_image_model=task.data_kind == "images",
    )


def _base(recipe: Recipe) -> Base | None:
    if recipe.start_from is None:
        return None
    return describe_base(recipe.start_from, resolve(recipe.start_from))


def _files(folder: RunFolder) -> Iterator[CardFile]:
    """The files that the run learned from, without the names of their folders."""
    for key, files in read_data_json(folder).items():
        for name, digest in files.items():
            yield CardFile(key, Path(name).name, digest.size, digest.sha256)


def _scores(
    result: Evaluation, comparison: Comparison | None, of_rows: str
) -> tuple[list[CardScore], str]:
    """The scores with their intervals, those of baselines, and a sentence about what they were
    computed on, `of_rows`.
    """
    intervals: dict[str, tuple[float, float]] = {}
    measured = f"Scores of {of_rows}."
    resampled = result.resampled
    if resampled is not None and resampled.examples >= FEWEST_EXAMPLES:
        if comparison is not None:
            intervals = comparison.model.intervals
        else:
            intervals = score_intervals(resampled, RESAMPLES)
        measured = (
            f"Scores of {of_rows}; intervals by bootstrap, "
            f"{RESAMPLES:,} resamples of {resampled.examples:,} {resampled.noun}."
        )
    values = result.scores
    if np.isfinite(result.loss):
        values = values | {"loss": result.loss}
    rows = [_card_score(key, value, intervals) for key, value in values.items()]
    if comparison is not None:
        key = comparison.score
        for baseline in comparison.baselines:
            score = _card_score(key, baseline.scores[key], baseline.intervals)
            rows.append(score._replace(name=f"{score.name} of {code(baseline.name)}"))
    return rows, measured


def _card_score(key: str, value: float, intervals: Mapping[str, tuple[float, float]]) -> CardScore:
    """A score as text, with its interval if there is one."""
    name, number = score_text(key, value).rsplit(" ", 1)
    interval = ""
    if key in intervals:
        low, high = (score_text(key, end).rsplit(" ", 1)[1] for end in intervals[key])
        interval = f"{low} to {high}"
    return CardScore(name, number, interval)


def _versions() -> dict[str, str]:
    """The versions that the model was trained with."""
    modules = (trifold, torch, tokenizers, safetensors, np)
    versions = {module.__name__: str(module.__version__) for module in modules}
    return {"python": platform.python_version()} | versions


def without_folders(value: Any) -> Any:
    """The value with the last part of each path in it that names a folder of this machine."""
    if isinstance(value, Mapping):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(item) for item in value]
    if isinstance(value, str) and _is_path(value):
        return Path(value).name
    return value


def _is_path(text: str) -> bool:
    """Whether a text is a path that others need not know: an absolute one, or one that exists."""
    if "\n" in text or not ({"/", "\\"} & set(text)):
        return False
    if Path(text).is_absolute() or text.startswith(("~", "..")):
        return True
    try:
        return expand_path(text).exists()
    except (OSError, ValueError, UsageError):
        return False
