"""Load and save model folders in the Hugging Face layout: config.json, model.safetensors,
generation_config.json.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trifold.costs import position_table
from trifold.errors import CheckpointError, SettingsError, UsageError
from trifold.hub import rules
from trifold.hub.families import FAMILIES, NATIVE, UNSUPPORTED
from trifold.hub.family import Family
from trifold.hub.files import naming, write_json
from trifold.hub.fill import Stored, fill_model
from trifold.hub.generation import END, GENERATION_KEYS, read_generation, write_generation
from trifold.hub.rows import group_of
from trifold.hub.tensors import TransformedTensors
from trifold.hub.weights import MAX_SHARD, dtype_name, has_weights, read_weights, write_weights
from trifold.jsonfiles import read_json
from trifold.nn import ModelConfig, Transformer
from trifold.nn.config import Head
from trifold.settings import similar, warn

CONFIG, ADAPTER = "config.json", "adapter_config.json"
GENERATION = "generation_config.json"
DOWNLOADED = """
    *.json model*.safetensors adapter_model.safetensors *.model *.spm *.txt *.jinja bpe.codes
    [0-9]_Dense/model.safetensors
""".split()
PICKLED = ["pytorch_model*.bin"]  # downloaded if the user trusts them
MAX_POSITION_TABLE = (
    2**24
)  # entries of a table of sinusoids, which is not stored, beside small weights
_REVISION = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)


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
            f"{folder}: saved as {family.model_type}, because {model.family} cannot represent "
            "this model"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"{folder}: cannot be created ({error.strerror}); choose another"
        ) from None
    parameters, table = dict(model.named_parameters()), family.rules(config)
    content = TransformedTensors(parameters, lambda name, p: p.detach().to("cpu", dtype))
    meta = TransformedTensors(
        parameters, lambda name, p: torch.empty_like(p, dtype=dtype, device="meta")
    )
    kept = {name: tensor.to("cpu", dtype) for name, tensor in model.unused.items()}
    tensors, shapes = rules.saving(table, content, kept), rules.saving(table, meta, kept)
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


def describe_misfit(config: ModelConfig, start: Path | None = None) -> str:
    """Why transformers cannot load the model, and the fewest changes of its settings with which it
    can.

    Empty if it can. start: the folder of the initial weights, whose family is the only one to
    change to.
    """
    own = None if start is None else read_json(start / CONFIG)["model_type"]
    found = {name: family.changes(config) for name, family in FAMILIES.items() if name != NATIVE}
    if {} in found.values():
        return ""
    note = "transformers cannot load this model, which fits none of its families"
    if possible := {
        name: changes for name, changes in found.items() if changes and own in (None, name)
    }:
        nearest = min(possible, key=lambda name: len(possible[name]))
        found_values = possible[nearest].items()
        values = {
            k: v if isinstance(v, str) else json.dumps(v, default=dict) for k, v in found_values
        }
        note += f"; it fits {nearest} with {' '.join(f'model.{k}={v}' for k, v in values.items())}"
    return note


def describe_folder(folder: Path) -> str:
    """The folder, and which programs load its model."""
    family = str(read_json(folder / CONFIG).get("model_type"))
    reader = "for trifold only" if family == NATIVE else f"{family}, for transformers too"
    return f"{folder} ({reader})"


# --- loading --------------------------------------------------------------------------------------


def load_model(
    folder: Path,
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
    stored: "int8" stores matrices in one byte per weight, for inference only; `dtype` is that of
    the computation. Raises CheckpointError if something is missing, damaged, of an unknown family,
    or does not fit.
    """
    values, merged = read_settings(folder)
    family, config = parse_config(values, folder / CONFIG)
    weights = read_weights(folder) if merged is None else merged
    config, parameters = infer_config(family, config, weights, folder / CONFIG)
    for head in sorted(set(heads).difference(config.chosen_heads)):
        wider = config.model_copy(update={"heads": (*config.chosen_heads, head)})
        with suppress(CheckpointError):
            _, found = infer_config(family, wider, weights, folder / CONFIG)
            rules.checked(family.rules(wider), weights, found, str(folder))
            config, parameters = wider, found
    table = family.rules(config)
    theirs = rules.checked(table, weights, parameters, str(folder))
    generation = read_generation_settings(folder_with(GENERATION, folder), config, values)
    model = Transformer(config, initialize=False)
    tensors = rules.loading(table, theirs, parameters)
    fill_model(model, tensors.items(), dtype, device, stored=stored)
    model.family = family.model_type
    model.unused = {name: tensor.clone() for name, tensor in rules.unused(table, weights).items()}
    return model.eval(), generation


def read_config(folder: Path) -> ModelConfig:
    """The config of a model folder. Reads no more of the weights than the config depends on. Raises
    CheckpointError.
    """
    family, config = parse_config(read_settings(folder)[0], folder / CONFIG)
    if family.infer is None or not has_weights(folder):
        return config
    return family.infer(config, read_weights(folder))


def read_settings(folder: Path) -> tuple[dict[str, Any], Mapping[str, Tensor] | None]:
    """The content of config.json, and for an adapter the weights of its base with the adapter
    merged.
    """
    if not (folder / ADAPTER).is_file():
        return read_json(folder / CONFIG), None
    from trifold.hub.peft_merge import read_adapter

    return read_adapter(folder)


def folder_with(file: str, folder: Path) -> Path:
    """The folder, or that of the base of an adapter that does not have this file."""
    if (folder / file).is_file() or not (folder / ADAPTER).is_file():
        return folder
    from trifold.hub.peft_config import read_adapter_config

    return read_adapter_config(folder)[1]


def parse_config(values: Mapping[str, Any], place: Path) -> tuple[Family, ModelConfig]:
    """The family and config in the content of a config.json. Raises CheckpointError for an unknown
    family or key.
    """
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        if (reason := UNSUPPORTED.get(str(model_type))) is not None:
            raise CheckpointError(f"{place}: model_type: {model_type!r} is not supported: {reason}")
        known = ", ".join(FAMILIES)
        raise CheckpointError(f"{place}: model_type: {model_type!r} is not known; known: {known}")
    with naming(place):
        return FAMILIES[model_type], FAMILIES[model_type].read(values)


def infer_config(
    family: Family, config: ModelConfig, weights: Mapping[str, Tensor], place: Path
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The config completed from the tensors, and the parameters of such a model on the meta device.

    Raises CheckpointError for implausible sizes.
    """
    config = config if family.infer is None else family.infer(config, weights)
    _check_sizes(config, weights, place)
    return config, meta_parameters(config, place)


def meta_parameters(config: ModelConfig, place: Path) -> dict[str, Tensor]:
    """The parameters of such a model on the meta device. Raises CheckpointError for sizes that no
    model has.
    """
    try:
        with torch.device("meta"):
            return dict(Transformer(config).named_parameters())
    except (RuntimeError, TypeError, OverflowError) as error:  # an overflow in the product of sizes
        raise CheckpointError(
            f"{place}: no model has such sizes ({str(error).splitlines()[0]})"
        ) from None


def _check_sizes(config: ModelConfig, weights: Mapping[str, Tensor], place: Path) -> None:
    """Reject implausible sizes before they cost hours or all memory."""
    layers = config.encoder_layers + config.decoder_layers
    own = layers if config.block_of_layer is None else len(set(config.block_of_layer))
    if 4 * own > len(weights):  # a block has at least four
        raise CheckpointError(
            f"{place}: {layers} layers, but the weights are {len(weights)} tensors"
        )
    elements = sum(weights[name].numel() for name in weights)
    with naming(place):
        check_positions(config, elements)
    routed = min(own, config.expert_layers)
    experts = group_of(config, "experts")
    if experts is not None and routed * experts.count * config.d_model > elements:
        what = f"{routed} layers of {experts.count} experts"
        raise CheckpointError(f"{place}: {what}, but the weights have {elements} elements")
    for side in config.stacks.values():
        widest = max(
            side.d_ff, side.vocab_size, side.output_vocab_size, side.n_heads * side.head_width
        )
        if widest * (width := max(side.d_model, config.d_model)) > 2**48:
            raise CheckpointError(f"{place}: a matrix of {widest} x {width} is too large")


def check_positions(config: ModelConfig, elements: int, at: str = "") -> None:
    """Raise SettingsError, which begins with `at`, for too many positions beside weights of so many
    elements.
    """
    for side in config.stacks.values():
        if position_table(side) > max(MAX_POSITION_TABLE, elements):
            what = f"{at}{side.max_positions} positions of width {side.sum_width}"
            raise SettingsError(
                f"{what} are too many: their table would be larger than the weights"
            )


def read_generation_settings(
    folder: Path, config: ModelConfig, values: Mapping[str, Any]
) -> dict[str, object]:
    """The generation settings of a folder, by our names; `values` is the content of its
    config.json.

    Raises CheckpointError for an unsupported setting.
    """
    if not config.decoder_layers:
        return {}
    if (folder / GENERATION).is_file():
        place = folder / GENERATION
        return read_generation(config, read_json(place), str(place))
    # Old folders keep these settings in config.json.
    old = {key: value for key, value in values.items() if key in GENERATION_KEYS}
    if isinstance(values.get(END), list):  # ModelConfig has one end token only
        old[END] = values[END]
    return read_generation(config, old, str(folder / CONFIG))


# --- names ----------------------------------------------------------------------------------------


def resolve(
    name: str, *, pickled: bool = False, others: Iterable[str] = (), revision: str | None = None
) -> Path:
    """The model folder for a name: a local folder (of a model, or of a run that holds one), or a
    hub id.

    pickled: also download pickled weights if the model has no others. others: names that an error
    may suggest besides folders. revision: a branch, tag or commit of the hub. Raises
    CheckpointError if the name is neither, or the model cannot be downloaded.
    """
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        found = next((f for f in (folder, folder / "model") if (f / CONFIG).is_file()), folder)
        if found == folder and (folder / "recipe.yaml").is_file():
            raise CheckpointError(
                f"{name}: the run has no model yet; continue with `trifold resume {name}`"
            )
        return found
    if folder.is_file():
        raise CheckpointError(f"{name}: a file, not the folder of a model")
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", name, re.ASCII):
        raise CheckpointError(f"{name!r}: no such folder{similar_folder(folder, others)}")
    if revision is not None and not _REVISION.fullmatch(revision):
        raise CheckpointError(f"{revision!r:.100}: not the name of a revision of {name}")
    try:
        found = _download(name, DOWNLOADED, revision)
    except CheckpointError as error:
        raise CheckpointError(f"{error}{similar_folder(folder, others)}") from None
    if not pickled or has_weights(found):
        return found
    return _download(name, DOWNLOADED + PICKLED, revision)


def hub_id(folder: Path) -> tuple[str, str] | None:
    """The hub id and the commit of a folder in the cache of the hub; None for another folder."""
    *_, repository, snapshots, commit = ("", "", "", *folder.absolute().parts)
    if snapshots != "snapshots" or not repository.startswith("models--"):
        return None
    return repository.removeprefix("models--").replace("--", "/"), commit


def similar_folder(folder: Path, others: Iterable[str] = ()) -> str:
    """End of an error message about a missing folder: one beside it with a similar name, or one of
    `others`, if any.
    """
    beside = (path.name for path in folder.parent.glob("*") if path.is_dir() and path != folder)
    near = similar(folder.name, [*beside, *others])
    if not near and folder.parent == Path():
        return similar_folder(Path("runs", folder))
    return (
        near
        if folder.parent == Path()
        else near.replace("mean '", f"mean '{folder.parent.as_posix()}/")
    )


def no_run_error(folder: Path) -> UsageError:
    """The error for a folder that is not a run; it names a similar folder beside it, or runs around
    it.
    """
    parent = folder.parent
    files = [
        *parent.glob("recipe.yaml"),
        *parent.glob("*/recipe.yaml"),
        *folder.glob("*/recipe.yaml"),
    ]
    runs = ", ".join(sorted(file.parent.as_posix() for file in files)[:10])
    near = (not folder.exists() and similar_folder(folder)) or (
        f"; known runs: {runs}" if runs else ""
    )
    return UsageError(f"{folder}: no such run (a run has a recipe.yaml){near}")


def _download(name: str, files: list[str], revision: str | None = None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    missing = f"{name}: no such folder here, and"
    try:
        return Path(
            snapshot_download(
                name, revision=revision, allow_patterns=files, ignore_patterns=["[!0-9]*/*"]
            )
        )
    except RepositoryNotFoundError:
        raise CheckpointError(
            f"{missing} no model on the hub that you can access; check the name"
        ) from None
    except LocalEntryNotFoundError:
        raise CheckpointError(
            f"{missing} the hub cannot be reached and the model is not in the cache; "
            "go online once (and unset HF_HUB_OFFLINE), or give the path of a folder"
        ) from None
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise CheckpointError(f"{missing} the download failed: {reason}") from None
