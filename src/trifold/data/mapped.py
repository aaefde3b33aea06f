"""Arrays on the disk, read as they are needed, in memory that does not grow with the file."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

# Pages that were read stay with the process until somebody else needs them: harmless, but it looks like a leak, and
# counts as one where a container limits memory. They are handed back after so many bytes; reading them again is cheap.
_HELD = 32 << 20
_AROUND = 1 << 16  # what the system maps around a page that is read


class Mapped:
    """A file of numbers that is indexed like an array of one dimension; what it gives are copies."""

    def __init__(self, path: Path, dtype: DTypeLike) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._all: NDArray[Any] = np.frombuffer(self._map, dtype)
        self._touched = 0

    def __len__(self) -> int:
        return len(self._all)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._all.dtype

    @property
    def nbytes(self) -> int:
        return self._all.nbytes

    def __getitem__(self, key: Any) -> Any:
        found = self._all[key]
        if isinstance(key, slice):
            found = found.copy()  # whoever keeps a view would read again, page by page, after a release
        runs = 1
        if isinstance(key, np.ndarray) and key.ndim == 1 and len(key) > 1:
            runs += int(np.count_nonzero(np.abs(np.diff(key)) * found.itemsize > _AROUND))
        self._touched += found.nbytes + runs * _AROUND
        if self._touched > _HELD:
            self._touched = 0
            self.release()
        return found

    def __array__(self, dtype: DTypeLike = None, copy: bool | None = None) -> NDArray[Any]:
        """All of it, as an array that still lies on the disk."""
        return np.array(self._all, dtype=dtype, copy=copy)

    def release(self) -> None:
        """Hand back the memory of what has been read, where the system can."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
