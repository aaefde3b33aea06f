"""Defaults of a recipe that depend on its task, on the model that it starts from, and on its data,
whose part is in `sizes`.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from trifold.errors import SettingsError, TrifoldError, join_or
from trifold.folders import UntrustedPath
from trifold.hub import read_config, resolve
from trifold.hub.families import FAMILIES
from trifold.hub.folder import family_name
from trifold.hub.presets import PRESETS as PUBLISHED_PRESETS
from trifold.hub.sentence_transformers import SentenceModules, read_modules
from trifold.nn.config import Shape
from trifold.nn.presets import PRESETS
from trifold.nn.variants import ModelConfig
from trifold.objectives import DEFAULT_KIND, KINDS, settings_class
from trifold.objectives.linear_path import without_path
from trifold.objectives.objective import ObjectiveSettings
from trifold.objectives.prompted import PromptSettings
from trifold.objectives.sizes import (
    FOLDED,
    estimate_sizes,
    is_unsized_student,
    sizes_of_student,
)
from trifold.settings import as_yaml, nearest

# Sizes that a model shares with the one that its initial weights come from.
SIZES = "d_model d_embedding n_heads n_kv_heads d_head d_ff n_token_types max_positions".split()
# Of these, what no initial weights fit that have another value.
FIXED_SIZES = ("d_model", "n_layers", "n_heads", "d_ff")
# Sizes that are not listed: whether texts are compared, and what follows from it.
OF_COMPARISON = tuple(
    f"model.{key}" for key in ("word_matches", "positions", "classifier_input", "heads")
)
# That also apply to an existing tokenizer.
TOKENIZER_KEYS = ("add", "extract", "dropout", "dropout_epochs")
# The recipe that trains any model of a shape.
TASK_OF_SHAPE = {"decoder": "causal", "encoder": "masked", "encoder-decoder": "translate"}
GROUPS = ("task", "data", "tokenizer", "model", "batch", "train")  # of a recipe
Defaults: TypeAlias = Mapping[str, Mapping[str, Any]]  # group of a recipe -> its values


class Added(NamedTuple):
    """What `complete` has added.

    sized: the dotted keys of values for the size of the data, which is estimated. start: the config
    of start_from. lines: about other defaults that depend on files.
    """

    sized: tuple[str, ...] = ()
    start: ModelConfig | None = None
    lines: tuple[str, ...] = ()


def complete(values: dict[str, Any], written: Mapping[str, Any]) -> Added:
    """Add the defaults of the task to the values of a recipe, and expand its preset.

    A recipe that leaves the model to its task also gets defaults for the size of its data. With
    start_from, its model and its tokenizer are those of that folder. written: what a user has set.
    """
    groups = {name: values.get(name, {}) for name in GROUPS}
    objective = _find_objective(groups)
    if objective is None:
        return Added()  # an error, which `Recipe` reports
    start_from = values.get("start_from") or groups["train"].get("start_from")
    _check_start_sizes(groups["model"], start_from)
    if objective.data_kind == "parts":  # which have data of their own
        values.setdefault("data", {})
    defaults: Defaults = {"tokenizer": objective.special}
    for_size: Defaults = {}
    config = None
    if objective.defaults and _is_open(groups["model"], objective):
        shape = groups["model"].get("shape")
        defaults, config = _for_task(objective, start_from, shape)
        if config is not None:
            _check_shape(objective, config, start_from)
            _check_tokenizer(written.get("tokenizer"))
        if not groups["data"].get("train"):
            raise SettingsError("data.train: no training data; set data.train=FILE")
        may_fold = _may_fold(groups) and not values.get("pretrain")
        for_size = estimate_sizes(groups, config, may_fold=may_fold)
    elif is_unsized_student(groups, wraps=objective.wraps):
        student = None
        with suppress(TrifoldError):  # which training reports
            student = objective.initial_model(groups["task"])
        for_size = sizes_of_student(groups, student)
    _add_missing(values, groups, defaults, for_size)
    _expand_preset(values, objective)
    _add_prompt(values, objective)
    lines = _take_sizes(values, objective, groups["model"], written)
    return Added(_added_keys(groups, for_size), config, tuple(lines))


def complete_recorded(values: dict[str, Any]) -> None:
    """Add the defaults of the task to the values of the recipe of a run, and expand its preset.
    Training records all values, so this matters for a recipe that others wrote: nothing that it
    names is opened.
    """
    groups = {name: values.get(name, {}) for name in GROUPS}
    objective = _find_objective(groups)
    if objective is None:
        return  # an error, which `Recipe` reports
    if objective.data_kind == "parts":
        values.setdefault("data", {})
    defaults: Defaults = {"tokenizer": objective.special}
    if objective.defaults and _is_open(groups["model"], objective):
        defaults = objective.defaults_for(groups["model"].get("shape"))
    _add_missing(values, groups, defaults, {})
    _expand_preset(values, objective)


def _is_open(model: Mapping[str, Any], objective: type[ObjectiveSettings]) -> bool:
    """Whether a recipe leaves the model to its task: it sets neither preset nor shape, or another
    shape of the task than its usual one, and not all sizes.
    """
    if "preset" in model:
        return False
    if "shape" not in model:
        return True
    others = set(objective.shapes[1:])
    return model["shape"] in others and not model.keys() >= {*FIXED_SIZES}


def _may_fold(groups: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether folds may choose the steps of a small number of rows: not where the latest ones are
    held out, and not in a limited time.
    """
    limits = groups["data"].get("time"), groups["train"].get("minutes")
    return _kind(groups) in FOLDED and limits == (None, None)


def _find_objective(groups: Mapping[str, Any]) -> type[ObjectiveSettings] | None:
    """The settings class of the task; None if a group of the recipe has no keys or the kind is
    unknown.
    """
    if not all(isinstance(group, Mapping) for group in groups.values()):
        return None
    kind = _kind(groups)
    return settings_class(kind) if kind in KINDS else None


def _kind(groups: Mapping[str, Mapping[str, Any]]) -> str:
    return str(groups["task"].get("kind", DEFAULT_KIND))


def _add_missing(
    values: dict[str, Any], groups: Defaults, defaults: Defaults, for_size: Defaults
) -> None:
    """Add defaults to the groups of a recipe. A named file holds a whole group."""
    for name, given in groups.items():
        added = {**defaults.get(name, {}), **for_size.get(name, {})}
        if added and "file" not in given:
            values[name] = {**added, **given}


def _expand_preset(values: dict[str, Any], objective: type[ObjectiveSettings]) -> None:
    """Replace the preset of the model by its values, beside which those of the recipe win."""
    model = dict(values.get("model", {}))
    preset = model.pop("preset", None)
    if preset is not None:
        values["model"] = {**objective.with_heads(_find_preset(preset)).model_dump(), **model}


def _add_prompt(values: dict[str, Any], objective: type[ObjectiveSettings]) -> None:
    """Record the default prompt of a task in the recipe of a decoder."""
    shape = values.get("model", {}).get("shape")
    task = values.get("task", {})
    if shape != "decoder" or not issubclass(objective, PromptSettings) or "file" in task:
        return
    values["task"] = {"prompt": objective.default_prompt, **task}
    if values["task"]["prompt"] is None:
        values["task"]["prompt"] = objective.default_prompt


def _find_preset(name: Any) -> ModelConfig:
    known = [*PRESETS, *PUBLISHED_PRESETS]
    if name not in known:
        raise SettingsError(f"model.preset: unknown preset {name!r}{nearest(str(name), known)}")
    if name in PRESETS:
        return PRESETS[name]
    return PUBLISHED_PRESETS[name].config


def _added_keys(groups: Defaults, for_size: Defaults) -> tuple[str, ...]:
    """The dotted keys that a recipe leaves to the size of its data."""
    return tuple(
        f"{name}.{key}"
        for name, settings in for_size.items()
        for key in settings
        if key not in groups[name] and "file" not in groups[name]
    )


def describe_sizes(sizes: Mapping[str, Any], start: ModelConfig | None) -> Iterator[str]:
    """A line about values for the size of the data, unless the recipe sets all of them, and one
    about the learning rate for the width of the model of start_from.

    sizes: by dotted key.
    """
    shown = {key: value for key, value in sizes.items() if key not in OF_COMPARISON}
    rate = None
    if start is not None:
        rate = shown.pop("train.learning_rate", None)
    if sizes.get("model.word_matches"):
        shown["model.word_matches"] = "true"
    if shown:
        listed = " ".join(f"{key}={value}" for key, value in shown.items())
        yield f"for the size of the data: {listed}"
    if start is not None and rate is not None:
        yield f"for the width of start_from, {start.d_model}: train.learning_rate={rate}"


# --- sizes of initial weights ---------------------------------------------------------------------


def _take_sizes(
    values: dict[str, Any],
    objective: type[ObjectiveSettings],
    given: Mapping[str, Any],
    written: Mapping[str, Any],
) -> list[str]:
    """Give the model the sizes that its initial weights need, where a user has set no others.

    given: the model of the recipe. Without preset and shape, all other values are those of the
    model that the weights come from. written: what a user has set.
    """
    task, model = (written.get(name) or {} for name in ("task", "model"))
    if not (isinstance(task, Mapping) and isinstance(model, Mapping) and task):
        return []  # the sizes of an included recipe are those of its own initial weights
    if model.keys() >= {"n_layers", *SIZES}:
        return []
    config = None
    with suppress(TrifoldError):  # which training reports
        config = objective.initial_model(values["task"])
    if config is None:
        return []
    needed = {key: getattr(config, key) for key in SIZES if key not in model}
    if "n_layers" not in given:
        needed["n_layers"] = config.n_layers
    base = {**ModelConfig().model_dump(), **values.get("model", {})}
    if not {"preset", "shape"} & given.keys():
        values["model"] = {**objective.with_heads(config).model_dump(), **given}
    values["model"] = {**values["model"], **needed}
    changed = [f"model.{key}={as_yaml(size)}" for key, size in needed.items() if size != base[key]]
    if not changed:
        return []
    return [f"for the initial weights: {' '.join(changed)}"]


# --- start_from -----------------------------------------------------------------------------------


def _for_task(
    objective: type[ObjectiveSettings], start_from: Any, shape: Shape | None
) -> tuple[Defaults, ModelConfig | None]:
    """The defaults of an objective for a shape, and the config of the model that training starts
    from, which replaces some of them. Raises SettingsError if that has another shape.
    """
    if not isinstance(start_from, str):
        return objective.defaults_for(shape), None
    start = resolve(start_from)
    config = _with_heads(start, objective)
    if shape not in (None, config.shape):
        raise SettingsError(
            f"model.shape: {shape}, but the model of start_from ({start_from}) is of shape "
            f"{config.shape}; leave out model.shape"
        )
    defaults = {
        **objective.defaults_for(config.shape),
        "model": config.model_dump(),
        "tokenizer": {"file": str(start)},
    }
    if "pooling" in objective.model_fields and (modules := read_modules(start)) is not None:
        defaults["task"] = _of_sentence_model(start, modules)
        defaults["batch"] = {**defaults["batch"], "max_length": modules.max_length}
    return defaults, config


def _check_start_sizes(model: Mapping[str, Any], start_from: Any) -> None:
    """Raises SettingsError if a recipe sets another size than the model in the folder of start_from
    has, which gives a new model its sizes. That of a run has all sizes and is not checked.
    """
    if not isinstance(start_from, str) or model.keys() >= {"n_layers", *SIZES}:
        return
    config = None
    with suppress(TrifoldError, OSError):  # which training reports
        if Path(start_from).expanduser().is_dir():  # a name of the hub would be downloaded
            config = read_config(resolve(start_from))
    if config is None:
        return
    preset = model.get("preset")
    sizes = dict(model)
    if preset in [*PRESETS, *PUBLISHED_PRESETS]:
        sizes = {**_find_preset(preset).model_dump(), **model}
    for key in FIXED_SIZES:
        if sizes.get(key, getattr(config, key)) != getattr(config, key):
            setting = f"model.{key}: {sizes[key]}"
            if key not in model:
                setting = f"model.preset: {preset} has {key} {sizes[key]}"
            raise SettingsError(
                f"{setting}, but the model of start_from ({start_from}) has "
                f"{getattr(config, key)}; leave out model and tokenizer, because start_from has "
                "both"
            )


def _check_shape(objective: type[ObjectiveSettings], config: ModelConfig, start_from: str) -> None:
    """Raises SettingsError if the task does not train models of the shape of start_from."""
    if config.shape in objective.shapes:
        return
    raise SettingsError(
        f"start_from: {start_from} is of shape {config.shape}, but this task trains shape "
        f"{join_or(objective.shapes)}; train it as `{TASK_OF_SHAPE[config.shape]}`, or start from "
        "another model"
    )


def _check_tokenizer(written: Any) -> None:
    """Raises SettingsError if a user sets how a tokenizer is trained, beside start_from, whose
    tokenizer is used. written: the group of the recipe.
    """
    if not isinstance(written, Mapping) or "file" in written:
        return
    for key in written:
        if key not in TOKENIZER_KEYS:
            raise SettingsError(
                f"tokenizer.{key}: has no effect, because start_from has a tokenizer; leave it out"
            )


def _of_sentence_model(start: UntrustedPath, modules: SentenceModules) -> dict[str, Any]:
    """The settings of a folder of sentence-transformers that training keeps."""
    problem = modules.problem
    if modules.dense:
        problem = f"{start} has dense layers after pooling"
    if problem is not None:
        raise SettingsError(
            f"start_from: {problem}, which training does not support; remove modules.json to train "
            "without"
        )
    return {
        "pooling": modules.pooling,
        "normalise": modules.normalise,
        "prompts": dict(modules.prompts),
        "default_prompt": modules.default_prompt,
        "similarity": modules.similarity,
    }


def _with_heads(folder: UntrustedPath, objective: type[ObjectiveSettings]) -> ModelConfig:
    """The config of a model folder, with the heads for the objective as its family has them, and
    without labels and what is fitted for them.
    """
    config = read_config(folder)
    family = FAMILIES[family_name(folder)]
    needed = {*objective.heads_for(config.shape)}
    # Number of heads -> an architecture of the family that has those of the objective.
    by_heads = {
        len(fields["heads"]): name
        for name, fields in family.architectures.items()
        if fields["shape"] == config.shape and needed <= {*fields["heads"]}
    }
    if by_heads:
        fewest = by_heads[min(by_heads)]
        config = family.read({"architectures": [fewest], **family.write(config)})
    labels = ModelConfig().model_dump(include={"n_labels", "label_names", "problem_type"})
    return without_path(objective.with_heads(config)).model_copy(update=labels)
