"""A model folder: config.json, model.safetensors, generation_config.json, as the Hugging Face ecosystem has them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trifold.errors import CheckpointError, SettingsError
from trifold.hub import rules
from trifold.hub.families import FAMILIES
from trifold.hub.family import Family
from trifold.hub.files import read_json, write_json
from trifold.hub.filling import Stored, filled
from trifold.hub.generation import END, GENERATION_KEYS, read_generation, write_generation
from trifold.hub.lazy import Each
from trifold.hub.sharding import LARGEST_SHARD
from trifold.hub.weights import dtype_name, has_weights, read_weights, write_weights
from trifold.nn import ModelConfig, Transformer
from trifold.nn.config import Head

CONFIG = "config.json"
GENERATION = "generation_config.json"
DOWNLOADED = ["*.json", "model*.safetensors", "*.model", "*.spm", "*.txt", "*.jinja", "bpe.codes"]
PICKLED = ["pytorch_model*.bin"]  # downloaded for those who trust them
LARGEST_TABLE = 2**28  # entries of the position table, the one large thing that no weights file vouches for
MOST_LAYERS = 10_000  # that may share their blocks


# --- out -----------------------------------------------------------------------------------------------


def save_model(
    folder: Path,
    model: Transformer,
    *,
    generation: Mapping[str, object] | None = None,
    dtype: torch.dtype = torch.float32,
    max_shard_size: int | str = LARGEST_SHARD,
) -> None:
    """Write the model in the form that it came from, or of the first family that it fits; `generation` holds
    settings by our names. Weights of more than `max_shard_size` (bytes, 500MB, 5GB) are dealt out to shards.

    Every file is replaced in one step. Raises CheckpointError where the folder cannot be written.
    """
    config = model.config
    family = _family_for(model)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be made ({error.strerror}); choose another folder") from None
    parameters, table = dict(model.named_parameters()), family.rules(config)
    tensors = rules.saving(table, Each(parameters, lambda name, p: p.detach().to("cpu", dtype)))
    shapes = rules.saving(
        table, Each(parameters, lambda name, p: torch.empty_like(p, dtype=dtype, device="meta"))
    )
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
    """config.json, which is written last, with `more` keys, and generation_config.json."""
    if config.decoder_layers:
        write_json(folder / GENERATION, write_generation(config, generation))
    about = {
        "model_type": family.model_type,
        "architectures": [family.architecture(config)],
        "dtype": dtype_name(dtype),
    }
    write_json(folder / CONFIG, family.write(config) | dict(more or {}) | about)


def _family_for(model: Transformer) -> Family:
    return next(families_for(model.config, model.family))


def families_for(config: ModelConfig, first: object = None) -> Iterator[Family]:
    """The families that can say everything that the config says, the one called `first` before the others."""
    asked = [family for name, family in FAMILIES.items() if name == first]
    return (family for family in (*asked, *FAMILIES.values()) if family.fits(config))


# --- in ------------------------------------------------------------------------------------------------


def load_model(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    heads: Sequence[Head] | None = None,
    n_labels: int | None = None,
    stored: Stored | None = None,
) -> tuple[Transformer, dict[str, object]]:
    """The model in a folder, in evaluation mode, and its generation settings by our names.

    `stored` "int8" keeps the matrices in one byte a weight, for running only; what is computed is of `dtype`.

    `heads` (and `n_labels` classes) in the place of the folder's own: what it has of them is read, the rest is new.
    Raises CheckpointError where something is missing, damaged, of a family that is not known, or does not fit.
    """
    values = read_json(folder / CONFIG)
    family, config = family_and_config(values, folder / CONFIG)
    weights = read_weights(folder)
    config, held = settled(family, config, weights, folder / CONFIG)
    tensors = rules.load(family.rules(config), weights, held, str(folder))
    generation = generation_of(folder, config, values)
    if heads is None:
        model = filled(Transformer(config, initialize=False), tensors, dtype, device, stored=stored)
    else:
        other = _with_heads(family, config, values, tuple(heads), n_labels, folder / CONFIG)
        model = filled(Transformer(other), tensors, dtype, device, new=("heads.", "lm_head."), stored=stored)
    model.family = family.model_type
    return model.eval(), generation


def read_config(folder: Path) -> ModelConfig:
    """What kind of model lies in a folder; of its weights no more is read than that needs. Raises CheckpointError."""
    family, config = family_and_config(read_json(folder / CONFIG), folder / CONFIG)
    if family.settle is None or not has_weights(folder):
        return config
    return family.settle(config, read_weights(folder))


def family_and_config(values: Mapping[str, Any], place: Path) -> tuple[Family, ModelConfig]:
    """What the content of a config.json says. Raises CheckpointError for a family or a key that is not known."""
    family = _family_of(values, place)
    return family, _config_of(family, values, place)


def settled(
    family: Family, config: ModelConfig, weights: Mapping[str, Tensor], place: Path
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The config as the tensors have it, and the parameters of such a model on the meta device.

    Raises CheckpointError where sizes are absurd.
    """
    config = config if family.settle is None else family.settle(config, weights)
    _check_sizes(config, weights, place)
    try:
        with torch.device("meta"):
            return config, dict(Transformer(config).named_parameters())
    except (RuntimeError, TypeError, OverflowError) as error:  # a product of sizes that fits no number
        raise CheckpointError(f"{place}: no model has such sizes ({str(error).splitlines()[0]})") from None


def _family_of(values: Mapping[str, Any], place: Path) -> Family:
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise CheckpointError(f"{place}: model_type: {model_type!r} is not known; known: {known}")
    return FAMILIES[model_type]


def _config_of(family: Family, values: Mapping[str, Any], place: Path) -> ModelConfig:
    try:
        return family.read(values)
    except SettingsError as error:
        raise CheckpointError("\n".join(f"{place}: {line}" for line in str(error).splitlines())) from None


def _check_sizes(config: ModelConfig, weights: Sized, place: Path) -> None:
    """A few absurd numbers in a small file must not cost hours or all memory before the weights contradict them."""
    layers = config.encoder_layers + config.decoder_layers
    own = layers if config.block_of_layer is None else len(set(config.block_of_layer))
    if own > len(weights) or layers > MOST_LAYERS:
        raise CheckpointError(f"{place}: {layers} layers, but the weights are {len(weights)} tensors")
    if config.max_positions * config.d_model > LARGEST_TABLE:
        raise CheckpointError(
            f"{place}: {config.max_positions} positions of width {config.d_model} are too many"
        )
    widest = max(config.d_ff, config.vocab_size, config.output_vocab_size, config.n_heads * config.head_width)
    if widest * config.d_model > 2**48:
        raise CheckpointError(f"{place}: a matrix of {widest} x {config.d_model} is too large")


def _with_heads(
    family: Family,
    config: ModelConfig,
    values: Mapping[str, Any],
    heads: tuple[Head, ...],
    n_labels: int | None,
    place: Path,
) -> ModelConfig:
    """The config as the family reads it from a file of the class that has these heads."""
    try:
        named = family.architecture(config.model_copy(update={"heads": heads}))
    except StopIteration:
        raise CheckpointError(f"{place}: a {family.model_type} with the heads {heads} is not known") from None
    other: dict[str, object] = {"architectures": [named]}
    if n_labels is not None:
        other |= {"num_labels": n_labels, "id2label": None, "label_names": None}
    if "heads" in values:  # our own form says them in our words
        other |= {"heads": list(heads), "n_labels": n_labels or config.n_labels}
    return _config_of(family, {**values, **other}, place)


def generation_of(folder: Path, config: ModelConfig, values: Mapping[str, Any]) -> dict[str, object]:
    """The generation settings of a folder, by our names; `values` are the content of its config.json.

    Raises CheckpointError for one that we cannot follow.
    """
    if not config.decoder_layers:
        return {}
    if (folder / GENERATION).is_file():
        place = folder / GENERATION
        return read_generation(config, read_json(place), str(place))
    # Old folders keep these settings in config.json.
    old = {key: value for key, value in values.items() if key in GENERATION_KEYS}
    if isinstance(values.get(END), list):  # config knows one end; of several, all end what is written
        old[END] = values[END]
    return read_generation(config, old, str(folder / CONFIG))


# --- where ---------------------------------------------------------------------------------------------


def resolve(name: str, *, pickled: bool = False) -> Path:
    """The model folder that a name means: a folder here (of a model, or of a run that holds one), or a hub id, of
    which pickled weights are downloaded only if asked for and if there are no others.

    Raises CheckpointError where it is neither, or cannot be had now.
    """
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        inner = folder / "model"
        return inner if not (folder / CONFIG).is_file() and (inner / CONFIG).is_file() else folder
    if folder.is_file():
        raise CheckpointError(f"{name}: a file, not the folder of a model")
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", name, re.ASCII):
        raise CheckpointError(f"{name!r}: no such folder")
    found = _downloaded(name, DOWNLOADED)
    return _downloaded(name, DOWNLOADED + PICKLED) if pickled and not has_weights(found) else found


def _downloaded(name: str, files: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    missing = f"{name}: no such folder here, and"
    try:
        return Path(snapshot_download(name, allow_patterns=files, ignore_patterns=["*/*"]))
    except RepositoryNotFoundError:
        raise CheckpointError(
            f"{missing} no such model on the hub that you may read; check the name"
        ) from None
    except LocalEntryNotFoundError:
        raise CheckpointError(
            f"{missing} the hub cannot be reached and the model is not in the cache; "
            "go online once (and unset HF_HUB_OFFLINE), or give the path of a folder"
        ) from None
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{missing} the hub does not give it: {reason}") from None
