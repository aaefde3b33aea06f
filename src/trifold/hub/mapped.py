"""A safetensors file as it lies on disk, mapped into memory: what was read does not stay there.

Loading copies every tensor to its place in the model. Were the file's own pages kept until the end, twice the weights
would be in memory; so those of a tensor are let go with the tensor.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DTYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8},
    **{"U8": torch.uint8, "BOOL": torch.bool},
}


class Mapped:
    """The tensors of a file whose `header` says where they begin and end, counted from `start`."""

    def __init__(self, path: Path, header: Mapping[str, Any], start: int) -> None:
        self._header, self._start = header, start
        with path.open("rb") as file:
            self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def tensor(self, name: str) -> Tensor:
        """The tensor in the file's own memory: read it, and do not write."""
        about = self._header[name]
        dtype, shape = DTYPES[about["dtype"]], about["shape"]
        start, end = (self._start + offset for offset in about["data_offsets"])
        if start == end:
            return torch.empty(shape, dtype=dtype)
        stretch = memoryview(self._memory)[start:end]
        weakref.finalize(stretch, _let_go, self._memory, start, end).atexit = False
        raw = torch.frombuffer(stretch, dtype=torch.uint8)
        # Old files do not begin every tensor at a multiple of its numbers' size.
        return (raw if start % dtype.itemsize == 0 else raw.clone()).view(dtype).view(shape)


def _let_go(memory: mmap.mmap, start: int, end: int) -> None:
    """Of these bytes; a neighbour on the same page reads it from the file again."""
    if hasattr(mmap, "MADV_DONTNEED"):
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        memory.madvise(mmap.MADV_DONTNEED, first, end - first)
