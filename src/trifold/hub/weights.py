"""The weights of a model folder: one safetensors file, or shards with an index."""

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from trifold.errors import CheckpointError, UsageError
from trifold.folders import AnyPath, UntrustedPath, folder_or_file
from trifold.hub.files import replacing, write_json
from trifold.hub.gguf.folder import GGUFFolder
from trifold.hub.tensors import TensorFile, list_problems, renamed_tensors, write_tensors
from trifold.jsonfiles import read_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARDS = "model-*-of-*.safetensors"
PICKLE = "pytorch_model.bin"
PICKLE_INDEX = "pytorch_model.bin.index.json"
PICKLED = ("pytorch_model*.bin*", "*.pt", "*.pth", "*.ckpt")
SHARD_NAME = re.compile(r"[\w-][\w.-]*\.safetensors", re.ASCII)
MAX_SHARD = "5GB"
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}

# --- reading --------------------------------------------------------------------------------------


def has_weights(folder: UntrustedPath) -> bool:
    """Whether the folder has safetensors weights, or is a GGUF file."""
    if isinstance(folder, GGUFFolder):
        return True
    return (folder / SINGLE).exists() or (folder / INDEX).exists()


def read_weights(folder: AnyPath) -> Mapping[str, Tensor]:
    """The tensors of a model folder.

    Raises CheckpointError if there are none, if they are pickled or damaged, and if the index names
    files outside the folder or disagrees with its shards.
    """
    folder = folder_or_file(folder)
    if isinstance(folder, GGUFFolder):
        return folder.tensors
    if (folder / SINGLE).exists():
        return TensorFile(folder / SINGLE)
    if (folder / INDEX).exists():
        return open_shards(folder / INDEX, read_index(folder / INDEX, SHARD_NAME), TensorFile)
    if other := sorted(folder.glob("*.gguf")):
        raise CheckpointError(
            f"{folder}: no {SINGLE} and no {INDEX}; give the GGUF file itself, {other[0]}"
        )
    pickled = sorted(path.name for pattern in PICKLED for path in folder.glob(pattern))
    if pickled:
        raise CheckpointError(
            f"{folder / pickled[0]}: pickled weights are refused, because opening them can run "
            f"any code; if you trust them, {_remedy_for_pickles(folder)}"
        )
    remedy = "is this the folder of a model?"
    if folder.parent.name == "snapshots":  # of the hub cache; pickles are not downloaded
        remedy = (
            "if it has pickled weights, and you trust them: trifold convert ID NEW --trust-pickle"
        )
    raise CheckpointError(f"{folder}: no {SINGLE} and no {INDEX}; {remedy}")


def _remedy_for_pickles(folder: UntrustedPath) -> str:
    """How to convert the pickled weights of a folder; only usual names are converted."""
    if (folder / PICKLE).exists() or (folder / PICKLE_INDEX).exists():
        command = f"trifold convert {shlex.quote(str(folder))} NEW --trust-pickle"
        return f"turn them into {SINGLE}: {command}"
    return f"load and save_pretrained them with transformers, which writes {SINGLE}"


def read_index(place: UntrustedPath, shard_name: re.Pattern[str]) -> dict[str, str]:
    """Tensor name -> shard. Raises CheckpointError listing every shard that is not a plain file
    name.
    """
    listed = read_json(place).get("weight_map")
    if not isinstance(listed, dict):
        raise CheckpointError(
            f"{place}: weight_map: an object from tensor names to file names is required"
        )
    wrong = [
        f"{name!r} is listed in {shard!r}"
        for name, shard in listed.items()
        if not isinstance(shard, str) or not shard_name.fullmatch(shard)
    ]
    if wrong:
        kind = shard_name.pattern.rpartition(".")[2]  # the extension with which the pattern ends
        raise list_problems(
            f"{place}: weight_map: not the plain name of a {kind} file in this folder", wrong
        )
    return listed


def open_shards(
    place: UntrustedPath,
    listed: Mapping[str, str],
    open_shard: Callable[[UntrustedPath], Mapping[str, Tensor]],
) -> Mapping[str, Tensor]:
    """The tensors in the shards of an index.

    Raises CheckpointError listing all shards that are missing or damaged, and every tensor that is
    missing in its shard, is in several shards, or is not in the index.
    """
    files: dict[str, Mapping[str, Tensor]] = {}
    shards_of: dict[str, list[str]] = {}
    problems: list[str] = []
    for shard in sorted(set(listed.values())):
        try:
            files[shard] = open_shard(place.parent / shard)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        for name in files[shard]:
            shards_of.setdefault(name, []).append(shard)
    incomplete = bool(problems)
    for name in sorted({*listed, *shards_of}):
        expected = listed.get(name)
        shards = shards_of.get(name, [])
        if len(shards) > 1:
            problems.append(f"{name!r} is in {' and in '.join(shards)}")
        elif expected is None:
            problems.append(f"{name!r} is in {shards[0]}, and not in the index")
        elif shards and shards != [expected]:
            problems.append(f"{name!r} is listed in {expected} and is in {shards[0]}")
        elif not shards and not incomplete:
            problems.append(f"{name!r} is listed in {expected} and is not there")
    if problems:
        raise list_problems(
            f"{place}: the index and its shards disagree; copy the folder again", problems
        )
    return renamed_tensors({name: (files[shard], name) for name, shard in listed.items()})


# --- writing --------------------------------------------------------------------------------------


def write_weights(
    folder: Path,
    tensors: Mapping[str, Tensor],
    *,
    shapes: Mapping[str, Tensor] | None = None,
    max_shard_size: int | str = MAX_SHARD,
    on_written: Callable[[int], None] | None = None,
) -> None:
    """Write one safetensors file, or shards of at most `max_shard_size` and their index; other
    weights are removed.

    Each file is replaced atomically. shapes: the same tensors on the meta device, if `tensors` are
    made on demand. `on_written` is called with the bytes of each tensor. Raises CheckpointError if
    writing fails, UsageError for an invalid size.
    """
    if shapes is None:
        shapes = tensors
    shards = split_into_shards(shapes, parse_size(max_shard_size))
    files = dict(zip(shard_names(len(shards)), shards, strict=True))
    for file, names in files.items():
        with replacing(folder / file) as temporary:
            write_tensors(temporary, tensors, shapes, names, on_written)
    if len(files) > 1:
        total = sum(tensor.numel() * tensor.itemsize for tensor in shapes.values())
        file_of = {name: file for file, names in files.items() for name in names}
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": file_of})
    other = folder / (SINGLE if len(files) > 1 else INDEX)
    for old in [other, *folder.glob(SHARDS)]:
        if old.name not in files:
            old.unlink(missing_ok=True)


def parse_size(text: int | str) -> int:
    """Bytes of a size such as 500MB, 5GB or 2GiB. Raises UsageError."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?) ?([A-Z]*)", str(text).strip().upper(), re.ASCII)
    size = 0
    if match is not None and match[2] in _UNITS:
        size = int(float(match[1]) * _UNITS[match[2]])
    if size < 1:
        raise UsageError(f"{text!r} is not a shard size: write a number of bytes, 500MB or 5GB")
    return size


def split_into_shards(tensors: Mapping[str, Tensor], limit: int) -> list[list[str]]:
    """Names for each shard of at most `limit` bytes, in order; a larger tensor gets its own
    shard.
    """
    shards: list[list[str]] = []
    free = -1  # no shard yet
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.itemsize
        if size > free:
            shards.append([])
            free = limit
        shards[-1].append(name)
        free -= size
    return shards or [[]]


def shard_names(count: int) -> list[str]:
    """The file names of `count` shards; a single file has no number."""
    if count == 1:
        return [SINGLE]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def dtype_name(dtype: torch.dtype) -> str:
    """`bfloat16` for torch.bfloat16, as in config.json."""
    return str(dtype).removeprefix("torch.")
