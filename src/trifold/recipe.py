"""A whole experiment as typed values: data + tokenizer + model + task + batches + training + generation.

A recipe is a YAML file of the settings that the rooms own; this file only assembles them. `train.steps=200` on
the command line sets the value under that dotted key. A recipe can set typed values and nothing else.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from trifold.batches import BatchSettings
from trifold.data import DataSettings
from trifold.errors import SettingsError, UsageError
from trifold.generate import GenerationConfig
from trifold.nn.config import PRESETS, ModelConfig
from trifold.objectives import DEFAULT_KIND, TaskSettings, TranslateSettings
from trifold.objectives.distill import DistillSettings
from trifold.settings import Settings, nearest
from trifold.text import TokenizerSettings
from trifold.yaml_dialect import YAMLError, dump, load, parse

# Schedules whose every rate depends on the number of steps.
ENDING = ("linear", "cosine", "warmup-stable-decay")
# What only some values of another key have a use for: key -> (that key, those values).
BELONGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "final_rate": ("schedule", ENDING),
    "decay": ("schedule", ("warmup-stable-decay",)),
    "decay_form": ("schedule", ("warmup-stable-decay",)),
    "beta1": ("optimizer", ("adam", "adamw", "muon")),
    "beta2": ("optimizer", ("adam", "adamw", "muon")),
    "epsilon": ("optimizer", ("adam", "adamw", "muon")),
    "weight_decay_on": ("optimizer", ("adamw", "adafactor", "muon")),
    "relative_step": ("optimizer", ("adafactor",)),
    "update_clip": ("optimizer", ("adafactor",)),
    "momentum": ("optimizer", ("muon",)),
    "muon_rate": ("optimizer", ("muon",)),
    "muon_scale": ("optimizer", ("muon",)),
    "muon_iterations": ("optimizer", ("muon",)),
    "muon_polynomial": ("optimizer", ("muon",)),
}


class TrainSettings(Settings):
    """The loop: how long, how fast, how often it looks up. Steps are updates of the weights."""

    model_config = ConfigDict(allow_inf_nan=False)
    renamed: ClassVar = {"on_nonsense": "on_nonfinite", "save_behind": "async_save"}

    seed: int = Field(
        1, ge=0, description="of the weights, the order of the data, dropout and held-out pairs"
    )
    steps: int = Field(10_000, gt=0)
    minutes: float | None = Field(
        None, gt=0, description="stop after this much wall time, whatever the steps"
    )
    accumulate: int = Field(1, gt=0, description="batches an update")

    schedule: Literal["inverse-sqrt", "linear", "cosine", "constant", "warmup-stable-decay"] = "inverse-sqrt"
    learning_rate: float | None = Field(
        None, gt=0, description="the peak; d_model^-0.5 · warmup^-0.5 unless given"
    )
    warmup: int = Field(4000, ge=0, description="steps of linear rise")
    final_rate: float = Field(
        0.0,
        ge=0,
        le=1,
        description="linear, cosine, warmup-stable-decay: the last rate, as a share of the peak",
    )
    decay: float = Field(
        0.1,
        gt=0,
        description="warmup-stable-decay: the fall at the end, in steps; below 1: as a share of all steps",
    )
    decay_form: Literal["linear", "1-sqrt"] = Field("linear", description="… and its form")

    optimizer: Literal["adam", "adamw", "adafactor", "muon"] = Field(
        "adam", description="what makes steps of gradients; see below the tables"
    )
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.98, ge=0, lt=1)
    epsilon: float = Field(1e-9, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    weight_decay_on: Literal["everything", "matrices", "hidden"] | None = Field(
        None,
        description="which parameters decay: all; those of two dimensions or more (no biases, no norms); of these the "
        "layers' only (no embeddings, no heads). Matrices unless given; with adam, everything",
    )
    relative_step: bool = Field(
        True, description="adafactor: rates are times the root mean square of each parameter"
    )
    update_clip: float = Field(
        1.0, gt=0, description="adafactor: largest root mean square of an update, before the rate"
    )
    momentum: float = Field(0.95, ge=0, lt=1, description="muon: memory of the gradient of hidden matrices")
    muon_rate: float = Field(1.0, gt=0, description="muon: rate of hidden matrices, times that of the rest")
    muon_scale: Literal["match-rms", "original", "none"] = Field(
        "match-rms",
        description="muon: an n × m update is times 0.2 · sqrt(max(n, m)), which is AdamW's size; or times "
        "sqrt(max(1, n / m)); or as it is",
    )
    muon_iterations: int = Field(
        5, ge=1, description="muon: Newton–Schulz steps that make an update orthogonal; fewer cost less time"
    )
    muon_polynomial: Literal["jordan", "polar-express"] = Field(
        "jordan",
        description="muon: what a step does to singular values: the same quintic every step; or the best for so many "
        "steps (at most 5), two of which do about what three of the others do",
    )
    clip: float | None = Field(None, gt=0, description="largest norm of the gradient")
    ema: float | None = Field(
        None, gt=0, lt=1, description="validate and keep a moving average of the weights with this memory"
    )

    start_from: str | None = Field(
        None,
        description="a model folder, run or hub id whose weights the model begins with; its heads may be others",
    )
    precision: Literal["auto", "float32", "bfloat16", "int8", "float64"] = "auto"
    recompute: Literal["none", "blocks"] = Field(
        "none",
        description="blocks: keep only the inputs of blocks for the way back; less memory, more time, same bits",
    )
    compile: Literal["none", "blocks"] = Field(
        "none",
        description="blocks: make graphs of the blocks and compile them (torch.compile), by a C++ compiler or, for a "
        "GPU, Triton; workers is 1 then",
    )
    device: str = "auto"
    sharding: Literal["none", "full"] = Field(
        "none",
        description="of several processes (`torchrun`) each keeps all weights and moments; or, full, a part of each",
    )
    workers: int | None = Field(
        None,
        gt=0,
        description="shares of a batch that are learnt side by side on a CPU; as many as there are threads, "
        "of 1,024 tokens or more, unless given",
    )

    log_every: int = Field(20, gt=0)
    validate_every: int = Field(500, gt=0)
    save_every: int = Field(500, gt=0)
    keep_last: int = Field(5, gt=0, description="full checkpoints that stay")
    keep_every: int | None = Field(
        None, gt=0, description="checkpoints of steps that are multiples of this stay for ever"
    )
    keep_best: bool = Field(
        False,
        description="the full checkpoint of the best validation stays too; model/ has its weights anyway",
    )
    async_save: bool = Field(
        False, description="save while training goes on, from a copy in memory; as durable, and as exact"
    )
    average: int = Field(1, gt=0, description="validate and keep the mean of this many last checkpoints")
    patience: int | None = Field(None, gt=0, description="validations without a better score before stopping")
    samples: int = Field(5, ge=0, description="sentences shown at a validation")

    on_nonfinite: Literal["stop", "skip"] = Field(
        "stop",
        description="at a loss or gradient that is no number: end the run, or leave the update out; it is never made",
    )
    on_spike: Literal["accept", "skip", "rewind"] = Field(
        "accept",
        description="an update whose loss leaps is made, left out, or the run goes back to its last regular checkpoint "
        "and on behind the batch",
    )
    spike_factor: float = Field(
        2.0, gt=1, description="a loss above this many times the median of the last ones is a spike"
    )
    spike_window: int = Field(50, ge=5, description="how many last losses that are")
    skip_limit: int = Field(10, ge=0, description="updates that may be left out in a run before it stops")
    check_memory: bool = Field(
        True, description="refuse a run that is predicted not to fit into the memory that there is"
    )

    @property
    def wanted_workers(self) -> int | None:
        """As many as are asked for: graphs, which draw their random numbers from what all threads share, want one."""
        return 1 if self.compile == "blocks" else self.workers

    @property
    def decay_steps(self) -> int:
        """Of warmup-stable-decay."""
        return max(1, round(self.decay * self.steps)) if self.decay < 1 else int(self.decay)

    @model_validator(mode="after")
    def _has_no_idle_keys(self) -> Self:
        for key, (chooser, owners) in BELONGS.items():
            value, chosen = getattr(self, key), getattr(self, chooser)
            if value != type(self).model_fields[key].default and chosen not in owners:
                others = " or ".join(owners)
                raise ValueError(
                    f"{key} {value} means nothing with {chooser} {chosen}: leave it out, or choose {others}"
                )
        return self

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        if self.average > self.keep_last:
            raise ValueError(
                f"average {self.average} needs keep_last of at least {self.average}, not {self.keep_last}"
            )
        if self.average > 1 and self.validate_every % self.save_every:
            raise ValueError(
                f"with average > 1, validate_every ({self.validate_every}) must be a multiple of "
                f"save_every ({self.save_every}), so that every validation has a fresh checkpoint to average"
            )
        if self.schedule in ENDING and self.warmup >= self.steps:
            raise ValueError(f"warmup {self.warmup} leaves nothing of {self.steps} steps for the decay")
        if self.decay > 1 and self.decay % 1:
            raise ValueError(f"decay {self.decay} is neither a share below 1 nor a whole number of steps")
        if self.schedule == "warmup-stable-decay" and self.warmup + self.decay_steps > self.steps:
            raise ValueError(
                f"warmup {self.warmup} and decay {self.decay_steps} are more than the {self.steps} steps there are"
            )
        fall = {"linear": "steps", "cosine": "steps", "warmup-stable-decay": "decay_steps"}.get(self.schedule)
        if fall is not None and getattr(self, fall) == 1 and not self.final_rate:
            raise ValueError(
                f"schedule {self.schedule} falls to rate 0 in a single step, and that one learns nothing: set "
                f"{fall.removesuffix('_steps')} to 2 or more, or final_rate above 0"
            )
        if self.ema is not None and self.average > 1:
            raise ValueError(
                f"ema {self.ema} and average {self.average} are two ways of averaging weights: choose one"
            )
        if self.muon_polynomial == "polar-express" and self.muon_iterations > 5:
            raise ValueError(
                f"muon_iterations {self.muon_iterations} is more than polar-express has: of 5, values of about "
                "0.0006 of the largest already end near 1; set it to 5 or less"
            )
        if self.optimizer == "adafactor" and self.learning_rate is None:
            raise ValueError(
                "adafactor needs a learning_rate: the default is Adam's; 0.01 is its paper's, with relative_step"
            )
        if self.compile == "blocks" and self.workers not in (None, 1):
            raise ValueError(
                f"compile: blocks does not go with workers {self.workers}: graphs draw their random numbers from what "
                "all threads share; set workers to 1"
            )
        if self.compile == "blocks" and self.precision == "int8":
            raise ValueError(
                "compile: blocks does not go with precision: int8, whose products are no part of a graph; leave one"
            )
        return self


class Recipe(Settings):
    """Everything that decides a run; `resolved()` is what stands in its recipe.yaml."""

    name: str
    description: str = ""
    task: TaskSettings = Field(TranslateSettings(), discriminator="kind")
    data: DataSettings
    tokenizer: TokenizerSettings = TokenizerSettings()
    model: ModelConfig = ModelConfig()
    batch: BatchSettings = BatchSettings()
    train: TrainSettings = TrainSettings()
    generate: GenerationConfig = GenerationConfig()

    @field_validator("task", mode="before")
    @classmethod
    def _of_the_usual_kind(cls, values: Any) -> Any:
        """Recipes from before there were kinds say none."""
        return {"kind": DEFAULT_KIND, **values} if isinstance(values, Mapping) else values

    @model_validator(mode="after")
    def _looks_into_no_graph(self) -> Self:
        if (
            self.train.compile != "none"
            and isinstance(self.task, DistillSettings)
            and self.task.relations.weights
        ):
            raise ValueError(
                "task.relations look into a block, and train.compile: blocks closes it: set train.compile to none, or "
                "the weights of the relations to 0"
            )
        return self

    def resolved(self) -> str:
        """As YAML, with every default written out."""
        return dump(self.model_dump())


def recipe_names() -> dict[str, str]:
    """Name -> description of what ships."""
    folder = importlib.resources.files("trifold") / "recipes"
    found = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    recipes = {f.name.removesuffix(".yaml"): parse(f.read_text("utf-8"), f.name) for f in found}
    return {name: recipe.get("description", "") for name, recipe in recipes.items()}


def load_recipe(name: str | Path, overrides: Sequence[str] | Mapping[str, Any] = ()) -> Recipe:
    """A shipped name or a YAML file, with dotted `key=value` overrides on top.

    `model: {preset: transformer-base, dropout: 0.2}` starts from a preset. Raises SettingsError or UsageError.
    """
    values, default_name = _read(name)
    pairs = overrides.items() if isinstance(overrides, Mapping) else map(_split_override, overrides)
    for key, value in pairs:
        _set(values, key, value)
    values.setdefault("name", default_name)
    values["model"] = _with_preset(values.get("model", {}))
    return Recipe.parse(values)


def _read(name: str | Path) -> tuple[dict[str, Any], str]:
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        if not path.is_file():
            raise UsageError(f"{path}: no such recipe file")
        try:
            return parse(path.read_text("utf-8"), str(path)), path.stem
        except UnicodeDecodeError as error:
            raise SettingsError(
                f"{path}: byte {error.start + 1} is not valid UTF-8; save the file as UTF-8"
            ) from None
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    shipped = importlib.resources.files("trifold") / "recipes" / f"{name}.yaml"
    if not shipped.is_file():
        near = nearest(str(name), list(recipe_names()))
        raise UsageError(f"unknown recipe {str(name)!r}{near}\n  all of them: trifold recipes")
    return parse(shipped.read_text("utf-8"), str(name)), str(name)


def _split_override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"{text!r} is not of the form key=value, such as train.steps=2000")
    try:
        return key, load(value)
    except YAMLError:
        return key, value


def _set(values: dict[str, Any], dotted: str, value: Any) -> None:
    *path, last = dotted.split(".")
    for part in path:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise SettingsError(f"{dotted}: {part} holds a value, not a group of keys")
    values[last] = value


def _with_preset(model: Any) -> Any:
    from trifold.hub.presets import PRESETS as PUBLISHED

    if not isinstance(model, dict) or "preset" not in model:
        return model
    chosen = dict(model)
    preset = chosen.pop("preset")
    if preset in PUBLISHED:
        return {**PUBLISHED[preset].config.model_dump(), **chosen}
    if preset not in PRESETS:
        known = [*PRESETS, *PUBLISHED]
        raise SettingsError(f"model.preset: unknown preset {preset!r}{nearest(str(preset), known)}")
    return {**PRESETS[preset].model_dump(), **chosen}
