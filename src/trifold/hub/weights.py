"""Tensors of a model folder: safetensors only, mapped into memory, in one file or in shards with an index."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from trifold.errors import CheckpointError
from trifold.hub.files import parse_json, read_json, replacing

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
LARGEST_HEADER = 100 * 10**6  # bytes, as the format has it
PICKLED = ("pytorch_model*.bin*", "*.pt", "*.pth", "*.ckpt")
SHARD_NAME = re.compile(r"[\w-][\w.-]*\.safetensors", re.ASCII)


class Weights(Mapping[str, Tensor]):
    """Tensors by name, each read from its file when it is asked for."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files
        self._open: dict[Path, Any] = {path: _opened(path) for path in sorted(set(files.values()))}

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._open[self._files[name]].get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def read_weights(folder: Path) -> Weights:
    """The tensors of a model folder.

    Raises CheckpointError where there are none, where they are pickled, damaged or truncated, and where the index
    names files outside the folder or disagrees with its shards.
    """
    if (folder / SINGLE).is_file():
        return Weights(dict.fromkeys(_names_in(folder / SINGLE), folder / SINGLE))
    if (folder / INDEX).is_file():
        return Weights(_sharded(folder))
    pickled = sorted(path.name for pattern in PICKLED for path in folder.glob(pattern))
    if pickled:
        raise CheckpointError(
            f"{folder / pickled[0]}: pickled weights are refused, because opening them can run any code; "
            f"where you trust them, load and save_pretrained them with transformers, which writes {SINGLE}"
        )
    raise CheckpointError(f"{folder}: no {SINGLE} and no {INDEX}; is this the folder of a model?")


def write_weights(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write one safetensors file in one step. Raises CheckpointError where the disk does not take it."""
    with replacing(folder / SINGLE) as temporary:
        try:
            # The reference library refuses files that do not say who wrote them.
            save_file(dict(tensors), temporary, metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(str(error)) from None


def _sharded(folder: Path) -> dict[str, Path]:
    place = folder / INDEX
    listed = read_json(place).get("weight_map")
    if not isinstance(listed, dict):
        raise CheckpointError(f"{place}: weight_map: an object from tensor names to file names is required")
    for name, shard in listed.items():
        if not isinstance(shard, str) or not SHARD_NAME.fullmatch(shard):
            raise CheckpointError(
                f"{place}: weight_map: {name!r} is said to be in {shard!r}, which is not the plain name of a "
                "safetensors file in this folder"
            )
    held = {(name, shard) for shard in set(listed.values()) for name in _names_in(folder / shard)}
    if disagreed := held ^ set(listed.items()):
        names = ", ".join(sorted({repr(name) for name, _ in disagreed}))
        raise CheckpointError(
            f"{place}: the index and its shards disagree about {names}; copy the folder again"
        )
    return {name: folder / shard for name, shard in listed.items()}


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: damaged or truncated ({error}); copy the file again") from None


def _names_in(path: Path) -> list[str]:
    """Names in the header. The format's own reader lets a name stand twice and takes the last; ours refuses."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > min(LARGEST_HEADER, path.stat().st_size - 8):
                raise CheckpointError(
                    f"{path}: damaged or truncated (its header does not fit); copy the file again"
                )
            header = parse_json(file.read(size), str(path))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path}: no such file, though the index names it; copy the folder again"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    return [name for name in header if name != "__metadata__"]


def dtype_name(dtype: torch.dtype) -> str:
    """`bfloat16` for torch.bfloat16, as config.json has it."""
    return str(dtype).removeprefix("torch.")
