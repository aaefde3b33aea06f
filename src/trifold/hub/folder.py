"""Load and save model folders in the Hugging Face layout: config.json, model.safetensors,
generation_config.json.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trifold.errors import CheckpointError
from trifold.fast.huge_pages import HugeMemory
from trifold.fast.quantized_weight import QuantizedWeight, Weight
from trifold.folders import AnyPath, UntrustedPath, folder_or_file, named
from trifold.hub import rules
from trifold.hub.families import FAMILIES, NATIVE
from trifold.hub.family import Family
from trifold.hub.files import write_json
from trifold.hub.fill import Stored, fill_model, named_matrices
from trifold.hub.generation import END, GENERATION_KEYS, read_generation, write_generation
from trifold.hub.gguf.folder import GGUFFolder
from trifold.hub.model_config import (
    complete_config,
    empty_model,
    infer_config,
    meta_parameters,
    parse_config,
)
from trifold.hub.names import ADAPTER, CONFIG, GENERATION
from trifold.hub.peft_config import read_adapter_config
from trifold.hub.peft_merge import read_adapter
from trifold.hub.sentence_transformers import MODULES
from trifold.hub.tensors import TransformedTensors
from trifold.hub.weights import MAX_SHARD, dtype_name, has_weights, read_weights, write_weights
from trifold.jsonfiles import read_json
from trifold.nn import ModelConfig, Transformer
from trifold.nn.config import Head
from trifold.nn.stack import all_modules, all_parameters
from trifold.settings import warn

# --- saving ---------------------------------------------------------------------------------------


def save_model(
    folder: Path,
    model: Transformer,
    *,
    generation: Mapping[str, object] | None = None,
    dtype: torch.dtype = torch.float32,
    max_shard_size: int | str = MAX_SHARD,
) -> None:
    """Write the model as the family it was loaded from, or else the first family that fits.

    generation: generation settings by our names. Weights larger than `max_shard_size` (bytes,
    500MB, 5GB) are split into shards. Every file is replaced atomically. Raises CheckpointError if
    the folder cannot be written.
    """
    config = model.config
    family = next(families_for(config, model.family))
    if model.family not in (None, family.model_type):
        warn(
            f"the model is saved as {family.model_type}, because {model.family} cannot represent it"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"{folder}: cannot be created ({error.strerror}); choose another"
        ) from None
    parameters = dict(model.named_parameters())
    table = family.rules(config)
    content = TransformedTensors(parameters, lambda name, p: p.detach().to("cpu", dtype))
    meta = TransformedTensors(
        parameters, lambda name, p: torch.empty_like(p, dtype=dtype, device="meta")
    )
    kept = {name: tensor.to("cpu", dtype) for name, tensor in model.unused.items()}
    tensors = rules.saving(table, content, kept)
    shapes = rules.saving(table, meta, kept)
    write_weights(folder, tensors, shapes=shapes, max_shard_size=max_shard_size)
    write_settings(folder, family, config, generation or {}, dtype)


def write_settings(
    folder: Path,
    family: Family,
    config: ModelConfig,
    generation: Mapping[str, object],
    dtype: torch.dtype,
    more: Mapping[str, object] | None = None,
) -> None:
    """Write generation_config.json and then config.json, with `more` keys."""
    if config.decoder_layers:
        write_json(folder / GENERATION, write_generation(config, generation))
    keys = family.write(config) | dict(more or {})
    keys |= {"model_type": family.model_type, "architectures": [family.architecture(config)]}
    write_json(folder / CONFIG, keys | {"dtype": dtype_name(dtype)})


def families_for(config: ModelConfig, first: object = None) -> Iterator[Family]:
    """The families that can represent the config; the one named `first` comes first."""
    names = sorted(FAMILIES, key=lambda name: name != first)
    return (FAMILIES[name] for name in names if FAMILIES[name].fits(config))


def describe_misfit(config: ModelConfig, start: AnyPath | None = None) -> str:
    """Why transformers cannot load the model, and the fewest changes of its settings with which it
    can.

    Empty if it can. start: the folder of the initial weights, whose family is the only one to
    change to.
    """
    start_family = None if start is None else family_name(named(start))
    changes_for = {
        name: family.changes(config) for name, family in FAMILIES.items() if name != NATIVE
    }
    if {} in changes_for.values():  # a family that needs no change; None: it cannot be changed to
        return ""
    note = "transformers cannot load this model, which fits none of its families"
    if nearest := fewest_changes(changes_for, start_family):
        return f"{note}; it fits {nearest}"
    return note


def nearest_family(config: ModelConfig) -> str:
    """The Hugging Face family that needs the fewest changes of settings, and these; "" if there is
    none.
    """
    changes_for = {
        name: family.changes(config) for name, family in FAMILIES.items() if name != NATIVE
    }
    return fewest_changes(changes_for)


def fewest_changes(
    changes_for: Mapping[str, Mapping[str, Any] | None], start: str | None = None
) -> str:
    """The family with the fewest changes, with them as arguments. start: the only one allowed."""
    possible = {
        name: changes for name, changes in changes_for.items() if changes and start in (None, name)
    }
    if not possible:
        return ""
    nearest = min(possible, key=lambda name: len(possible[name]))
    changes = [f"model.{key}={_as_argument(value)}" for key, value in possible[nearest].items()]
    return f"{nearest} with {' '.join(changes)}"


def _as_argument(value: object) -> str:
    """A value as the command line reads it."""
    if isinstance(value, str):
        return value
    return json.dumps(value, default=dict)


def describe_folder(folder: AnyPath) -> str:
    """The folder, and which programs load its model."""
    family = str(read_json(named(folder) / CONFIG).get("model_type"))
    reader = (
        "only trifold loads it" if family == NATIVE else f"{family}; transformers loads it, too"
    )
    return f"{folder} ({reader})"


# --- loading --------------------------------------------------------------------------------------


def load_model(
    folder: AnyPath,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    stored: Stored | None = None,
    heads: Collection[Head] = (),
) -> tuple[Transformer, dict[str, object]]:
    """The model in a folder, in evaluation mode, and its generation settings by our names. Adapters
    are merged.

    heads: further ones to load if the file has their weights, such as the pooler beside a
        language-model head.
    stored: "int8" or "int4" stores matrices in so many bits, "file" in the few bits that they have
        in a GGUF file, or in the 16 bits of a folder that a computation in float32 reads, all for
        inference only; `dtype` is that of the computation.

    Raises CheckpointError if something is missing, damaged, of an unknown family, or does not fit.
    """
    folder = folder_or_file(folder)
    values, merged = read_settings(folder)
    family, config = parse_config(values, folder / CONFIG)
    file: GGUFFolder | None = None
    memory = HugeMemory()
    # Encoders read many rows at once, whose products are faster with decoded weights.
    if stored == "file" and isinstance(folder, GGUFFolder) and config.decoder_layers:
        file = folder
        memory = file.read_ahead()
    weights = read_weights(folder) if merged is None else merged
    config = _without_absent_head(family, config, values, weights, folder)
    config = complete_config(family, config, weights, folder / CONFIG)
    config = _with_heads(family, config, heads, weights, folder)
    model = empty_model(config, folder / CONFIG)
    parameters = all_parameters(model)
    table = family.rules(config)
    conversions = rules.conversions(table, parameters)
    found: dict[str, Weight] = {}
    finish = _nothing
    if file is not None:
        shapes = {name: matrix.shape for name, matrix in named_matrices(model).items()}
        is_cpu = torch.device(device).type == "cpu"
        found, finish = file.matrices(conversions, shapes, dtype, memory, in_place=is_cpu)
    theirs = rules.checked(table, weights, parameters, str(folder))
    generation = read_generation_settings(folder_with(GENERATION, folder), config, values)
    tensors = rules.converted(conversions, theirs)
    others = ((name, tensors[name]) for name in tensors if name not in found)
    blocks = {name: each for name, each in found.items() if isinstance(each, QuantizedWeight)}
    ready = {name: each for name, each in found.items() if isinstance(each, Tensor)}
    if torch.device(device).type != "cpu":
        finish()  # before they are copied
    fill_model(model, others, dtype, device, stored, blocks, ready)
    model.family = family.model_type
    model.unused = {name: tensor.clone() for name, tensor in rules.unused(table, weights).items()}
    for module in all_modules(model):
        vars(module)["training"] = False  # as `eval` does, in a fifth of its time
    finish()
    return model, generation


def _nothing() -> None:
    """There is nothing to wait for."""


def _with_heads(
    family: Family,
    config: ModelConfig,
    heads: Collection[Head],
    weights: Mapping[str, Tensor],
    folder: UntrustedPath,
) -> ModelConfig:
    """The config with those among the heads that the file has weights of."""
    known = {head for fields in family.architectures.values() for head in fields["heads"]}
    further = set(heads).difference(config.chosen_heads)
    for head in sorted(further & known if known else further):  # a GPT-2 never has some heads
        wider = config.model_copy(update={"heads": (*config.chosen_heads, head)})
        with suppress(CheckpointError):
            _, parameters = infer_config(family, wider, weights, folder / CONFIG)
            rules.checked(family.rules(wider), weights, parameters, str(folder))
            config = wider
    return config


def _without_absent_head(
    family: Family,
    config: ModelConfig,
    values: Mapping[str, object],
    weights: Mapping[str, Tensor],
    folder: UntrustedPath,
) -> ModelConfig:
    """The config, of a sentence encoder without the language-model head of the class in its
    config.json if the weights have nothing of it. all-mpnet-base-v2 names the class that its
    training began with.
    """
    if "lm" not in config.chosen_heads or not (folder / MODULES).exists():
        return config
    plain = family.read(dict(values) | {"architectures": None})
    with_head, without = (
        set(rules.saving(family.rules(each), meta_parameters(each, folder / CONFIG)))
        for each in (config, plain)
    )
    head = with_head - without
    if head and head.isdisjoint(weights):
        return plain
    return config


def read_config(folder: AnyPath) -> ModelConfig:
    """The config of a model folder. Reads no more of the weights than the config depends on. Raises
    CheckpointError.
    """
    folder = folder_or_file(folder)
    family, config = parse_config(read_settings(folder)[0], folder / CONFIG)
    if family.infer is None or not has_weights(folder):
        return config
    return family.infer(config, read_weights(folder))


def read_settings(folder: UntrustedPath) -> tuple[dict[str, Any], Mapping[str, Tensor] | None]:
    """The content of config.json, and for an adapter the weights of its base with the adapter
    merged.
    """
    if not (folder / ADAPTER).exists():
        return read_json(folder / CONFIG), None
    return read_adapter(folder)


def folder_with(file: str, folder: UntrustedPath) -> UntrustedPath:
    """The folder that has the file: this one, or that of its base if it is an adapter without the
    file.
    """
    if (folder / file).exists() or not (folder / ADAPTER).exists():
        return folder
    return read_adapter_config(folder)[1]


def family_name(folder: UntrustedPath) -> str:
    """The model_type of a folder with a valid config; of an adapter, that of its base."""
    return str(read_json(folder_with(CONFIG, folder) / CONFIG)["model_type"])


def stored_prompt(folder: UntrustedPath) -> str | None:
    """The prompt of a model that was trained with one; None if it has none."""
    file = folder_with(GENERATION, folder) / GENERATION
    prompt = read_json(file).get("prompt") if file.exists() else None
    return prompt if isinstance(prompt, str) else None


def read_generation_settings(
    folder: UntrustedPath, config: ModelConfig, values: Mapping[str, Any]
) -> dict[str, object]:
    """The generation settings of a folder, by our names; `values` is the content of its
    config.json.

    Raises CheckpointError for an unsupported setting.
    """
    if not config.decoder_layers:
        return {}
    if (folder / GENERATION).exists():
        place = folder / GENERATION
        return read_generation(config, read_json(place), str(place))
    # Old folders keep these settings in config.json.
    old = {key: value for key, value in values.items() if key in GENERATION_KEYS}
    if isinstance(values.get(END), list):  # ModelConfig has one end token only
        old[END] = values[END]
    if values.get("force_bos_token_to_be_generated") is True:  # of the first BART
        old.setdefault("forced_bos_token_id", config.bos_id)
    return read_generation(config, old, str(folder / CONFIG))
