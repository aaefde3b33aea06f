"""Defaults of a recipe that depend on its task and its data: model, special tokens, steps, held-out
data.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from io import StringIO
from itertools import chain, groupby, islice
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from trifold.data import DataSettings, expand_path, iter_lines, list_files
from trifold.data.archives import stored_size
from trifold.data.dialects import csv_records
from trifold.data.files import FOLDER_FORMATS, FORMATS
from trifold.data.frames import Frame
from trifold.data.image_sets import measure_images
from trifold.data.lines import inner_suffix
from trifold.errors import SettingsError, TrifoldError
from trifold.hub import read_config, resolve
from trifold.hub.families import FAMILIES
from trifold.hub.presets import PRESETS as PUBLISHED_PRESETS
from trifold.hub.sentence_transformers import SentenceModules, read_modules
from trifold.jsonfiles import read_json
from trifold.nn.presets import PRESETS
from trifold.nn.variants import ModelConfig
from trifold.objectives import DEFAULT_KIND, KINDS, settings_class
from trifold.objectives.objective import ObjectiveSettings
from trifold.settings import as_yaml, nearest

WIDTHS = (
    (50_000, 64, 2),
    (1_000_000, 128, 2),
    (inf, 256, 4),
)  # below these tokens: width and layers
LARGE = 20_000_000  # bytes of files from which on only their sizes are read
# Sizes that a model shares with the one that its initial weights come from.
SIZES = "d_model d_embedding n_heads n_kv_heads d_head d_ff n_token_types max_positions".split()
HELD_OUT = 500_000  # most tokens of the held-out tenth


def complete(values: dict[str, Any], written: Mapping[str, Any]) -> list[str]:
    """Add the defaults of the task to the values of a recipe, and expand its preset. A line for
    each kind of default that depends on files.

    A recipe that leaves the model to its task also gets defaults for the size of its data. With
    start_from, its model and its tokenizer are those of that folder. written: what a user has set.
    """
    groups = {
        name: values.get(name, {})
        for name in ("task", "data", "tokenizer", "model", "batch", "train")
    }
    kind = (
        str(groups["task"].get("kind", DEFAULT_KIND)) if isinstance(groups["task"], Mapping) else ""
    )
    if kind not in KINDS or not all(isinstance(group, Mapping) for group in groups.values()):
        return []  # an error, which `Recipe` reports
    objective = settings_class(kind)
    chosen = {}
    config = None
    if objective.data_kind == "parts":  # which have data of their own
        values.setdefault("data", {})
    defaults: Mapping[str, Mapping[str, Any]] = {"tokenizer": objective.special}
    if objective.defaults and not {"preset", "shape"} & groups["model"].keys():
        defaults = objective.defaults
        if isinstance(name := values.get("start_from") or groups["train"].get("start_from"), str):
            start = resolve(name)
            config = _with_heads(start, objective)
            defaults = {**defaults, "model": config.model_dump(), "tokenizer": {"file": str(start)}}
            if "pooling" in objective.model_fields and (modules := read_modules(start)) is not None:
                defaults["task"] = _of_sentence_model(start, modules)
                defaults["batch"] = {**defaults["batch"], "max_length": modules.max_length}
        if not groups["data"].get("train"):
            raise SettingsError("data.train: no training data; set data.train=FILE")
        chosen = _for_size(groups, config)
    for name, given in groups.items():
        more = {**defaults.get(name, {}), **chosen.get(name, {})}
        if more and "file" not in given:
            values[name] = {**more, **given}
    model = dict(values.get("model", {}))
    if (preset := model.pop("preset", None)) is not None:
        values["model"] = {**objective.with_heads(_preset(preset)).model_dump(), **model}
    sized = [
        f"{g}.{key}={more[key]}"
        for g, more in chosen.items()
        for key in more
        if key not in groups[g]
    ]
    lines = [f"for the size of the data: {' '.join(sized)}"] if sized else []
    return lines + _take_sizes(values, objective, groups["model"], written)


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
    task, own = (written.get(name) or {} for name in ("task", "model"))
    if not (isinstance(task, Mapping) and isinstance(own, Mapping) and task):
        return []  # the sizes of an included recipe are those of its own initial weights
    if own.keys() >= {"n_layers", *SIZES}:
        return []
    config = None
    with suppress(TrifoldError):  # which training reports
        config = objective.initial_model(values["task"])
    if config is None:
        return []
    needed = {key: getattr(config, key) for key in SIZES if key not in own}
    if "n_layers" not in given:
        needed["n_layers"] = config.n_layers
    base = {**ModelConfig().model_dump(), **values.get("model", {})}
    if not {"preset", "shape"} & given.keys():
        values["model"] = {**objective.with_heads(config).model_dump(), **given}
    values["model"] = {**values["model"], **needed}
    new = [f"model.{key}={as_yaml(size)}" for key, size in needed.items() if size != base[key]]
    return [f"for the initial weights: {' '.join(new)}"] if new else []


def _preset(name: Any) -> ModelConfig:
    if name not in (known := [*PRESETS, *PUBLISHED_PRESETS]):
        raise SettingsError(f"model.preset: unknown preset {name!r}{nearest(str(name), known)}")
    return PRESETS[name] if name in PRESETS else PUBLISHED_PRESETS[name].config


def _of_sentence_model(start: Path, modules: SentenceModules) -> dict[str, Any]:
    """The settings of a folder of sentence-transformers that training keeps."""
    problem = f"{start} has dense layers after pooling" if modules.dense else modules.problem
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


def _with_heads(folder: Path, objective: type[ObjectiveSettings]) -> ModelConfig:
    """The config of a model folder, with the heads for the objective as its family has them, and
    without labels.
    """
    config = read_config(folder)
    family = FAMILIES[read_json(folder / "config.json")["model_type"]]
    counts = {
        len(fields["heads"]): name
        for name, fields in family.architectures.items()
        if fields["shape"] == config.shape and {*objective.heads} <= {*fields["heads"]}
    }
    if counts:
        config = family.read({"architectures": [counts[min(counts)]], **family.write(config)})
    labels = ModelConfig().model_dump(include={"n_labels", "label_names", "problem_type"})
    return objective.with_heads(config).model_copy(update=labels)


def _for_size(
    groups: Mapping[str, Mapping[str, Any]], start: ModelConfig | None
) -> dict[str, dict[str, Any]]:
    """Settings, by group, for the size of the training data. start: the config of start_from.

    The peak of the learning rate is that of 4,000 steps of warmup for this width, or a tenth of it
    with `start`.
    """
    data = groups["data"]
    batch = groups["batch"]
    train = groups["train"]
    token_bytes = 1 if groups["tokenizer"].get("kind") == "char" else 4
    kind = groups["task"].get("kind")
    images = dict[str, Any]()
    if kind == "images":
        count, images = _measure_images(data["train"], data.get("columns", {}))
        tokens = count * (images["max_positions"] if start is None else start.max_positions)
        longest = 0.0
    else:
        tokens, longest = _measure(data, token_bytes, str(kind))
    if kind == "answer":
        longest = 512  # of windows; the lines of JSON are no rows
    width, layers = next(
        (width, layers) for limit, width, layers in WIDTHS if tokens < limit or images
    )
    width = _number(groups["model"], "d_model", width) if start is None else start.d_model
    epoch = tokens / (_number(batch, "tokens", 4096) * _number(train, "accumulate", 1))
    steps = _number(train, "steps", min(10_000, max(100, round(10 * epoch))))
    rate = (4000 * width) ** -0.5 / (1 if start is None else 10)
    every = min(steps, 500, max(20, steps // 10))
    chosen: dict[str, dict[str, Any]] = {
        "model": {},
        "train": {"steps": steps, "warmup": steps // 10},
    }
    chosen["train"] |= {
        "learning_rate": float(f"{rate:.2g}"),
        "validate_every": every,
        "save_every": every,
    }
    if start is None:
        sizes = {"d_model": width, "n_layers": layers, "n_heads": 4, "d_ff": 4 * width}
        positions = min(512, max(64, 1 << int(1.5 * longest).bit_length()))
        chosen["model"] = {**sizes, "max_positions": positions} | images
    if data.get("train") and not data.get("valid"):
        chosen["data"] = {"holdout": float(f"{min(0.1, HELD_OUT / tokens):.2g}")}
    return chosen


def _measure_images(source: Any, columns: Any) -> tuple[int, dict[str, Any]]:
    """The number of images, and a model for the size of the first one, at most 64 x 64 pixels."""
    count, (mode, *sides) = 1, ("RGB", 32, 32)
    with suppress(TrifoldError, OSError, TypeError):  # which training reports
        count, (mode, *sides) = measure_images(source, DataSettings.parse({"columns": columns}))
    patch = 4 if max(sides) <= 32 else 8
    tall, wide = (max(1, round(min(side, 64) / patch)) for side in sides)
    size = [tall * patch, wide * patch]
    positions = tall * wide + 1
    image = {"image_size": size, "patch_size": [patch, patch], "max_positions": positions}
    model = {"d_model": 128, "n_layers": 4, "d_ff": 256, "stem": [32, 64, 64, 128]}
    return count, image | model | {"n_channels": 1 if mode in ("1", "L", "LA", "I", "I;16") else 3}


def _number(group: Mapping[str, Any], key: str, default: int) -> int:
    value = group.get(key)  # another type is an error, which `Recipe` reports
    return value if isinstance(value, int) and value > 0 else default


def _join_words(lines: Iterable[str]) -> Iterator[str]:
    """The sentences of files in columns, whose first one holds the words; JSON lines as they
    are.
    """
    for (is_blank, is_object), block in groupby(
        lines, lambda line: (not line.strip(), line.startswith("{"))
    ):
        if is_object:
            yield from block
        elif not is_blank:
            yield " ".join(line.split(maxsplit=1)[0] for line in block)


def _iter_records(file: str) -> Iterator[str]:
    """The lines of a file, or the records of CSV, whose texts may have several lines."""
    lines = iter_lines(file, LARGE, allow_empty=True)
    is_csv = FORMATS.get(inner_suffix(file)) == "csv"
    return (record for _, record in csv_records(lines, file, LARGE)) if is_csv else lines


def _iter_cells(frame: Frame) -> Iterator[str]:
    """The records of the CSV file with the same rows, so that both get the same defaults."""
    for cells in chain(islice(frame.rows(), 1), map(dict.values, frame.rows())):  # with a header
        line = StringIO()
        csv.writer(line, lineterminator="").writerow(cells)
        yield line.getvalue()


def _measure(data: Mapping[str, Any], token_bytes: int, kind: str) -> tuple[int, float]:
    """Estimates of the tokens of the training data, and of a long row. What cannot be read,
    training reports.
    """
    size = 0
    lengths = []
    source = data.get("train")
    with suppress(TrifoldError, OSError, TypeError, AttributeError):
        files = list_files(source, FOLDER_FORMATS[settings_class(kind).data_kind])
        size = sum(stored_size(expand_path(file)) for file in files)
        if size <= LARGE:
            lines = chain.from_iterable(map(_iter_records, files))
            rows = _join_words(lines) if kind == "tag" else lines
            rows = _iter_cells(source) if isinstance(source, Frame) else rows
            lengths = [len(row.encode()) / token_bytes + 2 for row in rows]
    longest = (
        np.percentile(lengths, 99) if lengths and data.get("documents", "line") == "line" else 512
    )
    return int(sum(lengths)) or (size or LARGE) // token_bytes, float(longest)
