"""Defaults of a recipe that depend on its task and its data: model, special tokens, steps, held-out
data.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

from trifold.data import DataSettings
from trifold.data.image_sets import measure_images
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
from trifold.objectives.data_size import measure_texts
from trifold.objectives.objective import ObjectiveSettings
from trifold.objectives.prompted import PromptSettings
from trifold.objectives.rates import fine_tuning_rate, new_rate
from trifold.settings import as_yaml, nearest

# Limit of the tokens of the data, width and layers of a model for less.
WIDTHS = ((50_000, 64, 2), (1_000_000, 128, 2), (inf, 256, 4))
GRAY = ("1", "L", "LA", "I", "I;16")  # modes of Pillow without colors
# Sizes that a model shares with the one that its initial weights come from.
SIZES = "d_model d_embedding n_heads n_kv_heads d_head d_ff n_token_types max_positions".split()
# Of these, what no initial weights fit that have another value.
FIXED_SIZES = ("d_model", "n_layers", "n_heads", "d_ff")
# That also apply to an existing tokenizer.
TOKENIZER_KEYS = ("add", "extract", "dropout", "dropout_epochs")
# The recipe that trains any model of a shape.
TASK_OF_SHAPE = {"decoder": "causal", "encoder": "masked", "encoder-decoder": "translate"}
HELD_OUT = 500_000  # most tokens of the held-out tenth
GROUPS = ("task", "data", "tokenizer", "model", "batch", "train")  # of a recipe
Defaults: TypeAlias = Mapping[str, Mapping[str, Any]]  # group of a recipe -> its values


def complete(values: dict[str, Any], written: Mapping[str, Any]) -> list[str]:
    """Add the defaults of the task to the values of a recipe, and expand its preset. A line for
    each kind of default that depends on files.

    A recipe that leaves the model to its task also gets defaults for the size of its data. With
    start_from, its model and its tokenizer are those of that folder. written: what a user has set.
    """
    groups = {name: values.get(name, {}) for name in GROUPS}
    objective = _find_objective(groups)
    if objective is None:
        return []  # an error, which `Recipe` reports
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
        for_size = _for_size(groups, config)
    elif _is_unsized_student(groups, objective):
        for_size = _for_student(groups, objective)
    _add_missing(values, groups, defaults, for_size)
    _expand_preset(values, objective)
    _add_prompt(values, objective)
    return [
        *_describe_added(groups, for_size, config),
        *_take_sizes(values, objective, groups["model"], written),
    ]


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


def _describe_added(
    groups: Defaults, for_size: Defaults, start: ModelConfig | None
) -> Iterator[str]:
    """A line about the defaults for the size of the data, unless the recipe sets all of them, and
    one about the learning rate for the width of the model of start_from.
    """
    added = {
        f"{name}.{key}": value
        for name, settings in for_size.items()
        for key, value in settings.items()
        if key not in groups[name]
    }
    rate = None
    if start is not None:
        rate = added.pop("train.learning_rate", None)
    if added:
        yield f"for the size of the data: {' '.join(f'{key}={added[key]}' for key in added)}"
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
    without labels.
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
    return objective.with_heads(config).model_copy(update=labels)


# --- size of the data -----------------------------------------------------------------------------


def _is_unsized_student(
    groups: Mapping[str, Mapping[str, Any]], objective: type[ObjectiveSettings]
) -> bool:
    """Whether a recipe trains a student on data, and leaves steps or rate to the size of it."""
    is_sized = groups["train"].keys() >= {"steps", "learning_rate"}
    return objective.wraps and not is_sized and bool(groups["data"].get("train"))


def _for_student(
    groups: Mapping[str, Mapping[str, Any]], objective: type[ObjectiveSettings]
) -> dict[str, dict[str, Any]]:
    """Settings of training, by group, for the size of the data of a student, whose model is that of
    its teacher. The rate is that of a new model.
    """
    student = None
    with suppress(TrifoldError):  # which training reports
        student = objective.initial_model(groups["task"])
    wrapped = {**groups, "task": groups["task"].get("of") or {"kind": "causal"}}
    student = student or ModelConfig.parse({})
    chosen = _for_size(wrapped, student)
    chosen["train"]["learning_rate"] = float(f"{new_rate(student.d_model):.2g}")
    return chosen


def _for_size(
    groups: Mapping[str, Mapping[str, Any]], start: ModelConfig | None
) -> dict[str, dict[str, Any]]:
    """Settings, by group, for the size of the training data. start: the config of start_from.

    The learning rate is that of new weights of this width, or with `start` that of fine-tuning.
    """
    data = groups["data"]
    model = dict[str, Any]()
    if _kind(groups) == "images":
        tokens, model = _size_of_images(data, start)
        width, layers = WIDTHS[0][1:]
        longest = 0.0
    else:
        tokens, longest = _size_of_texts(groups)
        width, layers = _size_of_model(groups, tokens)
        if groups["model"].get("shape") == "decoder":  # which reads both sides of a row
            longest *= 2
    if start is None:
        width = _number(groups["model"], "d_model", width)
        sizes = {"d_model": width, "n_layers": layers, "n_heads": 4, "d_ff": 4 * width}
        positions = min(512, max(64, 1 << int(1.5 * longest).bit_length()))
        model = {**sizes, "max_positions": positions, **model}
        rate = new_rate(width)
    else:
        model = {}
        rate = fine_tuning_rate(start.d_model)
    chosen = {"model": model, "train": _schedule(groups, tokens, rate)}
    if data.get("train") and not data.get("valid"):
        chosen["data"] = {"holdout": float(f"{min(0.1, HELD_OUT / tokens):.2g}")}
    return chosen


def _size_of_model(groups: Mapping[str, Mapping[str, Any]], tokens: int) -> tuple[int, int]:
    """Width and layers of a model for data with this many tokens. Of pairs, an encoder reads one
    side and a decoder the other.
    """
    is_decoder = groups["model"].get("shape") == "decoder"
    if settings_class(_kind(groups)).data_kind == "pairs" and not is_decoder:
        tokens //= 2
    return next((width, layers) for limit, width, layers in WIDTHS if tokens < limit)


def _schedule(groups: Mapping[str, Mapping[str, Any]], tokens: int, rate: float) -> dict[str, Any]:
    """Settings of about ten epochs of this many tokens, at most 10,000 steps. rate: the peak of the
    learning rate.
    """
    batch = _number(groups["batch"], "tokens", 4096)
    epoch = tokens / (batch * _number(groups["train"], "accumulate", 1))
    steps = _number(groups["train"], "steps", min(10_000, max(100, round(10 * epoch))))
    every = min(steps, 500, max(20, steps // 10))
    return {
        "steps": steps,
        "warmup": steps // 10,
        "learning_rate": float(f"{rate:.2g}"),
        "validate_every": every,
        "save_every": every,
    }


def _size_of_texts(groups: Mapping[str, Mapping[str, Any]]) -> tuple[int, float]:
    """Estimates of the tokens of the training data, and of a long row."""
    kind = _kind(groups)
    token_bytes = 4
    if groups["tokenizer"].get("kind") == "char":
        token_bytes = 1
    tokens, longest = measure_texts(groups["data"], token_bytes, kind)
    if kind == "answer":
        longest = 512  # of windows; the lines of JSON are no rows
    return tokens, longest


def _size_of_images(
    data: Mapping[str, Any], start: ModelConfig | None
) -> tuple[int, dict[str, Any]]:
    """An estimate of the patches of all images, and a model for the size of the first one, at most
    64 x 64 pixels.
    """
    count = 1
    mode = "RGB"
    sides = [32, 32]
    with suppress(TrifoldError, OSError, TypeError):  # which training reports
        settings = DataSettings.parse({"columns": data.get("columns", {})})
        count, (mode, *sides) = measure_images(data["train"], settings)
    patch = 4 if max(sides) <= 32 else 8
    tall, wide = (max(1, round(min(side, 64) / patch)) for side in sides)
    model = {
        "image_size": [tall * patch, wide * patch],
        "patch_size": [patch, patch],
        "max_positions": tall * wide + 1,
        "d_model": 128,
        "n_layers": 4,
        "d_ff": 256,
        "stem": [32, 64, 64, 128],
        "n_channels": 1 if mode in GRAY else 3,
    }
    positions = tall * wide + 1
    if start is not None:
        positions = start.max_positions
    return count * positions, model


def _number(group: Mapping[str, Any], key: str, default: int) -> int:
    value = group.get(key)  # another type is an error, which `Recipe` reports
    if isinstance(value, int) and value > 0:
        return value
    return default
