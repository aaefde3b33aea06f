"""Recipes: a whole experiment as typed values: data, tokenizer, model, task, batches, training,
generation.

A recipe is a YAML file with the settings of each package; this module assembles them. On the
command line, `train.steps=200` sets the value of a dotted key. A recipe sets typed values and
nothing else.
"""

import importlib.resources
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import cache, cached_property
from importlib.resources.abc import Traversable
from itertools import takewhile
from typing import Any, Literal, Self

from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from trifold.batches import BatchSettings
from trifold.data import DataSettings, expand_path
from trifold.data.files import is_dataset
from trifold.data.frames import name_frames
from trifold.dtypes import dtype_name
from trifold.errors import SettingsError, TrifoldError, UsageError
from trifold.folders import AnyPath, UntrustedPath, named, open_named
from trifold.generation_config import GenerationConfig, resolve
from trifold.hub.names import find_run_recipe, no_run_error
from trifold.nn import load_part
from trifold.nn.lora import LoRASettings
from trifold.nn.variants import ModelConfig
from trifold.objectives import DEFAULT_KIND, KINDS, settings_class
from trifold.objectives.defaults import Added, complete, complete_recorded, describe_sizes
from trifold.objectives.objective import ObjectiveSettings
from trifold.objectives.scheduled_sampling import fitting_k
from trifold.settings import Conflict, Settings, nearest, warn
from trifold.suggest import check_arguments, no_recipe_error
from trifold.text import TokenizerSettings
from trifold.yaml_dialect import MAX_CHARACTERS, YAMLError, dump, load, parse

SUFFIXES = (".yaml", ".yml")
INCLUDED = importlib.resources.files("trifold") / "recipes"
# Schedules whose rates depend on the number of steps -> the attribute of `TrainSettings` with the
# length of their decay.
FINITE_SCHEDULES = {"linear": "steps", "cosine": "steps", "warmup-stable-decay": "decay_steps"}
# Keys that have an effect only with certain values of another key: key -> (the other key, these
# values).
DEPENDENT_KEYS: dict[str, tuple[str, tuple[str, ...]]] = {
    "final_rate": ("schedule", tuple(FINITE_SCHEDULES)),
    **dict.fromkeys(("decay", "decay_form"), ("schedule", ("warmup-stable-decay",))),
    **dict.fromkeys(("beta1", "beta2", "epsilon"), ("optimizer", ("adam", "adamw", "muon"))),
    "weight_decay_on": ("optimizer", ("adamw", "adafactor", "muon", "sgd")),
    **dict.fromkeys(("relative_step", "update_clip"), ("optimizer", ("adafactor",))),
    "momentum": ("optimizer", ("muon", "sgd")),
    "nesterov": ("optimizer", ("sgd",)),
    **dict.fromkeys(("muon_rate", "muon_scale"), ("optimizer", ("muon",))),
    **dict.fromkeys(("muon_iterations", "muon_polynomial"), ("optimizer", ("muon",))),
}


class TrainSettings(Settings):
    """The training loop. A step is one update of the weights."""

    seed: int = Field(
        1, ge=0, lt=2**64, description="seed of weights, data order, dropout and held-out data"
    )
    steps: int = Field(10_000, gt=0)
    last_step: int | None = Field(
        None,
        ge=0,
        description="step after which the run ends, though the schedule goes on; folds choose it "
        "(data.holdout)",
    )
    minutes: float | None = Field(None, gt=0, description="stop after this wall time")
    accumulate: int = Field(1, gt=0, description="batches per update")

    schedule: Literal["inverse-sqrt", "linear", "cosine", "constant", "warmup-stable-decay"] = (
        "inverse-sqrt"
    )
    learning_rate: float | None = Field(
        None, gt=0, description="peak rate; by default d_model^-0.5 · warmup^-0.5"
    )
    warmup: int = Field(4000, ge=0, description="steps of linear warmup")
    final_rate: float = Field(
        0.0,
        ge=0,
        le=1,
        description="linear, cosine, warmup-stable-decay: last rate, as a share of the peak",
    )
    decay: float = Field(
        0.1,
        gt=0,
        description="warmup-stable-decay: steps of the decay; below 1, a share of all steps",
    )
    decay_form: Literal["linear", "1-sqrt"] = Field(
        "linear", description="warmup-stable-decay: decay form"
    )

    optimizer: Literal["adam", "adamw", "adafactor", "muon", "sgd"] = Field(
        "adam", description="see below the tables"
    )
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.98, ge=0, lt=1)
    epsilon: float = Field(1e-9, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    weight_decay_on: Literal["everything", "matrices", "hidden"] | None = Field(
        None,
        description="parameters with weight decay: all; matrices (no biases, no norms); or "
        "matrices of the layers only (no embeddings, no heads). By default matrices, and "
        "everything with adam and sgd",
    )
    relative_step: bool = Field(
        True, description="adafactor: multiply rates by the RMS of each parameter"
    )
    update_clip: float = Field(
        1.0, gt=0, description="adafactor: largest RMS of an update, before the rate"
    )
    momentum: float = Field(
        0.95, ge=0, lt=1, description="muon: momentum of hidden matrices; sgd: of all weights"
    )
    nesterov: bool = Field(False, description="sgd: Nesterov momentum")
    muon_rate: float = Field(
        1.0, gt=0, description="muon: rate of hidden matrices, relative to the others"
    )
    muon_scale: Literal["match-rms", "original", "none"] = Field(
        "match-rms",
        description="muon: scale of an n × m update: 0.2 · sqrt(max(n, m)), which matches "
        "AdamW; sqrt(max(1, n / m)); or 1",
    )
    muon_iterations: int = Field(
        5, ge=1, description="muon: Newton–Schulz iterations; fewer are faster"
    )
    muon_polynomial: Literal["jordan", "polar-express"] = Field(
        "jordan",
        description="muon: polynomial of an iteration: the same quintic in each; or the optimal "
        "one for the number of iterations (at most 5), two of which do about as much as three of "
        "the other",
    )
    freeze: tuple[str, ...] = Field(
        (), strict=False, description="parts, or patterns of parameter names, that are not trained"
    )
    lora: LoRASettings | None = Field(
        None, description="train only low-rank adapters, and new heads"
    )
    layer_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="factor of the learning rate from each layer to the one before it",
    )
    clip: float | None = Field(None, gt=0, description="largest gradient norm")
    ema: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="decay of the moving average of weights that is validated and saved",
    )

    start_from: str | None = Field(
        None, description="the same as the key `start_from` of the recipe"
    )
    precision: Literal["auto", "float32", "bfloat16", "int8", "float64"] = "auto"
    recompute: Literal["none", "blocks"] = Field(
        "none",
        description="blocks: recompute blocks in the backward pass; less memory, more time, "
        "bit-identical results",
    )
    compile: Literal["none", "blocks"] = Field(
        "none",
        description="blocks: compile the blocks (torch.compile) with a C++ compiler or, on a "
        "GPU, Triton; requires workers: 1",
    )
    device: str = "auto"
    sharding: Literal["none", "full"] = Field(
        "none",
        description="with several processes (`torchrun`), each has all weights and optimizer "
        "states, or (full) a shard",
    )
    workers: int | None = Field(
        None,
        gt=0,
        description="parts of a batch that are processed in parallel on a CPU; by default one "
        "per thread, with at least 1,024 tokens each",
    )

    log_every: int = Field(20, gt=0)
    validate_every: int = Field(500, gt=0)
    baselines: bool = Field(
        True,
        description="measure simple models of the task on the validation rows, too: the most "
        "frequent label, a linear model on words, …",
    )
    save_every: int = Field(500, gt=0)
    keep_last: int = Field(5, gt=0, description="number of latest checkpoints to keep")
    keep_every: int | None = Field(
        None, gt=0, description="also keep checkpoints at multiples of this step"
    )
    keep_best: bool = Field(False, description="also keep the checkpoint of the best validation")
    async_save: bool = Field(
        False, description="save in the background, from a copy; as durable and exact"
    )
    average: int = Field(
        1, gt=0, description="validate and save the mean of this many latest checkpoints"
    )
    patience: int | None = Field(
        None, gt=0, description="validations without improvement before a run stops"
    )
    samples: int = Field(5, ge=0, description="texts to show at a validation")

    on_nonfinite: Literal["stop", "skip"] = Field(
        "stop", description="at a non-finite loss or gradient: stop the run, or skip the update"
    )
    on_spike: Literal["accept", "skip", "rewind"] = Field(
        "accept",
        description="at a loss spike: accept the update, skip it, or return to the last "
        "checkpoint and continue after the batch",
    )
    spike_factor: float = Field(
        2.0, gt=1, description="a spike exceeds this multiple of the recent median"
    )
    spike_window: int = Field(50, ge=5, description="number of recent losses")
    skip_limit: int = Field(10, ge=0, description="skipped updates of a run before it stops")
    check_memory: bool = Field(
        True, description="reject a run that is predicted not to fit into memory"
    )

    @field_validator("precision", mode="before")
    @classmethod
    def _name_precision(cls, value: Any) -> Any:
        """The name of PyTorch for another name of a type, such as bf16."""
        return dtype_name(value) if isinstance(value, str) else value

    @property
    def worker_count(self) -> int | None:
        """`workers`; 1 with compiled blocks, whose random numbers come from a generator that all
        threads share.
        """
        if self.compile == "blocks":
            return 1
        return self.workers

    @property
    def end(self) -> int:
        """The last step of the run."""
        if self.last_step is None:
            return self.steps
        return min(self.steps, self.last_step)

    @property
    def decay_steps(self) -> int:
        """Steps of the decay of warmup-stable-decay."""
        if self.decay < 1:  # a share of all steps
            return max(1, round(self.decay * self.steps))
        return int(self.decay)

    @model_validator(mode="after")
    def _check(self) -> Self:
        problem = next(self._contradictions(), None)
        if isinstance(problem, Conflict):
            raise problem
        if problem is not None:
            raise ValueError(problem)
        return self

    def _contradictions(self) -> Iterator[str | Conflict]:
        """What is wrong with the settings together; the first one is reported."""
        yield from self._keys_without_effect()
        yield from self._checkpoint_contradictions()
        yield from self._schedule_contradictions()
        yield from self._averaging_contradictions()
        yield from self._optimizer_contradictions()
        yield from self._compilation_contradictions()

    def _keys_without_effect(self) -> Iterator[Conflict]:
        for key, (chooser, values) in DEPENDENT_KEYS.items():
            value = getattr(self, key)
            chosen = getattr(self, chooser)
            default = type(self).model_fields[key].default
            if value != default and chosen not in values:
                text = f"{key} {value} has no effect with {chooser} {chosen}"
                yield Conflict(text, {key: default}, f"remove it, or use {' or '.join(values)}")

    def _checkpoint_contradictions(self) -> Iterator[str | Conflict]:
        """Checkpoints that an average needs, and that are not there."""
        if self.average > self.keep_last:
            text = (
                f"average {self.average} requires keep_last of at least {self.average}, not "
                f"{self.keep_last}"
            )
            yield Conflict(text, {"keep_last": self.average, "average": self.keep_last})
        if self.average > 1 and self.validate_every % self.save_every:
            yield (
                f"with average > 1, validate_every ({self.validate_every}) must be a multiple "
                f"of save_every ({self.save_every}), so that every validation has a new "
                "checkpoint to average"
            )

    def _schedule_contradictions(self) -> Iterator[str | Conflict]:
        """Warmup and decay that do not fit the number of steps."""
        if self.schedule in FINITE_SCHEDULES and self.warmup >= self.steps:
            text = f"warmup {self.warmup} leaves none of the {self.steps} steps for the decay"
            yield Conflict(text, {"warmup": self.steps // 10}, "lower it")
        if self.decay > 1 and self.decay % 1:
            yield f"decay {self.decay} is neither a share below 1 nor a whole number of steps"
        if self.schedule == "warmup-stable-decay" and self.warmup + self.decay_steps > self.steps:
            yield f"warmup {self.warmup} and decay {self.decay_steps} exceed the {self.steps} steps"
        length = FINITE_SCHEDULES.get(self.schedule)
        if length is not None and getattr(self, length) == 1 and not self.final_rate:
            yield (
                f"schedule {self.schedule} decays to rate 0 in a single step, which learns "
                f"nothing; set {length.removesuffix('_steps')} to 2 or more, or final_rate above 0"
            )

    def _averaging_contradictions(self) -> Iterator[Conflict]:
        if self.ema is not None and self.average > 1:
            text = f"ema {self.ema} and average {self.average} both average the weights"
            yield Conflict(text, {"average": 1, "ema": None}, "choose one")

    def _optimizer_contradictions(self) -> Iterator[str | Conflict]:
        if self.muon_polynomial == "polar-express" and self.muon_iterations > 5:
            text = (
                f"muon_iterations {self.muon_iterations} exceeds the 5 of polar-express, after "
                "which singular values of about 0.0006 of the largest are already near 1"
            )
            ways = {"muon_iterations": 5, "muon_polynomial": "jordan"}
            yield Conflict(text, ways, "set it to 5 or less")
        if self.optimizer == "adafactor" and self.learning_rate is None:
            yield "adafactor requires learning_rate; its paper uses 0.01 with relative_step"
        if self.optimizer == "sgd" and self.learning_rate is None:
            yield "sgd requires learning_rate; try 0.1, which is far above the rates of Adam"
        if self.nesterov and not self.momentum:
            text = "nesterov has no effect with momentum 0"
            yield Conflict(text, {"nesterov": False, "momentum": 0.9})

    def _compilation_contradictions(self) -> Iterator[Conflict]:
        if self.compile != "blocks":
            return
        if self.workers not in (None, 1):
            text = (
                f"compile: blocks does not support workers {self.workers}, because all threads "
                "share one random generator"
            )
            yield Conflict(text, {"workers": 1, "compile": "none"})
        if self.precision == "int8":
            text = "compile: blocks does not support precision: int8"
            yield Conflict(text, {"precision": "auto", "compile": "none"})


class Recipe(Settings):
    """All settings of a run; `resolved()` is the content of its recipe.yaml."""

    name: str
    description: str = ""
    start_from: str | None = Field(
        None,
        description="folder, run or hub id of weights (and model, tokenizer if unset); heads "
        "may differ",
    )
    pretrain: dict[str, Any] | None = Field(
        None, description="settings of a first stage (task.kind: masked)"
    )
    task: SerializeAsAny[ObjectiveSettings] = Field(
        {}, validate_default=True, description="its `kind` selects the class"
    )
    data: DataSettings
    tokenizer: TokenizerSettings = TokenizerSettings()
    model: ModelConfig = ModelConfig()
    batch: BatchSettings = BatchSettings()
    train: TrainSettings = TrainSettings()
    generate: GenerationConfig = GenerationConfig()

    @model_validator(mode="before")
    @classmethod
    def _move_start_from(cls, values: Any) -> Any:
        """Values with `train.start_from` at the top."""
        if not isinstance(values, Mapping):
            return values
        train = values.get("train")
        if not isinstance(train, Mapping) or train.get("start_from") is None:
            return values
        inner = train["start_from"]
        outer = values.get("start_from")
        if outer not in (None, inner):
            raise ValueError(
                f"start_from: {outer} and train.start_from: {inner} differ; remove one of them"
            )
        return {**values, "start_from": inner, "train": {**train, "start_from": None}}

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not name.strip(".") or any(sign in "/\\:" or not sign.isprintable() for sign in name):
            raise ValueError(
                f"{name!r:.100} cannot be the name of a folder in runs/; choose another"
            )
        return name

    @field_validator("task", mode="before")
    @classmethod
    def _select_objective(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        kind = str(values.get("kind", DEFAULT_KIND))
        if kind not in KINDS:
            raise ValueError(f"kind {kind!r} is not known{nearest(kind, list(KINDS), 'kinds')}")
        try:
            return settings_class(kind).parse(values, at="task")
        except SettingsError as error:
            raise ValueError(str(error)) from None

    @field_validator("model")
    @classmethod
    def _fit_model(cls, model: ModelConfig, info: ValidationInfo) -> ModelConfig:
        """The model, with the heads of the task unless the recipe names some."""
        if "task" not in info.data:  # it has an error of its own
            return model
        task: ObjectiveSettings = info.data["task"].evaluated
        if model.heads is None:
            chosen = {key: getattr(model, key) for key in model.model_fields_set - {"heads"}}
            model = task.with_heads(model).model_copy(update=chosen)
        if problem := task.model_problem(model):
            raise ValueError(problem)
        return model

    @model_validator(mode="after")
    def _check_relations(self) -> Self:
        task: Any = self.task
        if self.generate.prompt is not None and hasattr(task, "prompt"):
            raise ValueError(
                "generate.prompt: would differ from what the model is trained with; remove it, or "
                "set task.prompt"
            )
        if self.train.compile != "none" and task.kind == "distill" and task.relations.weights:
            raise ValueError(
                "task.relations reads activations inside blocks, which train.compile: blocks "
                "does not support; set train.compile to none, or the weights of the relations to 0"
            )
        return self

    @cached_property
    def overrides(self) -> dict[str, Any]:
        """The overrides that `load_recipe` applied: dotted key -> value. They are not part of the
        settings.
        """
        return {}

    @cached_property
    def chosen(self) -> dict[str, Any]:
        """What a user has set, by group: the recipe file, unless it is an included one, with the
        overrides. It is not part of the settings.
        """
        return {}

    @cached_property
    def notes(self) -> list[str]:
        """Lines about the other defaults that `load_recipe` chose, which are printed once the data
        has been read. They are not part of the settings.
        """
        return []

    @cached_property
    def sized(self) -> list[str]:
        """The dotted keys whose values are defaults for the size of the data: estimates, which
        training replaces by those for what it has counted. It is not part of the settings.
        """
        return []

    def describe_sizes(self, start: ModelConfig | None) -> Iterator[str]:
        """Lines about the values for the size of the data. start: the config of start_from."""
        return describe_sizes({key: self.value(key) for key in self.sized}, start)

    def value(self, dotted: str) -> Any:
        """The value of a dotted key."""
        group, key = dotted.split(".")
        return getattr(getattr(self, group), key)

    @cached_property
    def size_notes(self) -> list[str]:
        """Lines about the estimates. They are not part of the settings."""
        return []

    def resolved(self) -> str:
        """YAML with all defaults."""
        return dump(self.model_dump())


# Groups whose defaults give way to what a user sets.
GROUPS: dict[str, type[Settings]] = {
    "data": DataSettings,
    "tokenizer": TokenizerSettings,
    "model": ModelConfig,
    "train": TrainSettings,
}


def included_recipes() -> dict[str, dict[str, Any]]:
    """Name -> content of the included recipes."""
    return {
        name: deepcopy(_parsed(file.read_text("utf-8"), file.name))
        for name, file in _included_files().items()
    }


def included_names() -> Collection[str]:
    """The names of the included recipes, which are not read."""
    return _included_files().keys()


def _included_files() -> dict[str, Traversable]:
    """Name -> file of the included recipes."""
    files = [file for file in INCLUDED.iterdir() if file.name.endswith(".yaml")]
    return {
        file.name.removesuffix(".yaml"): file for file in sorted(files, key=lambda file: file.name)
    }


@cache
def _parsed(text: str, name: str) -> dict[str, Any]:
    """The content of an included recipe. A command asks for the names of all more than once."""
    return parse(text, name)


def recipe_names() -> dict[str, str]:
    """Name -> description of the included recipes."""
    return {name: recipe.get("description", "") for name, recipe in included_recipes().items()}


def missing_files(recipe: Mapping[str, Any]) -> list[str]:
    """The missing files and folders that an included recipe and its first stages name, or
    `data.train=FILE` if it names no data.
    """
    parts = recipe.get("task", {}).get("parts")
    if not recipe.get("data", {}).get("train") and not parts:
        return ["data.train=FILE"]
    files = named_files(recipe)
    return [file for file in files if not is_dataset(file) and not expand_path(file).exists()]


def named_files(recipe: Mapping[str, Any]) -> list[str]:
    """The sources of data, the teacher and the tokenizer that a recipe and its first stages name,
    each once.
    """
    task = recipe.get("task", {})
    groups = (recipe.get("data", {}), *task.get("parts", {}).values())
    sources = [group.get(key) for group in groups for key in ("train", "valid", "test")]
    sources += [task.get("teacher"), recipe.get("tokenizer", {}).get("file")]
    files: list[str] = []
    for source in sources:
        if isinstance(source, str) and source:
            files.append(source)
        elif source:
            files += source
    if recipe.get("pretrain"):
        files += named_files(recipe["pretrain"])
    return list(dict.fromkeys(files))


def load_recipe(
    name: AnyPath,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    imports_parts: bool = False,
) -> Recipe:
    """Load an included recipe, a YAML file or the recipe of a run folder, and apply dotted
    `key=value` overrides.

    `model: {preset: transformer-base, dropout: 0.2}` starts from a preset. imports_parts: import
    the parts that a recipe file names in `model.parts`, because a user has named the file. The
    recipe of a run may come from others: its parts are not imported, and nothing that it names is
    opened for its defaults. Raises SettingsError or UsageError.
    """
    arguments = overrides if isinstance(overrides, Sequence) else ()
    values, default_name, is_included = _read(name, arguments)
    check_arguments(str(name), arguments)
    is_foreign = _is_of_a_run(name)
    if imports_parts and named(name).path.is_file() and not is_foreign:
        _import_parts(values)
    # What the user has set: the file and the overrides. The values of an included recipe are
    # defaults, as those of a preset.
    written = {} if is_included else deepcopy(values)
    given = _apply_overrides(overrides, values, written)
    values.setdefault("name", default_name)
    lines: list[str] = []
    added = Added()
    if is_foreign:
        complete_recorded(values)
    else:
        added = _complete(values, written)
        lines += added.lines
        lines += _fit_sampling(values)
    lines += settle(values, written)
    try:
        recipe = Recipe.parse(values)
    except SettingsError as error:
        if not is_foreign or given:
            raise
        # No one has named the file.
        errors = [f"{_file_of(name)}: {line}" for line in str(error).splitlines()]
        raise SettingsError("\n".join(errors)) from None
    recipe.notes.extend(lines)
    recipe.overrides.update(given)
    recipe.chosen.update(written)
    recipe.sized.extend(added.sized)
    recipe.size_notes.extend(recipe.describe_sizes(added.start))
    if recipe.pretrain is not None:  # its model is that of the first stage, whose data may differ
        recipe.sized.clear()
    return recipe


def _apply_overrides(
    overrides: Sequence[str] | Mapping[str, Any], *recipes: dict[str, Any]
) -> dict[str, Any]:
    """Set the overrides in the values of the recipes; return their values by dotted key."""
    given: dict[str, Any] = {}
    for key, value in _override_pairs(overrides):
        value = name_frames(key, value)
        # Earlier overrides of the same key, or of keys in its group.
        replaced = {old: given[old] for old in given if f"{old}.".startswith(f"{key}.")}
        if replaced and replaced != {key: value}:
            warn(f"{key} is set again; {value!r} replaces the earlier value")
        given[key] = value
        for values in recipes:
            set_key(values, key, value)
    return given


def with_values(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """The recipe with other values of dotted keys, which are valid."""
    groups = dict[str, dict[str, Any]]()
    for dotted, value in values.items():
        group, key = dotted.split(".")
        groups.setdefault(group, {})[key] = value
    update = {
        group: getattr(recipe, group).model_copy(update=changes)
        for group, changes in groups.items()
    }
    return carry_facts(recipe, recipe.model_copy(update=update))


def carry_facts(source: Recipe, target: Recipe) -> Recipe:
    """The target with what is not part of the settings of the recipe that it derives from."""
    facts: dict[str, Any] = {
        "overrides": {**source.overrides},
        "chosen": {**source.chosen},
        "notes": [*source.notes],
        "sized": [*source.sized],
        "size_notes": [*source.size_notes],
    }
    target.__dict__.update(facts)  # of cached properties
    return target


def _complete(values: dict[str, Any], written: Mapping[str, Any]) -> Added:
    """Add the defaults of the task; of an unknown key, such as data.trian, and what is missing
    without it, the error names the key.
    """
    try:
        return complete(values, written)
    except TrifoldError:
        _check_keys(values)
        raise


def _fit_sampling(values: Mapping[str, Any]) -> Iterator[str]:
    """Choose the constant of scheduled sampling, so that the share is reached at the last step. A
    line about it.
    """
    task = values.get("task")
    group = task.get("scheduled_sampling") if isinstance(task, Mapping) else None
    if not isinstance(group, dict) or group.get("k") is not None:
        return
    with suppress(SettingsError):  # which `Recipe` reports
        steps = TrainSettings.parse(values.get("train") or {}).steps
        k = fitting_k(group, steps)
        if k is not None:
            group["k"] = k
            yield f"for {steps:,} steps: task.scheduled_sampling.k={k:g}"


def _check_keys(values: Mapping[str, Any]) -> None:
    """Raises SettingsError if the values of a recipe have an unknown key."""
    model = values.get("model")
    if isinstance(model, Mapping):  # whose preset has been expanded, if its name is known
        values = {**values, "model": {key: model[key] for key in model if key != "preset"}}
    try:
        Recipe.parse(values)
    except SettingsError as error:
        if "unknown key" in error.message:
            raise


def _override_pairs(overrides: Sequence[str] | Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Dotted keys and values."""
    if isinstance(overrides, Mapping):
        return overrides.items()
    joined = " ".join(overrides)
    are_split = any("=" not in text or text.startswith("=") for text in overrides)
    if are_split and re.search(r"(^| )[\w.]+( = | =|= )[^ =]+( |$)", joined):
        together = re.sub(r" ?= ?", "=", joined)
        raise UsageError(f"{joined!r:.60}: write key=value without spaces, as in {together:.60}")
    _check_quotes(overrides)
    return map(split_override, overrides)


def _check_quotes(overrides: Sequence[str]) -> None:
    """Raises UsageError for words that a shell has separated from the value before them."""
    first = next((n for n, text in enumerate(overrides) if "=" not in text), 0)
    # A key that lacks its value is no word.
    if first and not overrides[first].startswith("-") and "." not in overrides[first].strip("."):
        words = takewhile(lambda text: "=" not in text, overrides[first:])
        whole = " ".join([overrides[first - 1], *words])
        raise UsageError(
            f"{overrides[first]!r} is not key=value; if it belongs to the value before it, put "
            f"both in quotes: {shlex.quote(whole)}"
        )


def _import_parts(values: Mapping[str, Any]) -> None:
    """Import the parts that `model.parts` names; other values are reported by `Recipe`."""
    model = values.get("model")
    if not isinstance(model, Mapping) or not isinstance(model.get("parts"), list):
        return
    for part in model["parts"]:
        if isinstance(part, str):
            load_part(part)


def settle(values: dict[str, Any], written: Mapping[str, Any]) -> list[str]:
    """Let the defaults in the values of a recipe give way to settings that exclude them. A line
    for each.

    written: what a user has set; it keeps its values.
    """
    lines: list[str] = []
    for name, cls in GROUPS.items():
        group = values.get(name)
        chosen = written.get(name, {})
        if isinstance(group, Mapping) and isinstance(chosen, Mapping):
            values[name] = {**group}
            lines += cls.settle(values[name], chosen.keys(), name)
    group = values.get("generate")
    chosen = written.get("generate")
    if isinstance(group, Mapping) and isinstance(chosen, Mapping):
        values["generate"] = {**group}
        lines += _settle_generation(values["generate"], chosen)
    return lines


def _settle_generation(values: dict[str, Any], chosen: Mapping[str, Any]) -> Iterator[str]:
    """Remove the settings of other strategies of generation than that of the chosen ones."""
    defaults = {key: value for key, value in values.items() if key not in chosen}
    with suppress(SettingsError):  # which `Recipe` reports
        kept = resolve(defaults, chosen).model_fields_set
        if dropped := [key for key in defaults if key not in kept]:
            for key in dropped:
                del values[key]
            names = " and ".join(dropped)
            yield f"generate: {' and '.join(chosen)} excludes {names}; the default gives way"


def is_run(name: AnyPath) -> bool:
    """Whether this is a run folder, and not the name of an included recipe."""
    return find_run_recipe(named(name)) is not None and not (INCLUDED / f"{name}.yaml").is_file()


def _is_of_a_run(name: AnyPath) -> bool:
    """Whether a recipe is that of a run: the folder is named, the file was found in a folder that
    is, or it lies beside other files of a run.
    """
    path = named(name)
    is_found = path.path != path.root
    return is_run(name) or is_found or (path.path.parent / "environment.json").exists()


def _file_of(name: AnyPath) -> UntrustedPath:
    """The named file, or the recipe.yaml of the named run."""
    path = named(name)
    return path / "recipe.yaml" if is_run(name) else path


def _read(name: AnyPath, arguments: Sequence[str]) -> tuple[dict[str, Any], str, bool]:
    """The values of a recipe, its default name, and whether it is an included one. arguments: the
    others of the command, for an error.
    """
    path = _file_of(name)
    if path.suffix in SUFFIXES:
        return _read_file(path), path.stem, False
    included = INCLUDED / f"{name}.yaml"
    if included.is_file() and not path.path.is_file():
        return parse(included.read_text("utf-8"), str(name)), str(name), True
    if path.exists() and not path.is_folder():
        if not path.path.is_file():  # a named pipe, which is read once
            return _read_file(path), path.stem, False
        if (values := _read_if_recipe(path)) is not None:
            return values, path.stem, False
    error = no_recipe_error(str(name), arguments, recipe_names())
    raise error or no_run_error(path.path)


def _read_if_recipe(path: UntrustedPath) -> dict[str, Any] | None:
    """The values of a file with any suffix, if it has a group of a recipe. One of data is none."""
    with suppress(TrifoldError):
        values = _read_file(path)
        if any(isinstance(values.get(group), Mapping) for group in Recipe.model_fields):
            return values
    return None


def _read_file(path: UntrustedPath) -> dict[str, Any]:
    """The values of a recipe file, which may be a named pipe if the user named it. Raises
    SettingsError, UsageError if it cannot be read, and CheckpointError for a link that leads out of
    the folder of a run.
    """
    try:
        with open_named(path) as file:
            content = file.read(4 * MAX_CHARACTERS + 1)
            size = max(len(content), os.fstat(file.fileno()).st_size)
        if size > 4 * MAX_CHARACTERS:
            raise SettingsError(f"{path}: {size:,} bytes is too large; is this a recipe?")
        return parse(content.decode("utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{path}: byte {error.start + 1} is not valid UTF-8; save the file as UTF-8"
        ) from None
    except OSError as error:
        raise UsageError(f"{path}: cannot read the file ({error.strerror})") from None


def split_override(text: str) -> tuple[str, Any]:
    """Dotted key and value of `key=value`. Raises UsageError."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"{text!r} is not key=value; an example is train.steps=2000")
    try:
        return key, load(value)
    except YAMLError:
        return key, value


def set_key(values: dict[str, Any], dotted: str, value: Any) -> None:
    """Set the value of a dotted key."""
    *path, last = dotted.split(".")
    for part in path:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise SettingsError(f"{dotted}: {part} is a value, not a group of keys")
    values[last] = value
