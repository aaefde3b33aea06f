"""How weights are dealt out to files: as many tensors to a shard as fit, in their order."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from trifold.errors import UsageError

LARGEST_SHARD = "5GB"
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def size_of(said: int | str) -> int:
    """Bytes of a size such as 500MB, 5GB or 2GiB. Raises UsageError where it is none."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?) ?([A-Z]*)", str(said).strip().upper(), re.ASCII)
    size = int(float(found[1]) * _UNITS[found[2]]) if found is not None and found[2] in _UNITS else 0
    if size < 1:
        raise UsageError(f"{said!r} is no size of a shard: write a number of bytes, 500MB or 5GB")
    return size


def cut(tensors: Mapping[str, Tensor], limit: int) -> list[list[str]]:
    """Names for each shard of at most `limit` bytes; a tensor that is larger has one to itself."""
    shards: list[list[str]] = []
    room = -1  # no shard is open yet
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.itemsize
        if size > room:
            shards.append([])
            room = limit
        shards[-1].append(name)
        room -= size
    return shards or [[]]


def file_names(count: int) -> list[str]:
    """What the files of so many shards are called; one alone is no shard."""
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
