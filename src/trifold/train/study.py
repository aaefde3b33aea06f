"""A scaling study: a training run for each pair of a model size and a number of tokens.

Each run begins with new weights and has its own schedule, so that the rate has decayed at its last
step: the loss of a short run is not that of a longer one on its way (Hoffmann et al. 2022, section
3.1).
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, field_validator

from trifold.costs import forward_flops, parameter_table
from trifold.errors import CheckpointError, UsageError
from trifold.folders import decode, open_named, read_text
from trifold.hub.folder import read_config
from trifold.jsonfiles import MAX_JSON, iter_metrics, read_json
from trifold.recipe import Recipe, load_recipe, set_key, split_override
from trifold.settings import Settings
from trifold.train.checkpoint import PROGRESS, list_checkpoints
from trifold.train.power_law import check_points
from trifold.train.run_folder import RunFolder
from trifold.train.stages import changed
from trifold.yaml_dialect import parse

NOT_COUNTED = ("embeddings", "positions", "token types", "head")  # ends of the names of parts


class StudySettings(Settings):
    """The YAML file of a study. settings: of all runs; sizes: those of each size, keys without a
    dot are of `model`.

    warmup: share of the steps, by default the steps of the recipe; resamples: of the bootstrap.
    """

    name: str
    recipe: str
    settings: dict[str, Any] = Field({})
    sizes: dict[str, dict[str, Any]]
    tokens: list[Annotated[int, Field(gt=0)]]
    warmup: float | None = Field(None, ge=0, lt=1)
    resamples: int = Field(1000, ge=100)

    @field_validator("sizes")
    @classmethod
    def _check_names(cls, sizes: dict[str, Any]) -> dict[str, Any]:
        for name in sizes:
            if not re.fullmatch(r"\w[\w.-]*", name):
                raise ValueError(
                    f"{name!r:.100} cannot be a folder; use letters, digits, '.', '-' and '_'"
                )
        return sizes


class StudyRun(NamedTuple):
    """A planned run; parameters: without the embeddings of tokens, positions and types, and without
    heads.
    """

    size: str
    parameters: int
    tokens: int
    recipe: Recipe
    folder: RunFolder

    @property
    def is_complete(self) -> bool:
        """Whether this run, with these settings, has ended other than by a signal."""
        sessions = self.folder.read_environment().get("sessions") or [{}]
        recipe = self.folder.below(self.folder.recipe)
        if sessions[-1].get("stopped_by", "signal") == "signal" or not recipe.exists():
            return False
        return read_text(recipe, MAX_JSON) == self.recipe.resolved()

    def result(self) -> dict[str, Any]:
        """Predicted tokens, last validation loss in nats per token, training FLOPs and seconds of
        the complete run.
        """
        checkpoints = self.folder.below(self.folder.checkpoints)
        progress = read_json(list_checkpoints(checkpoints)[-1] / PROGRESS)
        lines = iter_metrics(self.folder.below(self.folder.metrics))
        losses = [line["valid/loss"] for line in lines if "valid/loss" in line]
        if not losses or losses[-1] is None:
            raise CheckpointError(
                f"{self.folder.metrics}: no finite valid/loss at the end; remove "
                f"{self.folder.path} and repeat the command, which trains it again"
            )
        config = read_config(self.folder.below(self.folder.model))
        tokens = progress["tokens"]
        flops = tokens * forward_flops(config, 0, config.max_positions).training[1]
        return {
            "size": self.size,
            "parameters": self.parameters,
            "tokens": tokens,
            "loss": losses[-1],
            "flops": flops,
            "seconds": round(progress["seconds"], 1),
        }


def load_study(file: Path, overrides: Sequence[str] = ()) -> StudySettings:
    """Read the YAML file of a study and apply `key=value` overrides. Raises SettingsError or
    UsageError.
    """
    try:
        with open_named(file) as content:
            values = parse(decode(content.read(MAX_JSON), str(file)), str(file))
    except OSError as error:
        reason = error.strerror
        raise UsageError(f"{file}: {reason}; name the YAML file of a study") from None
    except CheckpointError as error:
        raise UsageError(f"{error.message}; name the YAML file of a study") from None
    for key, value in map(split_override, overrides):
        set_key(values, key, value)
    return StudySettings.parse({"name": file.stem, **values})


def plan_runs(settings: StudySettings, out: Path) -> list[StudyRun]:
    """The runs, in OUT/SIZE/TOKENS, short ones first; the tokens are rounded up to whole updates.

    Raises SettingsError, and UsageError for too few runs and other tasks than `causal`.
    """
    runs = []
    for size, model_settings in settings.sizes.items():
        overrides = _flat(settings.settings) | _size_overrides(model_settings)
        chosen = load_recipe(settings.recipe, overrides)
        if chosen.task.kind != "causal":
            raise UsageError(
                f"{settings.recipe}: a study requires task.kind causal, not {chosen.task.kind}"
            )
        parts = parameter_table(chosen.model)
        count = sum(part.parameters for part in parts if not part.name.endswith(NOT_COUNTED))
        for tokens in settings.tokens:
            steps = math.ceil(tokens / chosen.batch.tokens / chosen.train.accumulate)
            warmup = chosen.train.warmup
            if settings.warmup is not None:
                warmup = round(settings.warmup * steps)
            changes = {"steps": steps, "warmup": warmup, "minutes": None, "patience": None}
            recipe = changed(chosen, {f"train.{key}": value for key, value in changes.items()})
            recipe.sized.clear()  # the tokens of a step and the sizes of the models are planned
            runs.append(StudyRun(size, count, tokens, recipe, RunFolder(out / size / str(tokens))))
    check_points([(run.parameters, run.tokens) for run in runs])
    return sorted(runs, key=lambda run: run.parameters * run.tokens)


def _size_overrides(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a size as dotted keys; keys without a dot are of `model`."""
    overrides = dict[str, Any]()
    for key, value in _flat(settings).items():
        if "." not in key:
            key = f"model.{key}"
        overrides[key] = value
    return overrides


def _flat(values: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """Nested groups of keys as dotted keys."""
    flat = dict[str, Any]()
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{at}{key}.")
        else:
            flat[at + key] = value
    return flat
