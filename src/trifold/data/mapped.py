"""Arrays on the disk, read as they are needed, in memory that does not grow with the file."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

# Pages that were read stay with the process until somebody else needs them: harmless, but it looks like a leak, and
# counts as one where a container limits memory. They are handed back after so many bytes; reading them again is cheap.
_HELD = 64 << 20
_AROUND = 2 << 20  # what the system may map around a single place that is read
_RUNS = _HELD // _AROUND


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
        if not isinstance(key, np.ndarray):
            found = self._all[key]
            # Whoever kept a view would read it again, page by page, after a release.
            return self._counted(found.copy() if isinstance(key, slice) else found, 1)
        far = np.flatnonzero(np.abs(np.diff(key)) * self.dtype.itemsize > _AROUND // 32) + 1
        if len(far) < _RUNS:
            return self._counted(self._all[key], len(far) + 1)
        parts = np.split(key, far[_RUNS - 1 :: _RUNS])
        return np.concatenate([self._counted(self._all[part], _RUNS) for part in parts])

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """All of it, as an array that still lies on the disk."""
        return np.array(self._all, dtype=dtype, copy=copy)

    def release(self) -> None:
        """Hand back the memory of what has been read, where the system can."""
        self._touched = 0
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def _counted(self, found: Any, runs: int) -> Any:
        self._touched += found.nbytes + runs * _AROUND
        if self._touched > _HELD:
            self.release()
        return found
