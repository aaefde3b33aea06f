"""Convert a model folder: to the Hugging Face or native form, to another precision, to shards or
one file.

No model is built. Every tensor passes through the rules of its family and of the target family when
it is written, so that one tensor is in memory at a time.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from trifold.errors import CheckpointError
from trifold.folders import AnyPath, UntrustedPath, folder_or_file, read_bytes
from trifold.hub import rules
from trifold.hub.card import read_origin, write_derived_card
from trifold.hub.families import FAMILIES, NATIVE
from trifold.hub.family import Family
from trifold.hub.files import write_json
from trifold.hub.folder import (
    families_for,
    folder_with,
    nearest_family,
    read_generation_settings,
    read_settings,
    write_settings,
)
from trifold.hub.model_config import infer_config, parse_config
from trifold.hub.names import CONFIG, GENERATION, LICENCES, TOKENIZER_FILES
from trifold.hub.output_folder import new_folder
from trifold.hub.pickles import read_pickles
from trifold.hub.sentence_transformers import read_modules, write_modules
from trifold.hub.tensors import TransformedTensors
from trifold.hub.weights import (
    MAX_SHARD,
    dtype_name,
    has_weights,
    parse_size,
    read_weights,
    write_weights,
)
from trifold.jsonfiles import read_json
from trifold.nn import ModelConfig

Form = Literal["hugging-face", "native"]

# Descriptive keys of config.json.
DESCRIPTIVE = ("id2label", "label2id", "problem_type", "task_specific_params", "finetuning_task")
# Files that are copied unchanged, except for the names of code in SETTINGS.
SETTINGS = ("tokenizer_config.json", "preprocessor_config.json")
COPIED = ["preprocessor_config.json", *LICENCES]
TEMPLATES = "additional_chat_templates"
MAX_FILE = 100 * 2**20  # bytes of a copied file
MAX_INTEGER = 10**31  # these files write 10^30 for "no limit"


class Converted(NamedTuple):
    """The families before and after; the tensors, bytes, precision and files written; tensors that
    nothing uses.
    """

    was: str
    family: str
    tensors: int
    bytes: int
    dtype: str
    files: list[str]
    unused: list[str]


def convert(
    old: AnyPath,
    new: Path,
    *,
    to: Form | None = None,
    dtype: torch.dtype | None = None,
    max_shard_size: int | str = MAX_SHARD,
    trust_pickle: bool = False,
    tokenizer: AnyPath | None = None,
    overwrite: bool = False,
    on_written: Callable[[int, int], None] | None = None,
) -> Converted:
    """Write the model in the folder `old` to `new`, which must not exist or be empty unless it is a
    model to `overwrite`.

    to: by default a family stays, and the native form becomes the first family that can represent
        the model.
    dtype: of every tensor; unchanged by default. max_shard_size: larger weights are split into
        shards.
    trust_pickle: read pickled weights, in a sandbox process. tokenizer: its folder, by default
    `old`. `on_written` is called with the bytes of all tensors and of the one just written.

    Raises CheckpointError if `old` is invalid or does not fit the form or the precision, and if
    `new` cannot be written; then nothing is left of it. Raises UsageError for an invalid size, and
    if `new` exists.
    """
    parse_size(max_shard_size)
    old = folder_or_file(old)
    values, merged = read_settings(old)
    source, config = parse_config(values, old / CONFIG)
    with (
        new_folder(new, overwrite=overwrite) as folder,
        open_weights(old, folder, merged, trust_pickle=trust_pickle) as weights,
    ):
        config, parameters = infer_config(source, config, weights, old / CONFIG)
        target = _target(source, config, values.get("family"), to, old)
        table = source.rules(config)
        theirs = rules.checked(table, weights, parameters, str(old))

        def translate(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
            kept = rules.unused(table, tensors)
            made = rules.saving(
                target.rules(config), rules.loading(table, tensors, parameters), kept
            )
            if dtype is None:
                return made
            return TransformedTensors(made, partial(_cast, dtype))

        # The same steps on the meta device give the shapes.
        meta = TransformedTensors(theirs, lambda name, t: torch.empty_like(t, device="meta"))
        shapes = dict(translate(meta))
        total = sum(tensor.numel() * tensor.itemsize for tensor in shapes.values())
        report = None if on_written is None else partial(on_written, total)
        write_weights(
            folder,
            translate(theirs),
            shapes=shapes,
            max_shard_size=max_shard_size,
            on_written=report,
        )

        _copy_files(
            old, folder, folder_or_file(tokenizer or folder_with("tokenizer_config.json", old))
        )
        if (modules := read_modules(old)) is not None:
            write_modules(folder, modules, config.d_model, config.max_positions)
        written = dtype or most_common(shapes)
        generation = read_generation_settings(folder_with(GENERATION, old), config, values)
        described = _describe(values, source, target)
        write_settings(folder, target, config, generation, written, described)
        write_derived_card(folder, read_origin(str(old), old))
        lost = [name for name in theirs if name not in shapes and rules.ignored(table, name)]
        files = sorted(
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        )
    return Converted(
        source.model_type, target.model_type, len(shapes), total, dtype_name(written), files, lost
    )


def _target(
    source: Family, config: ModelConfig, came_from: object, to: Form | None, old: UntrustedPath
) -> Family:
    """The family to write; `came_from` is the original family in a native folder."""
    if to == "native":
        return FAMILIES[NATIVE]
    if source.model_type != NATIVE:
        return source
    for family in families_for(config, came_from):
        if family.model_type != NATIVE or to is None:
            return family
    nearest = nearest_family(config)
    fits = f" (it would fit {nearest})" if nearest else ""
    raise CheckpointError(
        f"{old}: no Hugging Face family has all of its parts{fits}; leave out --to to keep the "
        "native form"
    )


@contextmanager
def open_weights(
    old: UntrustedPath, new: Path, merged: Mapping[str, Tensor] | None, *, trust_pickle: bool
) -> Iterator[Mapping[str, Tensor]]:
    """The weights of a folder. merged: those of an adapter and its base, if it is one."""
    if merged is not None:
        yield merged
        return
    if has_weights(old) or not trust_pickle:
        yield read_weights(old)
        return
    # On the target's disk, which may be the only one with enough space.
    name = f"{new.name}-"
    with tempfile.TemporaryDirectory(
        prefix=name, dir=new.parent, ignore_cleanup_errors=True
    ) as scratch:
        yield read_pickles(old, Path(scratch))


def _cast(dtype: torch.dtype, name: str, tensor: Tensor) -> Tensor:
    cast = tensor.to(dtype)
    if cast.is_meta or not cast.numel():
        return cast
    # isinf of the whole tensor would allocate another one.
    if any(bool(edge.isinf()) for edge in cast.aminmax()) and tensor.isfinite().all():
        raise CheckpointError(
            f"{name}: {float(tensor.abs().max()):g} is too large for {dtype_name(dtype)}: "
            "choose bfloat16 or float32"
        )
    return cast


def most_common(tensors: Mapping[str, Tensor]) -> torch.dtype:
    """The precision of most numbers."""
    every = [*tensors.values()]
    kinds = dict.fromkeys(tensor.dtype for tensor in every)
    return max(
        kinds, key=lambda dtype: sum(tensor.numel() for tensor in every if tensor.dtype == dtype)
    )


def _describe(values: Mapping[str, Any], source: Family, target: Family) -> dict[str, object]:
    """The descriptive keys of the old config.json, and the original family for the native form."""
    kept: dict[str, object] = {
        key: values[key] for key in DESCRIPTIVE if isinstance(values.get(key), (dict, str))
    }
    if target.model_type != NATIVE:
        return kept
    came_from = values.get("family") if source is target else source.model_type
    if isinstance(came_from, str):
        kept["family"] = came_from
    return kept


def _copy_files(old: UntrustedPath, new: Path, tokenizer: UntrustedPath) -> None:
    """Copy files without weights. Names of code are removed from settings: code is never passed
    on.
    """
    sources = [*(old / name for name in COPIED), *(tokenizer / name for name in TOKENIZER_FILES)]
    for path in (source for source in sources if source.exists()):
        settings = read_json(path, largest=MAX_INTEGER) if path.name in SETTINGS else {}
        if settings.pop("auto_map", None) is None:
            (new / path.name).write_bytes(read_bytes(path, MAX_FILE))
        else:
            write_json(new / path.name, settings)
    for path in (tokenizer / TEMPLATES).glob("*.jinja")[:32]:
        (new / TEMPLATES).mkdir(exist_ok=True)
        (new / TEMPLATES / path.name).write_bytes(read_bytes(path, MAX_FILE))
