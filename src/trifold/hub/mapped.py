"""A safetensors file as it lies on disk, mapped into memory: what was read does not stay there.

Loading copies every tensor to its place in the model. Were the file's own pages kept until the end, twice the weights
would be in memory; so those of a tensor are let go when the next one is asked for.
"""

from __future__ import annotations

import mmap
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
        self._last = (0, 0)

    def tensor(self, name: str) -> Tensor:
        """The tensor in the file's own memory: read it, and do not write."""
        self._let_go()
        about = self._header[name]
        dtype, shape = DTYPES[about["dtype"]], about["shape"]
        start, end = (self._start + offset for offset in about["data_offsets"])
        self._last = start, end
        if start == end:
            return torch.empty(shape, dtype=dtype)
        raw = torch.frombuffer(self._memory, dtype=torch.uint8, count=end - start, offset=start)
        # Old files do not begin every tensor at a multiple of its numbers' size.
        return (raw if start % dtype.itemsize == 0 else raw.clone()).view(dtype).view(shape)

    def _let_go(self) -> None:
        """Of the last tensor; who still holds it reads it from the file again."""
        start, end = self._last
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start and hasattr(mmap, "MADV_DONTNEED"):
            self._memory.madvise(mmap.MADV_DONTNEED, first, end - first)
