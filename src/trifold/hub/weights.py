"""Tensors of a model folder: safetensors only, mapped into memory, in one file or in shards with an index."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trifold.errors import CheckpointError
from trifold.hub.files import check_inside, parse_json, read_json, replacing, write_json
from trifold.hub.mapped import DTYPES, Mapped
from trifold.hub.sharding import LARGEST_SHARD, cut, file_names, size_of
from trifold.hub.streamed import write_streamed

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARDS = "model-*-of-*.safetensors"
PICKLE, PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
PICKLED = ("pytorch_model*.bin*", "*.pt", "*.pth", "*.ckpt")
SHARD_NAME = re.compile(r"[\w-][\w.-]*\.safetensors", re.ASCII)

LARGEST_HEADER = (
    10 * 2**20
)  # bytes; the format allows ten times as many, and the largest in use has below 1 MB
MOST_LINES = 1000  # of an error that lists what is wrong


class Weights(Mapping[str, Tensor]):
    """Tensors by name, each read from its file when it is asked for."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files
        self._open = {path: _opened(path) for path in sorted(set(files.values()))}

    def __getitem__(self, name: str) -> Tensor:
        return self._open[self._files[name]].tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


# --- in ------------------------------------------------------------------------------------------------


def has_weights(folder: Path) -> bool:
    """Whether there are any that are no pickle."""
    return (folder / SINGLE).is_file() or (folder / INDEX).is_file()


def read_weights(folder: Path) -> Weights:
    """The tensors of a model folder.

    Raises CheckpointError where there are none, where they are pickled, damaged or truncated, and where the index
    names files outside the folder or disagrees with its shards.
    """
    if (folder / SINGLE).is_file():
        return of_file(folder / SINGLE)
    if (folder / INDEX).is_file():
        listed = read_index(folder / INDEX, SHARD_NAME)
        check_shards(folder / INDEX, listed, names_in)
        return Weights({name: folder / shard for name, shard in listed.items()})
    pickled = sorted(path.name for pattern in PICKLED for path in folder.glob(pattern))
    if pickled:
        ours = (folder / PICKLE).is_file() or (folder / PICKLE_INDEX).is_file()
        remedy = (
            f"turn them into {SINGLE}: trifold convert {shlex.quote(str(folder))} NEW --trust-pickle"
            if ours
            else f"load and save_pretrained them with transformers, which writes {SINGLE}"
        )
        raise CheckpointError(
            f"{folder / pickled[0]}: pickled weights are refused, because opening them can run any code; "
            f"where you trust them, {remedy}"
        )
    remedy = "is this the folder of a model?"
    if folder.parent.name == "snapshots":  # of the hub's cache, for which no pickles are downloaded
        remedy = "where it has pickled weights, and you trust them: trifold convert ID NEW --trust-pickle"
    raise CheckpointError(f"{folder}: no {SINGLE} and no {INDEX}; {remedy}")


def of_file(path: Path) -> Weights:
    """The tensors of one file; errors are those of `read_weights`."""
    return Weights(dict.fromkeys(names_in(path), path))


def read_index(place: Path, shard_name: re.Pattern[str]) -> dict[str, str]:
    """Tensor -> shard, as an index has it.

    Raises CheckpointError once for every shard that is not the plain name of a file in this folder.
    """
    listed = read_json(place).get("weight_map")
    if not isinstance(listed, dict):
        raise CheckpointError(f"{place}: weight_map: an object from tensor names to file names is required")
    wrong = [
        f"{name!r} is said to be in {shard!r}"
        for name, shard in listed.items()
        if not isinstance(shard, str) or not shard_name.fullmatch(shard)
    ]
    if wrong:
        kind = shard_name.pattern.rpartition(".")[2]
        raise _listing(f"{place}: weight_map: not the plain name of a {kind} file in this folder", wrong)
    return listed


def check_shards(place: Path, listed: Mapping[str, str], names_of: Callable[[Path], Iterable[str]]) -> None:
    """Raises CheckpointError once for all shards that are missing or damaged, and for every tensor that is not in the
    shard that the index says, that is in two of them, or that the index does not know.
    """
    held: dict[str, list[str]] = {}
    problems: list[str] = []
    for shard in sorted(set(listed.values())):
        try:
            for name in names_of(place.parent / shard):
                held.setdefault(name, []).append(shard)
        except CheckpointError as error:
            problems.append(str(error))
    broken = bool(problems)
    for name in sorted({*listed, *held}):
        said, there = listed.get(name), held.get(name, [])
        if len(there) > 1:
            problems.append(f"{name!r} is in {' and in '.join(there)}")
        elif said is None:
            problems.append(f"{name!r} is in {there[0]}, and the index does not know it")
        elif there != [said] and not (broken and not there):
            problems.append(f"{name!r} is said to be in {said} and is {f'in {there[0]}' if there else 'not'}")
    if problems:
        raise _listing(f"{place}: the index and its shards disagree; copy the folder again", problems)


def _listing(what: str, problems: list[str]) -> CheckpointError:
    more = len(problems) - MOST_LINES
    lines = [*problems[:MOST_LINES], *([f"and {more:,} more"] if more > 0 else [])]
    return CheckpointError("\n  ".join([what, *lines]))


def _opened(path: Path) -> Mapped:
    try:
        safe_open(path, framework="pt", device="cpu")  # the format's own reader checks sizes and places
        return Mapped(path, *_header(path))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: damaged or truncated ({error}); copy the file again") from None


def names_in(path: Path) -> list[str]:
    """Names in the header of a file. The format's own reader lets a name stand twice and takes the last; ours refuses.

    Raises CheckpointError where there is no such header, or tensors are of types that are not read.
    """
    check_inside(path)
    header, _ = _header(path)
    wrong = [
        f"{name!r} is of {entry.get('dtype')!r}"
        for name, entry in header.items()
        if isinstance(entry, dict) and str(entry.get("dtype")) not in DTYPES
    ]
    if wrong:
        raise _listing(f"{path}: tensors of types that are not read; write it as F32 or BF16", wrong)
    return list(header)


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """What a file says of its tensors, by name, and where the first of them begins."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > path.stat().st_size - 8:
                raise CheckpointError(
                    f"{path}: damaged or truncated (its header does not fit); copy the file again"
                )
            if size > LARGEST_HEADER:
                raise CheckpointError(
                    f"{path}: a header of {size:,} bytes is too large; at most {LARGEST_HEADER:,} are read"
                )
            header = parse_json(file.read(size), str(path))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path}: no such file, though the index names it; copy the folder again"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    return {name: entry for name, entry in header.items() if name != "__metadata__"}, 8 + size


# --- out -----------------------------------------------------------------------------------------------


def write_weights(
    folder: Path,
    tensors: Mapping[str, Tensor],
    *,
    shapes: Mapping[str, Tensor] | None = None,
    max_shard_size: int | str = LARGEST_SHARD,
    on_written: Callable[[int], None] | None = None,
) -> None:
    """Write one safetensors file in one step, or shards of at most so many bytes and then their index; weights that
    lay there in another form go last.

    shapes: the same tensors on the meta device, where these are only made when they are asked for: one is in memory
    at a time. `on_written` hears of bytes.
    Raises CheckpointError where the disk does not take it, UsageError where max_shard_size is no size.
    """
    shapes = tensors if shapes is None else shapes
    shards = cut(shapes, size_of(max_shard_size))
    files = file_names(len(shards))
    for file, names in zip(files, shards, strict=True):
        with replacing(folder / file) as temporary:
            write_streamed(temporary, tensors, shapes, names, on_written)
    if len(files) > 1:
        total = sum(tensor.numel() * tensor.itemsize for tensor in shapes.values())
        places = {name: file for file, names in zip(files, shards, strict=True) for name in names}
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": places})
    other = folder / (SINGLE if len(files) > 1 else INDEX)
    for old in [other, *folder.glob(SHARDS)]:
        if old.name not in files:
            old.unlink(missing_ok=True)


def dtype_name(dtype: torch.dtype) -> str:
    """`bfloat16` for torch.bfloat16, as config.json has it."""
    return str(dtype).removeprefix("torch.")
